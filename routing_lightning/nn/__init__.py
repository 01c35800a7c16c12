"""Networks: function blocks, routing and features. Pure torch, usable without Lightning."""

from routing_lightning.nn.blocks import Blocks, LinearBlocks, ModuleBlocks
from routing_lightning.nn.convnet import SimpleConvNet
from routing_lightning.nn.cross_stitch import CrossStitch
from routing_lightning.nn.gumbel import GumbelRouting
from routing_lightning.nn.routing import RoutingNetwork
from routing_lightning.nn.soft_mixture import SoftMixture
from routing_lightning.nn.task_specific import TaskSpecific
from routing_lightning.nn.top1 import Top1Gating

__all__ = [
    "Blocks",
    "CrossStitch",
    "GumbelRouting",
    "LinearBlocks",
    "ModuleBlocks",
    "RoutingNetwork",
    "SimpleConvNet",
    "SoftMixture",
    "TaskSpecific",
    "Top1Gating",
]
