"""Indexing and checks of ``MultiTaskDataset``."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Subset, random_split

from routing_lightning.datamodules import MultiTaskDataset
from routing_lightning.errors import UsageError

COUNT = 10


def make(**changes: Any) -> MultiTaskDataset:
    """10 samples over 5 images; sample i has the image of grey 40 - 10 * (i // 2), task i % 3, label i % 2."""
    grey = 10 * torch.arange(5, dtype=torch.uint8)
    number = torch.arange(COUNT)
    parts = {
        "images": grey.view(-1, 1, 1, 1).expand(-1, 3, 4, 2).contiguous().permute(0, 3, 1, 2),
        "index": 4 - number // 2,
        "tasks": number % 3,
        "labels": number % 2,
    }
    return MultiTaskDataset(**{**parts, **changes})


def check(batch: Any, numbers: list[int]) -> None:
    images, tasks, labels = batch
    assert images.shape == (len(numbers), 2, 3, 4)
    assert (images.dtype, tasks.dtype, labels.dtype) == (torch.uint8, torch.int64, torch.int64)
    assert images[:, 1, 2, 3].tolist() == [40 - 10 * (i // 2) for i in numbers]
    assert tasks.tolist() == [i % 3 for i in numbers]
    assert labels.tolist() == [i % 2 for i in numbers]


@pytest.mark.parametrize("kind", [int, np.int64, np.int32, np.uint8, torch.tensor, np.array])
@pytest.mark.parametrize("position", [0, 7, 9])
def test_an_integer_gives_one_sample(kind: Any, position: int) -> None:
    image, task, label = make()[kind(position)]
    assert (image.shape, task.shape, label.shape) == ((2, 3, 4), (), ())
    check((image[None], task[None], label[None]), [position])


@pytest.mark.parametrize("kind", [int, np.int64, torch.tensor, np.array])
def test_negative_integers_count_from_the_end(kind: Any) -> None:
    for position in range(-COUNT, 0):
        image, task, label = make()[kind(position)]
        check((image[None], task[None], label[None]), [position + COUNT])


@given(st.lists(st.integers(-COUNT, COUNT - 1)))
def test_rows_of_integers_give_a_batch(positions: list[int]) -> None:
    numbers = [position % COUNT for position in positions]
    data = make()
    check(data[torch.tensor(positions, dtype=torch.int64)], numbers)
    check(data[torch.tensor(positions, dtype=torch.int32)], numbers)
    check(data[np.array(positions, np.int16)], numbers)
    check(data[positions], numbers)
    check(data[tuple(positions)], numbers)
    check(data[[np.int64(position) for position in positions]], numbers)


def test_bytes_are_positions_and_no_mask() -> None:
    check(make()[torch.tensor([1, 0, 1], dtype=torch.uint8)], [1, 0, 1])


@given(st.slices(COUNT))
def test_slices_and_ranges(chosen: slice) -> None:
    numbers = list(range(COUNT))[chosen]
    check(make()[chosen], numbers)
    check(make()[range(COUNT)[chosen]], numbers)


def test_masks() -> None:
    mask = torch.arange(COUNT) % 4 == 1
    for kind in (mask, mask.numpy(), mask.tolist()):
        check(make()[kind], [1, 5, 9])
    with pytest.raises(IndexError, match=r"mask has shape \(3,\)"):
        make()[mask[:3]]


@pytest.mark.parametrize("position", [COUNT, -COUNT - 1, 10**30])
def test_out_of_range(position: int) -> None:
    with pytest.raises(IndexError, match=f"position {position} is out of range for 10 samples"):
        make()[position]
    if abs(position) < 10**9:
        for kind in ([0, position], np.array([position]), torch.tensor([0, position]), torch.tensor(position)):
            with pytest.raises(IndexError, match="out of"):
                make()[kind]


def test_two_dimensions_are_refused() -> None:
    with pytest.raises(IndexError, match=r"shape \(1, 2\)"):
        make()[[[1, 2]]]
    with pytest.raises(IndexError):
        make()[torch.zeros(1, 2, dtype=torch.int64)]


@pytest.mark.parametrize("positions", [1.0, [0.5], torch.tensor([1.0]), torch.tensor(True), "a", None])
def test_what_is_no_position(positions: Any) -> None:
    with pytest.raises(TypeError, match="positions are .*; give integers, a slice or a mask"):
        make()[positions]


def test_samples_are_copies() -> None:
    data = make()
    for positions in (3, slice(0, 5), [3]):
        for tensor in data[positions]:
            tensor.fill_(77)
    check(data[:], list(range(COUNT)))


def test_samples_come_one_after_another() -> None:
    assert [int(label) for _, _, label in make()] == [i % 2 for i in range(COUNT)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_of_torch(workers: int) -> None:
    batches = list(DataLoader(make(), batch_size=8, num_workers=workers))
    check(batches[0], list(range(8)))
    check(batches[1], [8, 9])


def test_subsets_of_torch() -> None:
    (batch,) = DataLoader(Subset(make(), [7, 2]), batch_size=2)
    check(batch, [7, 2])
    assert [len(part) for part in random_split(make(), [7, 3])] == [7, 3]


def test_subset() -> None:
    data = make()
    for positions in (torch.tensor([8, 1]), [8, 1], np.array([-2, 1]), slice(8, None, -7)):
        part = data.subset(positions)
        assert part.images is data.images
        check(part[:], [8, 1])
    check(data.subset(3)[:], [3])
    assert len(data.subset([])) == 0
    with pytest.raises(IndexError, match="position 10"):
        data.subset([10])


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.uint16, torch.uint32])
def test_all_integer_types_are_taken(dtype: torch.dtype) -> None:
    plain = make()
    data = make(**{name: getattr(plain, name).to(dtype) for name in ("index", "tasks", "labels")})
    check(data[:], list(range(COUNT)))
    assert (data.index.dtype, data.tasks.dtype, data.labels.dtype) == (torch.int64,) * 3


@pytest.mark.parametrize("name", ["index", "tasks", "labels"])
@pytest.mark.parametrize("wrong", ["float32", "float64", "bool", "list", "array", "matrix"])
def test_other_types_of_numbers_are_refused(name: str, wrong: str) -> None:
    zeros = torch.zeros(COUNT, dtype=torch.int64)
    value, told = {
        "float32": (zeros.float(), r"a tensor of type float32 and shape \(10,\)"),
        "float64": (zeros.double(), r"a tensor of type float64 and shape \(10,\)"),
        "bool": (zeros.bool(), r"a tensor of type bool and shape \(10,\)"),
        "list": (zeros.tolist(), "of type list"),
        "array": (zeros.numpy(), "of type ndarray"),
        "matrix": (zeros[:, None], r"a tensor of type int64 and shape \(10, 1\)"),
    }[wrong]
    with pytest.raises(UsageError, match=rf"^{name} is {told}, but must be an integer tensor \(N,\): convert it$"):
        make(**{name: value})


@pytest.mark.parametrize("name", ["index", "tasks", "labels"])
def test_negative_numbers_are_refused(name: str) -> None:
    values = torch.zeros(COUNT, dtype=torch.int64)
    values[4] = -3
    with pytest.raises(UsageError, match=f"^{name} has the value -3, but must be at least 0"):
        make(**{name: values})


def test_rows_that_are_not_there_are_refused() -> None:
    with pytest.raises(UsageError, match=r"^index names row 5, but images has 5 rows: give rows in \[0, 5\)$"):
        make(index=torch.full((COUNT,), 5))


@pytest.mark.parametrize("name", ["index", "tasks", "labels"])
def test_lengths_must_match(name: str) -> None:
    with pytest.raises(UsageError, match=r"^index, tasks and labels have \d+, \d+ and \d+ entries, but must have one"):
        make(**{name: torch.zeros(9, dtype=torch.int64)})


@pytest.mark.parametrize(
    ("images", "told"),
    [
        (torch.zeros(5, 1, 2, 2), r"a tensor of type float32 and shape \(5, 1, 2, 2\)"),
        (torch.zeros(5, 2, 2, dtype=torch.uint8), r"a tensor of type uint8 and shape \(5, 2, 2\)"),
        (np.zeros((5, 1, 2, 2), np.uint8), "of type ndarray"),
    ],
)
def test_other_images_are_refused(images: Any, told: str) -> None:
    with pytest.raises(UsageError, match=rf"^images is {told}, but must be a uint8 tensor \(M, C, H, W\): convert it$"):
        make(images=images)


def test_no_samples() -> None:
    nothing = torch.zeros(0, dtype=torch.int64)
    data = make(index=nothing, tasks=nothing, labels=nothing)
    assert len(data) == 0
    check(data[:], [])
    with pytest.raises(IndexError, match="position 0 is out of range for 0 samples"):
        data[0]
