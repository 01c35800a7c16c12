"""The sizes that a datamodule tells before its data are loaded, and the checks of the loaded data."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from routing_lightning.datamodules import (
    CIFARMTLDataModule,
    DigitsMTLDataModule,
    MINMTLDataModule,
    MNISTMTLDataModule,
    MultiTaskData,
    MultiTaskDataModule,
    MultiTaskDataset,
)
from routing_lightning.errors import UsageError
from tests.conftest import ToyDataModule

SIZES = ("num_tasks", "num_classes", "image_shape")


def told(datamodule: MultiTaskDataModule) -> tuple[Any, ...]:
    return tuple(getattr(datamodule, name) for name in SIZES)


def dataset(count: int = 12, shape: tuple[int, int, int] = (1, 4, 4)) -> MultiTaskDataset:
    """Two tasks with labels 0..1 and 0..2."""
    tasks = torch.arange(count) % 2
    labels = torch.arange(count) // 2 % torch.tensor([2, 3])[tasks]
    return MultiTaskDataset(torch.zeros(count, *shape, dtype=torch.uint8), torch.arange(count), tasks, labels)


class Uneven(MultiTaskDataModule):
    """Writes ``load_data`` and no more; two tasks of 2 and 3 labels."""

    mean = (0.5,)
    std = (0.25,)
    loads = 0

    def load_data(self) -> MultiTaskData:
        self.loads += 1
        return MultiTaskData(["a", "b"], [["x", "y"], ["u", "v", "w"]], dataset(), None, dataset())


@pytest.mark.parametrize(
    ("make", "sizes"),
    [
        (lambda root: DigitsMTLDataModule(), (10, 2, (1, 8, 8))),
        (MNISTMTLDataModule, (10, 2, (1, 28, 28))),
        (CIFARMTLDataModule, (20, 5, (3, 32, 32))),
        (MINMTLDataModule, (10, 5, (3, 84, 84))),
        (
            lambda root: MINMTLDataModule(root, num_tasks=4, labels_per_task=3, image_size=32),
            (4, 3, (3, 32, 32)),
        ),
    ],
)
def test_the_shipped_ones_answer_without_data(
    tmp_path: Path, make: Callable[[str], MultiTaskDataModule], sizes: tuple[Any, ...]
) -> None:
    datamodule = make(str(tmp_path / "absent"))
    assert told(datamodule) == sizes
    assert not datamodule._is_set_up
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("first", SIZES)
def test_one_that_only_loads_answers_by_loading_once(first: str) -> None:
    datamodule = Uneven()
    assert datamodule.loads == 0
    getattr(datamodule, first)
    assert told(datamodule) == (2, 3, (1, 4, 4))
    datamodule.prepare_data()
    datamodule.setup("fit")
    assert datamodule.loads == 1
    assert datamodule.classes_per_task == [2, 3]


def test_toy_data_answers_by_loading() -> None:
    assert told(ToyDataModule(4, 3)) == (4, 3, (1, 8, 8))


def test_missing_data_are_told_unchanged() -> None:
    mistake = UsageError("no data in nowhere: set root")

    class Missing(Uneven):
        def load_data(self) -> MultiTaskData:
            raise mistake

    datamodule = Missing()
    for name in SIZES:
        with pytest.raises(UsageError) as caught:
            getattr(datamodule, name)
        assert caught.value is mistake


def test_impossible_options_are_told_before_loading() -> None:
    with pytest.raises(UsageError, match="^batch_size is 0"):
        _ = Uneven(batch_size=0).num_tasks


def test_sizes_may_be_set_like_any_attribute() -> None:
    class InInit(Uneven):
        def __init__(self) -> None:
            super().__init__()
            self.num_tasks = 2
            self.num_classes = 3
            self.image_shape = (1, 4, 4)

    class BeforeInit(Uneven):
        def __init__(self) -> None:
            self.num_tasks = 2
            super().__init__()

    class OnTheClass(Uneven):
        num_tasks = 2
        num_classes = 3
        image_shape = (1, 4, 4)

    class AsProperties(Uneven):
        @property
        def num_tasks(self) -> int:  # type: ignore[override]
            return 2

    class InSetup(Uneven):
        def setup(self, stage: str | None = None) -> None:
            super().setup(stage)
            self.num_tasks = 7

    for kind in (InInit, OnTheClass):
        datamodule = kind()
        assert told(datamodule) == (2, 3, (1, 4, 4))
        assert datamodule.loads == 0
        datamodule.setup()
        assert told(datamodule) == (2, 3, (1, 4, 4))
    for kind in (BeforeInit, AsProperties):
        datamodule = kind()
        assert (datamodule.num_tasks, datamodule.loads) == (2, 0)
        assert (datamodule.num_classes, datamodule.loads) == (3, 1)
    assert InSetup().num_tasks == 7


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [("num_tasks", 5, "2"), ("num_classes", 2, "3"), ("image_shape", (3, 4, 4), r"\(1, 4, 4\)")],
)
@pytest.mark.parametrize("where", ["instance", "class"])
def test_data_of_other_sizes_are_refused(name: str, wrong: Any, right: str, where: str) -> None:
    datamodule = type("Promising", (Uneven,), {name: wrong} if where == "class" else {})()
    if where == "instance":
        setattr(datamodule, name, wrong)
    told_as = str(wrong).replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(
        UsageError, match=rf"^{name} of Promising is {told_as}, but its data have {right}: set {name} to"
    ):
        datamodule.setup()


def test_a_shape_may_be_a_list() -> None:
    datamodule = Uneven()
    datamodule.image_shape = [1, 4, 4]  # type: ignore[assignment]
    datamodule.setup()


def test_mnist_of_another_image_size(mnist_root: Path) -> None:
    for part, count in (("train", 120), ("t10k", 50)):
        header = np.array([0x803, count, 4, 4], ">i4")
        path = mnist_root / "MNIST" / "raw" / f"{part}-images-idx3-ubyte"
        path.write_bytes(header.tobytes() + bytes(count * 16))
    datamodule = MNISTMTLDataModule(str(mnist_root), train_per_class=8, test_per_class=3)
    with pytest.raises(UsageError, match=r"image_shape of MNISTMTLDataModule is \(1, 28, 28\), .* have \(1, 4, 4\)"):
        datamodule.setup()


def test_a_restored_split_must_keep_the_sizes() -> None:
    class Shrinking(Uneven):
        def load_data(self) -> MultiTaskData:
            data = super().load_data()
            return data if self.split_seed == 0 else data._replace(class_names=[["x", "y"], ["u", "v", "w", "z"]])

    datamodule = Shrinking()
    assert datamodule.num_classes == 3
    with pytest.raises(UsageError, match="num_classes of Shrinking is 3, but its data have 4"):
        datamodule.load_state_dict({"split_seed": 1, "val_fraction": 0.0})


def test_a_size_that_is_needed_for_loading_must_be_set() -> None:
    class Circular(Uneven):
        def load_data(self) -> MultiTaskData:
            assert self.num_tasks == 2
            return super().load_data()

    datamodule = Circular()
    for _ in range(2):
        with pytest.raises(
            UsageError, match=r"Circular does not know num_tasks before its data .* set self\.num_tasks"
        ):
            datamodule.setup()
    datamodule.num_tasks = 2
    datamodule.setup()


@pytest.mark.parametrize("when", ["new", "asked", "set up"])
def test_copies_and_pickles_tell_the_same(when: str) -> None:
    datamodule = ToyDataModule(4, 3)
    if when == "asked":
        assert datamodule.num_tasks == 4
    if when == "set up":
        datamodule.setup("fit")
    for other in (copy.copy(datamodule), copy.deepcopy(datamodule), pickle.loads(pickle.dumps(datamodule))):
        assert told(other) == (4, 3, (1, 8, 8))
        assert other.hparams == datamodule.hparams
    assert dict(datamodule.hparams) == {"num_tasks": 4, "num_classes": 3, "count": 96, "batch_size": 16}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"task_names": ["a"]}, "gave 1 task_names and 2 class_names"),
        ({"task_names": [], "class_names": []}, "gave 0 task_names and 0 class_names"),
        ({"class_names": [["x", "y"]]}, "gave 2 task_names and 1 class_names"),
        ({"task_names": ["a"], "class_names": [["x", "y"]]}, "gave task 1 in the training part, but named 1 tasks"),
        ({"class_names": [["x", "y"], ["u", "v"]]}, "gave label 2 of task 1 in the training part, but named 2 labels"),
        (
            {"val": dataset(shape=(1, 4, 5))},
            r"gave validation images of shape \(1, 4, 5\), but training images of .*4, 4",
        ),
        ({"test": dataset(shape=(3, 4, 4))}, r"gave test images of shape \(3, 4, 4\)"),
        ({"test": None}, "gave a NoneType as test part, but must give a MultiTaskDataset"),
        ({"train": [1, 2]}, "gave a list as training part"),
    ],
)
def test_data_that_do_not_go_together(changes: dict[str, Any], sentence: str) -> None:
    class Mixed(Uneven):
        def load_data(self) -> MultiTaskData:
            return super().load_data()._replace(**changes)

    with pytest.raises(UsageError, match=rf"^load_data of Mixed {sentence}"):
        Mixed().setup()


def test_data_of_another_type() -> None:
    class Other(Uneven):
        def load_data(self) -> MultiTaskData:
            return tuple(super().load_data())  # type: ignore[return-value]

    with pytest.raises(UsageError, match=r"^load_data of Other gave a tuple, but must give a MultiTaskData: make one$"):
        Other().setup()
