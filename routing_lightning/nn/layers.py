"""Parts that several networks share: sizes of the layers, all blocks side by side, scores from state and task."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from routing_lightning.errors import UsageError


def layer_sizes(
    in_features: int, num_tasks: int, num_classes: int, hidden: int, depth: int
) -> list[tuple[int, int, bool]]:
    """Sizes of the fully connected layers of the paper's networks (section 4), checked.

    Args:
        in_features: size of the feature vector, at least 1.
        num_tasks: T, number of tasks, at least 1.
        num_classes: C, size of the output, at least 1.
        hidden: units of a hidden layer, at least 1.
        depth: D, number of layers, at least 1.

    Returns:
        For each of the D layers its input size, its output size, and whether it ends with a ReLU (all but the last).

    Raises:
        UsageError: if a value is below 1.
    """
    for name, value in (
        ("in_features", in_features),
        ("num_tasks", num_tasks),
        ("num_classes", num_classes),
        ("hidden", hidden),
        ("depth", depth),
    ):
        if value < 1:
            raise UsageError(f"{name} of the network is {value}; give at least 1.")
    sizes = [in_features, *[hidden] * (depth - 1), num_classes]
    return [(sizes[d], sizes[d + 1], d < depth - 1) for d in range(depth)]


def count_blocks(num_blocks: int | None, num_tasks: int) -> int:
    """K, the blocks of a layer: as given, or one per task.

    Raises:
        UsageError: if it is below 1.
    """
    if num_blocks is None:
        return num_tasks
    if num_blocks < 1:
        raise UsageError(f"num_blocks of the network is {num_blocks}; give at least 1, or null for one per task.")
    return num_blocks


class StackedLinear(nn.Module):
    """K fully connected blocks that are all computed for each sample, with the initialisation of ``nn.Linear``.

    Args:
        num_blocks: K.
        in_features: size of the input.
        out_features: size of the output.
        relu: whether a block ends with a ReLU.
    """

    def __init__(self, num_blocks: int, in_features: int, out_features: int, relu: bool) -> None:
        super().__init__()
        self.relu = relu
        self.weight = nn.Parameter(torch.empty(num_blocks, in_features, out_features))
        self.bias = nn.Parameter(torch.empty(num_blocks, 1, out_features))
        bound = 1 / math.sqrt(in_features)
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """Applies all blocks.

        Args:
            x: (N, in_features), the same input for all blocks, or (K, N, in_features), one for each.

        Returns:
            (K, N, out_features).
        """
        y = torch.matmul(x, self.weight) + self.bias
        return F.relu(y) if self.relu else y


class TaskMLP(nn.Module):
    """Scores from state and task: an MLP of two layers on concat(v, one-hot(t)) (paper, section 3.1.2).

    Args:
        in_features: size of v.
        num_tasks: T.
        out_features: number of scores.
        hidden: units of the hidden layer, at least 1 (paper: 64).

    Raises:
        UsageError: if ``hidden`` is below 1.
    """

    def __init__(self, in_features: int, num_tasks: int, out_features: int, hidden: int) -> None:
        super().__init__()
        if hidden < 1:
            raise UsageError(f"router_hidden of the network is {hidden}; give at least 1.")
        self.num_tasks = num_tasks
        self.hidden = nn.Linear(in_features + num_tasks, hidden)
        self.out = nn.Linear(hidden, out_features)

    def forward(self, x: Tensor, tasks: Tensor) -> Tensor:
        """Scores: v (N, in_features), tasks (N,) int64 on any device -> (N, out_features)."""
        one_hot = F.one_hot(tasks.to(x.device), self.num_tasks).to(x.dtype)
        scores: Tensor = self.out(F.relu(self.hidden(torch.cat([x, one_hot], dim=1))))
        return scores
