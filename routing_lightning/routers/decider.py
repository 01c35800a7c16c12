"""A policy and its learner: the part of a router that decides."""

import torch
from torch import Tensor, nn

from routing_lightning.routers.base import RoutingSpec
from routing_lightning.routers.learner import Learner
from routing_lightning.routers.policies import Policy


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

    def build(self, num_agents: int, spec: RoutingSpec) -> None:
        """Gives policy and learner their final shape."""
        self.policy.build(num_agents, spec, self.learner)
        self.learner.build(self.policy)

    @torch.no_grad()
    def probabilities(self, state: Tensor, tasks: Tensor, agents: Tensor, depth: int) -> Tensor:
        """Distribution of each sample at one depth: (N, K_d). Arguments as in :meth:`Policy.scores`."""
        return self.learner.probabilities(
            self.policy.scores(state, tasks, agents, depth), self.policy.num_actions[depth]
        )

    @torch.no_grad()
    def rows(self, agents: Tensor) -> Tensor:
        """Distributions at all depths, for a policy that does not use the state: agents (N,) -> (N, D, K)."""
        return self.learner.probabilities(self.policy.rows(agents), self.policy.num_actions)
