"""Several data sets in one: what each of them gives, as tasks of its own."""

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision.transforms import v2
from torchvision.transforms.v2.functional import resize

from routing_lightning.cli import main
from routing_lightning.datamodules import (
    CIFARMTLDataModule,
    DigitsMTLDataModule,
    FolderMTLDataModule,
    MINMTLDataModule,
    MixedMTLDataModule,
    MultiTaskDataModule,
)
from routing_lightning.errors import UsageError
from tests.conftest import toy_model
from tests.fake_data import save_image, write_cifar_tree, write_mini_imagenet

SMALL_MIN: dict[str, Any] = {"num_tasks": 4, "labels_per_task": 3, "train_per_label": 2, "test_per_label": 1}
PARTS = ("train_dataset", "val_dataset", "test_dataset")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("mixed")
    write_mini_imagenet(write_cifar_tree(root) / "mini")
    return root


def cifar(root: Path, **options: Any) -> CIFARMTLDataModule:
    return CIFARMTLDataModule(str(root), **options)


def mini(root: Path, image_size: int = 32, **options: Any) -> MINMTLDataModule:
    return MINMTLDataModule(str(root / "mini"), image_size=image_size, **SMALL_MIN, **options)


def ready(datamodule: Any) -> Any:
    datamodule.prepare_data()
    datamodule.setup("fit")
    return datamodule


def all_of(dataset: Any) -> tuple[torch.Tensor, ...]:
    return dataset[torch.arange(len(dataset))]


def test_samples_are_those_of_the_parts(root: Path) -> None:
    mix = ready(MixedMTLDataModule([cifar(root), mini(root)], val_fraction=0.4, split_seed=3))
    parts = [ready(make(root, val_fraction=0.4, split_seed=3)) for make in (cifar, mini)]
    assert (mix.num_tasks, mix.num_classes, mix.image_shape) == (24, 5, (3, 32, 32))
    assert mix.task_names == [*(f"CIFARMTL_{n}" for n in parts[0].task_names), *(f"MINMTL_task_{t}" for t in range(4))]
    assert mix.class_names == parts[0].class_names + parts[1].class_names
    for part in PARTS:
        images, tasks, labels = all_of(getattr(mix, part))
        (first, their_tasks, their_labels), (second, other_tasks, other_labels) = (
            all_of(getattr(one, part)) for one in parts
        )
        assert torch.equal(images, torch.cat([first, second]))
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(tasks, torch.cat([their_tasks, 20 + other_tasks]))
        assert torch.equal(labels, torch.cat([their_labels, other_labels]))
    mixed_up = torch.randperm(len(mix.train_dataset), generator=torch.Generator().manual_seed(0))
    assert torch.equal(mix.train_dataset[mixed_up][0], all_of(mix.train_dataset)[0][mixed_up])


def test_images_of_other_sizes_and_grey_ones_get_the_shape_of_the_first(root: Path) -> None:
    mix = ready(MixedMTLDataModule([cifar(root), mini(root, 20), DigitsMTLDataModule()], names=["a", "b", "c"]))
    assert mix.image_shape == (3, 32, 32)
    images, tasks, _ = all_of(mix.test_dataset)
    large, grey = (all_of(ready(part).test_dataset)[0] for part in (mini(root, 20), DigitsMTLDataModule()))
    assert torch.equal(images[(tasks >= 20) & (tasks < 24)], resize(large, [32, 32], antialias=True))
    assert torch.equal(images[tasks >= 24], resize(grey.expand(-1, 3, -1, -1), [32, 32], antialias=True))
    assert mix.task_names[24] == "c_digit_0"
    assert ready(MixedMTLDataModule([cifar(root), mini(root)], image_size=6)).test_dataset[0][0].shape == (3, 6, 6)


def test_sizes_are_known_without_data(tmp_path: Path) -> None:
    mix = MixedMTLDataModule([cifar(tmp_path), MINMTLDataModule(str(tmp_path), image_size=40, labels_per_task=7)])
    assert (mix.num_tasks, mix.num_classes, mix.image_shape) == (30, 7, (3, 32, 32))


def test_moments_are_those_of_all_samples(root: Path) -> None:
    def moments(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        numbers = images.double().transpose(0, 1).flatten(1) / 255
        return numbers.mean(1), numbers.std(1, correction=0)

    parts = [cifar(root), mini(root)]
    for part in parts:  # as exact as those of the whole can be
        part.mean, part.std = (tuple(m.tolist()) for m in moments(all_of(ready(part).train_dataset)[0]))
    mix = ready(MixedMTLDataModule(parts))
    for ours, exact in zip((mix.mean, mix.std), moments(all_of(mix.train_dataset)[0]), strict=True):
        torch.testing.assert_close(torch.tensor(ours, dtype=torch.float64), exact)


def test_parts_and_mix_take_less_to_train_on(root: Path) -> None:
    parts = [cifar(root, train_fraction=0.4, two_modalities=True), mini(root)]
    mix = ready(MixedMTLDataModule(parts, train_per_task=[5] * 20 + [3, 4, 5, 6]))
    assert torch.bincount(mix.train_dataset.tasks).tolist() == [5] * 20 + [3, 4, 5, 6]
    images = all_of(mix.test_dataset)[0][:100]
    assert torch.equal(images, all_of(ready(cifar(root, two_modalities=True)).test_dataset)[0])


def test_a_checkpoint_brings_what_the_parts_kept(root: Path) -> None:
    options = {"val_fraction": 0.34, "split_seed": 5}
    saved = ready(MixedMTLDataModule([cifar(root, train_fraction=0.7), mini(root)], **options))
    other = ready(MixedMTLDataModule([cifar(root), mini(root)]))
    assert other.class_names != saved.class_names  # another seed, other labels of MIN-MTL
    other.load_state_dict(saved.state_dict())
    other.check_options()
    assert other.class_names == saved.class_names
    for part in PARTS:
        for ours, theirs in zip(all_of(getattr(other, part)), all_of(getattr(saved, part)), strict=True):
            assert torch.equal(ours, theirs)
    with pytest.raises(UsageError, match="mix of 2 datamodules, but there are 1: give the data of that run"):
        MixedMTLDataModule([cifar(root)]).load_state_dict(saved.state_dict())


def test_tasks_of_several_kinds(root: Path, tmp_path: Path) -> None:
    with (tmp_path / "table.csv").open("w") as file:
        table = csv.writer(file)
        table.writerow(["path", "task", "label"])
        for number in range(20):
            save_image(tmp_path / f"{number}.png", number)
            table.writerow([f"{number}.png", "age", number / 2])
    ages = FolderMTLDataModule(manifest=str(tmp_path / "table.csv"), kinds={"age": "value"}, image_size=32)
    mix = ready(MixedMTLDataModule([cifar(root), ages], val_fraction=0.1))
    assert mix.targets.kinds == ["classes"] * 20 + ["value"]
    images, tasks, labels = all_of(mix.train_dataset)
    assert labels.shape == (len(tasks), 5)
    assert torch.equal(labels[tasks == 20][:, 0], images[tasks == 20][:, 0, 0, 0] / 2)
    assert set(labels[tasks < 20][:, 0].tolist()) == {0, 1, 2, 3, 4}


class WithoutValidation(DigitsMTLDataModule):
    def load_data(self) -> Any:
        return super().load_data()._replace(val=None)


@pytest.mark.parametrize(
    ("make", "options", "sentence"),
    [
        (lambda root: [], {}, "^datamodules is empty, but a mix has at least one part"),
        (
            lambda root: [mini(root), mini(root)],
            {},
            r"^names is \['MINMTL', 'MINMTL'\], but 2 datamodules need one each",
        ),
        (lambda root: [mini(root)], {"names": ["a", "b"]}, r"^names is .*, but 1 datamodules need one each"),
        (lambda root: [mini(root)], {"image_size": 0}, "^image_size is 0, but must be at least 1"),
        (
            lambda root: [mini(root, val_fraction=0.1)],
            {},
            r"^val_fraction of MINMTL is 0.1, .*: set val_fraction of the",
        ),
        (lambda root: [mini(root, batch_size=8)], {"batch_size": 4}, "^batch_size of MINMTL is 8, but all parts"),
        (
            lambda root: [mini(root, augment=[v2.RandomHorizontalFlip()])],
            {},
            "^augment of MINMTL is given, .*set augment",
        ),
        (
            lambda root: [FolderMTLDataModule(str(root), sampling="balanced")],
            {},
            "^sampling of FolderMTL .*leave it out",
        ),
        (lambda root: [cifar(root, num_tasks=3)], {}, "^num_tasks is 3, but 20 superclasses make"),
        (
            lambda root: [DigitsMTLDataModule(), WithoutValidation()],
            {"val_fraction": 0.1},
            "^WithoutValidation of the mix has no validation part, but others have",
        ),
    ],
)
def test_wrong_values(root: Path, make: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        ready(MixedMTLDataModule(make(root), **options))


def test_channels_that_cannot_go_together() -> None:
    class TwoChannels(MultiTaskDataModule):
        num_tasks, num_classes, image_shape = 1, 2, (2, 8, 8)

        def load_data(self) -> Any:
            raise AssertionError

    with pytest.raises(UsageError, match="images of TwoChannels have 2 channels and others 3"):
        MixedMTLDataModule([TwoChannels(), CIFARMTLDataModule()]).check_options()


def test_through_the_command_line_and_from_its_checkpoint(root: Path, tmp_path: Path) -> None:
    config = f"""
data:
  class_path: MixedMTLDataModule
  init_args:
    datamodules:
      - {{class_path: CIFARMTLDataModule, init_args: {{root: {root}, train_fraction: 0.34}}}}
      - class_path: MINMTLDataModule
        init_args: {{root: {root}/mini, image_size: 32, num_tasks: 4, train_per_label: 2, test_per_label: 1}}
    augment: [{{class_path: RandomCrop, init_args: {{size: 32, padding: 4}}}}]
    batch_size: 40
model: {{class_path: MultiTaskClassifier, init_args: {{network: TaskSpecific}}}}
trainer: {{max_epochs: 1, num_sanity_val_steps: 0, accelerator: cpu, enable_progress_bar: false}}
record: null
"""
    (tmp_path / "mix.yaml").write_text(config)
    words = [f"--config={tmp_path / 'mix.yaml'}", f"--trainer.default_root_dir={tmp_path}"]
    cli = main(["fit", *words])
    assert cli.trainer.global_step == 4  # 100 and 40 images
    assert "val/acc_task/MINMTL_task_3" in cli.trainer.callback_metrics
    checkpoint = cli.trainer.checkpoint_callback.best_model_path
    loaded = MixedMTLDataModule.load_from_checkpoint(checkpoint)
    assert ready(loaded).task_names == cli.datamodule.task_names
    assert torch.equal(loaded.train_dataset.index, cli.datamodule.train_dataset.index)


def test_python_s_objects_stay_out_of_checkpoints(root: Path) -> None:
    mix = MixedMTLDataModule([cifar(root)], augment=[v2.RandomHorizontalFlip()], names=["c"])
    assert set(mix.hparams) & {"datamodules", "augment"} == set()
    assert mix.hparams["names"] == ["c"]
    assert toy_model(num_tasks=mix.num_tasks, num_classes=mix.num_classes, image_shape=mix.image_shape)
