"""Rows of numbers of all processes, in the order of their ranks."""

import torch
import torch.distributed as dist
from torch import Tensor


def all_gather(rows: Tensor) -> list[Tensor]:
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
        host = torch.stack(all_gather(message.to(device))).cpu()
        sizes = host[:, 0, 0].long().tolist()
        if max(sizes) > self.room:
            self.room = max(sizes)
            return self(rows, device)
        return [part[1 : 1 + size] for part, size in zip(host, sizes, strict=True)]
