"""The records of all processes' samples, so that every process learns the same."""

from dataclasses import replace

import torch
import torch.distributed as dist
from lightning.pytorch.strategies import Strategy
from torch import Tensor

from routing_lightning.routers.trace import Trace


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


def gather_trace(trace: Trace, strategy: Strategy) -> Trace:
    """The trace of all processes' samples, in rank order; the trace itself in a single process.

    Args:
        trace: this process's trace with its final reward.
        strategy: the Trainer's strategy, for the device to communicate from.

    Returns:
        The joint trace, equal on all processes; states on the device, the rest on the host.
    """
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return trace
    assert trace.final_reward is not None and trace.probabilities is not None
    device = strategy.root_device
    sizes = _sizes(len(trace.tasks), device)
    # One message for all numbers: float64 holds labels up to 2^53 and every float32 exactly.
    columns = [trace.tasks[:, None], trace.agents[:, None], trace.actions, trace.final_reward[:, None]]
    columns.append(trace.probabilities.flatten(1))
    rows = torch.cat([column.double() for column in columns], dim=1).to(device)
    depth = trace.actions.shape[1]
    widths = [1, 1, depth, 1, rows.shape[1] - 3 - depth]
    tasks, agents, actions, final, probabilities = _gather(rows, sizes).cpu().split(widths, dim=1)
    return replace(
        trace,
        tasks=tasks[:, 0].long(),
        agents=agents[:, 0].long(),
        actions=actions.long(),
        states=[_gather(state.detach().flatten(1), sizes) for state in trace.states],
        final_reward=final[:, 0].float(),
        probabilities=probabilities.reshape(len(tasks), depth, -1).float(),
    )
