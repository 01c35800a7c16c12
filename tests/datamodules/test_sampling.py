"""Tasks as often as asked for, on one process and on several."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from routing_lightning.datamodules.sampling import TaskBatchSampler, task_shares

COUNTS = [10, 0, 10_000, 500]


def sampler(counts, temperature, batch_size=32, epoch=0, **options) -> TaskBatchSampler:
    tasks = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    made = TaskBatchSampler(range(len(tasks)), tasks, temperature, batch_size, 7, **options)
    made.set_epoch(epoch)
    return made


@given(st.lists(st.integers(0, 10**5), min_size=1, max_size=8).filter(sum), st.floats(1, 50) | st.just(math.inf))
def test_shares_add_up_and_follow_the_law(counts, temperature):
    shares = task_shares(counts, temperature)
    total = sum(counts)
    assert sum(shares) == total
    weights = [count ** (1 / temperature) if count else 0.0 for count in counts]
    for share, weight, count in zip(shares, weights, counts, strict=True):
        assert abs(share - total * weight / sum(weights)) <= 1.001
        assert share == 0 or count > 0


def test_known_shares():
    assert task_shares(COUNTS, 1) == COUNTS
    assert task_shares([10, 10_000], math.inf) == [5005, 5005]
    assert task_shares([100, 10_000], 2) == [918, 9182]


@pytest.mark.parametrize("temperature", [1, 2, 5.0, math.inf])
def test_an_epoch_goes_through_small_tasks_evenly(temperature):
    made = sampler(COUNTS, temperature)
    batches = list(made)
    seen = torch.cat(batches)
    assert len(seen) == sum(COUNTS) and len(batches) == len(made)
    times = Counter(seen.tolist())
    start = 0
    for share, count in zip(made.shares, COUNTS, strict=True):
        own = [times[position] for position in range(start, start + count)]
        assert sum(own) == share
        assert not own or max(own) - min(own) <= 1
        start += count
    # tasks are mixed: each batch of 32 has its share of the rarest, in the mean
    assert torch.cat(batches[: len(batches) // 2]).lt(10).sum() == pytest.approx(made.shares[0] / 2, rel=0.3, abs=5)


def test_epochs_differ_and_repeat():
    first, second = (torch.cat(list(sampler(COUNTS, math.inf, epoch=epoch))) for epoch in (0, 1))
    assert torch.equal(first, torch.cat(list(sampler(COUNTS, math.inf))))
    assert set(first.tolist()) != set(second.tolist())


@pytest.mark.parametrize("temperature", [2, math.inf])
def test_two_processes_equal_one_with_twice_the_batch(temperature):
    counts = [8, 90]
    (one, *two) = (
        list(sampler(counts, temperature, 16)),
        *(list(sampler(counts, temperature, 8, rank=rank, world_size=2)) for rank in range(2)),
    )
    assert len(two[0]) == len(two[1]) == len(one)
    for whole, left, right in zip(one[:-1], *(ranks[:-1] for ranks in two), strict=True):
        assert torch.equal(whole, torch.cat([left, right]))
