from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from routing_lightning.datamodules import MINMTLDataModule
from routing_lightning.errors import UsageError

LABELS = [f"n{i:02d}" for i in range(7)]
PER_LABEL = 6
LAYOUTS = ("lists", "folders", "parts", "imagenet")


def save_black(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (6, 6)).save(path)


def make(root: Path, layout: str) -> Path:
    """7 labels with 6 images each, 3 parts; red is the label, green the image."""
    for number, label in enumerate(LABELS):
        for i in range(PER_LABEL):
            pixels = np.zeros((10, 12, 3), np.uint8)
            pixels[..., 0], pixels[..., 1] = number * 10, i * 10
            part = ("train", "train", "train", "val", "val", "test", "test")[number]
            name = f"{label}_{i}.png"
            folder = {
                "lists": root / "images",
                "folders": root / label,
                "parts": root / part / label,
                "imagenet": root / "train" / label,
            }[layout]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(folder / name)
            if layout == "lists":
                path = root / f"{part}.csv"
                if not path.exists():
                    path.write_text("filename,label\n")
                with path.open("a") as file:
                    file.write(f"{name},{label}\n")
    if layout == "imagenet":
        save_black(root / "val" / "flat.png")
        (root / "devkit").mkdir()
    return root


def datamodule_for(root: Path, **options: object) -> MINMTLDataModule:
    chosen = {
        "num_tasks": 3,
        "labels_per_task": 2,
        "train_per_label": 4,
        "test_per_label": 2,
        "image_size": 5,
    }
    return MINMTLDataModule(str(root), **{**chosen, **options})  # type: ignore[arg-type]


def ready(root: Path, **options: object) -> MINMTLDataModule:
    datamodule = datamodule_for(root, **options)
    datamodule.prepare_data()
    datamodule.setup("fit")
    return datamodule


def contents(datamodule: MINMTLDataModule, part: str) -> list[tuple[str, int]]:
    """(name of the label, number of the image) of each sample; checks the label by the pixels."""
    dataset = getattr(datamodule, part)
    images, tasks, labels = dataset[torch.arange(len(dataset))]
    result = []
    for image, task, label in zip(images, tasks.tolist(), labels.tolist(), strict=True):
        name = datamodule.class_names[task][label]
        assert image[0, 0, 0] == 10 * LABELS.index(name)
        result.append((name, int(image[1, 0, 0]) // 10))
    return result


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(tmp_path: Path, layout: str) -> None:
    datamodule = ready(make(tmp_path, layout))
    assert (datamodule.num_tasks, datamodule.num_classes, datamodule.image_shape) == (3, 2, (3, 5, 5))
    assert datamodule.task_names == ["task_0", "task_1", "task_2"]
    chosen = list(chain(*datamodule.class_names))
    assert len(set(chosen)) == 6
    train, test = contents(datamodule, "train_dataset"), contents(datamodule, "test_dataset")
    assert (len(train), len(test)) == (24, 12)
    # all six images of each chosen label are used, each once
    assert sorted(train + test) == sorted((label, i) for label in chosen for i in range(PER_LABEL))


def test_layouts_agree(tmp_path: Path) -> None:
    datamodules = [ready(make(tmp_path / layout, layout)) for layout in LAYOUTS]
    for datamodule in datamodules[1:]:
        assert datamodule.class_names == datamodules[0].class_names
        assert contents(datamodule, "train_dataset") == contents(datamodules[0], "train_dataset")


def test_only_chosen_images_are_decoded(tmp_path: Path) -> None:
    root = make(tmp_path, "folders")
    chosen = list(chain(*ready(root).class_names))
    (other,) = set(LABELS) - set(chosen)
    for path in (root / other).iterdir():
        path.write_text("broken")
    datamodule = ready(root, num_tasks=1, train_per_label=1, test_per_label=1)
    assert len(datamodule.train_dataset.images) == 4


def test_split_seed_decides(tmp_path: Path) -> None:
    root = make(tmp_path, "folders")
    first, again = ready(root), ready(root)
    assert first.class_names == again.class_names
    assert contents(first, "train_dataset") == contents(again, "train_dataset")
    assert len({str(ready(root, split_seed=seed).class_names) for seed in range(5)}) > 1


def test_test_images_do_not_depend_on_train_per_label(tmp_path: Path) -> None:
    root = make(tmp_path, "folders")
    assert contents(ready(root), "test_dataset") == contents(ready(root, train_per_label=2), "test_dataset")


def test_validation_part(tmp_path: Path) -> None:
    datamodule = ready(make(tmp_path, "folders"), val_fraction=0.25)
    train, val, test = (contents(datamodule, f"{part}_dataset") for part in ("train", "val", "test"))
    assert (len(train), len(val), len(test)) == (18, 6, 12)
    assert len(set(train + val + test)) == 36
    assert len({label for label, _ in val}) == 6


@pytest.mark.parametrize("set_up_before", [True, False])
def test_state_restores_composition_and_split(tmp_path: Path, set_up_before: bool) -> None:
    root = make(tmp_path, "folders")
    saved = ready(root)
    state = saved.state_dict()
    seed = next(s for s in range(1, 9) if ready(root, split_seed=s).class_names != saved.class_names)
    datamodule = datamodule_for(root, split_seed=seed)
    if set_up_before:
        datamodule.prepare_data()
        datamodule.setup("fit")
        datamodule.load_state_dict(state)
    else:
        datamodule.load_state_dict(state)
        datamodule.prepare_data()
        datamodule.setup("fit")
    assert datamodule.class_names == saved.class_names
    assert contents(datamodule, "test_dataset") == contents(saved, "test_dataset")
    assert datamodule.state_dict() == state


def test_state_keeps_composition_when_labels_are_added(tmp_path: Path) -> None:
    root = make(tmp_path, "folders")
    state = ready(root).state_dict()
    for i in range(PER_LABEL):
        save_black(root / "a_new_label" / f"{i}.png")
    datamodule = ready(root)
    assert datamodule.class_names != state["composition"]
    datamodule.load_state_dict(state)
    assert datamodule.class_names == state["composition"]


def test_state_with_labels_that_are_gone(tmp_path: Path) -> None:
    root = make(tmp_path, "folders")
    state = {"split_seed": 0, "composition": [["n00", "gone"], ["n01", "n02"], ["n03", "n04"]]}
    with pytest.raises(UsageError, match=rf"label 'gone', of which {root} has no images"):
        ready(root).load_state_dict(state)


@pytest.mark.parametrize("set_up_before", [True, False])
@pytest.mark.parametrize(("option", "told"), [("num_tasks", "2 tasks of 2"), ("labels_per_task", "3 tasks of 1")])
def test_state_of_other_sizes_is_refused(tmp_path: Path, set_up_before: bool, option: str, told: str) -> None:
    root = make(tmp_path, "folders")
    smaller = {"num_tasks": 2, "labels_per_task": 1}[option]
    state = ready(root, **{option: smaller}).state_dict()
    datamodule = ready(root, split_seed=5) if set_up_before else datamodule_for(root, split_seed=5)
    before = datamodule.state_dict()
    with pytest.raises(UsageError, match=rf"trained on {told} labels, but .*num_tasks=3 and labels_per_task=2: set"):
        datamodule.load_state_dict(state)
    assert datamodule.state_dict() == before
    assert (datamodule.num_tasks, datamodule.num_classes) == (3, 2)


def test_state_from_before_setup(tmp_path: Path) -> None:
    state = datamodule_for(tmp_path, split_seed=4).state_dict()
    datamodule = datamodule_for(tmp_path)
    datamodule.load_state_dict(state)
    assert datamodule.state_dict() == state


def test_labels_with_too_few_images_are_passed_over(tmp_path: Path) -> None:
    root = make(tmp_path, "folders")
    (root / "n03" / "n03_0.png").unlink()
    assert sorted(chain(*ready(root).class_names)) == [label for label in LABELS if label != "n03"]


def test_too_few_images(tmp_path: Path) -> None:
    root = make(tmp_path, "folders")
    for label, gone in (("n03", 2), ("n05", 1)):
        for i in range(gone):
            (root / label / f"{label}_{i}.png").unlink()
    with pytest.raises(
        UsageError, match=r"5 images of the label 'n05', but train_per_label=4 with test_per_label=2 needs 6"
    ):
        ready(root)


def test_too_few_labels(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has 7 labels, but num_tasks=4 with labels_per_task=2 needs 8"):
        ready(make(tmp_path, "folders"), num_tasks=4)


@pytest.mark.parametrize("kind", ["absent", "empty", "images without lists"])
def test_nothing_there(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "root"
    if kind != "absent":
        root.mkdir()
    if kind == "images without lists":
        save_black(root / "images" / "a.png")
    with pytest.raises(UsageError, match=rf"no mini-ImageNet in {root}: expected .*there is no download"):
        ready(root)


def test_listed_images_that_are_missing(tmp_path: Path) -> None:
    root = make(tmp_path, "lists")
    (root / "images" / "n00_1.png").unlink()
    (root / "images" / "n00_2.png").unlink()
    with pytest.raises(UsageError, match=r"2 images that the lists .* the first is 'n00_1\.png'"):
        ready(root)


def test_list_with_other_columns(tmp_path: Path) -> None:
    root = make(tmp_path, "lists")
    (root / "val.csv").write_text("file,class\n")
    with pytest.raises(UsageError, match=r"val\.csv has the columns file, class, but needs filename and label"):
        ready(root)


def test_empty_lists(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("filename,label\n")
    with pytest.raises(UsageError, match=r"name no images"):
        ready(tmp_path)


@pytest.mark.parametrize("option", ["num_tasks", "labels_per_task", "train_per_label", "test_per_label", "image_size"])
def test_impossible_values(option: str) -> None:
    with pytest.raises(UsageError, match=f"{option} is 0, but must be at least 1"):
        MINMTLDataModule(**{option: 0}).prepare_data()  # type: ignore[arg-type]
