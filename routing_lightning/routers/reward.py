"""RewardRouter: agents x policy x learner (paper, section 3.1.2 and Figure 3)."""

import copy
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from routing_lightning.errors import UsageError
from routing_lightning.routers.base import Decision, Router, RoutingSpec, Trace
from routing_lightning.routers.decider import Decider
from routing_lightning.routers.draw import draw
from routing_lightning.routers.learner import Learner
from routing_lightning.routers.policies import Policy, TabularPolicy
from routing_lightning.routers.rewards import CollaborationReward, returns
from routing_lightning.routers.rules import OptionRules, Rule

Agents = Literal["per_task", "single", "dispatched"]


class RewardRouter(Router):
    """Picks a function block per sample and depth, and learns from the returns (paper, Algorithms 2 and 3).

    Args:
        policy: what maps states to numbers: :class:`TabularPolicy` or :class:`MLPPolicy`.
        learner: what the numbers mean and how they change, for example :class:`WPL`.
        agents: who decides. ``"per_task"``: one agent per task, chosen by the task label; ``"single"``: one agent for
            all; ``"dispatched"``: as many agents as tasks, chosen by a further one, the dispatcher, which has a policy
            and learner of the same kind and learns from the return of the first decision (docs/paper.md, reading 19).
        gamma: discount factor of the immediate rewards, in [0, 1].
        collaboration: rho, weight of the collaboration reward, in [0, 1] (paper: 0.3 for MNIST-MTL, else 0).
        collaboration_by: ``"probability"`` or ``"frequency"``, see :class:`CollaborationReward`.
        detach_state: whether the router's gradient stops at its input. If not, it flows into the blocks and features
            that produced the input (paper, end of section 3.1.2).
        old_tasks: number of tasks, numbered first, that were there before others joined; the command ``extend`` sets
            this and the next two, which :meth:`~routing_lightning.networks.RoutingNetwork.hold_back` explains.
        old_blocks: number of blocks of each routed layer, numbered first, that were there before; null: all are alike.
        old_lr: factor on the learning rate of all of the network that was there before, in [0, 1]; 0: frozen, and what
            the old tasks get stays as it is, to the bit.

    Raises:
        UsageError: if a value is out of its range or the combination makes no sense.
    """

    option_rules: ClassVar[OptionRules] = {
        **dict.fromkeys(("policy", "learner", "agents"), Rule.READS),
        **dict.fromkeys(("old_tasks", "old_blocks", "old_lr"), Rule.PARTS),
    }

    def __init__(
        self,
        policy: Policy,
        learner: Learner,
        agents: Agents = "per_task",
        gamma: float = 1.0,
        collaboration: float = 0.0,
        collaboration_by: Literal["probability", "frequency"] = "probability",
        detach_state: bool = True,
        old_tasks: int = 0,
        old_blocks: list[int] | None = None,
        old_lr: float = 1.0,
    ) -> None:
        super().__init__()
        if not isinstance(policy, Policy) or not isinstance(learner, Learner):
            raise UsageError(
                f"RewardRouter got policy {policy!r} and learner {learner!r}; give a Policy and a Learner, such as "
                "TabularPolicy() and WPL()."
            )
        if not 0 <= gamma <= 1:
            raise UsageError(f"gamma is {gamma}; give a discount factor in [0, 1].")
        if agents not in ("per_task", "single", "dispatched"):
            raise UsageError(f"agents is {agents!r}; give 'per_task', 'single' or 'dispatched'.")
        if not detach_state and not (policy.uses_state and learner.follows_gradient):
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
        self.held_tasks = 0
        self.old_tasks, self.old_blocks, self.old_lr = old_tasks, old_blocks, old_lr
        self.gamma = gamma
        self.joint = not detach_state
        self.uses_state = policy.uses_state

    @property
    def policy(self) -> Policy:
        """The policy that picks blocks."""
        return self.decider.policy

    @property
    def learner(self) -> Learner:
        """The learner of that policy."""
        return self.decider.learner

    def deciders(self) -> list[Decider]:
        """What decides about blocks, and the dispatcher if there is one."""
        return [self.decider] if self.dispatcher is None else [self.decider, self.dispatcher]

    def build(self, spec: RoutingSpec) -> None:
        """Makes the policies; see the base class."""
        super().build(spec)
        if self.dispatcher is not None:
            if spec.num_tasks < 2:
                raise UsageError("agents is 'dispatched' but there is one agent (task); use 'single' or 'per_task'.")
            # A table sees the task alone, by having a row for each; a network sees the task in its input.
            rows = 1 if self.uses_state else spec.num_tasks
            choice = RoutingSpec(spec.num_tasks, [spec.num_tasks], state_sizes=spec.state_sizes[:1])
            self.dispatcher.build(rows, choice)
        self.decider.build(1 if self.agents == "single" else spec.num_tasks, spec)
        self.collaboration.build(spec.num_actions)

    def hold_tasks(self, count: int) -> None:
        """Keeps the agents of the first tasks as they are; see the base class."""
        if not isinstance(self.policy, TabularPolicy) or self.agents != "per_task":
            super().hold_tasks(count)
        self.held_tasks = count

    # -- deciding ------------------------------------------------------------------------------------------------------

    def start(self, tasks: Tensor, *, explore: bool, generator: torch.Generator | None = None) -> Trace:
        """Finds the agents and, for a table, all actions; see the base class."""
        trace = Trace(tasks, torch.zeros_like(tasks) if self.agents == "single" else tasks, explore, generator)
        if not self.uses_state:
            if self.dispatcher is not None:
                trace.agents = self.pick(trace, self.dispatcher.rows(tasks)[:, 0])
            trace.probabilities = self.decider.rows(trace.agents)
            trace.actions = self.pick(trace, trace.probabilities)
            if self.held_tasks and explore:
                held = (tasks < self.held_tasks).view(-1, 1)
                trace.actions = torch.where(held, trace.probabilities.argmax(-1), trace.actions)
        return trace

    def decide(self, trace: Trace, x: Tensor, depth: int) -> Decision:
        """Decides by the policy; see the base class."""
        if not self.uses_state:
            return super().decide(trace, x, depth)
        if self.dispatcher is not None and depth == 0:
            rows = self.dispatcher_rows(trace.tasks)
            trace.agents = self.pick(trace, self.dispatcher.probabilities(x, trace.tasks, rows, 0))
        given = self.decider.probabilities(x, trace.tasks, trace.agents, depth)
        trace.states.append(x.detach() if not self.joint else x)
        padded = torch.zeros(len(given), 1, max(self.spec.num_actions), dtype=torch.float32)
        padded[:, 0, : given.shape[1]] = given.cpu()
        trace.probabilities = padded if depth == 0 else torch.cat([_known(trace.probabilities), padded], 1)
        return Decision(self.pick(trace, given))

    @staticmethod
    def pick(trace: Trace, probabilities: Tensor) -> Tensor:
        """Draws from distributions (..., K), or takes the most probable, as the trace says: (...) on the host."""
        return (draw(probabilities, trace.generator) if trace.explore else probabilities.argmax(-1)).cpu()

    def dispatcher_rows(self, tasks: Tensor) -> Tensor:
        """Row of the dispatcher's policy for each sample."""
        return torch.zeros_like(tasks) if self.uses_state else tasks

    @torch.no_grad()
    def probabilities(self) -> Tensor:
        """The policy of each task: (T, D, K) float32 on the host, rows on the simplex.

        With a dispatcher, the mean over agents by their probability of being picked.

        Raises:
            UsageError: if the policy looks at activations.
        """
        if self.uses_state:
            return super().probabilities()
        tasks = torch.arange(self.spec.num_tasks)
        given = self.decider.rows(torch.arange(self.policy.num_agents))
        if self.dispatcher is None:
            return given.expand(len(tasks), -1, -1)
        return torch.einsum("ta,adk->tdk", self.dispatcher.rows(tasks)[:, 0], given)

    # -- learning ------------------------------------------------------------------------------------------------------

    def own_parameters(self) -> list[nn.Parameter]:
        """All parameters: the learners move them."""
        return list(self.parameters())

    def configure(self) -> list[tuple[Optimizer, Any]]:
        """Makes the optimizers of learners that follow a gradient; see the base class."""
        made = [decider.learner.configure(decider.policy) for decider in self.deciders()]
        return [pair for pair in made if pair is not None]

    def reward(self, trace: Trace) -> None:
        """Fills in rewards and returns of a trace that has its final reward."""
        final_reward = trace.final_reward
        if final_reward is None or final_reward.shape != trace.actions.shape[:1]:
            shape = None if final_reward is None else tuple(final_reward.shape)
            raise UsageError(
                f"the trace has final_reward {shape}; set it to one reward per sample, ({len(trace.actions)},), before "
                "the router learns."
            )
        if self.collaboration.rho == 0:  # the same in fewer operations
            trace.rewards = torch.zeros(trace.actions.shape, dtype=torch.float32)
            trace.returns = final_reward.unsqueeze(1).expand(trace.actions.shape).clone()
        else:
            # Not sent from process to process where a table knows them.
            given = self.decider.rows(trace.agents) if trace.probabilities is None else trace.probabilities
            trace.rewards = self.collaboration(trace.actions, given)
            trace.returns = returns(final_reward, trace.rewards, self.gamma)

    def dispatch_trace(self, trace: Trace) -> Trace:
        """The dispatcher's part of a trace: its action is the agent, its return that of the first decision."""
        first = _known(trace.returns)[:, :1].clone()
        return replace(
            trace,
            agents=self.dispatcher_rows(trace.tasks),
            actions=trace.agents.unsqueeze(1),
            states=trace.states[:1],
            final_reward=first[:, 0],
            rewards=torch.zeros_like(first),
            returns=first,
        )

    def traces(self, trace: Trace) -> list[tuple[Decider, Trace]]:
        """Each decider with its part of a trace that has its returns."""
        found = [(self.decider, trace)]
        if self.dispatcher is not None:  # of its own memory: a learner may write to its trace
            found.append((self.dispatcher, self.dispatch_trace(trace)))
        return found

    def auxiliary_loss(self, trace: Trace) -> Tensor | None:
        """The learners' loss, where its gradient is to reach the states; None with ``detach_state``."""
        if not self.joint:
            return None
        self.reward(trace)
        parts = [decider.learner.loss(decider.policy, part) for decider, part in self.traces(trace)]
        return torch.stack(parts).sum()

    @torch.no_grad()
    def learn(self, trace: Trace) -> None:
        """Learns from a trace; without ``detach_state`` by the gradients of :meth:`auxiliary_loss`."""
        if not self.joint:
            self.reward(trace)
        # Put back afterwards, since an optimizer may move rows without a gradient, too.
        table = self.policy.table[: self.held_tasks] if isinstance(self.policy, TabularPolicy) else None
        held = table.clone() if table is not None and self.held_tasks else None
        for decider, part in self.traces(trace):
            if not self.joint:
                decider.learner.learn(decider.policy, part)
            else:
                decider.learner.step(decider.policy, part)
        if table is not None and held is not None:
            table.copy_(held)


def _known(value: Tensor | None) -> Tensor:
    """What must be there by now, for the type checker."""
    assert value is not None
    return value
