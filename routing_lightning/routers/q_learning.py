"""Q-learning (Watkins, 1989), for tables and networks (paper, section 3.1.2)."""

import numba
import numpy as np
import torch
from torch import Tensor

from routing_lightning.errors import UsageError
from routing_lightning.routers.base import Trace
from routing_lightning.routers.learner import GradientLearner, Learner, OptimizerMaker, SchedulerMaker, existing
from routing_lightning.routers.policies import MLPPolicy, Policy, TabularPolicy


@numba.njit(cache=True, nogil=True)
def _q_loop(table, agents, actions, rewards, final_reward, sizes, rate, gamma):  # type: ignore[no-untyped-def]
    """Vanilla Q-learning, sample after sample, decision after decision."""
    for n in range(actions.shape[0]):
        for d in range(actions.shape[1]):
            if actions[n, d] < 0:
                continue
            target = rewards[n, d]
            following = d + 1
            while following < actions.shape[1] and actions[n, following] < 0:
                following += 1
            if following < actions.shape[1]:
                target += gamma * table[agents[n], following, : sizes[following]].max()
            else:
                target += final_reward[n]
            table[agents[n], d, actions[n, d]] += rate * (target - table[agents[n], d, actions[n, d]])


class EpsilonGreedy(Learner):
    """Epsilon-greedy exploration, epsilon annealed linearly over the samples seen (docs/paper.md, reading 21).

    Args:
        epsilon_start: epsilon at the start, in [0, 1].
        epsilon_end: epsilon from ``epsilon_samples`` on, in [0, 1].
        epsilon_samples: number of samples over which epsilon falls, at least 1.

    Raises:
        UsageError: if a value is out of its range.
    """

    seen: Tensor

    def explore(self, epsilon_start: float, epsilon_end: float, epsilon_samples: int) -> None:
        """Sets the schedule; called by the constructor of a derived class."""
        for name, value in (("epsilon_start", epsilon_start), ("epsilon_end", epsilon_end)):
            if not 0 <= value <= 1:
                raise UsageError(f"{name} is {value}; give a probability in [0, 1].")
        if epsilon_samples < 1:
            raise UsageError(f"epsilon_samples is {epsilon_samples}; give at least 1.")
        self.schedule = epsilon_start, epsilon_end, epsilon_samples
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    @property
    def epsilon(self) -> float:
        """Probability of a uniformly drawn action, in [0, 1]."""
        start, end, samples = self.schedule
        return start + (end - start) * min(1.0, int(self.seen) / samples)

    def probabilities(self, scores: Tensor, num_actions: Tensor) -> Tensor:
        """Epsilon spread over all actions, the rest over the best ones."""
        exists = existing(scores, num_actions)
        masked = scores.masked_fill(~exists, -torch.inf)
        best = (masked == masked.amax(-1, keepdim=True)).float()
        even = exists.float() / exists.sum(-1, keepdim=True)
        # Below 1, so that the best action is the most probable one, which evaluation takes, at every epsilon.
        epsilon = min(self.epsilon, 1 - 1e-6)
        return (1 - epsilon) * best / best.sum(-1, keepdim=True) + epsilon * even


class QLearning(EpsilonGreedy):
    """Vanilla Q-learning on a table: ``Q(s_i, a_i) += lr (r_i + gamma max_a Q(s_{i+1}, a) - Q(s_i, a_i))``.

    The final reward belongs to the last decision, whose target is ``r_D + r_final``. Samples are processed one after
    the other in batch order, exactly.

    Args:
        lr: learning rate, in (0, 1].
        epsilon_start: epsilon at the start, in [0, 1].
        epsilon_end: epsilon from ``epsilon_samples`` on, in [0, 1].
        epsilon_samples: number of samples over which epsilon falls linearly, at least 1.

    Raises:
        UsageError: if a value is out of its range.
    """

    def __init__(
        self, lr: float = 0.1, epsilon_start: float = 1.0, epsilon_end: float = 0.05, epsilon_samples: int = 50_000
    ) -> None:
        super().__init__()
        if not 0 < lr <= 1:
            raise UsageError(f"lr of QLearning is {lr}; give a learning rate in (0, 1].")
        self.lr = lr
        self.explore(epsilon_start, epsilon_end, epsilon_samples)

    def learn(self, policy: Policy, trace: Trace) -> None:
        """One pass over the batch."""
        assert isinstance(policy, TabularPolicy) and trace.rewards is not None and trace.final_reward is not None
        _q_loop(
            policy.table.numpy(),
            trace.agents.numpy(),
            trace.actions.numpy(),
            trace.rewards.numpy(),
            trace.final_reward.numpy(),
            policy.num_actions.numpy(),
            np.float32(self.lr),
            np.float32(self.gamma),
        )
        self.seen += len(trace.actions)


class ApproximateQLearning(EpsilonGreedy, GradientLearner):
    """Q-learning for networks: minimises the squared temporal-difference error (paper: its l2 norm).

    The loss of a batch is the mean over samples of ``sum_i (r_i + gamma max_a Q(s_{i+1}, a) - Q(s_i, a_i))^2``, the
    target held fixed; the last target is ``r_D + r_final``.

    Args:
        lr: learning rate of the router, above 0, for the default optimizer SGD.
        epsilon_start: epsilon at the start, in [0, 1].
        epsilon_end: epsilon from ``epsilon_samples`` on, in [0, 1].
        epsilon_samples: number of samples over which epsilon falls linearly, at least 1.
        optimizer: makes another optimizer from the policy's parameters; ``lr`` then does not count.
        lr_scheduler: makes the learning rate scheduler, stepped once per epoch; none by default.

    Raises:
        UsageError: if a value is out of its range.
    """

    policies = (MLPPolicy, TabularPolicy)

    def __init__(
        self,
        lr: float = 0.01,
        epsilon_start: float = 1.0,
        epsilon_end: float = 0.05,
        epsilon_samples: int = 50_000,
        optimizer: OptimizerMaker | None = None,
        lr_scheduler: SchedulerMaker | None = None,
    ) -> None:
        GradientLearner.__init__(self, lr, optimizer, lr_scheduler)
        self.explore(epsilon_start, epsilon_end, epsilon_samples)

    def loss(self, policy: Policy, trace: Trace) -> Tensor:
        """The loss above, a scalar."""
        assert trace.rewards is not None and trace.final_reward is not None
        values = policy.scores_of(trace)
        device = values[0].device
        actions, rewards = trace.actions.to(device), trace.rewards.to(device)
        total: Tensor | float = 0.0
        # What follows a decision: the best value of the next one, the final reward after the last.
        following = trace.final_reward.to(device)
        for depth in reversed(range(len(values))):
            made = actions[:, depth] >= 0
            chosen = values[depth].gather(1, actions[:, depth].clamp(min=0).unsqueeze(1)).squeeze(1)
            error = (rewards[:, depth] + following - chosen) * made
            total = total + error.square().sum()
            following = torch.where(made, self.gamma * values[depth].detach().amax(-1), following)
        assert isinstance(total, Tensor)
        return total / len(actions)

    def step(self, policy: Policy, trace: Trace) -> None:
        """Steps the optimizer and counts the samples."""
        super().step(policy, trace)
        self.seen += len(trace.actions)
