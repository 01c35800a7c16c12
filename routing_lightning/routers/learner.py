"""The interface of a learner: what a policy's numbers mean and how they change."""

from torch import Tensor

from routing_lightning.routers.host import HostModule
from routing_lightning.routers.policies import Policy
from routing_lightning.routers.trace import Trace


class Learner(HostModule):
    """How a router learns. A learner of one's own derives from this class and overrides the methods below.

    A policy maps a state to K numbers, its scores; the learner says which distribution over the actions the scores
    stand for, and changes the policy after each batch. Buffers that it registers stay on the host in float32 and are
    part of the checkpoint.
    """

    def initial_table(self, num_agents: int, num_actions: list[int]) -> Tensor:
        """First scores of a tabular policy.

        Args:
            num_agents: A, number of agents.
            num_actions: number of actions at each of the D depths.

        Returns:
            (A, D, max(num_actions)) float32.
        """
        raise TypeError(f"learner {type(self).__name__} does not say what a table starts with: override initial_table")

    def build(self, policy: Policy) -> None:
        """Called once, when the policy has its final shape; makes what the learner keeps.

        Raises:
            UsageError: if the learner cannot train such a policy.
        """

    def probabilities(self, scores: Tensor, num_actions: Tensor) -> Tensor:
        """Distribution to draw actions from; the most probable action is the one taken in evaluation.

        Args:
            scores: (..., K), a policy's numbers.
            num_actions: (...) int, broadcastable to the leading dimensions: how many of the K actions exist.

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
