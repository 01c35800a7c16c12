"""Top-1 gating with a load-balancing loss (Switch Transformer, Fedus et al., 2021)."""

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from routing_lightning.errors import UsageError
from routing_lightning.nn.layers import TaskMLP
from routing_lightning.routers.base import Decision, Router, RoutingSpec, Trace
from routing_lightning.routers.rules import OptionRules, Rule


class Top1Router(Router):
    """Hard routing by a gate that learns with the blocks, as in the Switch Transformer (Fedus et al., 2021, section 2).

    With p the softmax over the scores of an MLP of two layers on concat(v, one-hot(t)), a sample takes the block
    ``a = argmax p`` and the layer gives ``p_a y_a`` (equation 2), through which the gate learns. Each depth adds the
    load-balancing loss ``alpha K sum_i f_i P_i`` (equations 4 to 6), f_i the share of the batch's samples sent to
    block i and P_i the mean of p_i over the batch. Unlike there no block has a capacity: no sample is dropped.

    Without the residual connections of the Switch Transformer the factor p_a, 1/K at first, shrinks the activation at
    each depth. ``gate="unit"`` avoids that: the factor is ``1 + p_a - stop(p_a)``, whose value is 1 and whose gradient
    is that of p_a.

    Args:
        alpha: weight of the load-balancing loss, at least 0 (Fedus et al.: 0.01).
        gate: the factor of a layer's output, ``"value"`` (p_a, as published) or ``"unit"``.
        hidden: hidden units of the gates, one gate per depth, at least 1.

    Raises:
        UsageError: if a value is out of its range.
    """

    option_rules: ClassVar[OptionRules] = {"hidden": Rule.READS}

    def __init__(self, alpha: float = 0.01, gate: Literal["value", "unit"] = "value", hidden: int = 64) -> None:
        super().__init__()
        if not alpha >= 0:
            raise UsageError(f"alpha of Top1Router is {alpha}; give a value of at least 0.")
        if gate not in ("value", "unit"):
            raise UsageError(f"gate of Top1Router is {gate!r}; give 'value' or 'unit'.")
        self.alpha = alpha
        self.unit = gate == "unit"
        self.hidden = hidden

    def build(self, spec: RoutingSpec) -> None:
        """Makes the gates; see the base class."""
        super().build(spec)
        sizes = zip(spec.known_state_sizes("Top1Router"), spec.num_actions, strict=True)
        self.gates = nn.ModuleList(TaskMLP(size, spec.num_tasks, actions, self.hidden) for size, actions in sizes)

    def decide(self, trace: Trace, x: Tensor, depth: int) -> Decision:
        """The most probable block, with its weight; see the base class."""
        probabilities = self.gates[depth](x, trace.tasks).float().softmax(1)
        trace.scores.append(probabilities)
        value, actions = probabilities.max(1)
        return Decision(actions, 1 + (value - value.detach()) if self.unit else value)

    def auxiliary_loss(self, trace: Trace) -> Tensor | None:
        """The load-balancing loss, summed over the depths."""
        loss = torch.zeros((), device=trace.scores[0].device)
        for probabilities in trace.scores:
            samples, count = max(1, len(probabilities)), probabilities.shape[1]
            share = torch.bincount(probabilities.argmax(1), minlength=count) / samples
            loss = loss + self.alpha * count * (share * probabilities.sum(0) / samples).sum()
        return loss
