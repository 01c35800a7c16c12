"""The Weighted Policy Learner (paper, Algorithm 3; Abdallah & Lesser, 2006) for tabular policies."""

from typing import ClassVar, Literal

import numba
import numpy as np
import torch
from torch import Tensor

from routing_lightning.errors import UsageError
from routing_lightning.routers.base import Trace
from routing_lightning.routers.learner import BaselineLearner, Learner, OptimizerMaker, SchedulerMaker
from routing_lightning.routers.policies import Policy, TabularPolicy
from routing_lightning.routers.rules import OptionRules, Rule

LARGEST = float(np.finfo(np.float32).max)
Scaling = Literal["printed", "original"]
Projection = Literal["normalise", "euclidean"]


@numba.njit(cache=True, nogil=True)
def _project_euclidean(row, floor, one):  # type: ignore[no-untyped-def]
    """Nearest point of the simplex with every entry at least ``floor`` (Duchi et al., 2008)."""
    mass = one - floor * row.size
    ordered = np.sort(row - floor)[::-1]
    total = mass - mass
    theta = total
    for k in range(row.size):
        total += ordered[k]
        candidate = (total - mass) / (k + 1)
        if ordered[k] > candidate:
            theta = candidate
    for k in range(row.size):
        row[k] = max(row[k] - floor - theta, one - one) + floor


@numba.njit(cache=True, nogil=True)
def _wpl_loop(  # type: ignore[no-untyped-def]
    policy, baseline, per_action, agents, actions, returns, sizes, lr, baseline_lr, printed, floor, one, euclidean
):
    """Algorithm 3, sample after sample, decision after decision. All floats have the policy's precision.

    Returns 1 if an agent is out of range, 2 if an action is, with nothing changed, else 0.
    """
    for n in range(actions.shape[0]):
        if agents[n] < 0 or agents[n] >= policy.shape[0]:
            return 1
        for d in range(actions.shape[1]):
            if actions[n, d] < -1 or actions[n, d] >= sizes[d]:
                return 2
    for n in range(actions.shape[0]):
        for d in range(actions.shape[1]):
            action = actions[n, d]
            if action < 0:
                continue
            row = policy[agents[n], d, : sizes[d]]
            column = action if per_action else 0
            average = (one - baseline_lr) * baseline[agents[n], d, column] + baseline_lr * returns[n, d]
            baseline[agents[n], d, column] = average
            delta = returns[n, d] - average
            if (delta < 0) == printed:
                delta *= one - row[action]
            else:
                delta *= row[action]
            row[action] += lr * delta
            if euclidean:
                # The nearest point is the same, and large numbers would lose the others' digits.
                row[action] = min(max(row[action], -one), one + one)
                _project_euclidean(row, floor, one)
                continue
            total = one - one
            for k in range(row.size):
                row[k] = min(max(row[k], floor), one)
                total += row[k]
            for k in range(row.size):
                row[k] = row[k] / total if total > 0 else one / row.size
    return 0


def wpl_update(
    policy: Tensor,
    baseline: Tensor,
    agents: Tensor,
    actions: Tensor,
    returns: Tensor,
    *,
    policy_lr: float,
    baseline_lr: float | None = None,
    scaling: Scaling = "printed",
    floor: float = 0.0,
    num_actions: Tensor | None = None,
    projection: Projection = "normalise",
) -> None:
    """Weighted Policy Learner update in place, sample after sample (paper, Algorithm 3).

    Each decision first moves the average return, then takes the difference to it, scales it by the probability of
    the action and adds it to that probability; the row is then clipped to [floor, 1] and divided by its sum (a zero
    sum gives the uniform row). The result for a batch is that of its samples one by one, exactly: the loop is the
    algorithm as printed, compiled. Works on the host; tensors on another device are copied there and back.

    Args:
        policy: (A, D, K) float32 or float64, probability of each action per agent and depth; changed in place.
        baseline: (A, D) average return per agent and depth, or (A, D, K) per action; changed in place.
        agents: (N,) int, the deciding agent of each sample, in [0, A).
        actions: (N, D) int, the actions taken, in [0, K); -1 = no decision there.
        returns: (N, D) float, the return of each decision.
        policy_lr: learning rate of the policy, lambda_pi, in (0, inf).
        baseline_lr: learning rate of the average return in (0, 1]; ``policy_lr`` if None, as in the paper.
        scaling: ``"printed"`` scales a negative difference by 1 - pi(a) and a positive one by pi(a), as Algorithm 3
            prints it; ``"original"`` does the opposite, as the paper's appendix and the original WPL article do.
        floor: smallest probability of an action before the division, in [0, 1/K].
        num_actions: (D,) int, how many of the K actions exist at each depth; all if None.
        projection: ``"normalise"`` (the paper's clip and divide) or ``"euclidean"`` (the nearest point of the simplex
            whose entries are at least ``floor``).

    Raises:
        UsageError: if an agent or action is out of range, or shapes do not fit.
    """
    num_agents, depth, width = policy.shape
    if actions.shape != returns.shape or actions.shape != (agents.shape[0], depth):
        raise UsageError(
            f"wpl_update got actions {tuple(actions.shape)}, returns {tuple(returns.shape)} and agents "
            f"{tuple(agents.shape)} for a policy of depth {depth}; give (N, {depth}), (N, {depth}) and (N,)."
        )
    if baseline.shape not in ((num_agents, depth), (num_agents, depth, width)):
        raise UsageError(
            f"wpl_update got a baseline of shape {tuple(baseline.shape)}; give {(num_agents, depth)} "
            f"(one average per depth) or {(num_agents, depth, width)} (one per action)."
        )
    if agents.shape[0] == 0:
        return
    host_policy, host_baseline = policy.detach().cpu().contiguous(), baseline.detach().cpu().contiguous()
    table = host_policy.numpy()
    number = table.dtype.type
    fault = _wpl_loop(
        table,
        host_baseline.numpy().reshape(num_agents, depth, -1),
        baseline.dim() == 3,
        agents.cpu().numpy(),
        actions.cpu().numpy(),
        returns.detach().to("cpu", policy.dtype).numpy(),
        np.full(depth, width) if num_actions is None else num_actions.cpu().numpy(),
        number(policy_lr),
        number(policy_lr if baseline_lr is None else baseline_lr),
        scaling == "printed",
        number(floor),
        number(1),
        projection == "euclidean",
    )
    if fault == 1:
        raise UsageError(f"wpl_update got agents outside 0..{num_agents - 1}; give agents of this policy.")
    if fault == 2:
        raise UsageError(f"wpl_update got actions outside -1..{width - 1}; give actions of this policy, -1 for none.")
    for target, host in ((policy, host_policy), (baseline, host_baseline)):
        if target.data_ptr() != host.data_ptr():
            target.copy_(host)


class WPL(Learner):
    """Weighted Policy Learner: tabular policy gradient that damps oscillation between agents (paper, Algorithm 3).

    Args:
        policy_lr: learning rate of the policy, lambda_pi > 0. The paper does not give it.
        baseline_lr: learning rate of the average return in (0, 1]; ``policy_lr`` if None, as in the paper.
        scaling: ``"printed"`` as Algorithm 3 prints it, ``"original"`` as the WPL article has it; see
            :func:`wpl_update`.
        floor: smallest probability of an action, in [0, 1); 0 in the paper.
        baseline: one average return ``"per_depth"`` (the default reading) or ``"per_action"``.
        projection: ``"normalise"`` as in the paper, or ``"euclidean"``.

    Raises:
        UsageError: if a value is out of its range.
    """

    option_rules: ClassVar[OptionRules] = {"baseline": Rule.READS}

    average_return: Tensor

    def __init__(
        self,
        policy_lr: float = 0.1,
        baseline_lr: float | None = None,
        scaling: Scaling = "printed",
        floor: float = 0.0,
        baseline: Literal["per_depth", "per_action"] = "per_depth",
        projection: Projection = "normalise",
    ) -> None:
        super().__init__()
        if not 0 < policy_lr < LARGEST:
            raise UsageError(f"policy_lr is {policy_lr}; give a finite learning rate above 0.")
        if baseline_lr is not None and not 0 < baseline_lr <= 1:
            raise UsageError(f"baseline_lr is {baseline_lr}; give a rate in (0, 1], or null for that of the policy.")
        if baseline_lr is None and policy_lr > 1:
            raise UsageError(f"policy_lr is {policy_lr} and serves the average too; give it in (0, 1] or baseline_lr.")
        if not 0 <= floor < 1:
            raise UsageError(f"floor is {floor}; give the smallest probability of an action, in [0, 1).")
        self.policy_lr = policy_lr
        self.baseline_lr = baseline_lr
        self.scaling: Scaling = scaling
        self.floor = floor
        self.per_action = baseline == "per_action"
        self.projection: Projection = projection

    def initial_table(self, num_agents: int, num_actions: list[int]) -> Tensor:
        """Uniform probabilities over the actions that exist: (num_agents, D, max(num_actions))."""
        if self.floor * max(num_actions) > 1:
            raise UsageError(
                f"floor is {self.floor}; with {max(num_actions)} actions give at most 1/{max(num_actions)}."
            )
        sizes = torch.tensor(num_actions)
        exists = torch.arange(max(num_actions)) < sizes.unsqueeze(1)
        return (exists / sizes.unsqueeze(1)).expand(num_agents, -1, -1).clone()

    def build(self, policy: Policy) -> None:
        """Makes the average returns."""
        shape = policy.num_agents, len(policy.num_actions)
        self.register_buffer(
            "average_return", torch.zeros((*shape, int(policy.num_actions.max())) if self.per_action else shape)
        )

    def probabilities(self, scores: Tensor, num_actions: Tensor) -> Tensor:
        """The table of WPL holds the probabilities themselves."""
        return scores

    def learn(self, policy: Policy, trace: Trace) -> None:
        """One :func:`wpl_update` over the batch."""
        assert isinstance(policy, TabularPolicy) and trace.returns is not None  # for the type checker
        wpl_update(
            policy.table,
            self.average_return,
            trace.agents,
            trace.actions,
            trace.returns,
            policy_lr=self.policy_lr,
            baseline_lr=self.baseline_lr,
            scaling=self.scaling,
            floor=self.floor,
            num_actions=policy.num_actions,
            projection=self.projection,
        )


class ApproximateWPL(BaselineLearner):
    """WPL carried over to policies with a gradient, which the paper leaves as future work (section 3.1.2).

    Algorithm 3 adds ``lambda * delta * w(pi(a))`` to the probability of the action taken, with
    ``delta = R - average return`` and the weight w of the scaling (``printed``: pi for a gain, 1 - pi for a loss;
    ``original``: the opposite). Here the same push goes to the policy's parameters through the gradient of that
    probability: the loss of a batch is the mean over samples of ``-sum_i delta_i w_i pi(a_i | s_i)``, with delta and w
    held fixed. The softmax takes the place of the projection onto the simplex. For a table of logits this is WPL with
    its step multiplied by the softmax's own derivative.

    Args:
        lr: learning rate of the router, above 0, for the default optimizer SGD.
        baseline_lr: learning rate of the average return (one per agent and depth), in (0, 1].
        scaling: ``"printed"`` or ``"original"``, see :func:`wpl_update`.
        optimizer: makes another optimizer from the policy's parameters; ``lr`` then does not count.
        lr_scheduler: makes the learning rate scheduler, stepped once per epoch; none by default.
    """

    def __init__(
        self,
        lr: float = 0.1,
        baseline_lr: float = 0.1,
        scaling: Scaling = "original",
        optimizer: OptimizerMaker | None = None,
        lr_scheduler: SchedulerMaker | None = None,
    ) -> None:
        super().__init__(lr, baseline_lr, optimizer, lr_scheduler)
        self.scaling = scaling

    def loss(self, policy: Policy, trace: Trace) -> Tensor:
        """Moves the average returns, sample after sample, and gives the loss above, a scalar."""
        assert trace.returns is not None
        delta = torch.empty_like(trace.returns)
        _differences(
            self.average_return.numpy(),
            trace.agents.numpy(),
            trace.actions.numpy(),
            trace.returns.numpy(),
            np.float32(self.baseline_lr),
            delta.numpy(),
        )
        total: Tensor | float = 0.0
        for depth, scores in enumerate(policy.scores_of(trace)):
            actions = trace.actions[:, depth].to(scores.device)
            chosen = scores.softmax(-1).gather(1, actions.clamp(min=0).unsqueeze(1)).squeeze(1)
            push = delta[:, depth].to(scores.device)
            gain = (push >= 0) == (self.scaling == "printed")
            weight = torch.where(gain, chosen, 1 - chosen).detach()
            total = total - (push * weight * chosen).sum()
        assert isinstance(total, Tensor)
        return total / len(trace.actions)


@numba.njit(cache=True, nogil=True)
def _differences(average_return, agents, actions, returns, rate, delta):  # type: ignore[no-untyped-def]
    """Algorithm 3's average return and difference to it, sample after sample; 0 where there was no decision."""
    for n in range(actions.shape[0]):
        for d in range(actions.shape[1]):
            delta[n, d] = 0
            if actions[n, d] >= 0:
                average = average_return[agents[n], d]
                average += rate * (returns[n, d] - average)
                average_return[agents[n], d] = average
                delta[n, d] = returns[n, d] - average
