"""Manifests whose tasks are of several kinds."""

import csv
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from routing_lightning.datamodules import FolderMTLDataModule
from routing_lightning.datamodules.base import MultiTaskDataset, stratified_split, targets_of
from routing_lightning.errors import UsageError

KINDS = {"tags": "labels", "age": "value"}


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    for i in range(40):
        Image.new("RGB", (8, 8), (i, i, i)).save(root / f"{i}.png")
    return root


def lines(count: int = 40) -> list[list[str]]:
    """Each image is labelled in ``kind``, every second one in ``tags``, all but every third in ``age``."""
    rows = []
    for i in range(count):
        rows.append([f"{i}.png", "kind", "ab"[i % 2]])
        if i % 2 == 0:
            rows.append([f"{i}.png", "tags", ["", "x", "x|y", "z ; x", "y|"][i // 2 % 5]])
        if i % 3:
            rows.append([f"{i}.png", "age", f"{100 + i / 2}"])
    return rows


def ready(root: Path, rows: list[list[str]], kinds: dict | None = KINDS, **options) -> FolderMTLDataModule:
    path = root / "table.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["path", "task", "label", "split"][: len(rows[0])], *rows])
    data = FolderMTLDataModule(str(root), manifest=str(path), kinds=kinds, **{"image_size": 8, **options})
    data.prepare_data()
    data.setup()
    return data


def test_a_manifest_of_three_kinds(photos):
    data = ready(photos, lines(), val_fraction=0.2, test_fraction=0.2)
    assert data.task_names == ["age", "kind", "tags"]
    assert data.class_names == [["value"], ["a", "b"], ["x", "y", "z"]]
    assert (data.num_classes, data.classes_per_task) == (3, [1, 2, 3])
    assert data.targets.kinds == ["value", "classes", "labels"] and data.targets.sizes == [1, 2, 3]
    parts = data.train_dataset, data.val_dataset, data.test_dataset
    assert sum(len(part) for part in parts) == len(lines())
    assert len(data.train_dataset.images) == 40  # each stored once
    where = {}
    tags = {"": [0, 0, 0], "x": [1, 0, 0], "x|y": [1, 1, 0], "z ; x": [1, 0, 1], "y|": [0, 1, 0]}
    said = {(path, task): label for path, task, label in lines()}
    for number, part in enumerate(parts):
        images, tasks, labels = part[:]
        assert labels.dtype == torch.float32 and labels.shape == (len(part), 3)
        assert len(set(tasks.tolist())) == 3
        for i, task, row in zip(images[:, 0, 0, 0].tolist(), tasks.tolist(), labels.tolist(), strict=True):
            text = said[f"{i}.png", data.task_names[task]]
            wanted = [[float(text), 0, 0] if task == 0 else ["ab".index(text), 0, 0] if task == 1 else tags[text]]
            assert [row] == wanted
            assert where.setdefault(i, number) == number  # in one part for all its tasks
    ages = data.train_dataset.labels[data.train_dataset.tasks == 0, 0].double().numpy()
    np.testing.assert_allclose([data.targets.means[0], data.targets.stds[0]], [ages.mean(), ages.std()])


def test_classes_alone_stay_whole_numbers(photos):
    for kinds in (None, {}, {"kind": "classes"}):
        data = ready(photos, [row for row in lines() if row[1] == "kind"], kinds)
        assert data.train_dataset.labels.dtype == torch.int64 and data.targets is None


def test_rare_labels_are_in_each_part(photos):
    rows = [[f"{i}.png", "tags", "common|rare" if i < 10 else "common"] for i in range(40)]
    data = ready(photos, rows, {"tags": "labels"}, val_fraction=0.1, test_fraction=0.1)
    for part, rare, count in ((data.val_dataset, 1, 4), (data.test_dataset, 1, 4), (data.train_dataset, 8, 32)):
        assert part.labels.sum(0).tolist() == [count, rare]


def test_a_task_of_one_value_alone_and_of_one_label(photos):
    data = ready(photos, [[f"{i}.png", "age", str(i)] for i in range(20)], {"age": "value"})
    assert (data.num_classes, data.targets.kinds) == (1, ["value"])
    data = ready(photos, [[f"{i}.png", "tags", "x" * (i % 2)] for i in range(20)], {"tags": "labels"})
    assert data.class_names == [["x"]]


@pytest.mark.parametrize(
    ("rows", "kinds", "sentence"),
    [
        (lines(), {"weight": "value"}, r"kinds names 1 task \(weight\) that .*csv does not have: it has 3 tasks"),
        (lines(), {"tags": "label"}, "kinds has tags: label, but a task is of classes, labels, value: choose"),
        (lines(), {"kind": "value"}, r"has 40 values \('a' of 0\.png, .*\) in task kind that are no finite"),
        ([["0.png", "age", "3"], ["1.png", "age", "3.0"]], {"age": "value"}, "the single value 3, so nothing could"),
        ([["0.png", "age", "1"], ["1.png", "age", "inf"]], {"age": "value"}, r"1 value \('inf' of 1\.png\) in task"),
        ([["0.png", "age", "1"], ["1.png", "age", "nan"]], {"age": "value"}, "that is no finite number: write"),
        ([["0.png", "age", "1"], ["1.png", "age", "1e39"]], {"age": "value"}, "that is no finite number"),
        ([["0.png", "age", "1"], ["1.png", "age", "3,5"]], {"age": "value"}, "'3,5' of 1"),
        ([["0.png", "t", ""], ["1.png", "t", " | "]], {"t": "labels"}, "has task t of kind labels without any label"),
        ([["0.png", "t", "x"], ["0.png", "t", "y"]], {"t": "labels"}, r"gives 1 image \(0\.png in t\) two labels"),
        (
            [[f"{i}.png", "t", str(1.7e9 + i)] for i in range(9)],
            {"t": "value"},
            r"in task t that are 1\.7e\+09 on average and differ by 2\.6, which is too little for numbers of 7 digits",
        ),
    ],
)  # fmt: skip
def test_wrong_kinds_and_values_are_told(photos, rows, kinds, sentence):
    with pytest.raises(UsageError, match=sentence):
        ready(photos, rows, kinds)


def test_folders_hold_classes_alone(photos):
    with pytest.raises(UsageError, match=r"kinds names 1 task \(a\) of other kinds than classes, but folders hold"):
        FolderMTLDataModule(str(photos), kinds={"a": "value"}).prepare_data()


def test_a_line_without_value_is_left_out_and_one_without_labels_says_none(photos, recwarn):
    rows = [*lines(20), ["20.png", "age", ""], ["20.png", "tags", ""], ["20.png", "kind", ""]]
    data = ready(photos, rows, val_fraction=0, test_fraction=0.2)
    assert "left out 2 lines (" in " ".join(str(warning.message) for warning in recwarn)
    samples = torch.cat([part.tasks for part in (data.train_dataset, data.test_dataset)])
    assert Counter(samples.tolist())[2] == 11


def test_parquet_with_lists_and_numbers(photos):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = photos / "table.parquet"
    for name, labels in (("age", [1.5, 2.5, None, 4.5] * 5), ("tags", [["x", "y"], [], None, ["y"]] * 5)):
        table = pa.table({"path": [f"{i}.png" for i in range(20)], "task": [name] * 20, "label": labels})
        parquet.write_table(table, path)
        data = FolderMTLDataModule(str(photos), manifest=str(path), kinds={name: KINDS[name]}, image_size=8)
        data.prepare_data()
        data.setup()
        labels = torch.cat([part.labels for part in (data.train_dataset, data.val_dataset, data.test_dataset)])
        assert len(labels) == {"age": 15, "tags": 20}[name]
        assert sorted(set(map(tuple, labels.tolist()))) == (
            [(1.5,), (2.5,), (4.5,)] if name == "age" else [(0, 0), (0, 1), (1, 1)]
        )


def test_a_checkpoint_of_other_kinds_is_refused(photos):
    rows = [[f"{i}.png", "t", "12"[i % 2]] for i in range(20)]
    saved = ready(photos, rows, {}).state_dict()
    with pytest.raises(UsageError, match=r"1 new task or label"):
        ready(photos, rows, {"t": "value"}).load_state_dict(saved)
    with pytest.raises(UsageError, match=r"of other kinds \(t: classes\): set kinds to these"):
        ready(photos, rows, {"t": "labels"}).load_state_dict(saved)


def test_values_of_one_size_or_none_in_training_have_a_spread_of_one(photos):
    rows = [["0.png", "age", "7", "train"], ["1.png", "age", "9", "test"], ["2.png", "age", "8", "val"]]
    targets = ready(photos, rows, {"age": "value"}).targets
    assert (targets.means, targets.stds) == ([7.0], [1.0])


def test_rows_are_split_by_task_where_nobody_knows_their_kinds():
    tasks = torch.arange(40) % 2
    dataset = MultiTaskDataset(torch.zeros(40, 1, 2, 2).byte(), torch.arange(40), tasks, torch.rand(40, 3))
    rest, held = stratified_split(dataset, 0.25, 0)
    assert torch.bincount(held.tasks).tolist() == [5, 5] and len(rest) == 30


def test_rows_must_be_finite():
    with pytest.raises(UsageError, match=r"labels has the row \[inf\], but all must be finite in float32"):
        MultiTaskDataset(
            torch.zeros(1, 1, 2, 2).byte(), torch.tensor([0]), torch.tensor([0]), torch.tensor([[1e300]]).double()
        )


@pytest.mark.parametrize("sampling", ["size", "balanced", 2.0])
def test_tasks_of_one_ten_and_ten_thousand_samples(tmp_path_factory, sampling):
    root = tmp_path_factory.getbasetemp() / "uneven"
    if not root.exists():
        root.mkdir()
        for i in range(50):
            Image.new("RGB", (4, 4), (i, i, i)).save(root / f"{i}.png")
    rows = [[f"{i}.png", "few", str(i), "train" if i < 8 else "val" if i < 9 else "test"] for i in range(10)]
    rows.append(["0.png", "one", "x", "train"])
    rows += [[f"{i}.png", "many", "ab"[i % 2], "train" if i < 40 else "val" if i < 45 else "test"] for i in range(50)]
    data = ready(root, rows, {"few": "value", "one": "labels"}, sampling=sampling, image_size=4)
    part = data.train_dataset
    many = torch.nonzero(part.tasks == 1).flatten().repeat(250)  # 10,000 files would be written for seconds
    data.train_dataset = part.subset(torch.cat([torch.nonzero(part.tasks != 1).flatten(), many]))
    counts = torch.bincount(data.train_dataset.tasks, minlength=3)
    assert counts.tolist() == [8, 10_000, 1]
    seen = torch.zeros(3, dtype=torch.long)
    for _, tasks, labels in data.train_dataloader():
        seen += torch.bincount(tasks, minlength=3)
        assert labels.dtype == torch.float32
    total = int(counts.sum())
    assert int(seen.sum()) == total
    weights = {"size": counts.double(), "balanced": torch.ones(3).double(), 2.0: counts.double().sqrt()}[sampling]
    assert (seen - total * weights / weights.sum()).abs().max() < 1
    targets = targets_of(data.load_data())
    assert targets.means[0] == pytest.approx(3.5)
