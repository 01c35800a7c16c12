"""Blocks that begin as copies of another one, with what the optimizer keeps of it."""

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from routing_lightning.nn import Blocks
from routing_lightning.routers import BlockCopy


def copy_block(blocks: Blocks, copied: BlockCopy, optimizer: Optimizer) -> None:
    """Copies a block, and the optimizer's state of its parameters (momentum, averages, counts).

    Args:
        blocks: the set of blocks.
        copied: which of them, and to which others.
        optimizer: the optimizer of their parameters.
    """
    blocks.copy_block(copied.source, copied.targets)
    for target in copied.targets:
        pairs = zip(blocks.block_parameters(target), blocks.block_parameters(copied.source), strict=True)
        for ours, theirs in pairs:
            ours.grad = None
            if theirs in optimizer.state:
                optimizer.state[ours] = {name: _copy(value) for name, value in optimizer.state[theirs].items()}
            else:
                optimizer.state.pop(ours, None)


def _copy(value: Any) -> Any:
    return torch.clone(value) if isinstance(value, Tensor) else value
