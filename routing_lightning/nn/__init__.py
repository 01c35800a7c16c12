"""Function blocks and how a batch reaches them. Pure torch, knows nothing of routers."""

from routing_lightning.nn.blocks import Blocks, LinearBlocks, ModuleBlocks

__all__ = ["Blocks", "LinearBlocks", "ModuleBlocks"]
