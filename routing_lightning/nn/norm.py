"""Normalisation inside blocks, which may get few samples or one."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

ENOUGH = 16
"""Values per channel from which on a block's own batch statistics are used."""


class FewSampleNorm(nn.Module):
    """Batch normalisation of a block, which keeps its sense when the block gets few samples.

    A block's part of a batch may be one sample, whose statistics say nothing (with one pixel per channel they are not
    even defined). With fewer than ``ENOUGH`` values per channel this normalises in training by the running
    statistics, as in evaluation, and leaves these as they are.

    Args:
        norm: the batch normalisation whose place it takes; its parameters and statistics are taken over.
    """

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, ...) -> (N, C, ...)."""
        norm = self.norm
        if not norm.training or x.numel() >= ENOUGH * x.shape[1] or norm.running_mean is None:
            return norm(x)
        return nn.functional.batch_norm(
            x, norm.running_mean, norm.running_var, norm.weight, norm.bias, training=False, eps=norm.eps
        )


def to_group_norm(norm: _BatchNorm, channels_per_group: int = 16) -> nn.GroupNorm:
    groups = max(1, norm.num_features // channels_per_group)
    while norm.num_features % groups:
        groups -= 1
    return nn.GroupNorm(groups, norm.num_features)
