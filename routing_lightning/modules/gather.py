"""The traces of all processes' samples, so that every process learns the same."""

from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from routing_lightning.routers import Trace
from routing_lightning.rows import RowGatherer, all_gather


def _gather_states(states: Tensor, sizes: list[int]) -> Tensor:
    """States of all processes in rank order, on the device: (n_r, M) -> (sum n_r, M), n_r being ``sizes[r]``."""
    padded = states.new_zeros(max(sizes), states.shape[1])
    padded[: len(states)] = states
    return torch.cat([part[:size] for part, size in zip(all_gather(padded), sizes, strict=True)])


class TraceGatherer:
    """Gathers the traces of all processes, in rank order, with one message per batch."""

    def __init__(self) -> None:
        self.rows = RowGatherer()

    def __call__(self, trace: Trace, device: torch.device) -> Trace:
        """The trace of all processes' samples; the trace itself in a single process.

        Args:
            trace: this process's trace with its final reward. Of states and probabilities the trace of all has what
                this one has of states that the router learns from; what a table's actions were drawn from the router
                knows, so that a message does not grow with the number of blocks.
            device: where to communicate from.

        Returns:
            The joint trace, equal on all processes; states on the device, the rest on the host.
        """
        if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
            return trace
        assert trace.final_reward is not None
        depth = trace.actions.shape[1]
        # float64 holds labels up to 2^53 and every float32 exactly.
        columns = [trace.tasks[:, None], trace.agents[:, None], trace.actions, trace.final_reward[:, None]]
        given, other = trace.probabilities if trace.states else None, trace.alternatives
        if other is not None:
            assert trace.alternative_reward is not None
            columns += [other, trace.alternative_reward[:, None]]
        if given is not None:
            columns.append(given.flatten(1))
        rows = torch.cat([column.double() for column in columns], dim=1)
        parts = self.rows(rows, device)
        joint = torch.cat(parts)
        sizes = [len(part) for part in parts]
        widths = [1, 1, depth, 1, *([] if other is None else [depth, 1])]
        tasks, agents, actions, reward, *rest = joint.split([*widths, joint.shape[1] - sum(widths)], 1)
        return replace(
            trace,
            tasks=tasks[:, 0].long(),
            agents=agents[:, 0].long(),
            actions=actions.long(),
            states=[_gather_states(state.detach().flatten(1), sizes) for state in trace.states],
            final_reward=reward[:, 0].float(),
            alternatives=None if other is None else rest[0].long(),
            alternative_reward=None if other is None else rest[1][:, 0].float(),
            probabilities=None if given is None else rest[-1].reshape(len(joint), depth, -1).float(),
        )
