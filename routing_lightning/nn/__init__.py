"""Function blocks and how a batch reaches them. Pure torch, knows nothing of routers."""

from routing_lightning.nn.blocks import Blocks, LinearBlocks, ModuleBlocks
from routing_lightning.nn.conv import ConvBlocks

__all__ = ["Blocks", "ConvBlocks", "LinearBlocks", "ModuleBlocks"]
