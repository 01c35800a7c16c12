"""Networks: function blocks, routing and features. Pure torch, usable without Lightning."""

from routing_lightning.nn.blocks import Blocks, LinearBlocks, ModuleBlocks
from routing_lightning.nn.convnet import SimpleConvNet
from routing_lightning.nn.routing import RoutingNetwork

__all__ = ["Blocks", "LinearBlocks", "ModuleBlocks", "RoutingNetwork", "SimpleConvNet"]
