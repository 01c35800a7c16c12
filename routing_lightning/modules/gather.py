"""The records of all processes' samples, so that every process learns the same."""

from dataclasses import replace

import torch
import torch.distributed as dist
from lightning.pytorch.strategies import Strategy
from torch import Tensor

from routing_lightning.routers import Router, Trace


def _gather(rows: Tensor) -> list[Tensor]:
    """The rows (n, M) of each process, n being the same for all."""
    gathered = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, rows)
    return gathered


class RowGatherer:
    """Gathers rows of all processes, in rank order, with one message each time.

    A message has room for as many rows as any process has had, and says how many it holds; if there are more, all
    processes see it and send again.

    Attributes:
        room: rows that a message has room for, the same on all processes.
    """

    def __init__(self) -> None:
        self.room = 0

    def __call__(self, rows: Tensor, device: torch.device) -> list[Tensor]:
        """The rows (n_r, M) of each process r, on the host.

        Args:
            rows: this process's rows (n, M), M above 0, on the host; their number may differ between processes.
            device: where to communicate from.
        """
        message = rows.new_zeros(1 + self.room, rows.shape[1])
        message[0, 0] = len(rows)
        message[1 : 1 + len(rows)] = rows[: self.room]
        host = torch.stack(_gather(message.to(device))).cpu()
        sizes = host[:, 0, 0].long().tolist()
        if max(sizes) > self.room:
            self.room = max(sizes)
            return self(rows, device)
        return [part[1 : 1 + size] for part, size in zip(host, sizes, strict=True)]


def _gather_states(states: Tensor, sizes: list[int]) -> Tensor:
    """States of all processes in rank order, on the device: (n_r, M) -> (sum n_r, M), n_r being ``sizes[r]``."""
    padded = states.new_zeros(max(sizes), states.shape[1])
    padded[: len(states)] = states
    return torch.cat([part[:size] for part, size in zip(_gather(padded), sizes, strict=True)])


class TraceGatherer:
    """Gathers the traces of all processes, in rank order, with one message per batch."""

    def __init__(self) -> None:
        self.rows = RowGatherer()

    def __call__(self, trace: Trace, router: Router, strategy: Strategy) -> Trace:
        """The trace of all processes' samples; the trace itself in a single process.

        Args:
            trace: this process's trace with its final reward.
            router: the router, which is equal on all processes. What a table's actions were drawn from is looked up and
                not sent, so that a message does not grow with the number of blocks.
            strategy: the Trainer's strategy, for the device to communicate from.

        Returns:
            The joint trace, equal on all processes; states on the device, the rest on the host.
        """
        if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
            return trace
        assert trace.final_reward is not None and trace.probabilities is not None
        depth = trace.actions.shape[1]
        # float64 holds labels up to 2^53 and every float32 exactly.
        columns = [trace.tasks[:, None], trace.agents[:, None], trace.actions, trace.final_reward[:, None]]
        if router.uses_state:
            columns.append(trace.probabilities.flatten(1))
        rows = torch.cat([column.double() for column in columns], dim=1)
        parts = self.rows(rows, strategy.root_device)
        joint = torch.cat(parts)
        tasks, agents = joint[:, 0].long(), joint[:, 1].long()
        if router.uses_state:
            probabilities = joint[:, 3 + depth :].reshape(len(joint), depth, -1).float()
        else:
            probabilities = router.table_probabilities(agents)
        return replace(
            trace,
            tasks=tasks,
            agents=agents,
            actions=joint[:, 2 : 2 + depth].long(),
            states=[_gather_states(state.detach().flatten(1), [len(part) for part in parts]) for state in trace.states],
            final_reward=joint[:, 2 + depth].float(),
            probabilities=probabilities,
        )
