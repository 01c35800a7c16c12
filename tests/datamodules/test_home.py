"""``~`` in the folders of the data."""

from collections.abc import Callable
from pathlib import Path

import pytest

from routing_lightning.datamodules import (
    CIFARMTLDataModule,
    MINMTLDataModule,
    MNISTMTLDataModule,
    MultiTaskData,
    MultiTaskDataModule,
)
from routing_lightning.errors import UsageError
from tests.fake_data import save_image


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    elsewhere = tmp_path / "working folder"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    return tmp_path


def ready(datamodule: MultiTaskDataModule, home: Path) -> None:
    datamodule.prepare_data()
    datamodule.setup("fit")
    assert list((home / "working folder").iterdir()) == []


def test_mnist(home: Path, mnist_root: Path) -> None:
    datamodule = MNISTMTLDataModule("~/mnist", train_per_class=8, test_per_class=3)
    ready(datamodule, home)
    assert datamodule.hparams["root"] == "~/mnist"
    assert datamodule.root == str(mnist_root)


def test_cifar_tree(home: Path, cifar_tree: Path) -> None:
    datamodule = CIFARMTLDataModule("~/tree", cache_dir="~/cache")
    ready(datamodule, home)
    assert (datamodule.hparams["root"], datamodule.hparams["cache_dir"]) == ("~/tree", "~/cache")
    assert len(list((home / "cache").iterdir())) == 1


def test_cifar_archive(home: Path, write_cifar_archive: Callable[..., Path]) -> None:
    write_cifar_archive(home)
    ready(CIFARMTLDataModule("~"), home)


def test_download_goes_to_the_home_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roots = []

    def fail(url: str, root: object, *args: object, **kwargs: object) -> None:
        roots.append(str(root))
        raise OSError("no network")

    monkeypatch.setattr("torchvision.datasets.cifar.download_and_extract_archive", fail)
    monkeypatch.setattr(
        "torchvision.datasets.mnist.download_and_extract_archive",
        lambda url, download_root, **_: fail(url, download_root),
    )
    for datamodule in (CIFARMTLDataModule("~/fresh"), MNISTMTLDataModule("~/fresh")):
        with pytest.raises(UsageError, match=rf"in {home}/fresh"):
            datamodule.prepare_data()
    assert roots and all(root.startswith(f"{home}/fresh") for root in roots)


def test_mini_imagenet(home: Path) -> None:
    for label in ("a", "b"):
        for number in range(3):
            save_image(home / "min" / label / f"{number}.png", number)
    options = {"num_tasks": 1, "labels_per_task": 2, "train_per_label": 2, "test_per_label": 1, "image_size": 8}
    datamodule = MINMTLDataModule("~/min", cache_dir="~/cache", **options)  # type: ignore[arg-type]
    ready(datamodule, home)
    assert (datamodule.hparams["root"], datamodule.hparams["cache_dir"]) == ("~/min", "~/cache")
    assert len(list((home / "cache").iterdir())) == 1


def test_a_datamodule_of_ones_own(home: Path) -> None:
    class Own(MultiTaskDataModule):
        def __init__(self, root: str) -> None:
            super().__init__(root)
            self.save_hyperparameters()

        def load_data(self) -> MultiTaskData:
            raise UsageError(f"no data in {self.root}: set root")

    datamodule = Own("~/own")
    assert datamodule.hparams["root"] == "~/own"
    with pytest.raises(UsageError, match=f"^no data in {home}/own: set root$"):
        datamodule.setup()


@pytest.mark.parametrize("root", ["data", "/data", "./~/data", "data~", "a/~"])
def test_other_paths_stay_as_they_are(root: str) -> None:
    assert MNISTMTLDataModule(root).root == root
    assert CIFARMTLDataModule(root, cache_dir=root).cache_dir == root
