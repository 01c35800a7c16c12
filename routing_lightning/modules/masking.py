"""Tasks with fewer labels than the network has logits."""

from collections.abc import Sequence

import torch
from torch import Tensor


def label_mask(classes_per_task: Sequence[int], num_classes: int) -> Tensor | None:
    """Which logits each task has: (T, C) bool, or None if all tasks have all of them.

    Args:
        classes_per_task: number of labels of each task, (T,).
        num_classes: C, the largest number of labels of a task.
    """
    counts = torch.tensor(list(classes_per_task), dtype=torch.int64)
    if not len(counts) or int(counts.min()) >= num_classes:
        return None
    return torch.arange(num_classes) < counts[:, None]


def mask_logits(logits: Tensor, tasks: Tensor, mask: Tensor) -> Tensor:
    """Logits with those at minus infinity that the sample's task does not have.

    Loss, gradient, prediction and probabilities are then those of a network with as many logits as the task has labels.

    Args:
        logits: (N, C) or wider; what is beyond C belongs to no task.
        tasks: (N,) int64, on the device of ``mask``.
        mask: (T, C) bool, as :func:`label_mask` gives it.
    """
    allowed = mask[tasks].to(logits.device, non_blocking=True)
    if logits.shape[1] > mask.shape[1]:
        allowed = torch.nn.functional.pad(allowed, (0, logits.shape[1] - mask.shape[1]))
    return logits.masked_fill(~allowed, -torch.inf)
