"""Routers: who decides which block a sample takes, and how that is learned. Pure torch."""

from routing_lightning.routers.base import BlockCopy, Decision, Router, RoutingSpec, Trace
from routing_lightning.routers.branching import BranchingRouter
from routing_lightning.routers.fixed import FixedRoutes
from routing_lightning.routers.gumbel import GumbelRouter
from routing_lightning.routers.learner import GradientLearner, Learner
from routing_lightning.routers.paired import PairedDifference
from routing_lightning.routers.policies import MLPPolicy, Policy, TabularPolicy
from routing_lightning.routers.q_learning import ApproximateQLearning, QLearning
from routing_lightning.routers.reinforce import REINFORCE
from routing_lightning.routers.reward import RewardRouter
from routing_lightning.routers.rewards import CollaborationReward, correctness_reward, returns
from routing_lightning.routers.top1 import Top1Router
from routing_lightning.routers.wpl import WPL, ApproximateWPL, wpl_update

__all__ = [
    "REINFORCE",
    "WPL",
    "ApproximateQLearning",
    "ApproximateWPL",
    "BlockCopy",
    "BranchingRouter",
    "CollaborationReward",
    "Decision",
    "FixedRoutes",
    "GradientLearner",
    "GumbelRouter",
    "Learner",
    "MLPPolicy",
    "PairedDifference",
    "Policy",
    "QLearning",
    "RewardRouter",
    "Router",
    "RoutingSpec",
    "TabularPolicy",
    "Top1Router",
    "Trace",
    "correctness_reward",
    "returns",
    "wpl_update",
]
