"""REINFORCE (Williams, 1992), for tables and networks (paper, section 3.1.2)."""

import torch
from torch import Tensor

from routing_lightning.routers.base import Trace
from routing_lightning.routers.learner import BaselineLearner, OptimizerMaker, SchedulerMaker
from routing_lightning.routers.policies import Policy


class REINFORCE(BaselineLearner):
    """Policy gradient: the loss of a batch is the mean over samples of ``-sum_i (R_i - b_i) log pi(a_i | s_i)``.

    Args:
        lr: learning rate of the router, above 0, for the default optimizer SGD.
        baseline: whether b is a running average of the returns, one per agent and depth; 0 otherwise (vanilla, as in
            the paper).
        baseline_lr: rate of the running average, in (0, 1]; it moves once per batch to the batch's mean.
        optimizer: makes another optimizer from the policy's parameters; ``lr`` then does not count.
        lr_scheduler: makes the learning rate scheduler, stepped once per epoch; none by default.
    """

    def __init__(
        self,
        lr: float = 0.01,
        baseline: bool = False,
        baseline_lr: float = 0.1,
        optimizer: OptimizerMaker | None = None,
        lr_scheduler: SchedulerMaker | None = None,
    ) -> None:
        super().__init__(lr, baseline_lr, optimizer, lr_scheduler)
        self.baseline = baseline

    def loss(self, policy: Policy, trace: Trace) -> Tensor:
        """The loss above, a scalar."""
        assert trace.returns is not None
        advantages = trace.returns - self.average_return[trace.agents] if self.baseline else trace.returns
        total: Tensor | float = 0.0
        for depth, scores in enumerate(policy.scores_of(trace)):
            actions = trace.actions[:, depth].to(scores.device)
            chosen = scores.log_softmax(-1).gather(1, actions.clamp(min=0).unsqueeze(1)).squeeze(1)
            weight = (advantages[:, depth] * (trace.actions[:, depth] >= 0)).to(scores.device)
            total = total - (weight * chosen).sum()
        assert isinstance(total, Tensor)
        return total / len(trace.actions)

    def step(self, policy: Policy, trace: Trace) -> None:
        """Steps the optimizer, then moves the running averages to the batch's mean return of each agent and depth."""
        super().step(policy, trace)
        if not self.baseline:
            return
        assert trace.returns is not None
        made = (trace.actions >= 0).float()
        totals = torch.zeros_like(self.average_return).index_add_(0, trace.agents, trace.returns * made)
        counts = torch.zeros_like(self.average_return).index_add_(0, trace.agents, made)
        mean = totals / counts.clamp(min=1)
        self.average_return += self.baseline_lr * (mean - self.average_return) * (counts > 0)
