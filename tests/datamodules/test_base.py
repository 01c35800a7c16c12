import logging
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.warnings import PossibleUserWarning
from torch import Tensor

from routing_lightning.datamodules import (
    CIFARMTLDataModule,
    DigitsMTLDataModule,
    MINMTLDataModule,
    MNISTMTLDataModule,
    MultiTaskDataModule,
    MultiTaskDataset,
)
from routing_lightning.datamodules.base import MultiTaskData, stratified_split
from routing_lightning.errors import UsageError

SIZES = (30, 20)


class ColouredDataModule(MultiTaskDataModule):
    """Two tasks with 2 and 3 labels; pixel value = row."""

    mean = (0.5, 0.25, 0.0)
    std = (0.5, 0.25, 1.0)

    def __init__(self, batch_size: int = 4, val_fraction: float = 0.0, split_seed: int = 0) -> None:
        super().__init__(None, batch_size, val_fraction, split_seed)
        self.save_hyperparameters()
        self.loads = 0

    def load_data(self) -> MultiTaskData:
        self.loads += 1
        count = sum(SIZES)
        images = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 4, 5, 3).contiguous()
        tasks = torch.tensor([0] * SIZES[0] + [1] * SIZES[1])
        labels = torch.arange(count) % torch.tensor([2, 3])[tasks]
        whole = MultiTaskDataset(images.permute(0, 3, 1, 2), torch.arange(count), tasks, labels)
        train, val = stratified_split(whole.subset(torch.arange(40)), self.val_fraction, self.split_seed)
        names = [["a", "b"], ["c", "d", "e"]]
        return MultiTaskData(["first", "second"], names, train, val, whole.subset(torch.arange(40, 50)))


class Recorder(LightningModule):
    """Keeps the rows (pixel values) of the batches that it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.rows: dict[str, list[list[int]]] = {"train": [], "val": [], "test": [], "predict": []}
        self.image: Tensor = torch.empty(0)

    def record(self, part: str, batch: Any) -> None:
        self.image, _, _ = batch
        self.rows[part].append(self.image[:, 2, 0, 0].tolist())

    def training_step(self, batch: Any) -> Tensor:
        self.record("train", batch)
        return self.weight * 0

    def validation_step(self, batch: Any) -> None:
        self.record("val", batch)

    def test_step(self, batch: Any) -> None:
        self.record("test", batch)

    def predict_step(self, batch: Any) -> None:
        self.record("predict", batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def trainer(tmp_path: Path, **options: Any) -> Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return Trainer(default_root_dir=tmp_path, accelerator="cpu", enable_checkpointing=False, **{**quiet, **options})


def flat(batches: list[list[int]]) -> list[int]:
    return [row for batch in batches for row in batch]


def test_batches_are_gathered_in_channels_last() -> None:
    datamodule = ColouredDataModule()
    datamodule.setup()
    images, tasks, labels = datamodule.train_dataset[torch.tensor([31, 2, 2])]
    assert images.dtype == torch.uint8
    assert images.shape == (3, 3, 4, 5)
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert images[:, 1, 2, 3].tolist() == [31, 2, 2]
    assert (tasks.tolist(), labels.tolist()) == ([1, 0, 0], [1, 0, 0])


def test_attributes_after_setup() -> None:
    datamodule = ColouredDataModule()
    datamodule.setup("fit")
    assert (datamodule.num_tasks, datamodule.num_classes) == (2, 3)
    assert (datamodule.task_names, datamodule.image_shape) == (["first", "second"], (3, 4, 5))
    assert datamodule.classes_per_task == [2, 3]


def test_setup_again_changes_nothing() -> None:
    datamodule = ColouredDataModule(val_fraction=0.2)
    datamodule.setup("fit")
    before = datamodule.train_dataset
    for stage in ("fit", "validate", "test", "predict", None):
        datamodule.setup(stage)
    assert datamodule.train_dataset is before
    assert datamodule.loads == 1


def test_paper_protocol_is_announced(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        held_out = ColouredDataModule(val_fraction=0.2)
        held_out.setup("fit")
        ColouredDataModule().setup("test")
        assert "validation runs on the test set" not in caplog.text
        datamodule = ColouredDataModule()
        datamodule.setup("fit")
    assert caplog.text.count("val_fraction=0: validation runs on the test set (paper protocol)") == 1
    assert datamodule.val_dataset is datamodule.test_dataset
    assert datamodule.validates_on_test
    assert held_out.val_dataset is not held_out.test_dataset
    assert not held_out.validates_on_test


@pytest.mark.parametrize("fraction", [0.0, 0.2])
@pytest.mark.parametrize("brings", ["a part of its own", "the test part", "none"])
def test_what_is_told_about_validation_is_true(caplog: pytest.LogCaptureFixture, fraction: float, brings: str) -> None:
    class OwnValidation(ColouredDataModule):
        def load_data(self) -> MultiTaskData:
            data = super().load_data()
            own = {"a part of its own": data.train.subset(slice(0, 4)), "the test part": data.test, "none": None}
            return data._replace(val=own[brings])

    datamodule = OwnValidation(val_fraction=fraction)
    with caplog.at_level(logging.INFO):
        datamodule.setup("fit")
    assert datamodule.validates_on_test == (brings != "a part of its own")
    assert ("validation runs on the test set" in caplog.text) == datamodule.validates_on_test
    assert ("val_fraction=0" in caplog.text) == (datamodule.validates_on_test and fraction == 0)


def test_restoring_a_split_changes_what_validation_runs_on() -> None:
    datamodule = ColouredDataModule()
    datamodule.setup("fit")
    datamodule.load_state_dict(ColouredDataModule(val_fraction=0.2).state_dict())
    assert not datamodule.validates_on_test


@pytest.mark.parametrize("fraction", [0.05, 0.2, 0.5, 0.99])
def test_stratified_split(fraction: float) -> None:
    datamodule = ColouredDataModule()
    datamodule.setup()
    whole = datamodule.train_dataset
    rest, held_out = stratified_split(whole, fraction, 0)
    assert held_out is not None
    assert sorted(rest.index.tolist() + held_out.index.tolist()) == whole.index.tolist()
    for task, label in {(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)}:
        total, part = (int(((d.tasks == task) & (d.labels == label)).sum()) for d in (whole, held_out))
        assert part == min(max(round(fraction * total), 1), total - 1)
    again = stratified_split(whole, fraction, 0)[1]
    assert again is not None
    assert torch.equal(again.index, held_out.index)
    if fraction == 0.5:
        other = stratified_split(whole, fraction, 1)[1]
        assert other is not None
        assert not torch.equal(other.index, held_out.index)


def test_stratified_split_of_a_single_sample() -> None:
    dataset = MultiTaskDataset(
        torch.zeros(3, 1, 2, 2, dtype=torch.uint8),
        torch.arange(3),
        torch.tensor([0, 0, 1]),
        torch.tensor([0, 0, 4]),
    )
    with pytest.raises(UsageError, match=r"label 4 of task 1 has 1 training image, but val_fraction=0\.1 needs"):
        stratified_split(dataset, 0.1, 0)


def test_state_restores_the_split() -> None:
    saved, other = ColouredDataModule(val_fraction=0.5, split_seed=7), ColouredDataModule(val_fraction=0.5)
    saved.setup("fit")
    other.setup("fit")
    assert not torch.equal(other.val_dataset.index, saved.val_dataset.index)
    other.load_state_dict(saved.state_dict())
    assert torch.equal(other.val_dataset.index, saved.val_dataset.index)
    saved.load_state_dict(saved.state_dict())
    assert saved.loads == 1


def test_hyperparameters_are_plain_values() -> None:
    root = Path("somewhere")
    for datamodule in (
        CIFARMTLDataModule(root, cache_dir=root),  # type: ignore[arg-type]
        MINMTLDataModule(root, cache_dir=root),  # type: ignore[arg-type]
        MNISTMTLDataModule(root),  # type: ignore[arg-type]
    ):
        assert datamodule.hparams["root"] == "somewhere"
        assert datamodule.root == "somewhere"
        assert {type(value) for value in datamodule.hparams.values()} <= {str, int, float, bool, type(None)}
    assert dict(ColouredDataModule(8, 0.1, 3).hparams) == {
        "batch_size": 8,
        "val_fraction": 0.1,
        "split_seed": 3,
    }


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("batch_size", 0, "at least 1"),
        ("batch_size", -3, "at least 1"),
        ("val_fraction", 1.0, "at least 0 and below 1"),
        ("val_fraction", -0.1, "at least 0 and below 1"),
        ("val_fraction", math.nan, "at least 0 and below 1"),
        ("split_seed", -1, r"in \[0, 2\*\*32\)"),
        ("split_seed", 2**32, r"in \[0, 2\*\*32\)"),
    ],
)
def test_impossible_values(option: str, value: float, allowed: str) -> None:
    datamodule = DigitsMTLDataModule(**{option: value})  # type: ignore[arg-type]
    for check in (datamodule.prepare_data, datamodule.setup):
        with pytest.raises(UsageError, match=rf"^{option} is {value}, but must be .*{allowed}"):
            check()


def test_with_a_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    datamodule, model = ColouredDataModule(), Recorder()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = trainer(tmp_path, max_epochs=2, num_sanity_val_steps=0)
        run.fit(model, datamodule)
        run.test(model, datamodule, verbose=False)
        run.predict(model, datamodule)
    # nothing that advises against how the loaders are made
    assert not [w for w in caught if issubclass(w.category, PossibleUserWarning) or "indices" in str(w.message)]
    assert model.image.dtype == torch.uint8  # the model normalises
    first, second = model.rows["train"][:10], model.rows["train"][10:]
    assert sorted(flat(first)) == sorted(flat(second)) == list(range(40))
    assert first != second
    first, second = model.rows["val"][:3], model.rows["val"][3:]
    assert first == second == model.rows["test"]
    assert sorted(flat(first)) == flat(model.rows["predict"]) == list(range(40, 50))


def test_order_follows_the_seed_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    orders = []
    for seed in ("1", "1", "2"):
        monkeypatch.setenv("PL_GLOBAL_SEED", seed)
        datamodule = ColouredDataModule()
        datamodule.setup("fit")
        orders.append([batch[0][:, 0, 0, 0].tolist() for batch in datamodule.train_dataloader()])
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]


def test_overfit_batches(tmp_path: Path) -> None:
    model = Recorder()
    trainer(tmp_path, max_epochs=2, overfit_batches=3).fit(model, ColouredDataModule())
    first, second = model.rows["train"][:3], model.rows["train"][3:]
    assert first == second
    # of both tasks
    assert min(flat(first)) < SIZES[0] <= max(flat(first))


@pytest.mark.parametrize("part", ["val", "test"])
def test_the_first_batches_of_an_evaluation_mix_the_tasks(part: str) -> None:
    datamodule = DigitsMTLDataModule()
    datamodule.setup()
    _, tasks, _ = next(iter(getattr(datamodule, f"{part}_dataloader")()))
    assert len(set(tasks.tolist())) > 5
    again, other = DigitsMTLDataModule(), DigitsMTLDataModule(split_seed=1)
    orders = []
    for each in (datamodule, again, other):
        each.setup()
        orders.append(torch.cat(list(getattr(each, f"{part}_dataloader")().sampler)).tolist())
    assert orders[0] == orders[1] != orders[2]
    predicted = torch.cat(list(datamodule.predict_dataloader().sampler))
    assert torch.equal(predicted, torch.arange(len(datamodule.test_dataset)))


def test_limited_validation_sees_all_tasks(tmp_path: Path) -> None:
    class TaskRecorder(Recorder):
        def record(self, part: str, batch: Any) -> None:
            self.rows[part].append(batch[1].tolist())

    model = TaskRecorder()
    trainer(tmp_path, limit_val_batches=3).validate(model, DigitsMTLDataModule(), verbose=False)
    assert len(model.rows["val"]) == 3
    assert len(set(flat(model.rows["val"]))) == 10
