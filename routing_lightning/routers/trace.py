"""What a forward pass leaves behind for the router to learn from."""

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Trace:
    """The trace T = (S, A, R, r_final) of a batch (paper, Algorithm 2), as tensors.

    N samples, D decisions (depths) each. Nothing is a Python object per sample.

    Attributes:
        tasks: (N,) int64, the task of each sample.
        agents: (N,) int64, the agent who routed each sample.
        actions: (N, D) int64, the action at each depth: a block, or ``num_blocks`` for PASS; -1 means no decision.
        states: the D activations (N, size_d) that the router saw, empty where the policy does not look at them.
        probabilities: (N, D, K) float32 on the host, what each action was drawn from; zeros beyond K_d.
        final_reward: (N,) float32, r_final.
        rewards: (N, D) float32, the immediate rewards r_i.
        returns: (N, D) float32, the returns R_i (paper, Algorithm 3).
    """

    tasks: Tensor
    agents: Tensor
    actions: Tensor = field(default_factory=lambda: torch.empty(0, 0, dtype=torch.long))
    states: list[Tensor] = field(default_factory=list)
    probabilities: Tensor | None = None
    final_reward: Tensor | None = None
    rewards: Tensor | None = None
    returns: Tensor | None = None
