"""The common part of all datamodules: splits and loaders."""

import copy
import operator
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, SupportsIndex, cast

import numpy as np
import torch
import torch.distributed as dist
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from routing_lightning.datamodules.augment import Augmentation
from routing_lightning.datamodules.paging import fetch, read_only_what_is_asked_for, scarce
from routing_lightning.datamodules.samplers import EvaluationBatchSampler, TrainingBatchSampler
from routing_lightning.datamodules.thinning import thin
from routing_lightning.errors import UsageError
from routing_lightning.integers import INTEGERS
from routing_lightning.noise import NoiseKeys
from routing_lightning.paths import local_path
from routing_lightning.targets import KINDS, Kind, Targets
from routing_lightning.trust import checked_file

Batch = tuple[Tensor, Tensor, Tensor]
Positions = SupportsIndex | slice | Sequence[int] | np.ndarray | Tensor

WHOLE: dict[str, Any] = {"train_fraction": 1.0, "train_per_task": None}
"""Options that say what part of the training data is trained on, and their values for all of it."""


class MultiTaskDataset(Dataset[Batch]):
    """Samples of several tasks over one shared array of images.

    Labels are one number per sample where all tasks are classifications. Where some are of another kind, each sample
    has a row of K numbers, K being the largest number of outputs of a task: of a task of classes the number of the
    class comes first, of one of labels a 1 or 0 for each of its labels, of one of values the value, in the user's
    units; what is left of a row is 0.

    Args:
        images: uint8, (M, C, H, W), best stored as (M, H, W, C) and permuted (channels_last). May be memory-mapped.
        index: row of ``images`` for each sample, in [0, M), (N,), of any integer type. An image may serve several
            samples.
        tasks: task of each sample, at least 0, (N,), of any integer type.
        labels: in-task label of each sample, at least 0, (N,), of any integer type; or, see above, (N, K), of any type
            of floating point numbers.

    Attributes:
        images: as given.
        index: as given, int64.
        tasks: as given, int64.
        labels: as given, int64 or float32.

    Raises:
        UsageError: if a tensor has another type, shape or range.
    """

    def __init__(self, images: Tensor, index: Tensor, tasks: Tensor, labels: Tensor) -> None:
        if not isinstance(images, Tensor) or images.dtype != torch.uint8 or images.dim() != 4:
            raise UsageError(f"images is {_described(images)}, but must be a uint8 tensor (M, C, H, W): convert it")
        self.images = images
        self.index = _checked_integers("index", index)
        self.tasks = _checked_integers("tasks", tasks)
        in_rows = isinstance(labels, Tensor) and labels.is_floating_point() and labels.dim() == 2
        self.labels = _checked_rows(labels) if in_rows else _checked_integers("labels", labels)
        lengths = [len(self.index), len(self.tasks), len(self.labels)]
        if len(set(lengths)) > 1:
            raise UsageError(
                f"index, tasks and labels have {lengths[0]}, {lengths[1]} and {lengths[2]} entries, but must have one "
                "for each sample: give them the same length"
            )
        if len(self.index) and int(self.index.max()) >= len(images):
            raise UsageError(
                f"index names row {int(self.index.max())}, but images has {len(images)} rows: give rows in "
                f"[0, {len(images)})"
            )
        self._rows = images.permute(0, 2, 3, 1)
        self._fetches = scarce(images.numel())
        if self._fetches:
            read_only_what_is_asked_for(self._rows)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the images that indexing gives."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def __len__(self) -> int:
        """Number of samples N."""
        return len(self.index)

    def __getitem__(self, positions: Positions) -> Batch:
        """Gathers one sample or a whole batch, with one index operation per tensor.

        Args:
            positions: an integer for one sample; for a batch a slice, or B integers in a list, array or tensor, or a
                mask (N,). Negative ones count from the end.

        Returns:
            For a batch images uint8 (B, C, H, W) in channels_last memory, tasks (B,) and labels (B,), int64, or (B, K),
            float32. For one sample (C, H, W), () and (), or (K,). All are copies.

        Raises:
            IndexError: if a position is out of range.
            TypeError: if the positions are no integers.
        """
        # first and short, since each step of the training takes this way
        if isinstance(positions, Tensor) and positions.dtype == torch.int64 and positions.dim() == 1:
            return self._gather(positions)
        chosen = self._positions(positions)
        if chosen.dim() > 0:
            return self._gather(chosen)
        images, tasks, labels = self._gather(chosen.reshape(1))
        return images[0], tasks[0], labels[0]

    def subset(self, positions: Positions) -> "MultiTaskDataset":
        """The samples at ``positions``, as for indexing, over the same images."""
        chosen = self._positions(positions).reshape(-1)
        part = copy.copy(self)
        part.index, part.tasks, part.labels = self.index[chosen], self.tasks[chosen], self.labels[chosen]
        return part

    def pixels(self, rows: Tensor) -> Tensor:
        """Copies of images by row, (B,) int64: uint8 (B, H, W, C)."""
        if self._fetches:
            fetch(self._rows, rows)
        return self._rows.index_select(0, rows)

    def _gather(self, positions: Tensor) -> Batch:
        images = self.pixels(self.index[positions]).permute(0, 3, 1, 2)
        return images, self.tasks[positions], self.labels[positions]

    def _positions(self, positions: Positions) -> Tensor:
        """The positions as int64, (B,), or () for a single one."""
        count = len(self)
        if isinstance(positions, slice):
            return torch.from_numpy(np.arange(count)[positions].copy())
        if isinstance(positions, Tensor):
            chosen = positions
        elif isinstance(positions, SupportsIndex) and not isinstance(positions, np.ndarray):
            chosen = torch.tensor(_in_range(operator.index(positions), count))
        else:
            array = np.asarray(positions)
            if array.size > 0 and array.dtype.kind not in "iub":
                raise TypeError(f"positions are {array.dtype}; give integers, a slice or a mask")
            chosen = torch.from_numpy(array.astype(bool if array.dtype == bool else np.int64))
        if chosen.dtype == torch.bool and chosen.dim() > 0:
            if chosen.shape != (count,):
                raise IndexError(
                    f"the mask has shape {tuple(chosen.shape)}; give one entry for each of {count} samples"
                )
            return torch.nonzero(chosen).flatten()
        if chosen.dtype not in INTEGERS:
            raise TypeError(f"positions are {chosen.dtype}; give integers, a slice or a mask")
        if chosen.dim() > 1:
            raise IndexError(f"positions have shape {tuple(chosen.shape)}; give one integer or a row of them")
        chosen = chosen.to(torch.int64)
        if chosen.numel() > 0:
            _in_range(int(chosen.min()), count)
            _in_range(int(chosen.max()), count)
        return chosen


class MultiTaskData(NamedTuple):
    """What a datamodule loads: names and the three parts.

    Attributes:
        task_names: one name per task.
        class_names: for each task the names of its labels, in label order.
        train: training part.
        val: validation part; None where the test part serves for validation.
        test: test part.
        kinds: for each task ``"classes"``, ``"labels"`` or ``"value"``, of which the last has a single name in
            ``class_names``; None: all are of classes. With other kinds the labels of all parts are in rows.
    """

    task_names: list[str]
    class_names: list[list[str]]
    train: MultiTaskDataset
    val: MultiTaskDataset | None
    test: MultiTaskDataset
    kinds: Sequence[Kind] | None = None


class MultiTaskDataModule(LightningDataModule, ABC):
    """Base of the datamodules: batches are ``(image, task, label)``.

    Images are uint8. The model normalises them, on the device, by the ``mean`` and ``std`` of the data that it was
    trained on, which it keeps (:class:`~routing_lightning.modules.pixels.PixelNormalisation`). A subclass sets these
    two, calls ``save_hyperparameters`` and writes ``load_data``; it extends ``check_options`` for options of its own,
    and ``prepare_data`` to download or decode.

    ``num_tasks``, ``num_classes`` and ``image_shape`` can be asked for at once, so that a model can be built for the
    data. A subclass may set them, in ``__init__`` or as attributes of the class; the data are then checked against
    them. It must do so if ``load_data`` needs what ``prepare_data`` brings. What it does not set ``setup`` answers.

    Args:
        root: folder of the data, ``~`` is expanded; None where there is none.
        batch_size: samples per batch and process, at least 1. All parts use it.
        val_fraction: part of the training data held out for validation, in [0, 1). 0 is the paper's protocol:
            validation runs on the test part.
        split_seed: seed of all splits and of the order of evaluation, in [0, 2**32). It is independent of the seed of
            the training.
        augment: transforms of torchvision, v2, that change training images at random; see
            :class:`~routing_lightning.datamodules.augment.Augmentation`.
        train_fraction: part of the training data to train on, in (0, 1], the same for each label and at least one image
            of each; drawn once, by the seed of the splits, after the validation part was held out. A smaller part lies
            within a larger one.
        train_per_task: training images of each task, one number for each, drawn likewise; None: all, or
            ``train_fraction`` of them.

    Attributes:
        root: folder of the data, ``~`` expanded, or None.
        num_tasks: number of tasks.
        num_classes: largest number of labels of a task.
        image_shape: (C, H, W).
        classes_per_task: number of labels of each task; like all below known after ``setup``.
        task_names: one name per task.
        class_names: for each task the names of its labels.
        targets: what the tasks ask for, with mean and standard deviation of values in training; None: all are of
            classes.
        train_dataset: training part.
        val_dataset: validation part.
        test_dataset: test part, also used for prediction.
        validates_on_test: whether the validation part is the test part.
    """

    labelled = True
    """Whether the labels of the test part are known; else they are all 0."""
    mean: tuple[float, ...]
    """Mean of each channel, in units of [0, 1]."""
    std: tuple[float, ...]
    """Standard deviation of each channel, in units of [0, 1]."""

    classes_per_task: list[int]
    task_names: list[str]
    class_names: list[list[str]]
    targets: Targets | None
    train_dataset: MultiTaskDataset
    val_dataset: MultiTaskDataset
    test_dataset: MultiTaskDataset
    validates_on_test: bool

    def __init__(
        self,
        root: str | None = None,
        batch_size: int = 16,
        val_fraction: float = 0.0,
        split_seed: int = 0,
        augment: list[v2.Transform] | None = None,
        train_fraction: float = 1.0,
        train_per_task: list[int] | None = None,
    ) -> None:
        super().__init__()
        self.root = None if root is None else local_path(root)
        self.batch_size = batch_size
        self.val_fraction = val_fraction
        self.split_seed = split_seed
        self.augment = Augmentation(augment) if augment else None
        self.train_fraction = train_fraction
        self.train_per_task = train_per_task
        self._is_set_up = False
        self._is_loading = False

    @classmethod
    def load_from_checkpoint(
        cls, checkpoint_path: Any, *arguments: Any, trust: Sequence[str] = (), **options: Any
    ) -> Any:
        """Makes the datamodule that a checkpoint names, with the values of its run; see Lightning.

        Args:
            checkpoint_path: the checkpoint: a path on this machine, ``~`` is expanded, or an open file.
            arguments: see Lightning.
            trust: modules of yours that the checkpoint may name, beside this package and the libraries it is made of.
            options: see Lightning.

        Raises:
            UsageError: if the checkpoint names what it may not name; nothing is called then.
        """
        checkpoint_path, kind = checked_file(checkpoint_path, cls.CHECKPOINT_HYPER_PARAMS_KEY, cls, trust)
        if kind is not cls:
            return kind.load_from_checkpoint(checkpoint_path, *arguments, trust=trust, **options)
        return super().load_from_checkpoint(checkpoint_path, *arguments, **options)

    # cached properties, since a subclass may set them like any attribute

    @cached_property
    def num_tasks(self) -> int:
        """Number of tasks; loads the data unless the subclass has set it."""
        return cast(int, self._after_loading("num_tasks"))

    @cached_property
    def num_classes(self) -> int:
        """Largest number of labels of a task; loads the data unless the subclass has set it."""
        return cast(int, self._after_loading("num_classes"))

    @cached_property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W); loads the data unless the subclass has set it."""
        return cast(tuple[int, int, int], self._after_loading("image_shape"))

    def check_options(self) -> None:
        """Checks the values of the options.

        Not done in ``__init__``, since the command line's parser would bury the sentence in one of its own.

        Raises:
            UsageError: if an option has an impossible value.
        """
        require_at_least(1, batch_size=self.batch_size)
        if not 0 <= self.val_fraction < 1:
            raise UsageError(
                f"val_fraction is {self.val_fraction}, but must be at least 0 and below 1: "
                "use 0 to validate on the test part, or for example 0.1"
            )
        if not 0 <= self.split_seed < 2**32:
            raise UsageError(f"split_seed is {self.split_seed}, but must be an integer in [0, 2**32): choose another")
        if not 0 < self.train_fraction <= 1:
            raise UsageError(
                f"train_fraction is {self.train_fraction}, but must be above 0 and at most 1: use 1 to train on all "
                "training data, or for example 0.1"
            )
        if self.train_per_task is not None:
            if self.train_fraction != 1:
                raise UsageError(
                    f"train_fraction is {self.train_fraction} and train_per_task is {self.train_per_task}, but one of "
                    "them says how much there is to train on: leave the other out"
                )
            # none at all is told with the number of tasks
            require_at_least(1, train_per_task=min(self.train_per_task, default=1))

    def prepare_data(self) -> None:
        """Checks the options; a subclass also downloads and decodes here, since it runs in one process only.

        Raises:
            UsageError: if an option has an impossible value.
        """
        self.check_options()

    @abstractmethod
    def load_data(self) -> MultiTaskData:
        """Loads and splits the data; must give the same result on every rank and every call."""

    def setup(self, stage: str | None = None) -> None:
        """Loads, splits and checks the data; calling it again, for any stage, changes nothing.

        Args:
            stage: "fit", "validate", "test", "predict" or None; all parts are loaded for each.

        Raises:
            UsageError: if an option has an impossible value, or the data are missing, incomplete, too few, or of other
                sizes than the datamodule has told.
        """
        if not self._is_set_up:
            self.check_options()
            self._load()
        if stage == "fit":
            self._check_augment()
        if stage == "fit" and self.validates_on_test:
            rank_zero_info(
                "val_fraction=0: validation runs on the test set (paper protocol); "
                "set val_fraction > 0 to hold out training data instead"
                if self.val_fraction == 0
                else f"validation runs on the test set: {type(self).__name__} holds out no training data"
            )

    def loaded(self) -> MultiTaskData:
        """What ``load_data`` gives, checked, and of its training part what is to be trained on."""
        self._is_loading = True
        try:
            data = self.load_data()
        finally:
            self._is_loading = False
        self._check_data(data)
        return data._replace(train=self.thinned(data.train, data.task_names))

    def thinned(self, train: MultiTaskDataset, task_names: Sequence[str]) -> MultiTaskDataset:
        """Of the training part what is to be trained on, as ``train_fraction`` and ``train_per_task`` say.

        Raises:
            UsageError: if ``train_per_task`` does not fit it.
        """
        if self.train_fraction == 1 and self.train_per_task is None:
            return train
        labels = train.labels if train.labels.dim() == 1 else torch.zeros_like(train.tasks)
        kept = thin(train.tasks, labels, self.train_fraction, self.train_per_task, task_names, self.split_seed)
        return train.subset(kept)

    def _load(self) -> None:
        data = self.loaded()
        self.classes_per_task = [len(names) for names in data.class_names]
        self._settle("num_tasks", len(data.task_names))
        self._settle("num_classes", max(self.classes_per_task))
        self._settle("image_shape", data.train.image_shape)
        self.task_names = data.task_names
        self.class_names = data.class_names
        self.targets = targets_of(data)
        self.train_dataset = data.train
        self.val_dataset = data.test if data.val is None else data.val
        self.test_dataset = data.test
        self.validates_on_test = self.val_dataset is self.test_dataset
        self._is_set_up = True

    def _check_data(self, data: MultiTaskData) -> None:
        """Refuses loaded data whose names, tasks, labels and images do not go together."""
        source = f"load_data of {type(self).__name__}"
        if not isinstance(data, MultiTaskData):
            raise UsageError(f"{source} gave a {type(data).__name__}, but must give a MultiTaskData: make one")
        counts = torch.tensor([len(names) for names in data.class_names], dtype=torch.int64)
        if not 0 < len(data.task_names) == len(counts):
            raise UsageError(
                f"{source} gave {len(data.task_names)} task_names and {len(counts)} class_names, but both must have "
                "one entry for each task: mend them"
            )
        kinds = [str(kind) for kind in data.kinds or ["classes"] * len(counts)]
        if len(kinds) != len(counts) or not set(kinds) <= set(KINDS):
            raise UsageError(
                f"{source} gave the kinds {', '.join(kinds)} of {len(counts)} tasks, but must give {', '.join(KINDS)} "
                "for each: mend them"
            )
        in_rows = set(kinds) != {"classes"}
        for part, dataset in (("training", data.train), ("validation", data.val), ("test", data.test)):
            if dataset is None and part == "validation":
                continue
            if not isinstance(dataset, MultiTaskDataset):
                raise UsageError(
                    f"{source} gave a {type(dataset).__name__} as {part} part, but must give a MultiTaskDataset: "
                    "make one"
                )
            shape, expected = dataset.image_shape, data.train.image_shape
            if shape != expected:
                raise UsageError(
                    f"{source} gave {part} images of shape {shape}, but training images of shape {expected}: bring all "
                    "to one shape"
                )
            if len(dataset) == 0:
                continue
            width = int(counts.max())
            if dataset.labels.shape[1:] != ((width,) if in_rows else ()):
                needed = f"tasks of several kinds need (N, {width})" if in_rows else "tasks of classes alone need (N,)"
                raise UsageError(
                    f"{source} gave labels of shape {tuple(dataset.labels.shape)} in the {part} part, but {needed}: "
                    "mend them"
                )
            largest = int(dataset.tasks.max())
            if largest >= len(counts):
                raise UsageError(
                    f"{source} gave task {largest} in the {part} part, but named {len(counts)} tasks: name all tasks "
                    f"or give tasks in [0, {len(counts)})"
                )
            of_classes = torch.tensor([kind == "classes" for kind in kinds])[dataset.tasks]
            first = dataset.labels[:, 0] if in_rows else dataset.labels
            beyond = torch.nonzero(of_classes & (first >= counts[dataset.tasks])).flatten()
            if len(beyond):
                task, label = int(dataset.tasks[beyond[0]]), int(first[beyond[0]])
                raise UsageError(
                    f"{source} gave label {label} of task {task} in the {part} part, but named {int(counts[task])} "
                    f"labels of this task: name all labels or give labels in [0, {int(counts[task])})"
                )

    def _settle(self, name: str, loaded: int | tuple[int, ...]) -> None:
        """Sets a size to that of the loaded data, or checks the one that was told before."""
        if name not in vars(self) and getattr(type(self), name) is getattr(MultiTaskDataModule, name):
            setattr(self, name, loaded)
            return
        told = getattr(self, name)
        if (tuple(told) if isinstance(told, list) else told) != loaded:
            raise UsageError(
                f"{name} of {type(self).__name__} is {told}, but its data have {loaded}: set {name} to {loaded} or "
                "change the data"
            )

    def _after_loading(self, name: str) -> Any:
        if not self._is_loading:
            self.setup()
        if name not in vars(self):
            raise UsageError(
                f"{type(self).__name__} does not know {name} before its data are loaded: set self.{name} in its "
                "__init__"
            )
        return vars(self)[name]

    def train_dataloader(self) -> DataLoader[Batch]:
        """Shuffled batches of the training part; the same in each epoch if the Trainer has ``overfit_batches``."""
        if self.trainer is not None and self.trainer.overfit_batches > 0:  # type: ignore[attr-defined]
            return self._evaluation_loader(self.train_dataset)
        rank, world_size = self._place()
        # Lightning's own seed and not torch.initial_seed(): the order may depend on (seed, epoch) alone
        seed = int(os.environ.get("PL_GLOBAL_SEED", 0))
        sampler = TrainingBatchSampler(self.train_dataset, self.batch_size, seed, rank, world_size)
        return _loader(self.train_dataset, sampler)

    def val_dataloader(self) -> DataLoader[Batch]:
        """Batches of the validation part, in an order that mixes the tasks and is always the same."""
        return self._evaluation_loader(self.val_dataset)

    def test_dataloader(self) -> DataLoader[Batch]:
        """Batches of the test part, in an order that mixes the tasks and is always the same."""
        return self._evaluation_loader(self.test_dataset)

    def predict_dataloader(self) -> DataLoader[Batch]:
        """Batches of the test part, in the order of the data."""
        sampler = EvaluationBatchSampler(self.test_dataset, self.batch_size, *self._place())
        return _loader(self.test_dataset, sampler)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Augments training images, on the device; uint8, as they were and as the model takes them."""
        image, *rest = batch
        training = self.trainer is not None and self.trainer.training
        if training and self.augment is not None and image.dtype == torch.uint8:
            self._seed_noise(image.device)
            image = self._augmented(image)
        return (image, *rest)

    def _check_augment(self) -> None:
        """Tries ``augment`` on an image of the data's shape, with random numbers that nobody else misses."""
        if self.augment is None:
            return
        with torch.random.fork_rng(devices=[]):
            self._augmented(torch.zeros(1, *self.image_shape, dtype=torch.uint8))

    def _augmented(self, image: Tensor) -> Tensor:
        assert self.augment is not None
        try:
            result: Tensor = self.augment(image)
        except (ValueError, TypeError, RuntimeError) as error:
            raise UsageError(f"augment cannot be applied: {error}; correct or remove the transform") from error
        if result.shape != image.shape or result.dtype != torch.uint8:
            raise UsageError(
                f"augment makes {str(result.dtype).removeprefix('torch.')} images of shape {tuple(result.shape[1:])} "
                f"out of uint8 images of shape {tuple(image.shape[1:])}, but must keep both: end with a transform to "
                f"this size, and leave normalisation to mean and std"
            )
        return result

    def _seed_noise(self, device: torch.device) -> None:
        """Seeds torch by epoch, process and batch, so that a resumed run draws what the unbroken one would have."""
        trainer: Any = self.trainer
        keys = NoiseKeys(int(os.environ.get("PL_GLOBAL_SEED", 0)) + 1)  # others than those of the model's noise
        batch = trainer.fit_loop.epoch_loop.batch_progress.current.ready
        seed = keys.key(trainer.current_epoch, trainer.global_rank, batch)
        torch.default_generator.manual_seed(seed)
        if device.type != "cpu":
            torch.get_device_module(device).manual_seed(seed)

    def state_dict(self) -> dict[str, Any]:
        """What the splits depend on, so that a checkpoint is judged on data that it was not trained on."""
        state = {"split_seed": self.split_seed, "val_fraction": self.val_fraction}
        # only where they say something, so that checkpoints from before are not taken for others
        return state | {
            name: getattr(self, name) for name, all_of_it in WHOLE.items() if getattr(self, name) != all_of_it
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over the splits of the saved run; loaded data are loaded again if these differ.

        Raises:
            UsageError: if the data do not hold what the saved run was trained on, or this changes their sizes.
        """
        if state_dict == self.state_dict():
            return
        before = self.options()
        self.restore(state_dict)
        changed = {name: value for name, value in self.options().items() if value != before[name]}
        theirs, own = (", ".join(f"{name} {of[name]}" for name in changed) for of in (changed, before))
        rank_zero_info(
            f"the data are those of the checkpoint, with {theirs}, not {own} of the config; to change that, start a "
            "new run from the weights (--weights in place of --ckpt_path)"
            if changed
            else "taking the splits of the data from the checkpoint, which differ from those of the config"
        )
        if self._is_set_up:
            # what is to be decoded may differ, too
            if self.trainer is None or self.trainer.local_rank == 0:
                self.prepare_data()
            if self.trainer is not None:
                self.trainer.strategy.barrier()
            self._load()

    def options(self) -> dict[str, Any]:
        """Options by name, with the values that hold now."""
        names = ("split_seed", "val_fraction", *WHOLE, *self.hparams)
        return {name: getattr(self, name) for name in names if hasattr(self, name) and name not in ("mean", "std")}

    def restore(self, state_dict: dict[str, Any]) -> None:
        """Sets what ``load_data`` depends on from a saved state."""
        self.split_seed = state_dict["split_seed"]
        self.val_fraction = state_dict.get("val_fraction", self.val_fraction)
        for name, all_of_it in WHOLE.items():
            setattr(self, name, state_dict.get(name, all_of_it))

    def _evaluation_loader(self, dataset: MultiTaskDataset) -> DataLoader[Batch]:
        # mixed, so that with limit_val_batches the first tasks are not all that is seen
        return _loader(dataset, EvaluationBatchSampler(dataset, self.batch_size, *self._place(), seed=self.split_seed))

    def _place(self) -> tuple[int, int]:
        """Rank and number of processes."""
        if self.trainer is not None:
            return self.trainer.global_rank, self.trainer.world_size
        if dist.is_available() and dist.is_initialized():
            return dist.get_rank(), dist.get_world_size()
        return 0, 1


def targets_of(data: MultiTaskData) -> Targets | None:
    """What the tasks ask for, values measured on the training part; None if all are of classes."""
    if data.kinds is None or set(data.kinds) == {"classes"}:
        return None
    means, stds = [0.0] * len(data.kinds), [1.0] * len(data.kinds)
    for task, kind in enumerate(data.kinds):
        values = data.train.labels[data.train.tasks == task, 0].double()
        if kind != "value" or not len(values):
            continue
        means[task], stds[task] = float(values.mean()), float(values.std(correction=0)) or 1.0
    return Targets([str(kind) for kind in data.kinds], [len(names) for names in data.class_names], means, stds)


def stratified_split(
    dataset: MultiTaskDataset, fraction: float, seed: int
) -> tuple[MultiTaskDataset, MultiTaskDataset | None]:
    """Holds out the same fraction of each (task, label) pair, or of each task where labels are in rows.

    Args:
        dataset: N samples.
        fraction: part to hold out, in [0, 1). Each pair gives the nearest whole number, at least one sample and never
            all.
        seed: seed of the draw.

    Returns:
        The rest and the part held out; None instead of the latter if the fraction is 0.

    Raises:
        UsageError: if a pair has a single sample.
    """
    if fraction == 0:
        return dataset, None
    generator = torch.Generator().manual_seed(seed)
    held_out = torch.zeros(len(dataset), dtype=torch.bool)
    labels = dataset.labels if dataset.labels.dim() == 1 else torch.zeros_like(dataset.tasks)
    pairs, group = torch.unique(torch.stack([dataset.tasks, labels]), dim=1, return_inverse=True)
    for number, (task, label) in enumerate(pairs.T.tolist()):
        members = torch.nonzero(group == number).flatten()
        if len(members) < 2:
            raise UsageError(
                f"label {label} of task {task} has 1 training image, but val_fraction={fraction} needs at "
                "least 2: add images or set val_fraction to 0"
            )
        count = min(max(round(fraction * len(members)), 1), len(members) - 1)
        held_out[draw(members, count, generator)] = True
    return dataset.subset(torch.nonzero(~held_out).flatten()), dataset.subset(torch.nonzero(held_out).flatten())


def draw(pool: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """``count`` different entries of ``pool``, (P,), in random order, (count,)."""
    return pool[torch.randperm(len(pool), generator=generator)[:count]]


def require_at_least(minimum: int, **options: int) -> None:
    """Refuses the first of the named options whose value is below ``minimum``.

    Raises:
        UsageError: if there is such an option.
    """
    for name, value in options.items():
        if value < minimum:
            raise UsageError(f"{name} is {value}, but must be at least {minimum}: choose a larger value")


class BatchLoader(DataLoader[Batch]):
    """Loader of whole batches that can begin within an epoch: Lightning then resumes a run where it was broken off."""

    sampler: TrainingBatchSampler | EvaluationBatchSampler

    def state_dict(self) -> dict[str, int]:
        """Batches of the epoch that a run had; the model fills the number in, which it alone knows."""
        return {"batches": 0}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Leaves out so many batches at the start of the next iteration."""
        self.sampler.skip = state_dict["batches"]


def _loader(dataset: MultiTaskDataset, sampler: TrainingBatchSampler | EvaluationBatchSampler) -> BatchLoader:
    # A batch is one gather in memory: workers would only add the cost of sending it to another process, and
    # batches without a BatchSampler are intended. Lightning's advice on both would mislead.
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    warnings.filterwarnings("ignore", ".*Couldn't infer the batch indices.*")
    return BatchLoader(
        dataset,
        batch_size=None,
        sampler=sampler,
        collate_fn=_unchanged,
        pin_memory=torch.cuda.is_available(),
    )


def _unchanged(batch: Any) -> Any:
    return batch


def _in_range(position: int, count: int) -> int:
    if not -count <= position < count:
        raise IndexError(f"position {position} is out of range for {count} samples")
    return position


def _checked_integers(name: str, values: Tensor) -> Tensor:
    if not isinstance(values, Tensor) or values.dtype not in INTEGERS or values.dim() != 1:
        raise UsageError(f"{name} is {_described(values)}, but must be an integer tensor (N,): convert it")
    values = values.to(torch.int64)
    if len(values) and int(values.min()) < 0:
        raise UsageError(f"{name} has the value {int(values.min())}, but must be at least 0: mend or drop its sample")
    return values


def _checked_rows(values: Tensor) -> Tensor:
    values = values.to(torch.float32)
    bad = torch.nonzero(~values.isfinite().all(1)).flatten()
    if len(bad):
        raise UsageError(
            f"labels has the row {values[bad[0]].tolist()}, but all must be finite in float32: mend or drop its sample"
        )
    return values


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of type {str(value.dtype).removeprefix('torch.')} and shape {tuple(value.shape)}"
    return f"of type {type(value).__name__}"
