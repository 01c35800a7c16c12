"""The records of all processes' samples, so that every process learns the same."""

from dataclasses import replace

import torch
import torch.distributed as dist
from lightning.pytorch.strategies import Strategy
from torch import Tensor

from routing_lightning.routers import Router, Trace


def _sizes(count: int, device: torch.device) -> list[int]:
    """Number of rows of each process."""
    own = torch.tensor([count], device=device)
    counts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, own)
    return torch.cat(counts).tolist()


def _gather(rows: Tensor, sizes: list[int]) -> Tensor:
    """Rows of all processes in rank order: (n_r, M) -> (sum n_r, M), n_r being ``sizes[r]``."""
    padded = rows.new_zeros(max(sizes), rows.shape[1])
    padded[: len(rows)] = rows
    gathered = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(gathered, padded)
    return torch.cat([part[:size] for part, size in zip(gathered, sizes, strict=True)])


def gather_rows(rows: Tensor, device: torch.device) -> Tensor:
    """Rows of all processes in rank order: (n_r, M) on the host -> (sum n_r, M) on the host.

    Args:
        rows: this process's rows; their number may differ between processes.
        device: where to communicate from.
    """
    return _gather(rows.to(device), _sizes(len(rows), device)).cpu()


class TraceGatherer:
    """Gathers the traces of all processes, in rank order, with one message per batch.

    A message has room for as many samples as any process has had, and says how many it holds; if a batch is larger, all
    processes see it and send it again.

    Attributes:
        room: samples that a message has room for, the same on all processes.
    """

    def __init__(self) -> None:
        self.room = 0

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
        parts = self._exchange(rows, strategy.root_device)
        sizes = [len(part) for part in parts]
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
            states=[_gather(state.detach().flatten(1), sizes) for state in trace.states],
            final_reward=joint[:, 2 + depth].float(),
            probabilities=probabilities,
        )

    def _exchange(self, rows: Tensor, device: torch.device) -> list[Tensor]:
        """The rows (n_r, M) of each process r, on the host."""
        message = rows.new_zeros(1 + self.room, rows.shape[1])
        message[0, 0] = len(rows)
        message[1 : 1 + len(rows)] = rows[: self.room]
        message = message.to(device)
        gathered = [torch.empty_like(message) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, message)
        host = torch.stack(gathered).cpu()
        sizes = host[:, 0, 0].long().tolist()
        if max(sizes) > self.room:
            self.room = max(sizes)
            return self._exchange(rows, device)
        return [part[1 : 1 + size] for part, size in zip(host, sizes, strict=True)]
