"""Rewards and returns of a routing decision (paper, section 3.1.1 and Algorithm 3)."""

from typing import Literal

import torch
from torch import Tensor

from routing_lightning.errors import UsageError
from routing_lightning.routers.host import HostModule


def returns(final_reward: Tensor, rewards: Tensor, gamma: float) -> Tensor:
    """Return of each decision: ``R_i = r_final + sum_{j>=i} gamma^(j-i) r_j`` (paper, Algorithm 3).

    The final reward is not discounted, as printed in the paper.

    Args:
        final_reward: (N,), r_final of each sample.
        rewards: (N, D), immediate rewards r_1 .. r_D of each sample.
        gamma: discount factor in [0, 1].

    Returns:
        (N, D), the returns R_1 .. R_D of each sample.
    """
    out = torch.empty_like(rewards)
    tail = torch.zeros_like(final_reward)
    for i in reversed(range(rewards.shape[1])):
        tail = rewards[:, i] + gamma * tail
        out[:, i] = tail
    return out + final_reward.unsqueeze(1)


def correctness_reward(hits: Tensor) -> Tensor:
    """Final reward of a classification: +1 if the prediction is right, -1 if not (paper, Algorithm 2).

    Args:
        hits: (N,) bool, whether each prediction is right.

    Returns:
        (N,) float32, each +1 or -1.
    """
    return torch.where(hits, 1.0, -1.0).float()


class CollaborationReward(HostModule):
    """Immediate reward for blocks that are chosen often already (paper, section 3.1.1).

    ``r_i = rho * average``, the average being, per depth, over all decisions so far, this one included, of the
    probability that the router gave the chosen action, or of how often it was chosen (docs/paper.md, reading 16).

    Args:
        rho: weight, in [0, 1]; 0 switches it off.
        by: ``"probability"`` (the paper's choice) or ``"frequency"``.

    Raises:
        UsageError: if ``rho`` is out of its range.
    """

    totals: Tensor
    count: Tensor
    counted = "totals", "count"  # buffers that no average of models may average

    def __init__(self, rho: float, by: Literal["probability", "frequency"]) -> None:
        super().__init__()
        if not 0 <= rho <= 1:
            raise UsageError(f"collaboration is {rho}; give the weight rho of the collaboration reward, in [0, 1].")
        self.rho = rho
        self.by = by

    def build(self, num_actions: list[int]) -> None:
        """Makes the sums: (D, K) and (D,), float64 since they grow with every sample."""
        self.register_buffer("totals", torch.zeros(len(num_actions), max(num_actions), dtype=torch.float64))
        self.register_buffer("count", torch.zeros(len(num_actions), dtype=torch.float64))

    def forward(self, actions: Tensor, probabilities: Tensor) -> Tensor:
        """Rewards of a batch, sample after sample; moves the averages.

        Args:
            actions: (N, D) int64, -1 for no decision, which gets 0 and does not count.
            probabilities: (N, D, K), what the actions were drawn from.

        Returns:
            (N, D) float32, in [0, rho].
        """
        made = actions >= 0
        index = actions.clamp(min=0).unsqueeze(-1)
        given = probabilities.double()
        if self.by == "frequency":
            given = torch.zeros_like(given).scatter_(2, index, 1.0)
        totals = self.totals + (given * made.unsqueeze(-1)).cumsum(0)
        counts = self.count + made.double().cumsum(0)
        average = totals.gather(2, index).squeeze(-1) / counts.clamp(min=1)
        if len(actions):
            self.totals.copy_(totals[-1])
            self.count.copy_(counts[-1])
        return (self.rho * average * made).float()
