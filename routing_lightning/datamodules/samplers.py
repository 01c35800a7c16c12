"""Samplers that yield the positions of a whole batch, for one process or several."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, DistributedSampler, SequentialSampler

from routing_lightning.errors import UsageError


class TrainingBatchSampler(DistributedSampler[Any]):
    """Shuffled batches; k processes with batch b together see what one process with batch k * b sees.

    One permutation of all samples is drawn per epoch, from ``(seed, epoch)`` alone, so that a resumed run
    sees the order that the unbroken run would have seen. Global batch j is the j-th run of ``world_size *
    batch_size`` positions and rank r takes the r-th slice of it. The last, smaller global batch is split into
    equal parts; up to ``world_size - 1`` samples are left out of an epoch for that, none with one process.

    It is a ``DistributedSampler`` so that Lightning neither replaces nor wraps it, and tells it the epoch.

    Args:
        dataset: the data set; only its length counts.
        batch_size: samples per batch and process, at least 1.
        seed: seed of the order, at least 0.
        rank: this process, in [0, world_size).
        world_size: number of processes.

    Attributes:
        skip: batches left out at the start of the next iteration, and of no other: those that a run had before it was
            broken off.

    Yields:
        Positions in the data set, (B,), int64.

    Raises:
        UsageError: if there are fewer samples than processes.
    """

    def __init__(self, dataset: Dataset[Any], batch_size: int, seed: int, rank: int = 0, world_size: int = 1) -> None:
        super().__init__(dataset, num_replicas=world_size, rank=rank, shuffle=True, seed=seed)
        self.count = _checked_length(dataset, world_size, "training")
        self.batch_size = batch_size
        self.skip = 0

    def __iter__(self) -> Iterator[Tensor]:
        first, self.skip = self.skip, 0  # when the first batch is asked for: the epoch is known by then
        order = torch.from_numpy(np.random.default_rng([self.seed, self.epoch]).permutation(self.count))
        global_batch = self.num_replicas * self.batch_size
        for start in range(first * global_batch, self.count, global_batch):
            share = min(self.count - start, global_batch) // self.num_replicas
            if share > 0:
                own = start + self.rank * share
                yield order[own : own + share]

    def __len__(self) -> int:
        """Number of batches of this process, the same for all."""
        full, rest = divmod(self.count, self.num_replicas * self.batch_size)
        return full + (rest >= self.num_replicas)


class EvaluationBatchSampler(DistributedSampler[Any], SequentialSampler):
    """Batches in one order for all epochs; over all processes each sample comes exactly once.

    The samples are cut into ``world_size * len(self)`` runs whose sizes differ by at most one, so every
    process gets the same number of batches and none is empty. No batch is larger than ``batch_size``, except
    that with ``batch_size=1`` and several processes a batch may hold two samples.

    It is also a ``SequentialSampler``, which is how Lightning tells that no epoch is shuffled anew
    (``overfit_batches``).

    Args:
        dataset: the data set; only its length counts.
        batch_size: samples per batch and process, at least 1.
        rank: this process, in [0, world_size).
        world_size: number of processes.
        seed: seed of the order, at least 0, the same on each rank; None: the order of the data.

    Attributes:
        skip: as for :class:`TrainingBatchSampler`.

    Yields:
        Positions in the data set, (B,), int64.

    Raises:
        UsageError: if there are fewer samples than processes.
    """

    def __init__(
        self, dataset: Dataset[Any], batch_size: int, rank: int = 0, world_size: int = 1, seed: int | None = None
    ) -> None:
        DistributedSampler.__init__(self, dataset, num_replicas=world_size, rank=rank, shuffle=False)
        self.order_seed = seed
        self.count = _checked_length(dataset, world_size, "evaluation")
        needed = -(-self.count // (world_size * batch_size))
        self.num_batches = min(needed, self.count // world_size)
        self.skip = 0

    def __iter__(self) -> Iterator[Tensor]:  # type: ignore[override]
        first, self.skip = self.skip, 0
        if self.order_seed is None:
            order = torch.arange(self.count)
        else:
            order = torch.from_numpy(np.random.default_rng(self.order_seed).permutation(self.count))
        parts = self.num_replicas * self.num_batches
        for part in range(first * self.num_replicas + self.rank, parts, self.num_replicas):
            yield order[part * self.count // parts : (part + 1) * self.count // parts]

    def __len__(self) -> int:
        """Number of batches of this process, the same for all."""
        return self.num_batches


def _checked_length(dataset: Dataset[Any], world_size: int, purpose: str) -> int:
    count = len(dataset)  # type: ignore[arg-type]
    if count < world_size:
        raise UsageError(
            f"the {purpose} data hold {count} samples for {world_size} processes, but each process needs at "
            "least one: start fewer processes (trainer.devices, trainer.num_nodes) or use more data"
        )
    return count
