from pathlib import Path
from urllib.error import URLError

import pytest
import torch

from routing_lightning.datamodules import MNISTMTLDataModule
from routing_lightning.datamodules.mnist import FILES
from routing_lightning.errors import UsageError


def ready(root: Path, train: int = 8, test: int = 3, **options: object) -> MNISTMTLDataModule:
    datamodule = MNISTMTLDataModule(
        str(root),
        download=False,
        train_per_class=train,
        test_per_class=test,
        **options,  # type: ignore[arg-type]
    )
    datamodule.prepare_data()
    datamodule.setup("fit")
    return datamodule


def test_protocol(mnist_root: Path) -> None:
    datamodule = ready(mnist_root)
    assert (datamodule.num_tasks, datamodule.num_classes, datamodule.image_shape) == (10, 2, (1, 28, 28))
    assert (datamodule.task_names[3], datamodule.class_names[3]) == ("digit_3", ["not_3", "3"])
    for dataset, per_class in ((datamodule.train_dataset, 8), (datamodule.test_dataset, 3)):
        images, tasks, labels = dataset[torch.arange(len(dataset))]
        digits = images[:, 0, 0, 0].long()
        assert torch.equal(labels, (digits == tasks).long())
        assert torch.bincount(tasks * 10 + digits).tolist() == [per_class] * 100
        for task in range(10):
            rows = dataset.index[tasks == task].tolist()
            assert len(set(rows)) == len(rows)
    assert not set(datamodule.train_dataset.index.tolist()) & set(datamodule.test_dataset.index.tolist())
    assert datamodule.train_dataset.images is datamodule.test_dataset.images


def test_tasks_draw_independently(mnist_root: Path) -> None:
    dataset = ready(mnist_root).train_dataset
    drawn = {tuple(sorted(dataset.index[dataset.tasks == task].tolist())) for task in range(10)}
    assert len(drawn) == 10


def test_whole_pool_can_be_drawn(mnist_root: Path) -> None:
    assert len(ready(mnist_root, 12, 5).train_dataset) == 1200


@pytest.mark.parametrize("train", [2, 8, 12])
@pytest.mark.parametrize("fraction", [0.01, 0.25, 0.9])
def test_validation_images_train_no_task(mnist_root: Path, train: int, fraction: float) -> None:
    whole, datamodule = ready(mnist_root, train), ready(mnist_root, train, val_fraction=fraction)
    held_out = min(max(round(fraction * train), 1), train - 1)
    for dataset, per_class in (
        (datamodule.val_dataset, held_out),
        (datamodule.train_dataset, train - held_out),
    ):
        pairs = torch.bincount(dataset.tasks * 2 + dataset.labels).tolist()
        assert pairs == [9 * per_class, per_class] * 10
    assert not set(datamodule.val_dataset.index.tolist()) & set(datamodule.train_dataset.index.tolist())
    assert torch.equal(datamodule.test_dataset.index, whole.test_dataset.index)


def test_split_seed(mnist_root: Path) -> None:
    first, again, other = ready(mnist_root), ready(mnist_root), ready(mnist_root, split_seed=1)
    assert torch.equal(first.train_dataset.index, again.train_dataset.index)
    assert not torch.equal(first.train_dataset.index, other.train_dataset.index)


@pytest.mark.parametrize(("option", "counts"), [("train_per_class", (13, 3)), ("test_per_class", (8, 6))])
def test_too_few_images(mnist_root: Path, option: str, counts: tuple[int, int]) -> None:
    there = {"train_per_class": 12, "test_per_class": 5}[option]
    with pytest.raises(UsageError, match=rf"{option} is .* has {there} images of class 0: set .* at most {there}"):
        ready(mnist_root, *counts)


def test_validation_needs_two_images(mnist_root: Path) -> None:
    with pytest.raises(UsageError, match=r"train_per_class is 1, but val_fraction=0\.5 needs at least 2"):
        ready(mnist_root, 1, val_fraction=0.5)


@pytest.mark.parametrize("option", ["train_per_class", "test_per_class"])
def test_impossible_counts(option: str) -> None:
    with pytest.raises(UsageError, match=f"{option} is 0, but must be at least 1"):
        MNISTMTLDataModule(**{option: 0}).prepare_data()  # type: ignore[arg-type]


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"no MNIST in {tmp_path}: .*train-images.* is missing.*download: true"):
        ready(tmp_path)


def test_download_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise URLError("no route")

    monkeypatch.setattr("torchvision.datasets.mnist.download_and_extract_archive", fail)
    with pytest.raises(UsageError, match=r"MNIST/raw and downloading it failed \([^\n]*no route[^\n]*download: false"):
        MNISTMTLDataModule(str(tmp_path)).prepare_data()


def test_no_download_if_the_files_are_there(mnist_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchvision.datasets.mnist.download_and_extract_archive", lambda *a, **k: pytest.fail("asked"))
    MNISTMTLDataModule(str(mnist_root)).prepare_data()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("keep", [0, 6, -3])
def test_half_written_file(mnist_root: Path, name: str, keep: int) -> None:
    path = mnist_root / "MNIST" / "raw" / name
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UsageError, match=rf"{path} is no complete MNIST file: remove it and set download: true"):
        ready(mnist_root)


def test_labels_of_another_part(mnist_root: Path) -> None:
    folder = mnist_root / "MNIST" / "raw"
    (folder / FILES[1]).write_bytes((folder / FILES[3]).read_bytes())
    with pytest.raises(UsageError, match=r"has 120 images but .* has 50 labels"):
        ready(mnist_root)
