"""A person's own tasks: folders of images, or a table of them."""

import hashlib
import math
import os
import stat
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch.utils.data import DataLoader
from torchvision.transforms import v2

from routing_lightning.datamodules.base import (
    Batch,
    MultiTaskData,
    MultiTaskDataModule,
    MultiTaskDataset,
    require_at_least,
)
from routing_lightning.datamodules.decoding import SquareDecoder
from routing_lightning.datamodules.image_cache import ImageCache
from routing_lightning.datamodules.joining import with_known_tasks
from routing_lightning.datamodules.listing import PARTS, Listing, scan_folder, some
from routing_lightning.datamodules.manifest import read_manifest
from routing_lightning.datamodules.parts import TEST, TRAIN, VAL, draw_parts
from routing_lightning.datamodules.samplers import TrainingBatchSampler
from routing_lightning.datamodules.sampling import TaskBatchSampler
from routing_lightning.errors import UsageError
from routing_lightning.paths import local_path
from routing_lightning.targets import KINDS, Kind

MEASURED_IMAGES = 4096
"""Images of the training part, evenly spread, of which mean and standard deviation are measured."""


class Plan(NamedTuple):
    """Entries of a listing whose images are there, each once.

    Attributes:
        files: path of each image, (M,).
        rows: image of each entry, in [0, M), (E,), int64.
        tasks: task of each entry.
        labels: in-task label of each entry, (E,), or a row, (E, K), where not all tasks are of classes.
        parts: position in ``PARTS`` of each entry; none is left to be drawn.
        entries: position of each entry in the listing.
        notes: sentences about what was left out or looks wrong.
    """

    files: list[str]
    rows: np.ndarray
    tasks: np.ndarray
    labels: np.ndarray
    parts: np.ndarray
    entries: np.ndarray
    notes: list[str]


class FolderMTLDataModule(MultiTaskDataModule):
    """Own images in any number of tasks, each with labels of its own, from folders or from a table.

    Folders are ``root/<task>/<label>/*``, whose split is drawn, or ``root/<task>/<split>/<label>/*`` with the splits
    train, val and test. A table (``manifest``, CSV or Parquet) has the columns path, task, label and, if it is given,
    split. An image may be labelled in several tasks, by several lines or by links to one file; it is then kept once,
    and in one part for all of them. Tasks and labels are numbered in the order of their names.

    Where no split is given ``val_fraction`` and ``test_fraction`` of each label's images are drawn. Where one is given
    without validation part, ``val_fraction`` of the training part are held out. Without test part, the validation part
    serves for testing; without validation part and with ``val_fraction`` 0 it is the other way round.

    Pictures of any size and kind that Pillow reads become RGB squares, decoded once into a memory-mapped cache; see
    :class:`~routing_lightning.datamodules.decoding.SquareDecoder`. Names of tasks and labels, the seed of the split and
    the mean and standard deviation are part of a checkpoint.

    Args:
        root: folder of the tasks, or the one that paths of the manifest start from; ``~`` is expanded. None: the folder
            of the manifest.
        batch_size: samples per batch and process, at least 1.
        image_size: height and width of the images for the model, at least 1.
        resize: length to which the shorter side is brought before the crop, at least ``image_size``; None:
            ``image_size``.
        crop: cut the middle out of the picture; false: stretch the whole picture to a square.
        val_fraction: part of the images for validation, in [0, 1).
        test_fraction: part of the images for testing, in [0, 1), where the split is drawn.
        split_seed: seed of the split.
        manifest: CSV or Parquet file, ``~`` is expanded; None: folders.
        kinds: what tasks of the manifest ask for, by name: ``"classes"``: one of several; ``"labels"``: any number of
            labels, named in one cell with ``|`` or ``;`` between them, or none; ``"value"``: a number. Tasks that are
            not named are of classes.
        sampling: how often a training epoch sees each task: ``"size"``: each sample once; ``"balanced"``: all tasks as
            often; a temperature t, at least 1: in proportion to n^(1/t), n being the samples of the task. An epoch has
            as many samples in each case.
        augment: transforms of torchvision, v2, that change training images at random; see
            :class:`~routing_lightning.datamodules.augment.Augmentation`.
        mean: mean of each of three channels, in units of [0, 1]; None: measured on the training part.
        std: standard deviation likewise.
        skip_unreadable: leave out images that cannot be read or are missing; otherwise they are an error.
        cache_dir: folder for the decoded images, ``~`` is expanded; None: ``.cache`` in ``root``.
        known_tasks: labels by task of what a network was trained on before tasks joined; these come first, in this
            order, and their images need not be there. The command ``extend`` sets this.
        train_fraction: part of the training data to train on; see the base class.
        train_per_task: training images of each task; see the base class.
    """

    def __init__(
        self,
        root: str | None = None,
        batch_size: int = 16,
        image_size: int = 64,
        resize: int | None = None,
        crop: bool = True,
        val_fraction: float = 0.1,
        test_fraction: float = 0.1,
        split_seed: int = 0,
        manifest: str | None = None,
        kinds: dict[str, Literal["classes", "labels", "value"]] | None = None,
        sampling: Literal["size", "balanced"] | float = "size",
        augment: list[v2.Transform] | None = None,
        mean: list[float] | None = None,
        std: list[float] | None = None,
        skip_unreadable: bool = False,
        cache_dir: str | None = None,
        known_tasks: dict[str, list[str]] | None = None,
        train_fraction: float = 1.0,
        train_per_task: list[int] | None = None,
    ) -> None:
        root, manifest, cache_dir = (None if path is None else os.fspath(path) for path in (root, manifest, cache_dir))
        super().__init__(root, batch_size, val_fraction, split_seed, augment, train_fraction, train_per_task)
        # a checkpoint holds plain types; the config in it names the transforms
        self.save_hyperparameters(ignore=["augment"])
        self.manifest = None if manifest is None else Path(local_path(manifest))
        self.folder = Path(local_path(root)) if root is not None else (self.manifest or Path()).parent
        self.kinds: dict[str, Kind] = kinds or {}
        self.image_size = image_size
        self.image_shape = (3, image_size, image_size)
        self.resize = image_size if resize is None else resize
        self.crop = crop
        self.test_fraction = test_fraction
        self.sampling = sampling
        self.given_moments = mean, std
        self.skip_unreadable = skip_unreadable
        self.cache_dir = None if cache_dir is None else local_path(cache_dir)
        self.known_tasks = known_tasks or {}
        self.test_columns: dict[str, list[str]] = {}
        self._saved: dict[str, Any] = {}
        self._digests: list[str] | None = None
        self._told: set[str] = set()

    # -- sizes, from names alone ---------------------------------------------------------------------------------------

    @cached_property
    def listing(self) -> Listing:
        """What folders or table name; read once."""
        wrong = [f"{name}: {kind}" for name, kind in self.kinds.items() if kind not in KINDS]
        if wrong:
            raise UsageError(f"kinds has {', '.join(wrong)}, but a task is of {', '.join(KINDS)}: choose one of them")
        others = [name for name, kind in self.kinds.items() if kind != "classes"]
        if others and self.manifest is None:
            raise UsageError(
                f"kinds names {some(others, 'task', 'tasks')} of other kinds than classes, but folders hold classes "
                "alone: write a manifest"
            )
        if self.manifest is None and self.root is None:
            raise UsageError("neither root nor manifest is set: give one of them, data.init_args.root or .manifest")
        found = scan_folder(self.folder) if self.manifest is None else read_manifest(self.manifest, self.kinds)
        return with_known_tasks(found, self.known_tasks, self._source()) if self.known_tasks else found

    @cached_property
    def num_tasks(self) -> int:
        """Number of tasks; lists the names of the files."""
        return len(self.listing.task_names)

    @cached_property
    def num_classes(self) -> int:
        """Largest number of labels of a task; lists the names of the files."""
        return max(len(names) for names in self.listing.class_names)

    def check_options(self) -> None:
        """Checks the values of the options; see the base class."""
        super().check_options()
        require_at_least(1, image_size=self.image_size)
        require_at_least(self.image_size, resize=self.resize)
        if not 0 <= self.test_fraction < 1 or self.val_fraction + self.test_fraction >= 1:
            raise UsageError(
                f"test_fraction is {self.test_fraction} and val_fraction is {self.val_fraction}, but both must be at "
                "least 0 and together below 1: lower them"
            )
        _temperature(self.sampling)
        mean, std = self.given_moments
        if (mean is None) != (std is None):
            raise UsageError(f"mean is {mean} and std is {std}: give both, or neither to have them measured")
        if mean is not None and std is not None:
            of_range = all(0 <= number <= 1 for number in (*mean, *std)) and 0 not in std
            if not (len(mean) == len(std) == 3 and of_range):
                raise UsageError(
                    f"mean is {mean} and std is {std}: give three numbers each from 0 to 1, as of images divided "
                    "by 255, those of std above 0"
                )

    # -- loading -------------------------------------------------------------------------------------------------------

    def prepare_data(self) -> None:
        """Decodes the images into the cache; see the base class.

        Raises:
            UsageError: if folders or table have no known layout, images are missing or cannot be read, or the cache
                cannot be written.
        """
        super().prepare_data()
        cache = self._cache(self._plan().files)
        cache.prepare()
        self._check_unreadable(cache)

    def load_data(self) -> MultiTaskData:
        """Splits the images and maps the cache; see the base class."""
        plan = self._plan()
        cache = self._cache(plan.files)
        images = cache.load()
        notes = [*self.listing.notes, *plan.notes]
        unreadable = self._check_unreadable(cache)
        if unreadable:
            names = [f"{plan.files[row]}: {reason}" for row, reason in unreadable.items()]
            notes.append(f"left out {some(names, 'image', 'images')} that cannot be read")
            plan = _without(plan, np.isin(plan.rows, list(unreadable)))
        self._check_training(plan)
        parts = {
            number: MultiTaskDataset(images, *(torch.from_numpy(values[plan.parts == number]) for values in plan[1:4]))
            for number in range(len(PARTS))
        }
        train, val, test = (parts[number] for number in (TRAIN, VAL, TEST))
        kept = plan.entries[plan.parts == TEST]
        if not len(test):
            if not len(val):
                raise UsageError(
                    f"{self._source()} has no images for validation or testing: set val_fraction or test_fraction "
                    "above 0, or add a split"
                )
            notes.append("there is no test part: the validation part serves for testing, too")
            test, kept = val.subset(slice(None)), plan.entries[plan.parts == VAL]
        self.test_columns = {
            name: [values[entry] for entry in kept]
            for name, values in {"path": self.listing.paths, **self.listing.columns}.items()
        }
        notes += self._odd_labels(plan)
        self._tell(notes)
        self._digests = _part_digests(plan)
        self._note_other_images()
        listing = self.listing
        self._set_moments(self.thinned(train, listing.task_names))
        validation = val if len(val) else None
        return MultiTaskData(listing.task_names, listing.class_names, train, validation, test, listing.kinds)

    def _source(self) -> str:
        return f"manifest {self.manifest}" if self.manifest is not None else f"root {self.folder}"

    def _cache(self, files: list[str]) -> ImageCache:
        decoder = SquareDecoder(self.image_size, self.resize, self.crop)
        return ImageCache(self.folder, files, self.image_size, self.cache_dir, decoder)

    def _plan(self) -> Plan:
        """Which image serves which entries, and the part of each."""
        listing = self.listing
        files, rows, missing = _identify(self.folder, listing.paths)
        notes: list[str] = []
        if missing:
            sentence = f"{some(missing, 'image', 'images')} that {self._source()} names"
            if not self.skip_unreadable:
                raise UsageError(
                    f"{sentence} {'is' if len(missing) == 1 else 'are'} missing, looked for in {self.folder}: add or "
                    "unlist them, set root, or set skip_unreadable: true to leave them out"
                )
            notes.append(f"left out {sentence} but {'is' if len(missing) == 1 else 'are'} missing")
        entries = self._without_doubles(rows, notes)
        rows, tasks, labels, given = (
            values[entries] for values in (rows, listing.tasks, listing.labels, listing.parts)
        )
        if not len(entries):
            raise UsageError(f"{self._source()} names no image that is there: set root to the folder of the images")
        groups = np.unique(np.stack([tasks, labels]), axis=1, return_inverse=True)[1].reshape(-1)
        parts = draw_parts(rows, groups, given, files, self.val_fraction, self.test_fraction, self.split_seed)
        in_train = np.zeros(len(files), bool)
        in_train[rows[parts == TRAIN]] = True
        both = sorted(set(rows[(parts != TRAIN) & in_train[rows]].tolist()))
        if both:
            be = "is" if len(both) == 1 else "are"
            notes.append(
                f"{some([files[row] for row in both], 'image', 'images')} {be} for training in one task and for "
                "validation or testing in another, so those figures flatter"
            )
        if listing.rows is not None:
            labels = listing.rows[entries]
        return Plan(files, rows, tasks, labels, parts, entries, notes)

    def _without_doubles(self, rows: np.ndarray, notes: list[str]) -> np.ndarray:
        """Positions of the entries to keep; rows of images that are missing are -1."""
        listing = self.listing
        said = listing.labels if listing.rows is None else listing.rows
        seen: dict[tuple[int, int], int] = {}
        kept, double, contrary = [], [], []
        for entry, place in enumerate(zip(rows.tolist(), listing.tasks.tolist(), strict=True)):
            if place[0] < 0:
                continue
            first = seen.setdefault(place, entry)
            if first == entry:
                kept.append(entry)
            elif listing.parts[first] == listing.parts[entry] and np.array_equal(said[first], said[entry]):
                double.append(listing.paths[entry])
            else:
                contrary.append(f"{listing.paths[entry]} in {listing.task_names[place[1]]}")
        if contrary:
            raise UsageError(
                f"{self._source()} gives {some(contrary, 'image', 'images')} two labels or splits in one task, but an "
                "image has one of each: correct or remove them"
            )
        if double:
            notes.append(
                f"counted {some(double, 'image', 'images')} once that {self._source()} names twice in one task"
            )
        return np.array(kept, np.int64)

    def _check_unreadable(self, cache: ImageCache) -> dict[int, str]:
        unreadable = cache.unreadable()
        if unreadable and not self.skip_unreadable:
            names = [f"{cache.names[row]}: {reason}" for row, reason in unreadable.items()]
            raise UsageError(
                f"{some(names, 'image', 'images')} of {self.folder} cannot be read: replace or remove them, or set "
                "skip_unreadable: true to leave them out"
            )
        return unreadable

    def _check_training(self, plan: Plan) -> None:
        counts = np.bincount(plan.tasks[plan.parts == TRAIN], minlength=self.num_tasks)
        without = [name for name, count in zip(self.listing.task_names, counts, strict=True) if count == 0]
        without = [name for name in without if name not in self.known_tasks]
        if without:
            raise UsageError(
                f"{self._source()} has {some(without, 'task', 'tasks')} without images for training: add some, or "
                "leave the task out"
            )

    def _odd_labels(self, plan: Plan) -> list[str]:
        """Sentences about labels and tasks that a part lacks."""
        listing, notes = self.listing, []
        training = plan.parts == TRAIN
        unseen = []
        for task, (kind, names) in enumerate(zip(listing.kinds, listing.class_names, strict=True)):
            if kind == "value" or listing.task_names[task] in self.known_tasks:
                continue
            rows = plan.labels[training & (plan.tasks == task)]
            if kind == "labels":
                seen = set(np.flatnonzero(rows.any(0)).tolist())
            else:
                seen = set((rows if rows.ndim == 1 else rows[:, 0].astype(np.int64)).tolist())
            unseen += [f"{listing.task_names[task]}/{name}" for label, name in enumerate(names) if label not in seen]
        if unseen:
            have = "has" if len(unseen) == 1 else "have"
            notes.append(f"{some(unseen, 'label', 'labels')} {have} no image for training and cannot be learned")
        for part, name in ((VAL, "validation"), (TEST, "test")):
            present = set(plan.tasks[plan.parts == part].tolist())
            absent = [name for task, name in enumerate(listing.task_names) if task not in present]
            absent = [name for name in absent if name not in self.known_tasks]
            if present and absent:
                have = "has" if len(absent) == 1 else "have"
                notes.append(f"{some(absent, 'task', 'tasks')} {have} no {name} images, so no figures for them")
        return notes

    def _tell(self, notes: list[str]) -> None:
        for note in notes:
            if note not in self._told:
                rank_zero_warn(f"{note}.")
        self._told.update(notes)

    # -- normalisation -------------------------------------------------------------------------------------------------

    def _set_moments(self, train: MultiTaskDataset) -> None:
        mean, std = self.given_moments
        if "mean" in self._saved:
            mean, std = self._saved["mean"], self._saved["std"]
        if mean is None or std is None:
            mean, std = measured_moments(train)
            rank_zero_info(
                f"measured on the training part: mean {_numbers(mean)}, std {_numbers(std)} (options mean and std)"
            )
        self.mean, self.std = tuple(mean), tuple(std)

    # -- training ------------------------------------------------------------------------------------------------------

    def train_dataloader(self) -> DataLoader[Batch]:
        """Shuffled batches of the training part, of tasks as often as ``sampling`` says; see the base class."""
        loader = super().train_dataloader()
        temperature = _temperature(self.sampling)
        if temperature == 1 or not isinstance(loader.sampler, TrainingBatchSampler):
            return loader
        tasks = self.train_dataset.tasks
        rank, world_size = self._place()
        sampler = TaskBatchSampler(
            self.train_dataset, tasks, temperature, self.batch_size, loader.sampler.seed, rank, world_size
        )
        rows = [
            f"{name} {share} ({share / max(count, 1):.3g} times each)"
            for name, share, count in zip(
                self.task_names, sampler.shares, torch.bincount(tasks, minlength=self.num_tasks).tolist(), strict=True
            )
        ]
        rank_zero_info(f"an epoch has {len(tasks)} samples, of the tasks: {', '.join(rows)}")
        return DataLoader(
            self.train_dataset,
            batch_size=None,
            sampler=sampler,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
        )

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Splits, names of tasks and labels, mean and standard deviation, and how the images are made."""
        state = {**super().state_dict(), "test_fraction": self.test_fraction}
        state["task_names"], state["class_names"] = self.listing.task_names, self.listing.class_names
        state["kinds"] = [str(kind) for kind in self.listing.kinds]
        state["decoding"] = [self.image_size, self.resize, self.crop]
        state["parts"] = self._digests
        if hasattr(self, "mean"):
            state["mean"], state["std"] = list(self.mean), list(self.std)
        return state

    def restore(self, state_dict: dict[str, Any]) -> None:
        """Takes over split and normalisation; see the base class.

        Raises:
            UsageError: if the data have other tasks or labels than those of the checkpoint, or other sizes.
        """
        if "class_names" not in state_dict:
            raise UsageError("the checkpoint was trained on other data than a folder or manifest: give its own data")
        self._check_names(state_dict["task_names"], state_dict["class_names"])
        kinds = state_dict.get("kinds", ["classes"] * len(state_dict["task_names"]))
        if kinds != self.listing.kinds:
            saved = ", ".join(f"{name}: {kind}" for name, kind in zip(state_dict["task_names"], kinds, strict=True))
            raise UsageError(f"the tasks of the checkpoint are of other kinds ({saved}): set kinds to these")
        size, resize, crop = state_dict["decoding"]
        if size != self.image_size:
            raise UsageError(
                f"the checkpoint was trained on images of size {size}, but image_size is {self.image_size}: set it to "
                f"{size}"
            )
        super().restore(state_dict)
        self.test_fraction, self.resize, self.crop = state_dict["test_fraction"], resize, crop
        self._saved = state_dict

    def _check_names(self, task_names: list[str], class_names: list[list[str]]) -> None:
        saved = {name: set(classes) for name, classes in zip(task_names, class_names, strict=True)}
        found = dict(zip(self.listing.task_names, map(set, self.listing.class_names), strict=True))
        changes = []
        for what, names in (
            ("new", _names_of(found) - _names_of(saved)),
            ("missing", _names_of(saved) - _names_of(found)),
        ):
            if names:
                changes.append(f"{some(sorted(names), f'{what} task or label', f'{what} tasks or labels')}")
        if changes:
            raise UsageError(
                f"{self._source()} has {' and '.join(changes)} compared with the data of the checkpoint: give the data "
                "of that run, or start a new run"
            )

    def _note_other_images(self) -> None:
        saved = self._saved.get("parts")
        if saved is None:
            return
        changed = [
            name for name, before, now in zip(PARTS, saved, self._digests or saved, strict=True) if before != now
        ]
        if changed:
            self._tell(
                [
                    f"the images for {', '.join(changed)} of {self._source()} are not those of the checkpoint's run, "
                    "so figures do not compare, and where the split is drawn some may have been trained on"
                ]
            )


def measured_moments(dataset: MultiTaskDataset) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel, in units of [0, 1], of at most ``MEASURED_IMAGES`` images.

    Each image counts once, however many samples it serves. A standard deviation of 0 is given as 1.
    """
    rows = torch.unique(dataset.index)
    if len(rows) > MEASURED_IMAGES:
        rows = rows[torch.linspace(0, len(rows) - 1, MEASURED_IMAGES).long()]
    channels = dataset.image_shape[0]
    total, squares, count = torch.zeros(channels, dtype=torch.float64), torch.zeros(channels, dtype=torch.float64), 0
    for chosen in rows.split(64):
        # image by image, which a sum in float32 is exact enough for, and four times as fast as one in float64
        values = dataset.pixels(chosen).flatten(1, 2).to(torch.float32)
        total += values.sum(1).sum(0, dtype=torch.float64)
        squares += values.square_().sum(1).sum(0, dtype=torch.float64)
        count += values.shape[0] * values.shape[1]
    mean = total / count
    std = (squares / count - mean.square()).clamp_min(0).sqrt()
    std[std == 0] = 255
    return (mean / 255).tolist(), (std / 255).tolist()


def _identify(folder: Path, paths: list[str]) -> tuple[list[str], np.ndarray, list[str]]:
    """The different files behind paths, the file of each path, -1 if it is missing, and the paths that are missing."""
    files: list[str] = []
    row_of: dict[str, int] = {}
    row_of_file: dict[tuple[int, int], int] = {}
    missing: list[str] = []
    for path in paths:
        if path in row_of:
            continue
        try:
            status = os.stat(os.path.join(folder, path))  # pathlib's way takes longer than the disk
        except (OSError, ValueError):  # ValueError: a name that no file can have
            status = None
        if status is None or not stat.S_ISREG(status.st_mode):
            missing.append(path)
            row_of[path] = -1
            continue
        # a link and what it leads to are one image; where files have no numbers, the path has to do
        key = (status.st_dev, status.st_ino) if status.st_ino else (-1, len(files))
        row_of[path] = row_of_file.setdefault(key, len(files))
        if row_of[path] == len(files):
            files.append(path)
    return files, np.array([row_of[path] for path in paths], np.int64), missing


def _without(plan: Plan, left_out: np.ndarray) -> Plan:
    kept = ~left_out
    return plan._replace(
        rows=plan.rows[kept],
        tasks=plan.tasks[kept],
        labels=plan.labels[kept],
        parts=plan.parts[kept],
        entries=plan.entries[kept],
    )


def _part_digests(plan: Plan) -> list[str]:
    """A number of each part, the same for the same names, tasks and labels of images."""
    digests = []
    for part in range(len(PARTS)):
        digest = hashlib.sha256()
        chosen = plan.parts == part
        for row, task, label in zip(*(values[chosen].tolist() for values in plan[1:4]), strict=True):
            digest.update(f"{plan.files[row]}\0{task}\0{label}\n".encode(errors="surrogateescape"))
        digests.append(digest.hexdigest()[:16])
    return digests


def _names_of(tasks: dict[str, set[str]]) -> set[str]:
    return set(tasks) | {f"{task}/{label}" for task, labels in tasks.items() for label in labels}


def _temperature(sampling: str | float) -> float:
    """1 for sampling by size, infinite for balanced tasks.

    Raises:
        UsageError: if it is something else, or below 1.
    """
    known = {"size": 1.0, "balanced": math.inf}
    if isinstance(sampling, str) and sampling in known:
        return known[sampling]
    if isinstance(sampling, str) or not sampling >= 1:
        raise UsageError(f"sampling is {sampling!r}, but must be size, balanced or a temperature of at least 1")
    return float(sampling)


def _numbers(values: list[float]) -> str:
    return "[" + ", ".join(f"{value:.4f}" for value in values) + "]"
