"""PairedDifference: logits that the difference of two rewards of the same sample moves."""

import math

import numpy as np
import torch
from torch import Tensor

from routing_lightning.errors import UsageError
from routing_lightning.routers.base import Trace
from routing_lightning.routers.learner import MOST_CERTAIN, Learner, existing
from routing_lightning.routers.policies import Policy, TabularPolicy

PROBIT = 1.702
"""The logistic function of 1.702 t is within 0.01 of the normal distribution function at t."""


class PairedDifference(Learner):
    """Moves the logits of two actions apart by what one of them gained over the other, on the same sample.

    For a sample that took action a, and had got a reward less by g with action b, the sums move by ``S[a] += g / 2``
    and ``S[b] -= g / 2``: with two actions the difference of their sums moves by g, whichever of them was taken. There
    is no weight of a probability on it and no average return, so noise in the rewards pushes the policy neither to a
    corner nor to the middle, as it does with WPL.

    The logits are these sums times ``lr``; or, ``normalised``, divided by the root of the sum of the squares of g,
    which is the statistic of a paired test: with two actions the probability of one is then about the confidence that
    it is the better one, whatever the scale and the number of the rewards.

    Needs a router that asks for alternatives, such as :class:`BranchingRouter`.

    Args:
        normalised: see above.
        lr: factor on the logits, above 0.

    Attributes:
        sums: (A, D, C) float64 on the host, S above. Part of the checkpoint, like the next one.
        squares: (A, D) float64 on the host.

    Raises:
        UsageError: if ``lr`` is out of its range.
    """

    sums: Tensor
    squares: Tensor

    def __init__(self, normalised: bool = True, lr: float = 1.0) -> None:
        super().__init__()
        if not 0 < lr < math.inf:
            raise UsageError(f"lr of PairedDifference is {lr}; give a finite factor above 0.")
        self.normalised = normalised
        self.lr = lr

    def build(self, policy: Policy) -> None:
        """Makes the sums."""
        shape = policy.num_agents, len(policy.num_actions)
        # The square of a gain, or its product with a large lr, may be more than float32 holds.
        self.register_buffer("sums", torch.zeros(*shape, int(policy.num_actions.max()), dtype=torch.float64))
        self.register_buffer("squares", torch.zeros(shape, dtype=torch.float64))

    def forget(self, agents: Tensor, depth: int) -> None:
        """Begins anew for some agents, (A,) bool, at a depth."""
        self.sums[agents, depth] = 0
        self.squares[agents, depth] = 0

    def probabilities(self, scores: Tensor, num_actions: Tensor) -> Tensor:
        """Softmax over the actions that exist."""
        return scores.float().masked_fill(~existing(scores, num_actions), -torch.inf).softmax(-1)

    def learn(self, policy: Policy, trace: Trace) -> None:
        """One step by a trace whose ``returns`` are the gains over its ``alternatives``."""
        assert isinstance(policy, TabularPolicy) and trace.returns is not None  # for the type checker
        if trace.alternatives is None:
            raise UsageError(
                "PairedDifference compares each action with another one, which this router does not try; use it as the "
                "learner of BranchingRouter."
            )
        sample, depth = np.nonzero(trace.alternatives.numpy() >= 0)
        agent, gain = trace.agents.numpy()[sample], trace.returns.double().numpy()[sample, depth]
        # One after the other, so that the sums are the same each time.
        np.add.at(self.sums.numpy(), (agent, depth, trace.actions.numpy()[sample, depth]), gain / 2)
        np.subtract.at(self.sums.numpy(), (agent, depth, trace.alternatives.numpy()[sample, depth]), gain / 2)
        np.add.at(self.squares.numpy(), (agent, depth), np.square(gain))
        logits = self.lr * self.sums
        if self.normalised:
            logits = PROBIT * logits / self.squares.sqrt().clamp(min=1e-300).unsqueeze(-1)
        policy.table.copy_(logits.clamp_(-MOST_CERTAIN, MOST_CERTAIN))
