"""Less data to train on: a share of each label, or so many samples of each task."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from routing_lightning.errors import UsageError


def thin(
    tasks: Tensor,
    labels: Tensor,
    fraction: float,
    per_task: Sequence[int] | None,
    task_names: Sequence[str],
    seed: int,
) -> Tensor:
    """Draws samples to keep, of each (task, label) pair in proportion and at least one.

    With one seed a smaller fraction keeps a subset of what a larger one keeps.

    Args:
        tasks: task of each sample, (N,), int64.
        labels: in-task label of each sample, (N,), int64.
        fraction: part of each pair to keep, in (0, 1]; counts where ``per_task`` is None.
        per_task: how many samples of each task to keep, at least 1; None: a fraction.
        task_names: names of the tasks.
        seed: seed of the draw.

    Returns:
        Positions of what is kept, in their order, (K,), int64.

    Raises:
        UsageError: if ``per_task`` does not fit the samples.
    """
    pairs, group = torch.unique(torch.stack([tasks, labels]), dim=1, return_inverse=True)
    sizes = torch.bincount(group, minlength=pairs.shape[1]).tolist()
    if per_task is None:
        counts = [max(round(fraction * size), 1) for size in sizes]
    else:
        counts = _counts(per_task, pairs[0].tolist(), sizes, task_names)
    generator = torch.Generator().manual_seed(seed)
    members = torch.argsort(group, stable=True).split(sizes)
    drawn = [
        samples[torch.randperm(len(samples), generator=generator)[:count]]
        for samples, count in zip(members, counts, strict=True)
    ]
    return torch.cat(drawn).sort().values


def _counts(per_task: Sequence[int], task_of: list[int], sizes: list[int], task_names: Sequence[str]) -> list[int]:
    """Samples of each group of samples, whose task and size are given."""
    if len(per_task) != len(task_names):
        raise UsageError(
            f"train_per_task has {len(per_task)} numbers, but there are {len(task_names)} tasks: give one for each"
        )
    counts: list[int] = []
    for task, (wanted, name) in enumerate(zip(per_task, task_names, strict=True)):
        own = [size for size, of in zip(sizes, task_of, strict=True) if of == task]
        if not len(own) <= wanted <= sum(own):
            raise UsageError(
                f"train_per_task asks for {wanted} training images of the task {name}, which has {sum(own)}: give a "
                f"number from {len(own)}, one of each label, to {sum(own)}"
            )
        counts += [1 + more for more in shared_out(wanted - len(own), [size - 1 for size in own])]
    return counts


def shared_out(total: int, weights: Sequence[float]) -> list[int]:
    """Whole numbers in proportion to weights, whose sum is ``total``; what is left over goes to the largest fractions.

    Args:
        total: at least 0.
        weights: at least 0 each, and one of them above 0 unless the total is 0.
    """
    if total == 0:
        return [0] * len(weights)
    wanted = [total * weight / sum(weights) for weight in weights]
    shares = [math.floor(share + 1e-9) for share in wanted]
    by_fraction = sorted(range(len(weights)), key=lambda number: shares[number] - wanted[number])
    for number in by_fraction[: total - sum(shares)]:
        shares[number] += 1
    return shares
