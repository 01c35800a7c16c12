"""MixedMTL: the tasks of several data sets in one model."""

import inspect
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2.functional import resize

from routing_lightning.datamodules.base import MultiTaskData, MultiTaskDataModule, MultiTaskDataset, require_at_least
from routing_lightning.errors import UsageError
from routing_lightning.targets import Kind

RULED = ("batch_size", "val_fraction", "split_seed", "augment", "sampling")
"""Options that one value holds for in all of a mix."""


class JoinedDataset(MultiTaskDataset):
    """Samples of several data sets whose images stay where they are, as memory-mapped as they were.

    Of each batch the images of one part are gathered at once. Those of another size or of one channel are brought to
    the common shape then; where that is all of a large part, decoding it in this size is faster.

    Args:
        parts: the data sets.
        image_shape: (C, H, W) of the images that are given.
        tasks: task of each sample, one part after the other, (N,), int64.
        labels: labels likewise, as for the base class.

    Attributes:
        index: row of the image of each sample in [0, M), the images of all parts counted through, (N,), int64.
        tasks: as given.
        labels: as given.
    """

    def __init__(
        self, parts: Sequence[MultiTaskDataset], image_shape: tuple[int, int, int], tasks: Tensor, labels: Tensor
    ) -> None:
        self.parts = list(parts)
        self._shape = image_shape
        self.first_rows = [0]
        for part in self.parts:
            self.first_rows.append(self.first_rows[-1] + len(part.images))
        starts = self.first_rows[:-1]
        self.index = torch.cat([part.index + first for part, first in zip(self.parts, starts, strict=True)])
        self.tasks, self.labels = tasks, labels

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        return self._shape

    def pixels(self, rows: Tensor) -> Tensor:
        """Copies of images by row, in the common shape; see the base class."""
        channels, height, width = self._shape
        found = torch.empty(len(rows), height, width, channels, dtype=torch.uint8)
        for part, first, end in zip(self.parts, self.first_rows, self.first_rows[1:], strict=False):
            places = torch.nonzero((rows >= first) & (rows < end)).flatten()
            if len(places):
                images = part.pixels(rows[places] - first)
                found.numpy()[places.numpy()] = brought_to(images, self._shape).numpy()  # torch copies bytes slowly
        return found


def brought_to(pixels: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Images, uint8 (B, h, w, c), as (B, H, W, C) for a shape (C, H, W); c is C or 1."""
    channels, *size = shape
    pixels = pixels.expand(*pixels.shape[:3], channels)
    if list(pixels.shape[1:3]) == size:
        return pixels
    resized: Tensor = resize(pixels.permute(0, 3, 1, 2), size, antialias=True)
    return resized.permute(0, 2, 3, 1)


class MixedMTLDataModule(MultiTaskDataModule):
    """The tasks of several datamodules in one, each datamodule's behind those of the ones before.

    Tasks are called ``<name>_<task>``. Images of other sizes are stretched to one size and grey ones become coloured,
    batch by batch; give the parts one size where they take one (``image_size`` of ``MINMTLDataModule``), which is
    better and faster. All are normalised alike, by the moments of all training samples together.

    ``batch_size``, ``val_fraction``, ``split_seed`` and ``augment`` are those given here, for all parts.

    Args:
        datamodules: the parts, at least one.
        names: a name of each part; None: of its class, without DataModule.
        image_size: height and width of the images, at least 1; None: those of the first part.
        batch_size: samples per batch and process, at least 1.
        val_fraction: part of the training data for validation, as each part holds it out, in [0, 1).
        split_seed: seed of all splits.
        augment: transforms of torchvision, v2, that change training images at random; see
            :class:`~routing_lightning.datamodules.augment.Augmentation`.
        train_fraction: part of the training data to train on; see the base class. Parts may have one of their own.
        train_per_task: training images of each task; see the base class. Parts may have some of their own.
    """

    def __init__(
        self,
        datamodules: list[MultiTaskDataModule],
        names: list[str] | None = None,
        image_size: int | None = None,
        batch_size: int = 16,
        val_fraction: float = 0.0,
        split_seed: int = 0,
        augment: list[v2.Transform] | None = None,
        train_fraction: float = 1.0,
        train_per_task: list[int] | None = None,
    ) -> None:
        super().__init__(None, batch_size, val_fraction, split_seed, augment, train_fraction, train_per_task)
        # a checkpoint holds plain types: the config of the parts, where the command line made them
        self.save_hyperparameters(ignore=["augment"])
        if any(isinstance(part, MultiTaskDataModule) for part in self.hparams.get("datamodules", ())):
            self.save_hyperparameters(ignore=["augment", "datamodules"])
        self.datamodules = datamodules
        classes = [type(part).__name__.removesuffix("DataModule") for part in datamodules]
        self.names = classes if names is None else names
        self.image_size = image_size
        self.labelled = all(part.labelled for part in datamodules)

    @cached_property
    def num_tasks(self) -> int:
        """Number of tasks of all parts."""
        self._require_parts()
        return sum(part.num_tasks for part in self.datamodules)

    @cached_property
    def num_classes(self) -> int:
        """Largest number of labels of a task."""
        return max(part.num_classes for part in self.datamodules)

    @cached_property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        shapes = [tuple(part.image_shape) for part in self.datamodules]
        height, width = shapes[0][1:] if self.image_size is None else (self.image_size, self.image_size)
        return max(channels for channels, *_ in shapes), height, width

    def check_options(self) -> None:
        """Checks the values of the options, those of the parts too; see the base class."""
        super().check_options()
        self._require_parts()
        if len(set(self.names)) < len(self.datamodules) or len(self.names) != len(self.datamodules):
            raise UsageError(
                f"names is {self.names}, but {len(self.datamodules)} datamodules need one each, all different: set "
                "names"
            )
        if self.image_size is not None:
            require_at_least(1, image_size=self.image_size)
        for part, name in zip(self.datamodules, self.names, strict=True):
            given = inspect.signature(type(part)).parameters
            for option in RULED:
                default = given[option].default if option in given else None
                value, own = getattr(part, option, default), getattr(self, option, default)
                if value not in (default, own):
                    shown = "given" if option == "augment" else value
                    raise UsageError(
                        f"{option} of {name} is {shown}, but all parts of a mix have one: "
                        + (f"set {option} of the mix" if hasattr(self, option) else "leave it out")
                    )
            channels = part.image_shape[0]
            if channels not in (1, self.image_shape[0]):
                raise UsageError(
                    f"images of {name} have {channels} channels and others {self.image_shape[0]}, but only grey ones "
                    "can be brought to those of others: leave one of the datamodules out"
                )
        self._rule()
        for part in self.datamodules:
            part.check_options()

    def _require_parts(self) -> None:
        if not self.datamodules:
            raise UsageError("datamodules is empty, but a mix has at least one part: name some")

    def _rule(self) -> None:
        """Gives the parts what holds for all."""
        for part in self.datamodules:
            part.val_fraction, part.split_seed = self.val_fraction, self.split_seed

    def prepare_data(self) -> None:
        """Prepares the data of all parts; see the base class."""
        super().prepare_data()
        for part in self.datamodules:
            part.prepare_data()

    def load_data(self) -> MultiTaskData:
        """Joins what the parts load; see the base class."""
        loaded = [part.loaded() for part in self.datamodules]
        self._set_moments([len(data.train) for data in loaded])
        named = list(zip(self.names, loaded, strict=True))
        task_names = [f"{name}_{task}" for name, data in named for task in data.task_names]
        class_names = [names for data in loaded for names in data.class_names]
        kinds: list[Kind] = [kind for data in loaded for kind in data.kinds or ["classes"] * len(data.task_names)]
        width = max(map(len, class_names)) if set(kinds) != {"classes"} else None
        held_out = [data.val for data in loaded if data.val is not None]
        if 0 < len(held_out) < len(loaded):
            without = ", ".join(name for name, data in named if data.val is None)
            raise UsageError(
                f"{without} of the mix has no validation part, but others have: set val_fraction above 0, or leave one "
                "of them out"
            )
        counts = [len(data.task_names) for data in loaded]
        return MultiTaskData(
            task_names,
            class_names,
            self._joined([data.train for data in loaded], counts, width),
            self._joined(held_out, counts, width) if held_out else None,
            self._joined([data.test for data in loaded], counts, width),
            kinds,
        )

    def _joined(self, parts: list[MultiTaskDataset], counts: list[int], width: int | None) -> JoinedDataset:
        """One part of all data sets, which have so many tasks; with labels in rows of ``width``, or of none."""
        firsts = [sum(counts[:number]) for number in range(len(counts))]
        tasks = torch.cat([part.tasks + first for part, first in zip(parts, firsts, strict=True)])
        labels = torch.cat([part.labels if width is None else in_rows(part.labels, width) for part in parts])
        return JoinedDataset(parts, self.image_shape, tasks, labels)

    def _set_moments(self, counts: list[int]) -> None:
        """Mean and standard deviation of all together, from those of parts with so many training samples."""
        weights = torch.tensor(counts, dtype=torch.float64).view(-1, 1) / sum(counts)
        channels = self.image_shape[0]
        means, stds = (
            torch.tensor([tuple(values) * (channels // len(values)) for values in of_parts], dtype=torch.float64)
            for of_parts in ([part.mean for part in self.datamodules], [part.std for part in self.datamodules])
        )
        mean = (weights * means).sum(0)
        std = ((weights * (stds.square() + means.square())).sum(0) - mean.square()).sqrt()
        self.mean, self.std = tuple(mean.tolist()), tuple(std.tolist())

    def state_dict(self) -> dict[str, Any]:
        """The splits, and what the parts keep."""
        return {**super().state_dict(), "datamodules": [part.state_dict() for part in self.datamodules]}

    def options(self) -> dict[str, Any]:
        """Options by name, those of the parts behind the names of these."""
        of_parts = zip(self.names, self.datamodules, strict=False)
        own = super().options() | {"datamodules": None}
        return own | {
            f"{name}.{option}": value
            for name, part in of_parts
            for option, value in part.options().items()
            if option not in RULED
        }

    def restore(self, state_dict: dict[str, Any]) -> None:
        """Takes over the splits and what the parts kept; see the base class.

        Raises:
            UsageError: if the checkpoint is of another mix.
        """
        states = state_dict.get("datamodules", [])
        if len(states) != len(self.datamodules):
            raise UsageError(
                f"the checkpoint was trained on a mix of {len(states)} datamodules, but there are "
                f"{len(self.datamodules)}: give the data of that run"
            )
        super().restore(state_dict)
        for part, state in zip(self.datamodules, states, strict=True):
            part.restore(state)
        self._rule()


def in_rows(labels: Tensor, width: int) -> Tensor:
    """Labels (N,), or rows (N, K) that are not wider, as float32 rows (N, width)."""
    rows = torch.zeros(len(labels), width)
    given = labels.view(len(labels), -1)
    rows[:, : given.shape[1]] = given
    return rows
