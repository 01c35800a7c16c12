"""Top-1 gating with a load-balancing loss (Switch Transformer, Fedus et al., 2021)."""

from typing import Literal

import torch
from torch import Tensor, nn

from routing_lightning.errors import UsageError
from routing_lightning.nn.blocks import LinearBlocks
from routing_lightning.nn.layers import TaskMLP, count_blocks, layer_sizes


class Top1Gating(nn.Module):
    """Hard routing of the paper's blocks by a gate, as in the Switch Transformer (Fedus et al., 2021, section 2).

    With p the softmax over the scores of an MLP of two layers on concat(v, one-hot(t)), a sample takes the block
    ``a = argmax p`` and the layer gives ``p_a y_a`` (equation 2), through which the gate learns. Each layer adds the
    load-balancing loss ``alpha K sum_i f_i P_i`` (equations 4 to 6), f_i the share of the batch's samples sent to
    block i and P_i the mean of p_i over the batch. Unlike there no block has a capacity: no sample is dropped.

    Without the residual connections of the Switch Transformer the factor p_a, 1/K at first, shrinks the activation in
    each layer. ``gate="unit"`` avoids that: the factor is ``1 + p_a - stop(p_a)``, whose value is 1 and whose gradient
    is that of p_a.

    Only the chosen block is computed: the cost of a step does not grow with K.

    Args:
        in_features: size of the feature vector, at least 1.
        num_tasks: T, number of tasks, at least 1.
        num_classes: C, size of the output, at least 1.
        hidden: units of each hidden layer, at least 1 (paper: 128).
        depth: D, number of layers, at least 1 (paper: 3).
        num_blocks: K, blocks per layer, at least 1; None: one per task, as in the paper.
        alpha: weight of the load-balancing loss, at least 0 (Fedus et al.: 0.01).
        gate: the factor of a layer's output, ``"value"`` (p_a, as published) or ``"unit"``.
        router_hidden: hidden units of the gates, at least 1.

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
        alpha: float = 0.01,
        gate: Literal["value", "unit"] = "value",
        router_hidden: int = 64,
    ) -> None:
        super().__init__()
        sizes = layer_sizes(in_features, num_tasks, num_classes, hidden, depth)
        if not alpha >= 0:
            raise UsageError(f"alpha of Top1Gating is {alpha}; give a value of at least 0.")
        blocks = count_blocks(num_blocks, num_tasks)
        if gate not in ("value", "unit"):
            raise UsageError(f"gate of Top1Gating is {gate!r}; give 'value' or 'unit'.")
        self.alpha = alpha
        self.unit = gate == "unit"
        self.blocks = nn.ModuleList(LinearBlocks(blocks, *size) for size in sizes)
        self.gates = nn.ModuleList(TaskMLP(size, num_tasks, blocks, router_hidden) for size, _, _ in sizes)

    def forward(self, x: Tensor, tasks: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and load-balancing loss.

        Args:
            x: (N, in_features), N >= 1.
            tasks: (N,) int64 in [0, T), on any device.

        Returns:
            The logits (N, C), and the loss to add, a scalar: the sum over the layers.
        """
        balance = x.new_zeros(())
        for gate, blocks in zip(self.gates, self.blocks, strict=True):
            probabilities = gate(x, tasks).softmax(1)
            value, actions = probabilities.max(1, keepdim=True)
            share = torch.zeros_like(probabilities).scatter_(1, actions, 1.0).mean(0)
            balance = balance + self.alpha * len(share) * (share * probabilities.mean(0)).sum()
            factor = 1 + (value - value.detach()) if self.unit else value
            x = factor * blocks(x, actions[:, 0])
        return x, balance
