"""Router: agents x policy x learner (paper, section 3.1.2 and Figure 3)."""

import copy
from dataclasses import replace
from typing import Any, Literal

import numba
import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from routing_lightning.errors import UsageError
from routing_lightning.routers.learner import GradientLearner, Learner
from routing_lightning.routers.policies import MLPPolicy, Policy, TabularPolicy
from routing_lightning.routers.rewards import CollaborationReward, returns
from routing_lightning.routers.trace import Trace

Agents = Literal["per_task", "single", "dispatched"]


@numba.njit(cache=True, nogil=True)
def _invert(probabilities, noise, actions):  # type: ignore[no-untyped-def]
    """The first action at which the cumulative distribution exceeds noise times its total, for each row."""
    for row in range(len(actions)):
        total = 0.0
        for k in range(probabilities.shape[1]):
            total += probabilities[row, k]
        point, cumulative = noise[row] * total, 0.0
        actions[row] = 0
        for k in range(probabilities.shape[1]):
            cumulative += probabilities[row, k]
            if cumulative > point:  # so this action has a probability; the last sum is the total, which point is below
                actions[row] = k
                break


def draw(probabilities: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draws one action per row by inverting the cumulative distribution; never one of probability 0.

    Args:
        probabilities: (..., K), rows that sum to about 1.
        generator: source of the noise, on the host.

    Returns:
        (...) int64, actions in [0, K).
    """
    if probabilities.device.type == "cpu":
        given = probabilities.detach().float().numpy()
        actions = np.empty(given.shape[:-1], np.int64)
        points = torch.rand(actions.size, generator=generator, dtype=torch.float32).numpy()
        _invert(given.reshape(-1, given.shape[-1]), points, actions.reshape(-1))
        return torch.from_numpy(actions)
    cumulative = probabilities.float().cumsum(-1)
    total = cumulative[..., -1:]
    # float32 by name here and elsewhere: at precision bf16-true torch's default type has 8 bits.
    noise = torch.rand(total.shape, generator=generator, dtype=torch.float32)
    noise = noise.to(total.device, non_blocking=True) * total
    # Rounding could lift the noise to the total itself, past the last action with a probability.
    noise = torch.minimum(noise, torch.nextafter(total, torch.zeros_like(total)))
    return (cumulative <= noise).sum(-1)


class Decider(nn.Module):
    """A policy with its learner: decides at D depths for A agents.

    Args:
        policy: what maps states to numbers.
        learner: what the numbers mean and how they change.

    Raises:
        UsageError: if the learner cannot train the policy.
    """

    def __init__(self, policy: Policy, learner: Learner) -> None:
        super().__init__()
        learner.check(policy)
        self.policy = policy
        self.learner = learner

    def build(self, num_agents: int, num_tasks: int, num_actions: list[int], state_sizes: list[int | None]) -> None:
        """Gives policy and learner their final shape."""
        if isinstance(self.policy, TabularPolicy):
            initial = self.learner.initial_table(num_agents, num_actions)
            self.policy.build(initial, num_actions, isinstance(self.learner, GradientLearner))
        elif isinstance(self.policy, MLPPolicy):
            sizes = [size for size in state_sizes if size is not None]
            if len(sizes) < len(state_sizes):
                raise UsageError(
                    "MLPPolicy needs activations that are vectors, but a layer does not say its in_features; give it, "
                    "or use TabularPolicy."
                )
            self.policy.build(num_agents, num_tasks, num_actions, sizes)
        self.learner.build(self.policy)

    @torch.no_grad()
    def probabilities(self, agents: Tensor, tasks: Tensor, state: Tensor | None, depth: int) -> Tensor:
        """Distribution of each sample at one depth: (N, K_d)."""
        size = self.policy.num_actions[depth]
        if isinstance(self.policy, TabularPolicy):
            return self.learner.probabilities(self.policy.table[agents, depth, : int(size)], size)
        assert isinstance(self.policy, MLPPolicy) and state is not None
        return self.learner.probabilities(self.policy.scores(state, tasks, agents, depth), size)


class Router(nn.Module):
    """Picks a function block per sample and depth, and learns from the returns.

    Args:
        policy: what maps states to numbers: :class:`TabularPolicy` or :class:`MLPPolicy`.
        learner: what the numbers mean and how they change, for example :class:`WPL`.
        agents: who decides. ``"per_task"``: one agent per task, chosen by the task label; ``"single"``: one agent for
            all; ``"dispatched"``: as many agents as tasks, chosen by a further one, the dispatcher, which has a policy
            and learner of the same kind and learns from the return of the first decision (NOTES 19).
        gamma: discount factor of the immediate rewards, in [0, 1].
        collaboration: rho, weight of the collaboration reward, in [0, 1] (paper: 0.3 for MNIST-MTL, else 0).
        collaboration_by: ``"probability"`` or ``"frequency"``, see :class:`CollaborationReward`.
        detach_state: whether the router's gradient stops at its input. If not, it flows into the blocks and features
            that produced the input (paper, end of section 3.1.2).

    Raises:
        UsageError: if a value is out of its range or the combination makes no sense.
    """

    def __init__(
        self,
        policy: Policy,
        learner: Learner,
        agents: Agents = "per_task",
        gamma: float = 1.0,
        collaboration: float = 0.0,
        collaboration_by: Literal["probability", "frequency"] = "probability",
        detach_state: bool = True,
    ) -> None:
        super().__init__()
        if not 0 <= gamma <= 1:
            raise UsageError(f"gamma is {gamma}; give a discount factor in [0, 1].")
        if agents not in ("per_task", "single", "dispatched"):
            raise UsageError(f"agents is {agents!r}; give 'per_task', 'single' or 'dispatched'.")
        if not detach_state and not (policy.uses_state and isinstance(learner, GradientLearner)):
            raise UsageError(
                f"detach_state is false but policy {type(policy).__name__} has no gradient towards its input; use "
                "MLPPolicy, or set detach_state to true."
            )
        self.decider = Decider(policy, learner)
        self.dispatcher = Decider(copy.deepcopy(policy), copy.deepcopy(learner)) if agents == "dispatched" else None
        for decider in self.deciders():
            decider.learner.gamma = gamma
        self.collaboration = CollaborationReward(collaboration, collaboration_by)
        self.agents = agents
        self.gamma = gamma
        self.detach_state = detach_state

    @property
    def policy(self) -> Policy:
        """The policy that picks blocks."""
        return self.decider.policy

    @property
    def learner(self) -> Learner:
        """The learner of that policy."""
        return self.decider.learner

    @property
    def uses_state(self) -> bool:
        """Whether routes depend on the activations; if not, they are known before the forward pass."""
        return self.policy.uses_state

    def deciders(self) -> list[Decider]:
        """What decides about blocks, and the dispatcher if there is one."""
        return [self.decider] if self.dispatcher is None else [self.decider, self.dispatcher]

    def build(self, num_tasks: int, num_actions: list[int], state_sizes: list[int | None] | None = None) -> None:
        """Makes the policies for a network; called once by the network that the router routes.

        Args:
            num_tasks: T, number of tasks.
            num_actions: number of actions (blocks, and PASS where there is one) at each depth.
            state_sizes: size of the activation before each depth, None where it is no vector; for policies that see it.

        Raises:
            UsageError: if the router cannot serve such a network.
        """
        sizes: list[int | None] = [None] * len(num_actions)
        sizes = sizes if state_sizes is None else state_sizes
        if self.dispatcher is not None:
            if num_tasks < 2:
                raise UsageError("agents is 'dispatched' but there is one agent (task); use 'single' or 'per_task'.")
            # A table sees the task alone, by having a row for each; a network sees the task in its input.
            rows = 1 if self.uses_state else num_tasks
            self.dispatcher.build(rows, num_tasks, [num_tasks], sizes[:1])
        self.decider.build(1 if self.agents == "single" else num_tasks, num_tasks, num_actions, sizes)
        self.collaboration.build(num_actions)
        self.num_tasks = num_tasks

    # -- deciding ------------------------------------------------------------------------------------------------------

    def start(
        self, tasks: Tensor, state: Tensor | None = None, *, explore: bool, generator: torch.Generator | None = None
    ) -> Trace:
        """Starts the trace of a batch: finds the agents and, for a table, all actions.

        Args:
            tasks: (N,) int64 in [0, T), on the host.
            state: (N, size), the activation before the first depth; for a router that looks at it.
            explore: draw the actions from the policy; else take the most probable one.
            generator: source of the noise, on the host.

        Returns:
            The trace, with agents, and with all actions if they do not depend on activations.
        """
        if self.dispatcher is not None:
            dispatch = self.dispatcher.probabilities(self.rows(tasks), tasks, state, 0).cpu()
            agents = draw(dispatch, generator) if explore else dispatch.argmax(-1)
        else:
            agents = tasks if self.agents == "per_task" else torch.zeros_like(tasks)
        trace = Trace(tasks=tasks, agents=agents)
        if not self.uses_state:
            trace.probabilities = given = self.table_probabilities(agents)
            trace.actions = draw(given, generator) if explore else given.argmax(-1)
        return trace

    def table_probabilities(self, agents: Tensor) -> Tensor:
        """What the actions of a table's agents are drawn from now: agents (N,) -> (N, D, K) float32 on the host."""
        assert isinstance(self.policy, TabularPolicy)
        return self.learner.probabilities(self.policy.scores(agents).detach(), self.policy.num_actions)

    def rows(self, tasks: Tensor) -> Tensor:
        """Row of the dispatcher's policy for each sample."""
        return torch.zeros_like(tasks) if self.uses_state else tasks

    def act(
        self, trace: Trace, state: Tensor, depth: int, *, explore: bool, generator: torch.Generator | None = None
    ) -> Tensor:
        """Decides at one depth, from the activations, and adds to the trace.

        Args:
            trace: the trace so far.
            state: (N, size), the activation before this depth.
            depth: in [0, D).
            explore: draw the actions from the policy; else take the most probable one.
            generator: source of the noise, on the host.

        Returns:
            (N,) int64 on the host.
        """
        given = self.decider.probabilities(trace.agents, trace.tasks, state, depth)
        actions = (draw(given, generator) if explore else given.argmax(-1)).cpu()
        trace.states.append(state.detach() if self.detach_state else state)
        padded = torch.zeros(len(given), 1, int(self.policy.num_actions.max()), dtype=torch.float32)
        padded[:, 0, : given.shape[1]] = given.cpu()
        if depth == 0:
            trace.actions, trace.probabilities = actions.unsqueeze(1), padded
        else:
            assert trace.probabilities is not None
            trace.actions = torch.cat([trace.actions, actions.unsqueeze(1)], 1)
            trace.probabilities = torch.cat([trace.probabilities, padded], 1)
        return actions

    @torch.no_grad()
    def probabilities(self) -> Tensor:
        """The policy of each task: (T, D, K) float32 on the host, rows on the simplex.

        With a dispatcher, the mean over agents by their probability of being picked.

        Raises:
            UsageError: if the policy looks at activations.
        """
        if not isinstance(self.policy, TabularPolicy):
            raise UsageError(f"{type(self.policy).__name__} has no table of probabilities; count routes instead.")
        tasks = torch.arange(self.num_tasks)
        num_agents = self.policy.num_agents
        given = self.learner.probabilities(self.policy.scores(torch.arange(num_agents)), self.policy.num_actions)
        if self.dispatcher is None:
            return given[tasks] if self.agents == "per_task" else given.expand(self.num_tasks, -1, -1)
        shares = self.dispatcher.probabilities(tasks, tasks, None, 0)
        return torch.einsum("ta,adk->tdk", shares, given)

    # -- learning ------------------------------------------------------------------------------------------------------

    def configure(self) -> list[tuple[Optimizer, Any]]:
        """Makes the optimizers of learners that follow a gradient: pairs of optimizer and scheduler (or None)."""
        return [d.learner.configure(d.policy) for d in self.deciders() if isinstance(d.learner, GradientLearner)]

    def reward(self, trace: Trace) -> None:
        """Fills in rewards and returns of a trace that has its final reward."""
        assert trace.final_reward is not None and trace.probabilities is not None
        if self.collaboration.rho == 0:  # the same in fewer operations
            trace.rewards = torch.zeros(trace.actions.shape, dtype=torch.float32)
            trace.returns = trace.final_reward.unsqueeze(1).expand(trace.actions.shape).clone()
        else:
            trace.rewards = self.collaboration(trace.actions, trace.probabilities)
            trace.returns = returns(trace.final_reward, trace.rewards, self.gamma)

    def dispatch_trace(self, trace: Trace) -> Trace:
        """The dispatcher's part of a trace: its action is the agent, its return that of the first decision."""
        assert trace.returns is not None
        first = trace.returns[:, :1].clone()
        return replace(
            trace,
            agents=self.rows(trace.tasks),
            actions=trace.agents.unsqueeze(1),
            states=trace.states[:1],
            final_reward=first[:, 0],
            rewards=torch.zeros_like(first),
            returns=first,
        )

    @torch.no_grad()
    def learn(self, trace: Trace) -> None:
        """Learns from a batch's trace that has its final reward."""
        self.reward(trace)
        # Taken first: a learner may write to its trace.
        dispatched = None if self.dispatcher is None else self.dispatch_trace(trace)
        self.learner.learn(self.policy, trace)
        if self.dispatcher is not None and dispatched is not None:
            self.dispatcher.learner.learn(self.dispatcher.policy, dispatched)

    def loss(self, trace: Trace) -> Tensor:
        """The learners' loss for a trace that has its final reward, where the gradient is to reach the states."""
        self.reward(trace)
        assert isinstance(self.learner, GradientLearner)
        total = self.learner.loss(self.policy, trace)
        if self.dispatcher is not None:
            assert isinstance(self.dispatcher.learner, GradientLearner)
            total = total + self.dispatcher.learner.loss(self.dispatcher.policy, self.dispatch_trace(trace))
        return total

    def step(self, trace: Trace) -> None:
        """Steps the learners' optimizers after the loss of a trace went backward."""
        for decider in self.deciders():
            assert isinstance(decider.learner, GradientLearner)
            decider.learner.step(trace if decider is self.decider else self.dispatch_trace(trace))
