"""Policies: what maps a state (v, t, d) to one number per action (paper, section 3.1.2)."""

from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from routing_lightning.errors import UsageError
from routing_lightning.nn.blocks import LinearBlocks
from routing_lightning.routers.base import RoutingSpec, Trace
from routing_lightning.routers.host import FixedPrecisionModule, HostModule
from routing_lightning.routers.rules import OptionRules, Rule

if TYPE_CHECKING:  # a learner names the policies that it trains
    from routing_lightning.routers.learner import Learner


class Policy(nn.Module):
    """Maps a state to one number per action, its scores; what the numbers mean is the learner's affair.

    Attributes:
        uses_state: whether the scores depend on the activation v, or on agent and depth alone.
        num_actions: (D,) int64 on the host, how many actions exist at each depth.
        num_agents: A, number of agents.
    """

    uses_state: bool
    num_actions: Tensor
    num_agents: int

    def build(self, num_agents: int, spec: RoutingSpec, learner: "Learner") -> None:
        """Gives the policy its final shape; called once.

        Args:
            num_agents: A, number of agents.
            spec: what there is to decide.
            learner: who will train it.

        Raises:
            UsageError: if the policy cannot serve such a network.
        """
        self.num_agents = num_agents
        # No buffer: averaging the weights of a run would average its whole numbers, too, and lose one.
        self.num_actions = torch.tensor(spec.num_actions)

    def scores(self, state: Tensor, tasks: Tensor, agents: Tensor, depth: int) -> Tensor:
        """Scores at one depth.

        Args:
            state: (N, size), the state; of no meaning where the policy does not use it.
            tasks: (N,) int64 in [0, T).
            agents: (N,) int64 in [0, A).
            depth: in [0, D).

        Returns:
            (N, K_d) float32.
        """
        raise TypeError(f"{type(self).__name__} does not score a state: override scores")

    def rows(self, agents: Tensor) -> Tensor:
        """Scores of all depths at once, for a policy that does not use the state: agents (N,) -> (N, D, K)."""
        raise TypeError(f"{type(self).__name__} has no table of scores")

    def scores_of(self, trace: Trace) -> list[Tensor]:
        """Scores of all decisions of a trace, for learners that follow a gradient: D tensors (N, K_d)."""
        raise TypeError(f"{type(self).__name__} does not score a trace: override scores_of")


class TabularPolicy(HostModule, Policy):
    """One table (depth x action) per agent (paper, section 3.1.2): the state used is (t, d).

    Attributes:
        table: (A, D, K) float32 on the host; made by :meth:`build`. Part of the checkpoint.
    """

    uses_state = False
    table: Tensor

    def build(self, num_agents: int, spec: RoutingSpec, learner: "Learner") -> None:
        """Makes the table: a parameter if the learner follows a gradient, else a buffer."""
        super().build(num_agents, spec, learner)
        initial = learner.initial_table(num_agents, spec.num_actions)
        if learner.follows_gradient:
            self.table = nn.Parameter(initial)
        else:
            self.register_buffer("table", initial)

    def scores(self, state: Tensor, tasks: Tensor, agents: Tensor, depth: int) -> Tensor:
        """Scores at one depth; see the base class."""
        return self.table[agents, depth, : int(self.num_actions[depth])]

    def rows(self, agents: Tensor) -> Tensor:
        """Scores of all depths at once: agents (N,) -> (N, D, K)."""
        return self.table.index_select(0, agents)

    def scores_of(self, trace: Trace) -> list[Tensor]:
        """Scores of all decisions of a trace: D tensors (N, K_d)."""
        rows = self.rows(trace.agents)
        return [rows[:, depth, :size] for depth, size in enumerate(self.num_actions.tolist())]


class MLPPolicy(FixedPrecisionModule, Policy):
    """Two-layer networks that see the activation v and the task t (paper, section 3.1.2 and section 4).

    Each agent has networks of its own; the input is concat(v, one-hot(t)).

    Args:
        hidden: hidden units, at least 1 (paper: 64).
        depth_input: ``"separate"``: one network per depth; ``"one_hot"``: one network for all depths, which gets the
            depth as 1-hot in addition. The latter needs activations of one size and as many actions at each depth.

    Raises:
        UsageError: if a value is out of its range.
    """

    option_rules: ClassVar[OptionRules] = {"hidden": Rule.READS, "depth_input": Rule.READS}

    uses_state = True

    def __init__(self, hidden: int = 64, depth_input: Literal["separate", "one_hot"] = "separate") -> None:
        super().__init__()
        if hidden < 1:
            raise UsageError(f"hidden of MLPPolicy is {hidden}; give at least 1.")
        self.hidden = hidden
        self.shared = depth_input == "one_hot"

    def build(self, num_agents: int, spec: RoutingSpec, learner: "Learner") -> None:
        """Makes the networks.

        Raises:
            UsageError: if sizes of states are not known, or one network cannot serve all depths.
        """
        super().build(num_agents, spec, learner)
        state_sizes, num_actions = spec.known_state_sizes(type(self).__name__), spec.num_actions
        if self.shared and (len(set(num_actions)) > 1 or len(set(state_sizes)) > 1):
            raise UsageError(
                f"depth_input is 'one_hot' but the depths have activations of sizes {state_sizes} and {num_actions} "
                "actions, while one network needs the same at each depth; use depth_input 'separate'."
            )
        self.num_tasks, self.depth = spec.num_tasks, len(num_actions)
        extra = self.num_tasks + (self.depth if self.shared else 0)
        count = 1 if self.shared else self.depth
        self.first = nn.ModuleList(
            [LinearBlocks(num_agents, state_sizes[d] + extra, self.hidden) for d in range(count)]
        )
        self.second = nn.ModuleList(
            [LinearBlocks(num_agents, self.hidden, num_actions[d], relu=False) for d in range(count)]
        )

    def scores(self, state: Tensor, tasks: Tensor, agents: Tensor, depth: int) -> Tensor:
        """Scores at one depth; see the base class."""
        network = 0 if self.shared else depth
        parts = [state.float(), one_hot(tasks.to(state.device), self.num_tasks).float()]
        if self.shared:
            parts.append(one_hot(tasks.new_full(tasks.shape, depth), self.depth).float().to(state.device))
        with torch.autocast(state.device.type, enabled=False):
            found: Tensor = self.second[network](self.first[network](torch.cat(parts, 1), agents), agents)
            return found

    def scores_of(self, trace: Trace) -> list[Tensor]:
        """Scores of all decisions of a trace: D tensors (N, K_d)."""
        return [self.scores(state, trace.tasks, trace.agents, depth) for depth, state in enumerate(trace.states)]
