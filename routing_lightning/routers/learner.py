"""The interface of a learner: what a policy's numbers mean and how they change."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from routing_lightning.errors import NonFiniteError, UsageError
from routing_lightning.routers.base import Trace
from routing_lightning.routers.host import HostModule
from routing_lightning.routers.policies import MLPPolicy, Policy, TabularPolicy
from routing_lightning.routers.rules import OptionRules, Rule

MOST_CERTAIN = 1e4
"""Bound of a table's logits and a network's weights: beyond about 100 a softmax is 0 or 1 anyway."""

OptimizerMaker = Callable[[Iterable[nn.Parameter]], Optimizer]
SchedulerMaker = Callable[[Optimizer], LRScheduler]


class Learner(HostModule):
    """How a router learns. A learner of one's own derives from this class and overrides the methods below.

    A policy maps a state to K numbers, its scores; the learner says which distribution over the actions the scores
    stand for, and changes the policy after each batch. Buffers that it registers stay on the host in float32 and are
    part of the checkpoint.

    Attributes:
        policies: the kinds of policies that it can train.
        follows_gradient: whether it needs policies with parameters, to follow the gradient of a loss.
        gamma: discount factor, set by the router.
    """

    policies: tuple[type[Policy], ...] = (TabularPolicy,)
    follows_gradient: bool = False
    gamma: float = 1.0

    def initial_table(self, num_agents: int, num_actions: list[int]) -> Tensor:
        """First scores of a tabular policy; zeros unless overridden.

        Args:
            num_agents: A, number of agents.
            num_actions: number of actions at each of the D depths.

        Returns:
            (A, D, max(num_actions)) float32.
        """
        return torch.zeros(num_agents, len(num_actions), max(num_actions))

    def forget(self, agents: Tensor, depth: int) -> None:
        """Forgets what it keeps, beside the policy, of some agents at a depth: (A,) bool."""

    def check(self, policy: Policy) -> None:
        """Refuses a policy that it cannot train.

        Raises:
            UsageError: if the policy is of another kind.
        """
        if not isinstance(policy, self.policies):
            names = " or ".join(kind.__name__ for kind in self.policies)
            raise UsageError(
                f"learner {type(self).__name__} got policy {type(policy).__name__}; it trains {names} only."
            )

    def build(self, policy: Policy) -> None:
        """Called once, when the policy has its final shape; makes what the learner keeps."""

    def probabilities(self, scores: Tensor, num_actions: Tensor) -> Tensor:
        """Distribution to draw actions from; the most probable action is the one taken in evaluation.

        Args:
            scores: (..., K), a policy's numbers.
            num_actions: int, broadcastable to the leading dimensions: how many of the K actions exist.

        Returns:
            (..., K), each row on the simplex, 0 for actions that do not exist.
        """
        raise TypeError(f"learner {type(self).__name__} does not say how to act: override probabilities")

    def learn(self, policy: Policy, trace: Trace) -> None:
        """Changes the policy by the trace of one batch (all ranks' samples, in rank order).

        Args:
            policy: the policy that made the decisions.
            trace: the batch's trace with ``returns`` filled in.
        """
        raise TypeError(f"learner {type(self).__name__} does not say how to learn: override learn")

    def configure(self, policy: Policy) -> tuple[Optimizer, Any] | None:
        """Makes the optimizer for a policy, and its scheduler (or None); None where none is used."""
        return None

    def loss(self, policy: Policy, trace: Trace) -> Tensor:
        """Loss of a trace with ``returns``, for learners that follow a gradient."""
        raise TypeError(f"learner {type(self).__name__} does not say what it minimises: override loss")

    def step(self, policy: Policy, trace: Trace) -> None:
        """Steps the optimizer with the gradient of a trace's loss, for learners that follow a gradient."""
        raise TypeError(f"learner {type(self).__name__} follows no gradient")


def existing(scores: Tensor, num_actions: Tensor) -> Tensor:
    """Which actions exist: (..., K) bool, for scores (..., K) and num_actions broadcastable to (...)."""
    return torch.arange(scores.shape[-1], device=scores.device) < num_actions.to(scores.device).unsqueeze(-1)


class GradientLearner(Learner):
    """A learner that follows the gradient of a loss, with an optimizer of its own.

    The scores are logits: the distribution is their softmax. A derived class gives the loss, a scalar that the policy's
    parameters (and the states) have a part in.

    Args:
        lr: learning rate of the router, above 0, for the default optimizer SGD.
        optimizer: makes another optimizer from the policy's parameters; ``lr`` then does not count.
        lr_scheduler: makes the learning rate scheduler, stepped once per epoch; none by default.

    Raises:
        UsageError: if ``lr`` is out of its range.
    """

    option_rules: ClassVar[OptionRules] = dict.fromkeys(("lr", "optimizer", "lr_scheduler"), Rule.OPTIMIZER)
    null_means: ClassVar[Mapping[str, str]] = {"optimizer": "SGD"}

    policies = (TabularPolicy, MLPPolicy)
    follows_gradient = True

    def __init__(
        self,
        lr: float = 0.01,
        optimizer: OptimizerMaker | None = None,
        lr_scheduler: SchedulerMaker | None = None,
    ) -> None:
        super().__init__()
        if not 0 < lr < math.inf:
            raise UsageError(f"lr of {type(self).__name__} is {lr}; give a finite learning rate above 0.")
        self.lr = lr
        self.make_optimizer = optimizer
        self.make_lr_scheduler = lr_scheduler
        self.optimizer: Optimizer | None = None

    def configure(self, policy: Policy) -> tuple[Optimizer, Any]:
        """Makes the optimizer for a policy, and its scheduler (or None)."""
        parameters = list(policy.parameters())
        self.optimizer = (
            torch.optim.SGD(parameters, lr=self.lr) if self.make_optimizer is None else self.make_optimizer(parameters)
        )
        return self.optimizer, self.make_lr_scheduler(self.optimizer) if self.make_lr_scheduler else None

    def probabilities(self, scores: Tensor, num_actions: Tensor) -> Tensor:
        """Softmax over the actions that exist."""
        return scores.float().masked_fill(~existing(scores, num_actions), -torch.inf).softmax(-1)

    def learn(self, policy: Policy, trace: Trace) -> None:
        """One optimizer step."""
        if not len(trace.actions):
            return
        optimizer = self.optimizer or self.configure(policy)[0]
        optimizer.zero_grad()
        with torch.enable_grad():
            self.loss(policy, trace).backward()
        self.step(policy, trace)

    def step(self, policy: Policy, trace: Trace) -> None:
        """Steps the optimizer with the gradient of a trace's loss, which is there already.

        Raises:
            NonFiniteError: if the optimizer leaves a policy on the host that is nan.
        """
        optimizer = self.optimizer or self.configure(policy)[0]
        for parameter, state in optimizer.state.items():
            for name, value in state.items():
                # Lightning moves restored states to the model's device, but a table stays on the host.
                if isinstance(value, Tensor) and value.dim() > 0 and value.device != parameter.device:
                    state[name] = value.to(parameter.device)
        optimizer.step()
        if isinstance(policy, (TabularPolicy, MLPPolicy)):  # an infinite logit would have no softmax
            for parameter in policy.parameters():
                if parameter.grad is not None:  # else it has not moved
                    parameter.data.clamp_(-MOST_CERTAIN, MOST_CERTAIN)
                    # Averages that an optimizer keeps may overflow. On a device a look would make it wait.
                    if parameter.device.type == "cpu" and parameter.isnan().any():
                        lr = optimizer.param_groups[0]["lr"]
                        raise NonFiniteError(
                            f"the router's optimizer {type(optimizer).__name__} (lr {lr}) makes its policy nan, since "
                            "what it keeps of gradients overflows; lower lr or the rewards, or leave momentum out."
                        )
        optimizer.zero_grad()


class BaselineLearner(GradientLearner):
    """A learner that follows a gradient and keeps an average return per agent and depth.

    Args:
        lr: learning rate of the router, above 0, for the default optimizer SGD.
        baseline_lr: rate of the average return, in (0, 1].
        optimizer: makes another optimizer from the policy's parameters; ``lr`` then does not count.
        lr_scheduler: makes the learning rate scheduler, stepped once per epoch; none by default.

    Attributes:
        average_return: (A, D) float32 on the host. Part of the checkpoint.

    Raises:
        UsageError: if a rate is out of its range.
    """

    average_return: Tensor

    def __init__(
        self,
        lr: float,
        baseline_lr: float,
        optimizer: OptimizerMaker | None,
        lr_scheduler: SchedulerMaker | None,
    ) -> None:
        super().__init__(lr, optimizer, lr_scheduler)
        if not 0 < baseline_lr <= 1:
            raise UsageError(f"baseline_lr is {baseline_lr}; give a rate in (0, 1].")
        self.baseline_lr = baseline_lr

    def build(self, policy: Policy) -> None:
        """Makes the average returns."""
        self.register_buffer("average_return", torch.zeros(policy.num_agents, len(policy.num_actions)))
