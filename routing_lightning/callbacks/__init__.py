"""Callbacks that record and show what the router learns. They do nothing for models without a router."""

from routing_lightning.callbacks.block_usage import BlockUsage
from routing_lightning.callbacks.logger import RunLogger
from routing_lightning.callbacks.policy_dynamics import PolicyDynamics
from routing_lightning.callbacks.policy_heatmap import PolicyHeatmap
from routing_lightning.callbacks.recorder import RouteRecorder
from routing_lightning.callbacks.routing_map import RoutingMap
from routing_lightning.callbacks.stop import SaveOnStop
from routing_lightning.callbacks.task_accuracy import TaskAccuracy
from routing_lightning.callbacks.tested import TaskResults

__all__ = [
    "BlockUsage",
    "PolicyDynamics",
    "PolicyHeatmap",
    "RouteRecorder",
    "RoutingMap",
    "RunLogger",
    "SaveOnStop",
    "TaskAccuracy",
    "TaskResults",
]
