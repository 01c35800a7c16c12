"""The records of all processes' samples, so that every process learns the same."""

from dataclasses import replace

import torch
import torch.distributed as dist
from lightning.pytorch.strategies import Strategy
from torch import Tensor

from routing_lightning.routers.trace import Trace


def gather_rows(rows: Tensor, device: torch.device) -> Tensor:
    """Rows of all processes in rank order: (n_r, M) on the host -> (sum n_r, M) on the host."""
    count = torch.tensor([len(rows)], device=device)
    counts = [torch.empty_like(count) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, count)
    sizes = [int(size) for size in torch.cat(counts).tolist()]
    padded = rows.new_zeros(max(sizes), rows.shape[1])
    padded[: len(rows)] = rows
    padded = padded.to(device)
    gathered = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(gathered, padded)
    return torch.cat([part[:size] for part, size in zip(gathered, sizes, strict=True)]).cpu()


def gather_trace(trace: Trace, strategy: Strategy) -> Trace:
    """The trace of all processes' samples, in rank order; the trace itself in a single process.

    Args:
        trace: this process's trace with final reward and rewards, all on the host.
        strategy: the Trainer's strategy, for the device to communicate from.

    Returns:
        The joint trace, on the host, equal on all processes.
    """
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return trace
    assert trace.final_reward is not None and trace.rewards is not None and trace.probabilities is not None
    depth = trace.actions.shape[1]
    columns = [trace.tasks[:, None], trace.agents[:, None], trace.actions, trace.final_reward[:, None], trace.rewards]
    # One message: float64 holds int64 labels up to 2^53 and every float32 exactly.
    rows = torch.cat([column.double() for column in columns] + [trace.probabilities.flatten(1).double()], dim=1)
    rows = gather_rows(rows, strategy.root_device)
    tasks, agents, actions, final, rewards, probabilities = rows.split(
        [1, 1, depth, 1, depth, rows.shape[1] - 3 - 2 * depth], dim=1
    )
    return replace(
        trace,
        tasks=tasks[:, 0].long(),
        agents=agents[:, 0].long(),
        actions=actions.long(),
        final_reward=final[:, 0].float(),
        rewards=rewards.float(),
        probabilities=probabilities.reshape(len(rows), depth, -1).float(),
    )
