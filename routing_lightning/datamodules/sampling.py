"""Tasks of very different sizes: how often a training epoch sees each."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from routing_lightning.datamodules.samplers import TrainingBatchSampler
from routing_lightning.datamodules.thinning import shared_out


class TaskBatchSampler(TrainingBatchSampler):
    """Shuffled batches in which task t comes with a probability in proportion to n_t^(1/temperature).

    n_t is the number of samples of the task. With temperature 1 that is by size, each sample once per epoch; with an
    infinite one all tasks come as often. An epoch has as many samples N as the data set. A task's share of it is a
    fixed number of samples. A task whose share is larger than itself is gone through as often as it fits, and for the
    rest, as for all smaller shares, different samples are drawn at random, others in each epoch.

    Order, several processes and resumed runs are as for :class:`TrainingBatchSampler`: all depends on ``(seed, epoch)``
    alone, and k processes with batch b see what one with batch k * b sees.

    Args:
        dataset: the data set; only its length counts.
        tasks: task of each sample, (N,), int64.
        temperature: at least 1; infinite for tasks that come equally often.
        batch_size: samples per batch and process, at least 1.
        seed: seed of draws and order, at least 0.
        rank: this process, in [0, world_size).
        world_size: number of processes.

    Yields:
        Positions in the data set, (B,), int64.

    Raises:
        UsageError: if there are fewer samples than processes.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        tasks: Tensor,
        temperature: float,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        super().__init__(dataset, batch_size, seed, rank, world_size)
        self.positions = [np.flatnonzero(tasks.numpy() == task) for task in range(int(tasks.max()) + 1)]
        self.shares = task_shares([len(samples) for samples in self.positions], temperature)

    def __iter__(self) -> Iterator[Tensor]:
        drawn = torch.from_numpy(self._draw())
        for chosen in super().__iter__():
            yield drawn[chosen]

    def _draw(self) -> np.ndarray:
        """The samples of this epoch, task after task, (N,)."""
        # another stream than that of the order, which has the seed and the epoch alone
        source = np.random.default_rng([self.seed, self.epoch, 1])
        drawn = []
        for samples, share in zip(self.positions, self.shares, strict=True):
            if share > 0:
                times, rest = divmod(share, len(samples))
                drawn += [np.tile(samples, times), source.choice(samples, rest, replace=False)]
        return np.concatenate(drawn)


def task_shares(counts: list[int], temperature: float) -> list[int]:
    """How many samples of an epoch each task gets: whole numbers in proportion to n^(1/temperature), of the same sum.

    Args:
        counts: samples of each task.
        temperature: at least 1; infinite for equal shares. A task without samples gets none.
    """
    weights = [count ** (0 if math.isinf(temperature) else 1 / temperature) if count else 0.0 for count in counts]
    return shared_out(sum(counts), weights)
