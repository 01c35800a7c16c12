"""Rewards and returns of a routing decision (paper, section 2.2.1 and Algorithm 3)."""

import torch
from torch import Tensor


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


def correctness_reward(predictions: Tensor, labels: Tensor) -> Tensor:
    """Final reward of a classification: +1 if the prediction is right, -1 if not (paper, Algorithm 2).

    Args:
        predictions: (N,), predicted labels.
        labels: (N,), true labels.

    Returns:
        (N,) float32, each +1 or -1.
    """
    return (predictions == labels).float().mul_(2).sub_(1)
