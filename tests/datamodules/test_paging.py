"""Data larger than memory: batches are the same, and of the file little more is read than they hold."""

import mmap
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.memory import CacheInMemory
from routing_lightning.datamodules import paging
from routing_lightning.datamodules.base import MultiTaskDataset

ROWS, SIZE = 4096, 32


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    """12 MB of images, more than the system reads around one."""
    path = tmp_path_factory.mktemp("images") / "images.npy"
    np.save(path, np.random.default_rng(0).integers(0, 256, (ROWS, SIZE, SIZE, 3), np.uint8))
    with path.open("rb+") as file:
        mmap.mmap(file.fileno(), 0).flush()  # what is not on the disk cannot be dropped from memory
    return path


def dataset(path: Path) -> MultiTaskDataset:
    images = torch.from_numpy(np.load(path, mmap_mode="c")).permute(0, 3, 1, 2)
    index = torch.arange(ROWS)
    return MultiTaskDataset(images, index, index % 3, index % 2)


def test_batches_of_data_larger_than_memory_are_the_same(path, monkeypatch):
    expected = dataset(path)
    monkeypatch.setattr(paging, "free_memory", lambda: ROWS * SIZE * SIZE * 3)
    found = dataset(path)
    for positions in (torch.tensor([0, ROWS - 1, 7, 7]), slice(3, 900), 5, torch.tensor([], dtype=torch.int64)):
        for ours, theirs in zip(found[positions], expected[positions], strict=True):
            assert torch.equal(ours, theirs)


def test_only_what_is_asked_for_is_read(path, monkeypatch):
    monkeypatch.setattr(paging, "free_memory", lambda: ROWS * SIZE * SIZE * 3)
    data = dataset(path)
    cache = CacheInMemory(data.images, path)
    cache.drop()
    if cache.look() > 0:
        pytest.skip("this file system keeps the file in memory")
    positions = torch.arange(0, ROWS, 64)
    data[positions]
    assert 0 < cache.look() * 1e6 <= len(positions) * 3 * mmap.PAGESIZE  # an image of 3 kB lies on at most 2 pages


def test_data_that_memory_has_room_for_are_read_as_the_system_likes(path):
    assert not dataset(path)._fetches


GROUPS = {
    "no group": ("0::/\n", {}, 8_000_000_000),
    "unlimited": ("0::/user/job\n", {"user/job/memory.max": "max"}, 8_000_000_000),
    "limited": ("0::/user/job\n", {"user/job/memory.max": "500"}, 500),
    "limited from above": ("0::/user/job\n", {"user/memory.max": "700", "user/job/memory.max": "max"}, 700),
    "a container": ("0::/docker/0123\n", {"memory.max": "900"}, 900),
    "the first version": ("5:cpu:/a\n4:memory,x:/a\n0::/\n", {"memory/a/memory.limit_in_bytes": "300"}, 300),
}


@pytest.mark.parametrize("name", GROUPS)
def test_limits_of_control_groups_count(name, tmp_path, monkeypatch):
    line, files, expected = GROUPS[name]
    for file, text in files.items():
        (tmp_path / "groups" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / file).write_text(f"{text}\n")
    (tmp_path / "meminfo").write_text("MemTotal: 9000000 kB\nMemAvailable:    7812500 kB\n")
    (tmp_path / "cgroup").write_text(line)
    monkeypatch.setattr(paging, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(paging, "_MACHINE", tmp_path / "meminfo")
    monkeypatch.setattr(paging, "_OWN_GROUPS", tmp_path / "cgroup")
    assert paging.free_memory() == expected
    assert paging.scarce(expected) and paging.scarce(expected // 2 + 1) and not paging.scarce(expected // 2)
