"""PairedDifference: logits that the difference of two rewards of the same sample moves."""

import math

import numpy as np
import torch
from torch import Tensor

from routing_lightning.errors import UsageError
from routing_lightning.routers.base import Trace
from routing_lightning.routers.learner import MOST_CERTAIN, Learner, existing
from routing_lightning.routers.policies import Policy, TabularPolicy


class PairedDifference(Learner):
    """Moves the logits of two actions apart by what one of them gained over the other, on the same sample.

    For a sample that took action a, and had got a reward less by g with action b, ``z[a] += lr * g / 2`` and
    ``z[b] -= lr * g / 2``: with two actions the difference of their logits moves by ``lr * g``, whichever of them was
    taken. There is no weight of a probability on it and no average return, so noise in the rewards pushes the policy
    neither to a corner nor to the middle, as it does with WPL.

    Needs a router that asks for alternatives, such as :class:`BranchingRouter`.

    Args:
        lr: step size, above 0.

    Raises:
        UsageError: if ``lr`` is out of its range.
    """

    def __init__(self, lr: float = 1.0) -> None:
        super().__init__()
        if not 0 < lr < math.inf:
            raise UsageError(f"lr of PairedDifference is {lr}; give a finite step size above 0.")
        self.lr = lr

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
        table = policy.table.numpy()
        sample, depth = np.nonzero(trace.alternatives.numpy() >= 0)
        agent = trace.agents.numpy()[sample]
        step = np.float32(self.lr / 2) * trace.returns.numpy()[sample, depth]
        # One after the other, so that the sums are the same each time.
        np.add.at(table, (agent, depth, trace.actions.numpy()[sample, depth]), step)
        np.subtract.at(table, (agent, depth, trace.alternatives.numpy()[sample, depth]), step)
        policy.table.clamp_(-MOST_CERTAIN, MOST_CERTAIN)
