"""Soft routing: an attention over the blocks of each layer in place of a choice (paper, section 4)."""

from typing import Literal

import torch
from torch import Tensor, nn

from routing_lightning.errors import UsageError
from routing_lightning.nn.layers import StackedLinear, TaskMLP, count_blocks, layer_sizes


class SoftMixture(nn.Module):
    """Each layer gives the mean of all its blocks' outputs, weighted by a softmax (paper: soft mixture-all-fc).

    The paper's text and its table differ about the weights. ``attention="mlp"`` is the table: they come from an MLP of
    two layers on concat(v, one-hot(t)), one per layer, through which the gradient flows into v as well.
    ``attention="vector"`` is the text: one learned vector per layer, the same for all samples, so that nothing in the
    network depends on the task; it starts at zero, which is an even mixture.

    All blocks are computed for each sample: the cost grows with K.

    Args:
        in_features: size of the feature vector, at least 1.
        num_tasks: T, number of tasks, at least 1.
        num_classes: C, size of the output, at least 1.
        hidden: units of each hidden layer, at least 1 (paper: 128).
        depth: D, number of layers, at least 1 (paper: 3).
        num_blocks: K, blocks per layer, at least 1; None: one per task, as in the paper.
        attention: where the weights come from, ``"mlp"`` or ``"vector"``.
        router_hidden: hidden units of the MLP, at least 1 (paper: 64).

    Raises:
        UsageError: if a value is out of its range.
    """

    def __init__(
        self,
        in_features: int,
        num_tasks: int,
        num_classes: int,
        hidden: int = 128,
        depth: int = 3,
        num_blocks: int | None = None,
        attention: Literal["mlp", "vector"] = "mlp",
        router_hidden: int = 64,
    ) -> None:
        super().__init__()
        sizes = layer_sizes(in_features, num_tasks, num_classes, hidden, depth)
        if attention not in ("mlp", "vector"):
            raise UsageError(f"attention of SoftMixture is {attention!r}; give 'mlp' or 'vector'.")
        blocks = count_blocks(num_blocks, num_tasks)
        self.blocks = nn.ModuleList(StackedLinear(blocks, *size) for size in sizes)
        self.attention = nn.ModuleList(
            TaskMLP(size, num_tasks, blocks, router_hidden) if attention == "mlp" else WeightVector(blocks)
            for size, _, _ in sizes
        )

    def forward(self, x: Tensor, tasks: Tensor) -> Tensor:
        """Logits: features (N, in_features), tasks (N,) int64 in [0, T) on any device -> (N, C)."""
        for attention, blocks in zip(self.attention, self.blocks, strict=True):
            weights = attention(x, tasks).softmax(-1)
            x = torch.einsum("nk,kno->no", weights, blocks(x))
        return x


class WeightVector(nn.Module):
    """Scores that depend on nothing.

    Args:
        num_blocks: K.
    """

    def __init__(self, num_blocks: int) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(num_blocks))

    def forward(self, x: Tensor, tasks: Tensor) -> Tensor:
        """The K scores for each of the N samples, (N, K)."""
        return self.scores.expand(x.shape[0], -1)  # len() would fix the number for torch.export
