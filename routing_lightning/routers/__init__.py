"""Routers: who decides which block a sample takes, and how that is learned. Pure torch."""

from routing_lightning.routers.fixed import FixedRandomRoutes
from routing_lightning.routers.learner import GradientLearner, Learner
from routing_lightning.routers.policies import MLPPolicy, Policy, TabularPolicy
from routing_lightning.routers.q_learning import ApproximateQLearning, QLearning
from routing_lightning.routers.reinforce import REINFORCE
from routing_lightning.routers.rewards import CollaborationReward, correctness_reward, returns
from routing_lightning.routers.router import Router
from routing_lightning.routers.trace import Trace
from routing_lightning.routers.wpl import WPL, ApproximateWPL, wpl_update

__all__ = [
    "REINFORCE",
    "WPL",
    "ApproximateQLearning",
    "ApproximateWPL",
    "CollaborationReward",
    "FixedRandomRoutes",
    "GradientLearner",
    "Learner",
    "MLPPolicy",
    "Policy",
    "QLearning",
    "Router",
    "TabularPolicy",
    "Trace",
    "correctness_reward",
    "returns",
    "wpl_update",
]
