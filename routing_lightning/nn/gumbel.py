"""Routing learned through a straight-through Gumbel-softmax (Jang et al., 2017; Maddison et al., 2017)."""

import torch
from torch import Tensor, nn

from routing_lightning.errors import UsageError
from routing_lightning.nn.blocks import LinearBlocks
from routing_lightning.nn.layers import TaskMLP, count_blocks, layer_sizes


class GumbelRouting(nn.Module):
    """Hard routing of the paper's blocks, trained by a straight-through Gumbel-softmax in place of rewards.

    In training a sample takes the block ``a = argmax(s + n)``, s the scores of an MLP of two layers on
    concat(v, one-hot(t)) and n Gumbel noise: a draw from softmax(s). With ``g = softmax((s + n) / temperature)`` the
    layer's output is ``y_a * (1 + g_a - stop(g_a))``: its value is y_a exactly, and the gradient that reaches the
    router is ``<dL/dy, y_a> dg_a/ds``. The full straight-through estimator has such a term for every block; those of
    the others are left out here because only the chosen block is computed, which keeps the cost of a step from growing
    with K.

    In evaluation a sample takes the block of the highest score.

    Args:
        in_features: size of the feature vector, at least 1.
        num_tasks: T, number of tasks, at least 1.
        num_classes: C, size of the output, at least 1.
        hidden: units of each hidden layer, at least 1 (paper: 128).
        depth: D, number of layers, at least 1 (paper: 3).
        num_blocks: K, blocks per layer, at least 1; None: one per task, as in the paper.
        temperature: of the softmax, above 0.
        router_hidden: hidden units of the MLPs, at least 1 (paper: 64).

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
        temperature: float = 1.0,
        router_hidden: int = 64,
    ) -> None:
        super().__init__()
        sizes = layer_sizes(in_features, num_tasks, num_classes, hidden, depth)
        if not temperature > 0:
            raise UsageError(f"temperature of GumbelRouting is {temperature}; give a value above 0.")
        blocks = count_blocks(num_blocks, num_tasks)
        self.temperature = temperature
        self.blocks = nn.ModuleList(LinearBlocks(blocks, *size) for size in sizes)
        self.routers = nn.ModuleList(TaskMLP(size, num_tasks, blocks, router_hidden) for size, _, _ in sizes)

    def forward(self, x: Tensor, tasks: Tensor) -> Tensor:
        """Logits: features (N, in_features), tasks (N,) int64 in [0, T) on any device -> (N, C)."""
        for router, blocks in zip(self.routers, self.blocks, strict=True):
            scores = router(x, tasks)
            if not self.training:
                x = blocks(x, scores.argmax(1))
                continue
            # The logarithm of an exponential draw is Gumbel noise with the sign turned round.
            noisy = scores - torch.empty_like(scores, dtype=torch.float32).exponential_().log()
            actions = noisy.argmax(1, keepdim=True)
            chosen = (noisy / self.temperature).softmax(1).gather(1, actions)
            # The bracket is taken first, so that the factor is exactly 1.
            x = blocks(x, actions[:, 0]) * (1 + (chosen - chosen.detach()))
        return x
