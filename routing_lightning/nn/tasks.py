"""Tasks as they are given."""

import torch
from torch import Tensor

from routing_lightning.errors import UsageError
from routing_lightning.integers import INTEGERS
from routing_lightning.nn.tracing import is_traced


def checked_tasks(tasks: Tensor, num_tasks: int) -> Tensor:
    """Tasks (N,) as int64, of whatever type of whole numbers they are; those on the host are looked at.

    Args:
        tasks: a task per sample.
        num_tasks: T, they must be in [0, T).

    Raises:
        UsageError: if they are something else, or out of their range.
    """
    if not isinstance(tasks, Tensor) or tasks.dtype not in INTEGERS or tasks.dim() != 1:
        kind = f"{tuple(tasks.shape)} of {tasks.dtype}" if isinstance(tasks, Tensor) else type(tasks).__name__
        raise UsageError(f"tasks are {kind}; give a tensor (N,) of whole numbers, a task per sample.")
    tasks = tasks.long()
    recorded = torch.compiler.is_compiling() or is_traced()
    looked_at = tasks.device.type == "cpu" and len(tasks) and not recorded
    if looked_at and not (int(tasks.min()) >= 0 and int(tasks.max()) < num_tasks):
        raise UsageError(f"tasks are {int(tasks.min())}..{int(tasks.max())}; give 0..{num_tasks - 1}.")
    return tasks
