"""Images without labels, for predictions."""

import os
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torchvision.transforms.v2.functional import rgb_to_grayscale

from routing_lightning.datamodules.base import MultiTaskData, MultiTaskDataModule, MultiTaskDataset
from routing_lightning.datamodules.decoding import SquareDecoder
from routing_lightning.datamodules.image_cache import ImageCache
from routing_lightning.datamodules.listing import folder_contents, some
from routing_lightning.datamodules.manifest import PARQUET, TEXT, read_table
from routing_lightning.errors import UsageError
from routing_lightning.paths import local_path


class UnlabelledDataModule(MultiTaskDataModule):
    """Images of a folder, however deep, or of a table, without labels: for ``predict`` alone.

    ``predict --images`` makes it from what a checkpoint knows of the images of its training. They are decoded as those
    were; the model normalises them. Images that cannot be read or are missing are left out, and told.

    Args:
        images: folder; or CSV or Parquet file with a column ``path``, relative to its folder, and if wanted ``task``.
        task_names: names of the model's tasks.
        class_names: for each of them the names of its labels.
        num_classes: C, size of the model's output.
        image_shape: channels (1 or 3), height and width that the model takes, the latter two alike.
        task: name or number of the task to predict; ``"all"``: each of them for each image; None: the column ``task``
            of the table where it has one, else all.
        resize: length to which the shorter side is brought before the crop; None: the size that the model takes.
        crop: cut the middle out of the picture; false: stretch the whole picture to a square.
        batch_size: samples per batch and process, at least 1.
        cache_dir: folder for the decoded images, ``~`` is expanded; None: ``.cache`` beside the images.
        kinds: whether the model has tasks of other kinds than classes.
    """

    labelled = False

    def __init__(
        self,
        images: str,
        task_names: list[str],
        class_names: list[list[str]],
        num_classes: int,
        image_shape: tuple[int, int, int],
        task: str | None = None,
        resize: int | None = None,
        crop: bool = True,
        batch_size: int = 64,
        cache_dir: str | None = None,
        kinds: bool = False,
    ) -> None:
        super().__init__(batch_size=batch_size)
        self.source = Path(local_path(images))
        self.task_names, self.class_names, self.task = task_names, class_names, task
        self.num_tasks, self.num_classes, self.image_shape = len(task_names), num_classes, image_shape
        self.classes_per_task = [len(names) for names in class_names]
        self.resize, self.crop = resize, crop
        self.cache_dir = None if cache_dir is None else local_path(cache_dir)
        self.kinds = kinds
        self.test_columns: dict[str, list[str]] = {}

    def check_options(self) -> None:
        """Checks the values of the options; see the base class."""
        super().check_options()
        if not self.source.is_dir() and (
            not self.source.exists() or self.source.suffix.lower() not in (*TEXT, *PARQUET)
        ):
            what = "is neither a folder nor a table" if self.source.exists() else "is not there"
            raise UsageError(f"images {self.source} {what}: give a folder, or a CSV or Parquet file with paths")
        channels, height, width = self.image_shape
        if channels not in (1, 3) or height != width:
            raise UsageError(
                f"the model takes images of shape {list(self.image_shape)}, but files become squares of 1 or 3 "
                "channels: predict with a datamodule of your own"
            )
        if self.task not in (None, "all"):
            self._number(str(self.task), "task")

    def prepare_data(self) -> None:
        """Decodes the images into the cache."""
        super().prepare_data()
        _, folder, files, _ = self._files()
        self._cache(folder, files).prepare()

    def setup(self, stage: str | None = None) -> None:
        """Maps the images and says which ones are left out; see the base class."""
        if self._is_set_up:
            return
        self.check_options()
        table, folder, files, missing = self._files()
        cache = self._cache(folder, files)
        unreadable = cache.unreadable()
        left_out = [f"{path}: missing" for path in missing]
        left_out += [f"{files[row]}: {reason}" for row, reason in unreadable.items()]
        if left_out:
            rank_zero_warn(f"left out {some(left_out, 'image', 'images')} of {self.source} that cannot be read.")
        row_of = {path: row for row, path in enumerate(files) if row not in unreadable}
        entries = [entry for entry, path in enumerate(table["path"]) if path in row_of]
        if not entries:
            raise UsageError(f"{self.source} holds no image that can be read: give other images")
        own = self.task is None and "task" in table
        chosen = range(self.num_tasks) if self.task in (None, "all") else [self._number(str(self.task), "task")]
        pairs = [
            (entry, task)
            for entry in entries
            for task in ([self._number(table["task"][entry], f"the task of {table['path'][entry]}")] if own else chosen)
        ]
        index = torch.tensor([row_of[table["path"][entry]] for entry, _ in pairs])
        tasks = torch.tensor([task for _, task in pairs])
        labels = torch.zeros(len(tasks), self.num_classes) if self.kinds else torch.zeros_like(tasks)
        self.test_dataset = MultiTaskDataset(cache.load(), index, tasks, labels)
        self.test_columns = {name: [values[entry] for entry, _ in pairs] for name, values in table.items()}
        self._is_set_up = True

    def load_data(self) -> MultiTaskData:
        """There are no parts to load.

        Raises:
            UsageError: always.
        """
        raise UsageError(f"images {self.source} have no labels: they are for predict alone")

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Grey images for a model that takes one channel; the model normalises."""
        image, *rest = batch
        return (rgb_to_grayscale(image) if self.image_shape[0] == 1 else image, *rest)

    def _number(self, name: str, what: str) -> int:
        if name in self.task_names:
            return self.task_names.index(name)
        if name.isdecimal() and int(name) < self.num_tasks:
            return int(name)
        raise UsageError(f"{what} is {name!r}: give one of {', '.join(self.task_names)}, or all")

    def _cache(self, folder: Path, files: list[str]) -> ImageCache:
        size = self.image_shape[1]
        decoder = SquareDecoder(size, size if self.resize is None else self.resize, self.crop)
        return ImageCache(folder, files, size, self.cache_dir, decoder)

    def _files(self) -> tuple[dict[str, list[str]], Path, list[str], list[str]]:
        """Columns of the table, the folder of its paths, the different files that are there, those that are missing."""
        if self.source.is_dir():
            paths = images_below(self.source)
            return {"path": paths}, self.source, *_there(self.source, paths)
        names, columns = read_table(self.source)
        if "path" not in names:
            raise UsageError(
                f"images {self.source} has the columns {', '.join(names) or 'none'}, but needs path: name it so"
            )
        table = dict(zip(names, columns, strict=True))
        kept = [row for row, path in enumerate(table["path"]) if path]
        table = {name: [values[row] for row in kept] for name, values in table.items() if name}
        folder = self.source.parent
        return table, folder, *_there(folder, list(dict.fromkeys(table["path"])))


def _there(folder: Path, paths: list[str]) -> tuple[list[str], list[str]]:
    """The files that are there, and those that are missing: a table may be old, a link lead nowhere."""
    there = [path for path in paths if os.path.isfile(os.path.join(folder, path))]
    known = set(there)
    return there, [path for path in paths if path not in known]


def images_below(root: Path) -> list[str]:
    """Paths, relative to a folder, of the images in it and in all folders below, sorted; links are followed once."""
    found: list[str] = []
    seen: set[Path] = set()

    def visit(folder: Path, prefix: str) -> None:
        real = folder.resolve()
        if real in seen:
            return
        seen.add(real)
        contents = folder_contents(folder)
        found.extend(f"{prefix}{name}" for name in contents.images)
        for name in contents.folders:
            visit(folder / name, f"{prefix}{name}/")

    visit(root, "")
    return sorted(found)
