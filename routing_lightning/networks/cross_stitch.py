"""Cross-stitch networks (Misra et al., 2016; paper, section 4)."""

import torch
from torch import Tensor, nn

from routing_lightning.errors import UsageError
from routing_lightning.nn.layers import StackedLinear, layer_sizes


class CrossStitch(nn.Module):
    """One tower of fully connected layers per task, mixed in front of each layer (paper: cross stitch-all-fc).

    The input of task i's layer is ``sum_j w_ij v_j`` over the outputs v_j of all towers' layers before it, with a
    learned T x T matrix w in front of each layer. In front of the first layer all v_j are the same shared features.

    As in Misra et al., w starts close to the identity as a convex combination: ``own_share`` on the diagonal, the rest
    of 1 spread evenly over the other tasks.

    All towers are computed for each sample, and the sample's own one is read out: the cost grows with T.

    Args:
        in_features: size of the feature vector, at least 1.
        num_tasks: T, number of tasks, at least 1.
        num_classes: C, size of the output, at least 1.
        hidden: units of each hidden layer, at least 1 (paper: 128).
        depth: D, number of layers, at least 1 (paper: 3).
        own_share: first weight of a tower's own activation, in [0, 1]; not given in the paper, 0.9 in Misra et al.

    Attributes:
        mixing: D matrices (T, T), row i for the input of tower i.

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
        own_share: float = 0.9,
    ) -> None:
        super().__init__()
        sizes = layer_sizes(in_features, num_tasks, num_classes, hidden, depth)
        if not 0 <= own_share <= 1:
            raise UsageError(f"own_share of CrossStitch is {own_share}; give a share from 0 to 1.")
        first = torch.ones(1, 1)
        if num_tasks > 1:
            first = torch.full((num_tasks, num_tasks), (1 - own_share) / (num_tasks - 1)).fill_diagonal_(own_share)
        self.mixing = nn.ParameterList([first.clone() for _ in sizes])
        self.towers = nn.ModuleList(StackedLinear(num_tasks, *size) for size in sizes)

    def forward(self, x: Tensor, tasks: Tensor) -> Tensor:
        """Logits: features (N, in_features), tasks (N,) int64 in [0, T) on any device -> (N, C)."""
        v = x.expand(len(self.mixing[0]), *x.shape)
        for mixing, tower in zip(self.mixing, self.towers, strict=True):
            v = tower(torch.einsum("ij,jnf->inf", mixing, v))
        return v[tasks.to(x.device), torch.arange(len(x), device=x.device)]
