"""MNIST-MTL's protocol: one task per class, this class against the rest."""

from collections.abc import Sequence

import torch
from torch import Tensor

from routing_lightning.datamodules.base import MultiTaskData, MultiTaskDataset, draw
from routing_lightning.errors import UsageError


def one_against_rest(
    images: Tensor,
    train_pools: Sequence[Tensor],
    test_pools: Sequence[Tensor],
    train_per_class: int,
    test_per_class: int,
    val_fraction: float,
    seed: int,
) -> MultiTaskData:
    """Draws the tasks from pools of images; task c has label 1 for the images of class c and 0 for all others.

    Each task draws the same number of images of each class, without replacement within the task and independently of
    the other tasks. Validation images are set aside before, so no image is used both to train one task and to validate
    another.

    Args:
        images: uint8, (M, C, H, W).
        train_pools: for each of K classes the rows of its training images, (P_k,), int64.
        test_pools: the same for the test images.
        train_per_class: images of each class per task for training and validation together.
        test_per_class: images of each class per task for testing.
        val_fraction: part of ``train_per_class`` for validation, in [0, 1).
        seed: seed of all draws.

    Raises:
        UsageError: if a pool is too small.
    """
    for option, count, part, pools in (
        ("train_per_class", train_per_class, "training", train_pools),
        ("test_per_class", test_per_class, "test", test_pools),
    ):
        for label, pool in enumerate(pools):
            if len(pool) < count:
                raise UsageError(
                    f"{option} is {count}, but the {part} part has {len(pool)} images of class {label}: "
                    f"set {option} to at most {min(len(pool) for pool in pools)} or add images"
                )
    generator = torch.Generator().manual_seed(seed)
    # first of all draws, so that the test part does not depend on val_fraction
    test = _draw_tasks(images, test_pools, test_per_class, generator)
    val = None
    if val_fraction > 0:
        if train_per_class < 2:
            raise UsageError(
                f"train_per_class is {train_per_class}, but val_fraction={val_fraction} needs at least 2: "
                "raise it or set val_fraction to 0"
            )
        val_per_class = min(max(round(val_fraction * train_per_class), 1), train_per_class - 1)
        train_per_class -= val_per_class
        val_pools, rest = [], []
        for pool in train_pools:
            set_aside = min(max(round(val_fraction * len(pool)), val_per_class), len(pool) - train_per_class)
            shuffled = draw(pool, len(pool), generator)
            val_pools.append(shuffled[:set_aside])
            rest.append(shuffled[set_aside:])
        train_pools = rest
        val = _draw_tasks(images, val_pools, val_per_class, generator)
    train = _draw_tasks(images, train_pools, train_per_class, generator)
    classes = range(len(train_pools))
    names = [[f"not_{label}", str(label)] for label in classes]
    return MultiTaskData([f"digit_{label}" for label in classes], names, train, val, test)


def rows_by_class(labels: Tensor, num_classes: int, first_row: int = 0) -> list[Tensor]:
    """For each class the rows, counted from ``first_row``, at which ``labels``, (M,), has it."""
    return [first_row + torch.nonzero(labels == label).flatten() for label in range(num_classes)]


def _draw_tasks(
    images: Tensor, pools: Sequence[Tensor], per_class: int, generator: torch.Generator
) -> MultiTaskDataset:
    num_classes = len(pools)
    index = torch.cat([draw(pool, per_class, generator) for _ in range(num_classes) for pool in pools])
    tasks = torch.arange(num_classes).repeat_interleave(num_classes * per_class)
    classes = torch.arange(num_classes).repeat_interleave(per_class).repeat(num_classes)
    return MultiTaskDataset(images, index, tasks, (classes == tasks).long())
