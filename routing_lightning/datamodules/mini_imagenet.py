"""MIN-MTL: tasks of random labels from mini-ImageNet or an ImageNet folder."""

import csv
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torchvision.transforms import v2

from routing_lightning.datamodules.base import (
    MultiTaskData,
    MultiTaskDataModule,
    MultiTaskDataset,
    require_at_least,
    stratified_split,
)
from routing_lightning.datamodules.image_cache import ImageCache, class_folders, image_names
from routing_lightning.errors import UsageError
from routing_lightning.paths import local_path

PARTS = ("train", "val", "test")


class MINMTLDataModule(MultiTaskDataModule):
    """MIN-MTL (paper, Table 1): disjoint tasks, each of some random labels of mini-ImageNet.

    Recognises, in this order: ``images/`` with ``train.csv``, ``val.csv``, ``test.csv`` (columns filename, label; those
    that are there count together); class folders in ``train/``, ``val/``, ``test/`` (together; also ImageNet's
    ``train/<wnid>/``); class folders directly in ``root``. Of the labels with enough images ``num_tasks *
    labels_per_task`` are chosen at random, and of each label's images those for training and testing, without overlap.
    Only these are decoded. The composition of the tasks is part of a checkpoint and restored from it.

    The defaults fit mini-ImageNet as published (600 images per label); the paper uses 800 training images per label,
    which an ImageNet folder can give.

    Args:
        root: folder of the data, ``~`` is expanded.
        batch_size: samples per batch and process, at least 1.
        num_tasks: number of tasks, at least 1.
        labels_per_task: labels of each task, at least 1.
        train_per_label: training images of each label, at least 1.
        test_per_label: test images of each label, at least 1.
        image_size: height and width to which the images are resized, at least 1.
        val_fraction: part of the training data for validation, in [0, 1), the same for each label; 0: validate on the
            test part.
        split_seed: seed of the composition and of all splits.
        cache_dir: folder for the decoded images, ``~`` is expanded; None: ``root/.cache``.
        augment: transforms of torchvision, v2, that change training images at random; see
            :class:`~routing_lightning.datamodules.augment.Augmentation`.
        train_fraction: part of the training data to train on; see the base class.
        train_per_task: training images of each task; see the base class.
    """

    mean = (0.485, 0.456, 0.406)
    std = (0.229, 0.224, 0.225)

    def __init__(
        self,
        root: str = "data/mini-imagenet",
        batch_size: int = 16,
        num_tasks: int = 10,
        labels_per_task: int = 5,
        train_per_label: int = 550,
        test_per_label: int = 50,
        image_size: int = 84,
        val_fraction: float = 0.0,
        split_seed: int = 0,
        cache_dir: str | None = None,
        augment: list[v2.Transform] | None = None,
        train_fraction: float = 1.0,
        train_per_task: list[int] | None = None,
    ) -> None:
        root = os.fspath(root)
        cache_dir = None if cache_dir is None else os.fspath(cache_dir)
        super().__init__(root, batch_size, val_fraction, split_seed, augment, train_fraction, train_per_task)
        # a checkpoint holds plain types; the config in it names the transforms
        self.save_hyperparameters(ignore=["augment"])
        self.folder = Path(local_path(root))
        self.num_tasks = num_tasks
        self.num_classes = labels_per_task
        self.image_shape = (3, image_size, image_size)
        self.labels_per_task = labels_per_task
        self.train_per_label = train_per_label
        self.test_per_label = test_per_label
        self.image_size = image_size
        self.cache_dir = None if cache_dir is None else local_path(cache_dir)
        self._composition: list[list[str]] | None = None

    def check_options(self) -> None:
        """Checks the values of the options; see the base class."""
        super().check_options()
        require_at_least(
            1,
            num_tasks=self.num_tasks,
            labels_per_task=self.labels_per_task,
            train_per_label=self.train_per_label,
            test_per_label=self.test_per_label,
            image_size=self.image_size,
        )

    def prepare_data(self) -> None:
        """Decodes the chosen images into the cache; see the base class.

        Raises:
            UsageError: if the images are missing or too few, one cannot be read, or the cache cannot be written.
        """
        super().prepare_data()
        self._plan()[1].prepare()

    def load_data(self) -> MultiTaskData:
        """Chooses labels and images and maps the cache; see the base class."""
        self._composition, cache = self._plan()
        images = cache.load()
        per_label = self.train_per_label + self.test_per_label
        # the cache holds label after label, each with its test images first
        rows = torch.arange(len(images))
        label_number = rows // per_label
        lengths = torch.tensor([len(labels) for labels in self._composition])
        task_of_label = torch.arange(len(lengths)).repeat_interleave(lengths)
        number_in_task = torch.cat([torch.arange(length) for length in lengths.tolist()])
        whole = MultiTaskDataset(images, rows, task_of_label[label_number], number_in_task[label_number])
        is_test = rows % per_label < self.test_per_label
        train, val = stratified_split(whole.subset(rows[~is_test]), self.val_fraction, self.split_seed)
        task_names = [f"task_{task}" for task in range(len(self._composition))]
        return MultiTaskData(task_names, self._composition, train, val, whole.subset(rows[is_test]))

    def state_dict(self) -> dict[str, Any]:
        """The seed of the splits and the composition: for each task the names of its labels."""
        return {**super().state_dict(), "composition": self._composition}

    def restore(self, state_dict: dict[str, Any]) -> None:
        """Takes over seed and composition; see the base class.

        Raises:
            UsageError: if the composition has other sizes, since the model was built for those of the options.
        """
        composition = state_dict["composition"]
        if composition is not None:
            sizes = len(composition), max(len(labels) for labels in composition)
            if sizes != (self.num_tasks, self.num_classes):
                raise UsageError(
                    f"the checkpoint was trained on {sizes[0]} tasks of {sizes[1]} labels, but the data have num_tasks="
                    f"{self.num_tasks} and labels_per_task={self.num_classes}: set them to {sizes[0]} and {sizes[1]}"
                )
        super().restore(state_dict)
        self._composition = composition

    def _plan(self) -> tuple[list[list[str]], ImageCache]:
        """The composition, and the chosen images: label after label, each with its test images first.

        Test images first so that they are the same for any ``train_per_label``.
        """
        found = find_images(self.folder)
        composition = self._composition if self._composition is not None else self._compose(found)
        generator = torch.Generator().manual_seed(self.split_seed)
        chosen: list[str] = []
        for label in (label for labels in composition for label in labels):
            if label not in found:
                raise UsageError(
                    f"the checkpoint was trained on the label {label!r}, of which {self.folder} has no "
                    "images: set root to the data of that run"
                )
            self._check_count(label, len(found[label]))
            order = torch.randperm(len(found[label]), generator=generator).tolist()
            chosen += [found[label][i] for i in order[: self.train_per_label + self.test_per_label]]
        return composition, ImageCache(self.folder, chosen, self.image_size, self.cache_dir)

    def _compose(self, found: dict[str, list[str]]) -> list[list[str]]:
        """Draws the labels of each task from those with enough images."""
        needed = self.num_tasks * self.labels_per_task
        if len(found) < needed:
            raise UsageError(
                f"{self.folder} has {len(found)} labels, but num_tasks={self.num_tasks} with labels_per_task="
                f"{self.labels_per_task} needs {needed}: lower one of them or add labels"
            )
        counts = {label: len(names) for label, names in sorted(found.items())}
        enough = [label for label in counts if counts[label] >= self.train_per_label + self.test_per_label]
        if len(enough) < needed:
            # the label that decides: with its count as the limit there would be enough labels
            label = sorted(counts, key=lambda name: -counts[name])[needed - 1]
            self._check_count(label, counts[label])
        order = torch.randperm(len(enough), generator=torch.Generator().manual_seed(self.split_seed)).tolist()
        groups = [order[start : start + self.labels_per_task] for start in range(0, needed, self.labels_per_task)]
        return [sorted(enough[i] for i in group) for group in groups]

    def _check_count(self, label: str, count: int) -> None:
        if count < self.train_per_label + self.test_per_label:
            raise UsageError(
                f"{self.folder} has {count} images of the label {label!r}, but "
                f"train_per_label={self.train_per_label} with test_per_label={self.test_per_label} needs "
                f"{self.train_per_label + self.test_per_label}: lower one of them or add images"
            )


def find_images(root: Path) -> dict[str, list[str]]:
    """Recognises the layout and lists the images.

    Args:
        root: folder in one of the layouts that ``MINMTLDataModule`` names.

    Returns:
        For each label that has images their paths relative to ``root``, in a fixed order.

    Raises:
        UsageError: if there is none of these layouts, or listed images are missing.
    """
    lists = [path for path in (root / f"{part}.csv" for part in PARTS) if path.is_file()]
    if lists:
        return _listed_images(root, lists)
    folders = [root / part for part in PARTS if class_folders(root / part)] or [root]
    found: dict[str, list[str]] = {}
    for folder in folders:
        for label in class_folders(folder):
            prefix = (folder / label).relative_to(root).as_posix()
            names = [f"{prefix}/{name}" for name in image_names(folder / label)]
            if names:
                found.setdefault(label, []).extend(names)
    if not found or list(found) == ["images"]:
        raise UsageError(
            f"no mini-ImageNet in {root}: expected images/ with train.csv, val.csv and test.csv, or class "
            "folders in it or in its train/, val/ and test/; there is no download, so place the files there "
            "or set root"
        )
    return found


def _listed_images(root: Path, lists: Sequence[Path]) -> dict[str, list[str]]:
    folder = root / "images"
    present = set(image_names(folder)) if folder.is_dir() else set()
    found: dict[str, list[str]] = {}
    missing: list[str] = []
    for path in lists:
        # utf-8-sig: spreadsheets put a byte order mark in front
        with path.open(newline="", encoding="utf-8-sig") as file:
            table = csv.DictReader(file)
            if not {"filename", "label"} <= set(table.fieldnames or ()):
                raise UsageError(
                    f"{path} has the columns {', '.join(table.fieldnames or ()) or 'none'}, but needs "
                    "filename and label in its first line: correct that line"
                )
            for row in table:
                if row["filename"] not in present:
                    missing.append(row["filename"])
                found.setdefault(row["label"], []).append(f"images/{row['filename']}")
    if missing:
        raise UsageError(
            f"{len(missing)} images that the lists in {root} name are not in {folder}, the first is "
            f"{missing[0]!r}: complete the folder"
        )
    if not found:
        raise UsageError(f"the lists in {root} name no images: {lists[0]} has no lines; copy them again")
    return found
