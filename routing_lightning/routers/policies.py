"""Policies: what maps a state (v, t, d) to one number per action (paper, section 2.2.2)."""

import torch
from torch import Tensor, nn

from routing_lightning.routers.host import HostModule


class Policy(nn.Module):
    """Maps a state to one number per action; what the numbers mean is the learner's affair.

    Attributes:
        uses_state: whether the numbers depend on the activation v, or on agent and depth alone.
        num_actions: (D,) int64 on the host, how many actions exist at each depth.
    """

    uses_state: bool
    num_actions: Tensor


class TabularPolicy(HostModule, Policy):
    """One table (depth x action) per agent (paper, section 2.2.2): the state used is (t, d).

    Attributes:
        table: (A, D, K) float32 on the host; made by :meth:`build`. Part of the checkpoint.
    """

    uses_state = False
    table: Tensor

    def build(self, initial: Tensor, num_actions: list[int]) -> None:
        """Makes the table.

        Args:
            initial: (A, D, K) float32, the first scores.
            num_actions: how many of the K actions exist at each of the D depths.
        """
        self.register_buffer("table", initial)
        self.register_buffer("num_actions", torch.tensor(num_actions), persistent=False)

    def scores(self, agents: Tensor) -> Tensor:
        """Scores of all depths at once: agents (N,) -> (N, D, K)."""
        return self.table[agents]
