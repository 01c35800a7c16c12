"""CIFAR-MTL: the 20 superclasses of CIFAR-100 as tasks of 5 labels each, or several of them as one task."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision.datasets import CIFAR100
from torchvision.datasets.utils import check_integrity
from torchvision.transforms import v2

from routing_lightning.datamodules.base import (
    MultiTaskData,
    MultiTaskDataModule,
    MultiTaskDataset,
    stratified_split,
)
from routing_lightning.datamodules.download import explained_download
from routing_lightning.datamodules.image_cache import ImageCache, class_folders, image_names
from routing_lightning.datamodules.modalities import TwoModalities
from routing_lightning.errors import UsageError
from routing_lightning.paths import local_path

SUPERCLASSES: dict[str, tuple[str, str, str, str, str]] = {
    "aquatic_mammals": ("beaver", "dolphin", "otter", "seal", "whale"),
    "fish": ("aquarium_fish", "flatfish", "ray", "shark", "trout"),
    "flowers": ("orchid", "poppy", "rose", "sunflower", "tulip"),
    "food_containers": ("bottle", "bowl", "can", "cup", "plate"),
    "fruit_and_vegetables": ("apple", "mushroom", "orange", "pear", "sweet_pepper"),
    "household_electrical_devices": ("clock", "keyboard", "lamp", "telephone", "television"),
    "household_furniture": ("bed", "chair", "couch", "table", "wardrobe"),
    "insects": ("bee", "beetle", "butterfly", "caterpillar", "cockroach"),
    "large_carnivores": ("bear", "leopard", "lion", "tiger", "wolf"),
    "large_man-made_outdoor_things": ("bridge", "castle", "house", "road", "skyscraper"),
    "large_natural_outdoor_scenes": ("cloud", "forest", "mountain", "plain", "sea"),
    "large_omnivores_and_herbivores": ("camel", "cattle", "chimpanzee", "elephant", "kangaroo"),
    "medium_mammals": ("fox", "porcupine", "possum", "raccoon", "skunk"),
    "non-insect_invertebrates": ("crab", "lobster", "snail", "spider", "worm"),
    "people": ("baby", "boy", "girl", "man", "woman"),
    "reptiles": ("crocodile", "dinosaur", "lizard", "snake", "turtle"),
    "small_mammals": ("hamster", "mouse", "rabbit", "shrew", "squirrel"),
    "trees": ("maple_tree", "oak_tree", "palm_tree", "pine_tree", "willow_tree"),
    "vehicles_1": ("bicycle", "bus", "motorcycle", "pickup_truck", "train"),
    "vehicles_2": ("lawn_mower", "rocket", "streetcar", "tank", "tractor"),
}
"""Fine classes, alphabetically, of each superclass, in the archive's order."""

TASK_AND_LABEL: dict[str, tuple[int, int]] = {
    name: (task, label) for task, names in enumerate(SUPERCLASSES.values()) for label, name in enumerate(names)
}
"""Superclass and label within it of each fine class."""

IMAGE_SIZE = 32
NUM_LABELS = 5  # of a superclass
PARTS = ("train", "test")


class CIFARMTLDataModule(MultiTaskDataModule):
    """CIFAR-MTL (paper, Table 1): 20 tasks, one per superclass of CIFAR-100.

    Each task has 2,500 training and 500 test images. With fewer tasks than 20 each is of several superclasses, one
    after the other, and has the labels of all of them.

    The in-task label is the position of the fine class in the alphabetical list of its superclass. Two layouts are
    recognised: torchvision's files in ``root/cifar-100-python``, or a tree ``train/<class>/*``, ``test/<class>/*`` of
    images in any format that Pillow reads, directly in ``root`` or in ``root/cifar100``. A tree may hold any number of
    images, at least one for each class in each part; it is decoded once into a cache.

    Args:
        root: folder of the data, ``~`` is expanded.
        batch_size: samples per batch and process, at least 1.
        download: fetch torchvision's files if neither layout is there.
        val_fraction: part of the training data for validation, in [0, 1), the same for each class; 0: validate on the
            test part.
        split_seed: seed of the validation split.
        cache_dir: folder for the decoded images of a tree, ``~`` is expanded; None: ``root/.cache``.
        num_tasks: number of tasks, a divisor of 20.
        two_modalities: whether every second task sees all its images, training, validation and test, inverted, rotated
            by 90 degrees and with red and blue exchanged.
        augment: transforms of torchvision, v2, that change training images at random; see
            :class:`~routing_lightning.datamodules.augment.Augmentation`.
        train_fraction: part of the training data to train on; see the base class.
        train_per_task: training images of each task; see the base class.
    """

    image_shape = (3, IMAGE_SIZE, IMAGE_SIZE)
    mean = (0.5071, 0.4865, 0.4409)
    std = (0.2673, 0.2564, 0.2762)

    def __init__(
        self,
        root: str = "data",
        batch_size: int = 16,
        download: bool = True,
        val_fraction: float = 0.0,
        split_seed: int = 0,
        cache_dir: str | None = None,
        num_tasks: int = len(SUPERCLASSES),
        two_modalities: bool = False,
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
        self.num_classes = NUM_LABELS * (len(SUPERCLASSES) // max(num_tasks, 1))
        self.two_modalities = two_modalities
        self.download = download
        self.cache_dir = None if cache_dir is None else local_path(cache_dir)

    def check_options(self) -> None:
        """Checks the values of the options; see the base class."""
        super().check_options()
        divisors = [number for number in range(1, len(SUPERCLASSES) + 1) if len(SUPERCLASSES) % number == 0]
        if self.num_tasks not in divisors:
            raise UsageError(
                f"num_tasks is {self.num_tasks}, but {len(SUPERCLASSES)} superclasses make "
                f"{', '.join(map(str, divisors))} tasks: choose one of these"
            )
        if self.two_modalities and self.num_tasks == 1:
            raise UsageError("two_modalities is true with num_tasks=1, but there must be a task for each: raise it")

    def prepare_data(self) -> None:
        """Decodes the tree, or fetches the archive; see the base class.

        Raises:
            UsageError: if the tree is incomplete, an image cannot be read, or the download fails.
        """
        super().prepare_data()
        tree = self._tree()
        if tree is not None:
            self._cache(tree).prepare()
        elif self.download:
            archive = self.folder / CIFAR100.base_folder
            with explained_download("CIFAR-100", archive):
                CIFAR100(self.root, train=False, download=True)

    def load_data(self) -> MultiTaskData:
        """Loads the layout that is there; see the base class."""
        tree = self._tree()
        images, pairs, num_train = self._load_archive() if tree is None else self._load_tree(tree)
        together = len(SUPERCLASSES) // self.num_tasks
        groups = [list(SUPERCLASSES)[first : first + together] for first in range(0, len(SUPERCLASSES), together)]
        tasks, labels = pairs[:, 0] // together, pairs[:, 0] % together * NUM_LABELS + pairs[:, 1]
        rows = torch.arange(len(images))
        if self.two_modalities:
            whole: MultiTaskDataset = TwoModalities(images, rows, tasks, labels, tasks % 2 == 1)
        else:
            whole = MultiTaskDataset(images, rows, tasks, labels)
        train, val = stratified_split(whole.subset(rows[:num_train]), self.val_fraction, self.split_seed)
        task_names = [names[0] if together == 1 else f"{names[0]}_to_{names[-1]}" for names in groups]
        class_names = [[label for name in names for label in SUPERCLASSES[name]] for names in groups]
        return MultiTaskData(task_names, class_names, train, val, whole.subset(rows[num_train:]))

    def state_dict(self) -> dict[str, Any]:
        """The splits, and whether there are two modalities."""
        return {**super().state_dict(), **({"two_modalities": True} if self.two_modalities else {})}

    def restore(self, state_dict: dict[str, Any]) -> None:
        """Takes over splits and modalities; see the base class."""
        super().restore(state_dict)
        self.two_modalities = state_dict.get("two_modalities", False)

    def _tree(self) -> Path | None:
        """The folder that holds train/ and test/, or None if the archive is to be used."""
        if (self.folder / CIFAR100.base_folder).is_dir():
            return None
        if all((self.folder / part).is_dir() for part in PARTS):
            return self.folder
        nested = self.folder / "cifar100"
        return nested if nested.is_dir() else None

    def _tree_names(self, tree: Path) -> dict[str, list[str]]:
        """Paths of the images of each part, relative to ``tree``, checked to cover the 100 classes."""
        names: dict[str, list[str]] = {}
        for part in PARTS:
            found = set(class_folders(tree / part))
            unknown, missing = sorted(found - TASK_AND_LABEL.keys()), sorted(TASK_AND_LABEL.keys() - found)
            if unknown or missing:
                raise UsageError(
                    f"{tree / part} must hold one folder for each of the 100 classes of CIFAR-100, but has "
                    f"{_listed('unknown', unknown)} and {_listed('missing', missing)}: rename, remove or add "
                    "folders"
                )
            names[part] = []
            for fine in sorted(found):
                images = image_names(tree / part / fine)
                if not images:
                    raise UsageError(
                        f"{tree / part / fine} holds 0 images, but each class needs at least 1: complete the tree"
                    )
                names[part] += [f"{part}/{fine}/{image}" for image in images]
        return names

    def _cache(self, tree: Path) -> ImageCache:
        names = self._tree_names(tree)
        cache_dir = self.cache_dir or str(self.folder / ".cache")
        return ImageCache(tree, names["train"] + names["test"], IMAGE_SIZE, cache_dir)

    def _load_tree(self, tree: Path) -> tuple[Tensor, Tensor, int]:
        """Images (M, C, H, W), the (superclass, label) pair of each, (M, 2), and how many, the first, are to train."""
        cache = self._cache(tree)
        images = cache.load()
        fine_classes = [name.split("/")[1] for name in cache.names]
        num_train = sum(name.startswith("train/") for name in cache.names)
        pairs = torch.tensor([TASK_AND_LABEL[name] for name in fine_classes])
        return images, pairs, num_train

    def _load_archive(self) -> tuple[Tensor, Tensor, int]:
        """The same of the archive."""
        archive = self.folder / CIFAR100.base_folder
        if not archive.is_dir():
            raise UsageError(
                f"no CIFAR-100 in {self.folder}: neither {archive} nor train/ and test/ with class folders "
                f"(there or in {self.folder / 'cifar100'}) exist; set root to the right folder or download: "
                "true"
            )
        listed = [
            *CIFAR100.train_list,
            *CIFAR100.test_list,
            [CIFAR100.meta["filename"], CIFAR100.meta["md5"]],
        ]
        for name, md5 in listed:
            if not check_integrity(str(archive / name), md5):
                raise UsageError(
                    f"{archive / name} is missing or incomplete: remove {archive} and set download: true, "
                    "or copy the whole archive again"
                )
        # the checksums above make sure that these are the published pickles
        meta, train, test = (_unpickle(archive / name) for name in ("meta", "train", "test"))
        fine_names, coarse_names = meta["fine_label_names"], meta["coarse_label_names"]
        fine = np.array(train["fine_labels"] + test["fine_labels"])
        coarse = np.array(train["coarse_labels"] + test["coarse_labels"])
        for task, label in np.unique(np.stack([coarse, fine], 1), axis=0).tolist():
            if fine_names[label] not in SUPERCLASSES.get(coarse_names[task], ()):
                raise UsageError(
                    f"{archive} puts the class {fine_names[label]!r} into the superclass "
                    f"{coarse_names[task]!r}, which is not how CIFAR-100 groups its classes: replace it with "
                    "the published archive"
                )
        pairs = torch.tensor([TASK_AND_LABEL[name] for name in fine_names])[torch.from_numpy(fine)]
        flat = np.concatenate([train["data"], test["data"]])
        rows = np.ascontiguousarray(flat.reshape(-1, 3, IMAGE_SIZE, IMAGE_SIZE).transpose(0, 2, 3, 1))
        return torch.from_numpy(rows).permute(0, 3, 1, 2), pairs, len(train["fine_labels"])


def _unpickle(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        content: dict[str, Any] = pickle.load(file, encoding="latin1")
    return content


def _listed(what: str, names: list[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{len(names)} {what}" + (f" ({', '.join(names[:most])}{more})" if names else "")
