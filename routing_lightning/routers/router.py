"""Router: agents x policy x learner (paper, section 2.2.2 and Figure 3)."""

from typing import Literal

import torch
from torch import Tensor, nn

from routing_lightning.errors import UsageError
from routing_lightning.routers.learner import Learner
from routing_lightning.routers.policies import TabularPolicy
from routing_lightning.routers.rewards import returns
from routing_lightning.routers.trace import Trace

Agents = Literal["per_task", "single"]


def draw(probabilities: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draws one action per row by inverting the cumulative distribution; never one of probability 0.

    Args:
        probabilities: (..., K), rows that sum to about 1.
        generator: source of the noise, on the same device.

    Returns:
        (...) int64, actions in [0, K).
    """
    cumulative = probabilities.float().cumsum(-1)
    total = cumulative[..., -1:]
    noise = torch.rand(total.shape, generator=generator, device=total.device) * total
    # Rounding could lift the noise to the total itself, past the last action with a probability.
    noise = torch.minimum(noise, torch.nextafter(total, torch.zeros_like(total)))
    return (cumulative <= noise).sum(-1)


class Router(nn.Module):
    """Picks a function block per sample and depth, and learns from the returns.

    Args:
        policy: what maps states to numbers, :class:`TabularPolicy`.
        learner: what the numbers mean and how they change, for example :class:`WPL`.
        agents: ``"per_task"``: one agent per task, chosen by the task label; ``"single"``: one agent for all.
        gamma: discount factor of the immediate rewards, in [0, 1].

    Raises:
        UsageError: if a value is out of its range or the combination makes no sense.
    """

    def __init__(
        self,
        policy: TabularPolicy,
        learner: Learner,
        agents: Agents = "per_task",
        gamma: float = 1.0,
    ) -> None:
        super().__init__()
        if not 0 <= gamma <= 1:
            raise UsageError(f"gamma is {gamma}; give a discount factor in [0, 1].")
        self.policy = policy
        self.learner = learner
        self.agents = agents
        self.gamma = gamma

    def build(self, num_tasks: int, num_actions: list[int]) -> None:
        """Makes the policy for a network; called once by the network that the router routes.

        Args:
            num_tasks: T, number of tasks.
            num_actions: number of actions (blocks, and PASS where there is one) at each depth.
        """
        num_agents = num_tasks if self.agents == "per_task" else 1
        self.num_tasks = num_tasks
        self.policy.build(self.learner.initial_table(num_agents, num_actions), num_actions)
        self.learner.build(self.policy)

    def assign(self, tasks: Tensor) -> Tensor:
        """Agent responsible for each sample: tasks (N,) -> agents (N,)."""
        return tasks if self.agents == "per_task" else torch.zeros_like(tasks)

    def act(self, tasks: Tensor, *, explore: bool, generator: torch.Generator | None = None) -> Trace:
        """Routes a batch: all decisions at once, since the table looks at task and depth alone.

        Args:
            tasks: (N,) int64, task of each sample, on the host.
            explore: draw the actions from the policy; else take the most probable one.
            generator: source of the noise, on the host.

        Returns:
            The trace of the decisions.
        """
        agents = self.assign(tasks)
        probabilities = self.learner.probabilities(self.policy.scores(agents), self.policy.num_actions)
        actions = draw(probabilities, generator) if explore else probabilities.argmax(-1)
        return Trace(tasks=tasks, agents=agents, actions=actions, probabilities=probabilities)

    @torch.no_grad()
    def probabilities(self) -> Tensor:
        """The policy of each task: (T, D, K) float32 on the host, rows on the simplex."""
        agents = self.assign(torch.arange(self.num_tasks))
        return self.learner.probabilities(self.policy.scores(agents), self.policy.num_actions)

    @torch.no_grad()
    def learn(self, trace: Trace) -> None:
        """Learns from a batch's trace, whose ``final_reward`` and ``rewards`` are filled in."""
        assert trace.final_reward is not None and trace.rewards is not None  # for the type checker
        trace.returns = returns(trace.final_reward, trace.rewards, self.gamma)
        self.learner.learn(self.policy, trace)
