"""Routing learned through a straight-through Gumbel-softmax (Jang et al., 2017; Maddison et al., 2017)."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from routing_lightning.errors import UsageError
from routing_lightning.nn.layers import TaskMLP
from routing_lightning.routers.base import Decision, Router, RoutingSpec, Trace
from routing_lightning.routers.rules import OptionRules, Rule


class GumbelRouter(Router):
    """Hard routing, learned by the gradient of the loss through a straight-through Gumbel-softmax.

    In training a sample takes the block ``a = argmax(s + n)``, s the scores of an MLP of two layers on
    concat(v, one-hot(t)) and n Gumbel noise: a draw from softmax(s). With ``g = softmax((s + n) / temperature)`` the
    output is weighted by ``1 + g_a - stop(g_a)``: its value is y_a exactly, and the gradient that reaches the router is
    ``<dL/dy, y_a> dg_a/ds``. The full straight-through estimator has such a term for every block; those of the others
    are left out here because only the chosen block is computed, which keeps the cost of a step from growing with K.

    In evaluation a sample takes the block of the highest score.

    Args:
        temperature: of the softmax, above 0.
        hidden: hidden units of the MLPs, one MLP per depth, at least 1 (paper: 64).

    Raises:
        UsageError: if a value is out of its range.
    """

    option_rules: ClassVar[OptionRules] = {"hidden": Rule.READS}

    def __init__(self, temperature: float = 1.0, hidden: int = 64) -> None:
        super().__init__()
        if not temperature > 0:
            raise UsageError(f"temperature of GumbelRouter is {temperature}; give a value above 0.")
        self.temperature = temperature
        self.hidden = hidden

    def build(self, spec: RoutingSpec) -> None:
        """Makes the MLPs; see the base class."""
        super().build(spec)
        sizes = zip(spec.known_state_sizes("GumbelRouter"), spec.num_actions, strict=True)
        self.scores = nn.ModuleList(TaskMLP(size, spec.num_tasks, actions, self.hidden) for size, actions in sizes)

    def decide(self, trace: Trace, x: Tensor, depth: int) -> Decision:
        """Draws a block by its score, with the weight above; see the base class."""
        scores = self.scores[depth](x, trace.tasks).float()
        if not trace.explore:
            return Decision(scores.argmax(1))
        # The logarithm of an exponential draw is Gumbel noise with the sign turned round.
        noise = torch.empty(scores.shape, dtype=torch.float32).exponential_(generator=trace.generator).log()
        noisy = scores - noise.to(scores.device, non_blocking=True)
        actions = noisy.argmax(1)
        chosen = (noisy / self.temperature).softmax(1).gather(1, actions[:, None])[:, 0]
        # The bracket is taken first, so that the weight is exactly 1.
        return Decision(actions, 1 + (chosen - chosen.detach()))
