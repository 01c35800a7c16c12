"""Fixed routes: the control that a router has to beat."""

import torch
from torch import Tensor

from routing_lightning.errors import UsageError
from routing_lightning.routers.learner import Learner
from routing_lightning.routers.policies import Policy
from routing_lightning.routers.trace import Trace


class FixedRandomRoutes(Learner):
    """Each agent draws one action per depth at the start and keeps it: routing without learning.

    Args:
        seed: seed of the draw, at least 0, apart from the seed of the training.

    Raises:
        UsageError: if the seed is negative.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        if seed < 0:
            raise UsageError(f"seed of FixedRandomRoutes is {seed}; give at least 0.")
        self.seed = seed

    def initial_table(self, num_agents: int, num_actions: list[int]) -> Tensor:
        """One-hot rows: (A, D, K)."""
        generator = torch.Generator().manual_seed(self.seed)
        table = torch.zeros(num_agents, len(num_actions), max(num_actions))
        for depth, count in enumerate(num_actions):
            chosen = torch.randint(count, (num_agents,), generator=generator)
            table[torch.arange(num_agents), depth, chosen] = 1
        return table

    def probabilities(self, scores: Tensor, num_actions: Tensor) -> Tensor:
        """The table holds the probabilities, 0 and 1."""
        return scores

    def learn(self, policy: Policy, trace: Trace) -> None:
        """Leaves everything as it is."""
