"""Routers: who decides which block a sample takes, and how that is learned. Pure torch."""

from routing_lightning.routers.learner import Learner
from routing_lightning.routers.policies import Policy, TabularPolicy
from routing_lightning.routers.rewards import correctness_reward, returns
from routing_lightning.routers.router import Router
from routing_lightning.routers.trace import Trace
from routing_lightning.routers.wpl import WPL, wpl_update

__all__ = [
    "WPL",
    "Learner",
    "Policy",
    "Router",
    "TabularPolicy",
    "Trace",
    "correctness_reward",
    "returns",
    "wpl_update",
]
