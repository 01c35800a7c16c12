from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler, SequentialSampler, TensorDataset

from routing_lightning.datamodules.samplers import EvaluationBatchSampler, TrainingBatchSampler
from routing_lightning.errors import UsageError

SIZES = st.tuples(st.integers(1, 60), st.integers(1, 9), st.integers(1, 5)).filter(lambda t: t[0] >= t[2])


def dataset(count: int) -> TensorDataset:
    return TensorDataset(torch.arange(count))


def training(count: int, batch_size: int, world_size: int, seed: int = 0, epoch: int = 0) -> list[list[list[int]]]:
    """For each rank the batches."""
    ranks = []
    for rank in range(world_size):
        sampler = TrainingBatchSampler(dataset(count), batch_size, seed, rank, world_size)
        sampler.set_epoch(epoch)
        ranks.append([batch.tolist() for batch in sampler])
        assert len(sampler) == len(ranks[-1])
    return ranks


@given(SIZES)
def test_training_ranks_together_give_the_batches_of_one_process(sizes: tuple[int, int, int]) -> None:
    count, batch_size, world_size = sizes
    ranks = training(count, batch_size, world_size)
    single = training(count, batch_size * world_size, 1)[0]
    joined = [list(chain(*batches)) for batches in zip(*ranks, strict=True)]
    full = count // (batch_size * world_size)
    assert joined[:full] == single[:full]
    left_over = count - full * batch_size * world_size
    if left_over >= world_size:
        assert joined[full] == single[full][: left_over - left_over % world_size]
        assert len(joined) == full + 1
    else:
        assert len(joined) == full
    assert all(len({len(batch) for batch in batches}) == 1 for batches in zip(*ranks, strict=True))


def test_training_with_one_process_sees_every_sample_once() -> None:
    assert sorted(chain(*training(23, 4, 1)[0])) == list(range(23))


def test_training_order_depends_on_seed_and_epoch_alone() -> None:
    torch.manual_seed(1)
    first = training(50, 8, 1, seed=3, epoch=2)
    torch.manual_seed(2)
    assert training(50, 8, 1, seed=3, epoch=2) == first
    assert training(50, 8, 1, seed=3, epoch=3) != first
    # one seed's next epoch is not the next seed's epoch
    assert training(50, 8, 1, seed=4, epoch=1) != first


@given(SIZES, st.none() | st.integers(0, 2**32 - 1))
def test_evaluation_sees_every_sample_once_in_equally_many_batches(
    sizes: tuple[int, int, int], seed: int | None
) -> None:
    count, batch_size, world_size = sizes
    ranks = []
    for rank in range(world_size):
        sampler = EvaluationBatchSampler(dataset(count), batch_size, rank, world_size, seed)
        ranks.append([batch.tolist() for batch in sampler])
        assert len(sampler) == len(ranks[-1])
    assert len({len(batches) for batches in ranks}) == 1
    lengths = [len(batch) for batches in ranks for batch in batches]
    assert min(lengths) >= 1
    assert max(lengths) <= max(batch_size, 2 if world_size > 1 else 1)
    assert max(lengths) - min(lengths) <= 1
    # global batch after global batch, the samples come in the order of one process
    in_order = [i for batches in zip(*ranks, strict=True) for batch in batches for i in batch]
    assert in_order == list(chain(*(batch.tolist() for batch in EvaluationBatchSampler(dataset(count), 7, seed=seed))))
    assert sorted(in_order) == list(range(count))
    assert seed is not None or in_order == list(range(count))


def test_evaluation_order_depends_on_the_seed_alone() -> None:
    def order(seed: int, epoch: int = 0) -> list[list[int]]:
        sampler = EvaluationBatchSampler(dataset(50), 8, seed=seed)
        sampler.set_epoch(epoch)
        return [batch.tolist() for batch in sampler]

    torch.manual_seed(1)
    first = order(3)
    torch.manual_seed(2)
    assert order(3) == order(3, epoch=1) == first
    assert order(4) != first
    assert first != [batch.tolist() for batch in EvaluationBatchSampler(dataset(50), 8)]


def test_lightning_takes_the_samplers_for_what_they_are() -> None:
    assert isinstance(TrainingBatchSampler(dataset(4), 2, 0), DistributedSampler)
    sampler = EvaluationBatchSampler(dataset(4), 2)
    assert isinstance(sampler, DistributedSampler)
    assert isinstance(sampler, SequentialSampler)


def test_fewer_samples_than_processes() -> None:
    with pytest.raises(UsageError, match=r"training data hold 3 samples for 4 processes.*fewer processes"):
        TrainingBatchSampler(dataset(3), 2, 0, 0, 4)
    with pytest.raises(UsageError, match=r"evaluation data hold 3 samples for 4 processes.*fewer processes"):
        EvaluationBatchSampler(dataset(3), 2, 0, 4)
