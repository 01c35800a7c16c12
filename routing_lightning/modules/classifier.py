"""What every multi-task classifier shares: batches, metrics, checkpoints."""

import os
import warnings
from collections.abc import Sequence
from types import FrameType
from typing import Any, cast

import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import (
    Callback,
    GradientAccumulationScheduler,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor
from torch.nn.functional import cross_entropy

from routing_lightning.errors import UsageError
from routing_lightning.integers import INTEGERS
from routing_lightning.metrics import Scores, TargetMetrics, TaskMetrics
from routing_lightning.modules.averaging import end_with_averages, keep_counts
from routing_lightning.modules.changed import ANEW, Change, model_changes
from routing_lightning.modules.detect import LOOK, Detector
from routing_lightning.modules.joint import JointLoss, check_joint_loss
from routing_lightning.modules.masking import label_mask, mask_logits
from routing_lightning.modules.monitors import check_monitors, note_unlogged
from routing_lightning.modules.objective import Objective
from routing_lightning.modules.optimizing import OptimizingModule, is_plateau, sgd
from routing_lightning.modules.over import stopped_early, why_over
from routing_lightning.modules.pixels import PixelNormalisation
from routing_lightning.modules.resume import (
    KEY,
    Milestones,
    batches_of,
    check_epochs,
    check_optimizers,
    check_whole,
    check_within,
    forget_strange_files,
    keep_best,
    settle,
    without_finders,
)
from routing_lightning.modules.schedule import check_known, check_lasts, open_length
from routing_lightning.modules.smoothing import check_smoothing, smoothed_cross_entropy
from routing_lightning.modules.weight_callbacks import check_backbone, check_pruning
from routing_lightning.nn.tracing import WAY_OUT, on_host
from routing_lightning.noise import NoiseKeys
from routing_lightning.rows import all_gather
from routing_lightning.targets import Targets
from routing_lightning.trust import checked_file

Batch = tuple[Tensor, Tensor, Tensor]

SIZES = {"num_tasks": "tasks", "num_classes": "classes"}
"""Sizes that a model has from its data, and what they count."""

IDLE_WARNINGS = (
    # Our metrics are added up over processes before they are logged.
    r"It is recommended to use .self\.log\('(train|val|test|router)/",
    # The checks of a batch are the model's, whatever the datamodule.
    ".*have passed in a `LightningDataModule`. It will use the implementation from.*",
    # Lightning with newer torch.
    r".*isinstance\(treespec, LeafSpec\).*",
)
"""Warnings of Lightning's that do not concern who trains a model, each with its reason."""


def example_arguments(example: Any) -> Any:
    """What ``forward`` takes, (images, tasks), of an ``example_input_array``.

    Raises:
        UsageError: if it is something else.
    """
    names = ("images", "tasks")
    if isinstance(example, dict) and set(example) == set(names):
        example = tuple(example[name] for name in names)
    if not (isinstance(example, (tuple, list)) and len(example) == 2 and all(isinstance(x, Tensor) for x in example)):
        raise UsageError(
            f"example_input_array is a {type(example).__name__}; give what forward takes, a tuple (images, tasks)."
        )
    return tuple(example)


def whole_numbers(name: str, values: Tensor) -> Tensor:
    """A batch's tasks or labels as int64, of whatever type of whole numbers they are.

    Raises:
        UsageError: if they are of another type.
    """
    if values.dtype == torch.int64:
        return values
    if values.dtype not in INTEGERS:
        kind = str(values.dtype).removeprefix("torch.")
        raise UsageError(f"a batch has {name}s of type {kind}; give whole numbers, such as int64: mend the data.")
    return values.long()


def is_plain(value: Any) -> bool:
    """Whether a value consists of numbers, text, None, lists and dicts alone."""
    if isinstance(value, dict):
        return all(is_plain(key) and is_plain(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return all(is_plain(item) for item in value)
    return value is None or isinstance(value, (bool, int, float, str))


def check_one_loader(stage: str, batches: Sequence[Any]) -> None:
    """Checks that an evaluation has one loader, whose samples its metrics are of; given the batches of each.

    Raises:
        UsageError: if it has several.
    """
    if len(batches) > 1:
        raise UsageError(
            f"there are {len(batches)} {stage} loaders, whose samples would be counted together; give one at a time."
        )


class TaskClassifier(OptimizingModule):
    """Base of the classifiers: takes batches ``(image, task, label)`` and reports accuracy per task.

    Logs ``<stage>/loss``, ``<stage>/acc`` (macro: the mean over tasks), ``<stage>/acc_micro`` (over samples, whatever
    their task) and ``<stage>/acc_task/<name>`` at the end of each epoch, stage being train, val or test.

    Where the data have tasks of other kinds, these are of tasks of classes alone. Of tasks of labels it logs
    ``<stage>/f1_task/<name>`` (macro: the mean over labels), of those of values ``<stage>/mae_task/<name>`` (in the
    user's units) and ``<stage>/r2_task/<name>``; and ``<stage>/f1`` and ``<stage>/r2``, means over their tasks. See
    :class:`~routing_lightning.modules.objective.Objective` for the losses.

    Args:
        num_tasks: T, number of tasks, at least 1.
        num_classes: C, the largest number of outputs of a task (classes, labels, or 1 for a value), at least 1.
        optimizer: makes the optimizer from the parameters; SGD with lr 1e-2 (paper, section 4) by default.
        lr_scheduler: makes the learning rate scheduler from the optimizer; none by default. A length that is null or -1
            is that of the run; see :class:`~routing_lightning.modules.optimizing.OptimizingModule`.
        lr_interval: step the scheduler each ``"epoch"`` or each optimizer ``"step"``.
        joint_loss: share in [0, 1) of a loss over the classes of all tasks together in the loss of a training step, the
            task's own having the rest; see :class:`~routing_lightning.modules.joint.JointLoss`. 0: none.
        label_smoothing: share of the target that is spread over a task's classes in training, in [0, 1). Metrics and
            rewards are of the loss without it.
        flip_test: validate, test and predict by the mean of the logits of an image and its mirror image, which takes
            twice the time; say so beside the numbers.

    Attributes:
        lr: learning rate in place of the optimizer's own, above 0, or None; Lightning's LearningRateFinder sets it.
        detector: stops a run at NaN or infinity in images, loss, reward, gradient or policy; None: nobody looks.

    Raises:
        UsageError: if a value is out of its range.
    """

    def __init__(
        self,
        num_tasks: int,
        num_classes: int,
        optimizer: OptimizerCallable = sgd,
        lr_scheduler: LRSchedulerCallable | None = None,
        lr_interval: str = "epoch",
        joint_loss: float = 0.0,
        label_smoothing: float = 0.0,
        flip_test: bool = False,
    ) -> None:
        super().__init__(optimizer, lr_scheduler, lr_interval)
        check_joint_loss(joint_loss)
        check_smoothing(label_smoothing)
        if num_tasks < 1:
            raise UsageError(f"num_tasks is {num_tasks}; give at least 1 task.")
        if num_classes < 1:
            raise UsageError(f"num_classes is {num_classes}; give the number of labels of a task, at least 1.")
        self.num_tasks = num_tasks
        self.num_classes = num_classes
        self.label_smoothing = label_smoothing
        self.flip_test = flip_test
        self.joint: JointLoss | None = None  # a derived class makes it for its features
        self.label_mask: Tensor | None = None  # all tasks have all labels, unless the data say otherwise
        self.objective: Objective | None = None  # all tasks are of classes, likewise
        self.metrics = torch.nn.ModuleDict(
            {f"{stage}_metrics": TaskMetrics(num_tasks) for stage in ("train", "val", "test")}
        )
        self.keeps_normalisation = False  # where the images are others than those of its training
        self.normalise = PixelNormalisation(1)  # a derived class makes that of its images
        self.detector: Detector | None = Detector()
        self.milestones = Milestones()
        self.noise_keys: NoiseKeys | None = None
        self.changed: list[Change] = []  # what is not as in the checkpoint, until the training starts
        self.restored: dict[str, Any] | None = None  # what a checkpoint tells, until the training starts
        self.restored_optimizers = 0  # how many states of optimizers it holds
        self.began = False  # whether the latest fit has begun to train
        self.stopped: str | None = None  # why the run that goes on was stopped for good

    @classmethod
    def load_from_checkpoint(
        cls, checkpoint_path: Any, *arguments: Any, trust: Sequence[str] = (), **options: Any
    ) -> Any:
        """Loads a model, of the class that the checkpoint names, and makes its parts; see Lightning.

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

    def save_plain_hyperparameters(self, frame: FrameType | None) -> None:
        """Saves the hyperparameters that are numbers, text, lists or dicts.

        From the command line those are all: the config of each part. Objects that Python code hands over are left out,
        since a checkpoint that holds them does not load with ``weights_only=True``.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about modules among the arguments, which go right below
            self.save_hyperparameters(frame=frame)
        objects = [name for name, value in self.hparams.items() if not is_plain(value)]
        if objects:
            self.save_hyperparameters(ignore=objects, frame=frame)

    # -- what Lightning would write as one graph -----------------------------------------------------------------------

    def __dir__(self) -> list[str]:
        """Names of what there is: without a Trainer not ``trainer``, at which all who look at each attribute fail."""
        attached = self._trainer is not None or self._fabric is not None
        names = super().__dir__()  # type: ignore[no-untyped-call]
        return [name for name in names if attached or name != "trainer"]

    def _refuse_export(self, *arguments: Any, **options: Any) -> Any:
        raise UsageError(
            f"{type(self).__name__} cannot be written as one graph, since each task has a way of its own through it; "
            f"{WAY_OUT}."
        )

    to_torchscript = to_onnx = to_tensorrt = __prepare_scriptable__ = _refuse_export

    # -- batches -------------------------------------------------------------------------------------------------------

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Checks a batch while it is on the host, and makes tasks and labels of another type of whole numbers int64.

        The ``example_input_array``, with which Lightning measures the layers, is ``(images, tasks)``.

        Raises:
            UsageError: if it is not ``(image, task, label)`` with one task and label per image, in their ranges.
        """
        if batch is self.example_input_array and batch is not None:
            return example_arguments(batch)
        if not (isinstance(batch, (tuple, list)) and len(batch) == 3 and all(isinstance(x, Tensor) for x in batch)):
            raise UsageError(f"a batch is a {type(batch).__name__}; the data must yield tensors (image, task, label).")
        images, tasks, labels = batch
        tasks = whole_numbers("task", tasks)
        if self.objective is None:
            labels = whole_numbers("label", labels)
        given, form = labels, "(N,)"
        if self.objective is not None:
            form = f"(N, up to {self.num_classes})"
            given = (
                labels[:, 0] if labels.dim() == 2 and 0 < labels.shape[1] <= self.num_classes else labels.new_empty(0)
            )
        if not (tasks.shape == given.shape == images.shape[:1]):
            raise UsageError(
                f"a batch has shapes {tuple(images.shape)}, {tuple(tasks.shape)} and {tuple(labels.shape)}; the data "
                f"must yield as many tasks (N,) and labels {form} as images (N, ...)."
            )
        checked = [("task", tasks, "num_tasks", self.num_tasks)]
        if self.objective is None:
            checked.append(("label", labels, "num_classes", self.num_classes))
        for name, values, option, count in checked:
            if len(values) and not (int(values.min()) >= 0 and int(values.max()) < count):
                bad = int(values[(values < 0) | (values >= count)][0])
                raise UsageError(
                    f"a batch has {name} {bad}, allowed is 0..{count - 1}; mend the data or set {option} of the model."
                )
        if self.objective is not None:
            self.objective.check(tasks, labels)
        self.normalise.check(images)
        if self.detector is not None:
            self.detector.see_batch(images, tasks)
        return images, tasks, labels

    def used_parameters(self, actions: Tensor) -> list[torch.nn.Parameter]:
        """Parameters that steps may have moved in which samples took these actions (N, D)."""
        return self.trained_parameters()

    def place_of(self, parameter: torch.nn.Parameter) -> tuple[int | None, int | None]:
        """Depth, from 0, and block that a parameter belongs to, if it belongs to a block."""
        return None, None

    def task_names(self) -> list[str]:
        """Names of the tasks, from the datamodule where there is one."""
        names = getattr(getattr(self._trainer, "datamodule", None), "task_names", None)
        return list(names) if names else [str(task) for task in range(self.num_tasks)]

    def configure_callbacks(self) -> list[Callback]:
        """Checks, before callbacks are set up, that what they change is there; adds none.

        Raises:
            UsageError: if it is not.
        """
        check_backbone(self.trainer, self)
        return []

    def setup(self, stage: str) -> None:
        """Checks the model against the data, once, before the first batch.

        Raises:
            UsageError: if the data has more tasks or labels than the model.
        """
        for message in IDLE_WARNINGS:
            warnings.filterwarnings("ignore", message)
        data = getattr(self.trainer, "datamodule", None)
        mean, std = getattr(data, "mean", None), getattr(data, "std", None)
        learns = stage == "fit" and not self.keeps_normalisation
        if mean is not None and std is not None and (learns or not self.normalise.known):
            self.normalise.learn(mean, std)
        for option in ("num_tasks", "num_classes"):
            needed, own = getattr(data, option, None), getattr(self, option)
            if isinstance(needed, int) and needed > own:
                raise UsageError(
                    f"{option} of the model is {own} but the data has {needed}; set --model.init_args.{option}={needed}"
                )
            # A model for more tasks than the data has is allowed, but the Trainer logs one number of each name.
            if option in getattr(data, "hparams", {}) and data.hparams[option] != own:  # type: ignore[union-attr]
                getattr(self, "_hparams_initial", {}).pop(option, None)

        if stage == "fit":
            self.began, self.stopped = False, None
        keep_counts(self.trainer)
        if stage == "fit":
            check_pruning(self.trainer, self)
        self.label_mask = label_mask(getattr(data, "classes_per_task", ()), self.num_classes)
        targets = getattr(data, "targets", None)
        if isinstance(targets, Targets) and (stage == "fit" or self.objective is None):
            self.take_targets(targets)
        kinds = ["classes"] if self.objective is None else self.objective.targets.kinds
        other = [kind for kind in kinds if kind != "classes"]
        if stage == "fit" and self.joint is not None and other:
            raise UsageError(
                f"joint_loss is {self.joint.weight} but the data have tasks of {other[0]}, and it is a loss over "
                "classes; set it to 0, or train on tasks of classes alone."
            )
        if stage == "fit" and self.label_smoothing and "classes" not in kinds:
            raise UsageError(
                f"label_smoothing is {self.label_smoothing} but no task of the data is of classes, whose targets it "
                "spreads; set it to 0, or train on a task of classes, too."
            )

    def take_targets(self, targets: Targets | None) -> None:
        """Takes over what the tasks ask for; done by the data or a checkpoint, and by hand for bare loaders.

        Args:
            targets: kinds, sizes, means and standard deviations; None: all tasks are of classes.
        """
        if targets is None:
            self.objective = None
            return
        padding = self.num_tasks - len(targets.kinds)  # a model may be for more tasks than the data have
        padded = Targets(
            [*targets.kinds, *["classes"] * padding],
            [*targets.sizes, *[self.num_classes] * padding],
            [*targets.means, *[0.0] * padding],
            [*targets.stds, *[1.0] * padding],
        )
        if self.objective is not None and self.objective.targets == padded:
            return
        self.objective = Objective(padded, self.num_classes)
        for name in self.metrics:
            self.metrics[name] = TargetMetrics(padded, self.num_classes).to(self.device)

    # -- labels that a task does not have ------------------------------------------------------------------------------

    def masked(self, logits: Tensor, tasks: Tensor) -> Tensor:
        """Logits (N, C) with those at minus infinity that the samples' tasks (N,) do not have."""
        if self.label_mask is None:
            return logits
        if self.label_mask.device != tasks.device:
            self.label_mask = self.label_mask.to(tasks.device)
        return mask_logits(logits, tasks, self.label_mask)

    # -- noise ---------------------------------------------------------------------------------------------------------

    def on_fit_start(self) -> None:
        """Takes the seed of the run: that of ``seed_everything``, or torch's own; the first one's on all processes.

        A run that goes on and was stopped early stays so.

        Raises:
            UsageError: if something looks at a metric that nobody logs.
        """
        check_monitors(self.trainer, self, self.logged_names())
        if self.stopped is not None:
            self.trainer.should_stop = True
        seed = int(os.environ.get("PL_GLOBAL_SEED", torch.initial_seed()))
        self.noise_keys = NoiseKeys(self.trainer.strategy.broadcast(seed))

    def on_fit_end(self) -> None:
        """Ends a run that was over before it went on as it ended the first time, and says so."""
        if not self.began and self.trainer.ckpt_path is not None:
            end_with_averages(self.trainer, self)
            rank_zero_info(f"nothing was trained: {why_over(self.trainer, self.stopped)}")

    def noise_key(self, batch_idx: int) -> int:
        """Seed of a training batch's noise on this process, in [0, 2^63)."""
        if self.noise_keys is None:  # the Tuner trains before the hooks of a fit
            TaskClassifier.on_fit_start(self)
            assert self.noise_keys is not None
        return self.noise_keys.key(self.current_epoch, self.global_rank, batch_idx)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Seeds what draws from torch's global source (dropout, Gumbel noise), apart from the actions' own."""
        seed = self.noise_key(batch_idx)
        # Only the sources in use: torch.manual_seed would note the call, with a trace of the stack, for each kind of
        # device that was never used, which costs time each step and memory for good.
        torch.default_generator.manual_seed(seed)
        if self.device.type != "cpu":
            torch.get_device_module(self.device).manual_seed(seed)
        self.set_logged_step()
        if self.detector is not None and batch_idx and batch_idx % LOOK == 0:
            self.detector.look(self, batch_idx - 1)
        if self.trainer.is_last_batch:
            self.milestones.last_batch = self.batches_done() + 1

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def batches_done(self) -> int:
        """Training batches since the run began, without one under way."""
        progress: Any = self.trainer.fit_loop.epoch_loop.batch_progress.total
        return int(progress.processed)

    def within_step(self) -> bool:
        """Whether a training step is under way, which a resumed run does anew."""
        progress: Any = self.trainer.fit_loop.epoch_loop.batch_progress.current
        return bool(progress.started > progress.processed)

    def is_accumulating(self) -> bool:
        """Whether the gradients are those of batches whose optimizer step is still to come."""
        done = self.trainer.fit_loop.epoch_loop.batch_progress.current.processed  # type: ignore[attr-defined]
        complete = done % self.trainer.accumulate_grad_batches == 0 or self.milestones.last_batch == self.batches_done()
        return not complete and not self.within_step()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds what a resumed run needs and Lightning does not keep.

        That is: what of the epoch is done, the training metrics so far, gradients whose step is still to come, the
        metrics that callbacks and schedulers look at, and the seed if none was chosen. And which labels each task has,
        what they are called, and what a task asks for where that is not a class.

        Raises:
            NonFiniteError: if a number of the state is none.
        """
        if self.detector is not None:
            self.detector.check_state(self)
        if self.trainer.training and self.within_step():
            rank_zero_warn(
                "A checkpoint is saved within a training step: a run that goes on from it makes that step anew, with "
                "what batch normalisation and the router have seen of it already; save in on_train_batch_end instead."
            )
        note_unlogged(self.trainer)
        checkpoint["label_mask"] = None if self.label_mask is None else self.label_mask.tolist()
        checkpoint["targets"] = None if self.objective is None else self.objective.targets.state()
        data = getattr(self.trainer, "datamodule", None)
        for names in ("task_names", "class_names"):
            if getattr(data, names, None) is not None:
                checkpoint[names] = [name if isinstance(name, str) else list(name) for name in getattr(data, names)]
        counts = self.metric("train").counts().to(self.trainer.strategy.root_device)
        state: dict[str, Any] = {
            "milestones": self.milestones.state(),
            "train_counts": [part.cpu() for part in (all_gather(counts) if self.trainer.world_size > 1 else [counts])],
            "metrics": {
                name: torch.as_tensor(value).detach().cpu() for name, value in self.trainer.callback_metrics.items()
            },
            "gradients": {},
            "batches": batches_of(self.trainer),
        }
        if self.noise_keys is not None:
            state["seed"] = self.noise_keys.seed
        if self.is_accumulating():
            state["gradients"] = {name: value.grad for name, value in self.named_parameters() if value.grad is not None}
        checkpoint[KEY] = state

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Makes Lightning go on at the very place; the rest waits for the start of the training.

        Raises:
            UsageError: if the checkpoint is one of a model of other sizes, or its state would mean something else by
                options of this one; if it lacks a part.
        """
        self.check_sizes(checkpoint)
        goes_on = self._trainer is not None and self._trainer.state.fn == TrainerFn.FITTING
        self.changed = self.changed_options(checkpoint) if goes_on else []
        for change in self.changed:
            if change.is_refused:
                raise UsageError(change.refusal())
        mask = checkpoint.get("label_mask")
        self.label_mask = None if mask is None else torch.tensor(mask)
        targets = checkpoint.get("targets")
        if targets is not None:
            self.take_targets(Targets(**targets))
        state = checkpoint.get(KEY)
        self.restored = state
        self.restored_optimizers = len(checkpoint.get("optimizer_states") or ())
        trainer = self._trainer
        if trainer is not None and goes_on and not self.began:  # else the Tuner goes back after its trials
            without_finders(trainer)
            check_whole(checkpoint)
            stops = trainer.early_stopping_callbacks
            self.stopped = stopped_early(checkpoint.get("callbacks") or {}, stops, checkpoint[KEY]["metrics"])
        saves = [call for call in trainer.checkpoint_callbacks if isinstance(call, ModelCheckpoint)] if trainer else []
        if saves:
            states, folders = checkpoint.get("callbacks") or {}, [str(callback.dirpath) for callback in saves]
            strange = forget_strange_files(states, folders, saves[0].FILE_EXTENSION)
            keep_best(states, saves)
            if strange:
                rank_zero_warn(
                    f"The checkpoint names {strange[0]} as a file of its run, which it cannot be: the run goes on "
                    "without it, and does not remove it for a newer checkpoint."
                )
        if state is not None and "loops" in checkpoint:
            settle(checkpoint["loops"]["fit_loop"], Milestones(**state["milestones"]))
            if trainer is not None and goes_on and not self.began:
                check_epochs(checkpoint["loops"]["fit_loop"], trainer.max_epochs)

    def changed_options(self, checkpoint: dict[str, Any]) -> list[Change]:
        """Options that are others than the checkpoint's, as far as the command line made both."""
        return model_changes(checkpoint.get(self.CHECKPOINT_HYPER_PARAMS_KEY) or {}, self.hparams)

    def begin_with(self, checkpoint: dict[str, Any]) -> None:
        """Takes weights, policies and what the tasks ask for from a checkpoint, for a new run; nothing else of its run.

        Args:
            checkpoint: what a checkpoint of a model of these sizes holds.

        Raises:
            UsageError: if it holds no weights, or is one of a model of other sizes.
        """
        if not isinstance(checkpoint.get("state_dict"), dict):
            raise UsageError("the checkpoint holds no weights (key state_dict); give one that a run has written.")
        TaskClassifier.on_load_checkpoint(self, checkpoint)
        self.restored = None
        self.load_state_dict(checkpoint["state_dict"])

    def check_sizes(self, checkpoint: dict[str, Any]) -> None:
        """Checks that a checkpoint is one of a model of these sizes.

        Raises:
            UsageError: if not; it names both numbers.
        """
        saved = checkpoint.get(self.CHECKPOINT_HYPER_PARAMS_KEY) or {}
        for size, what in SIZES.items():
            theirs, own = saved.get(size), getattr(self, size, None)
            if isinstance(theirs, int) and isinstance(own, int) and theirs != own:
                raise UsageError(
                    f"the checkpoint is of a model for {theirs} {what}, but this one, made for the data, is for {own} "
                    f"({size}); give the data of its run, or a checkpoint of this data."
                )
        shape, own_shape = (list(hparams.get("image_shape") or ()) for hparams in (saved, self.hparams))
        if shape and own_shape and shape != own_shape:
            weights, mine = checkpoint.get("state_dict") or {}, self.state_dict()
            # Networks that end with a mean over all places take images of any size.
            if any(name in mine and value.shape != mine[name].shape for name, value in weights.items()):
                raise UsageError(
                    f"the checkpoint is of a model for images of shape {shape}, but this one, made for the data, is "
                    f"for {own_shape} (channels, height, width); give the data the size of its run, or leave it out."
                )

    def on_train_start(self) -> None:
        """Goes on where the checkpoint ends, if the run is resumed from one.

        Raises:
            UsageError: if a schedule ends before the run, or looks at what is not known in each epoch; if the epoch
                within which the run goes on has fewer batches than are done.
        """
        restored, self.restored = self.restored, None
        self.began = True
        check_within(self.trainer, {} if restored is None else restored.get("batches", {}))
        self.milestones = Milestones()
        for parameter in self.parameters():
            parameter.grad = None  # of a run that was broken off
        check_lasts(self.trainer, self.run_length)
        check_known(self.trainer)
        if self.trainer.ckpt_path is not None:
            if restored is not None:
                check_optimizers(self.restored_optimizers, len(self.trainer.optimizers))
                self.resume(restored)
            self.tell_kept_values()
        self.set_logged_step()  # callbacks may log before the next batch does
        loop = self.trainer.fit_loop
        # Left out where the data were asked for before the checkpoint was read, such as for the length of a schedule.
        loop._load_combined_loader_states()
        if not loop.restarted_mid_epoch:
            # With max_steps Lightning would take the start of an epoch for a place within one.
            loop.epoch_loop.restarting = False
            return
        if loop.epoch_loop.batch_progress.is_last_batch:
            loop._data_fetcher.done = True  # type: ignore[union-attr]
        self.prepare_epoch()

    def prepare_epoch(self) -> None:
        """Lets callbacks of Lightning do what they do at the start of an epoch alone, where a run goes on within one.

        Those are how many batches a step has, and the schedule of StochasticWeightAveraging, whose last epoch makes no
        steps; the batch statistics and learning rates are those of the checkpoint.
        """
        groups = [group for optimizer in self.trainer.optimizers for group in optimizer.param_groups]
        kept = {name: value.clone() for name, value in self.named_buffers()}
        rates = [group.get("lr") for group in groups]
        for callback in self.trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, (GradientAccumulationScheduler, StochasticWeightAveraging)):
                callback.on_train_epoch_start(self.trainer, self)
                for name, value in self.named_buffers():
                    value.copy_(kept[name])
                for group, rate in zip(groups, rates, strict=True):
                    group["lr"] = rate

    def resume(self, state: dict[str, Any]) -> None:
        """Takes over what :meth:`on_save_checkpoint` added."""
        self.milestones = Milestones(**state["milestones"])
        if "seed" in state and "PL_GLOBAL_SEED" not in os.environ:
            self.noise_keys = NoiseKeys(state["seed"])
        counts = state["train_counts"]
        if len(counts) == self.trainer.world_size:
            self.metric("train").restore(counts[self.global_rank])
        elif self.trainer.is_global_zero:
            self.metric("train").restore(torch.stack(counts).sum(0))
        self.trainer.callback_metrics.update({name: value.to(self.device) for name, value in state["metrics"].items()})
        for name, gradient in state["gradients"].items():
            parameter = self.get_parameter(name)
            parameter.grad = gradient.to(parameter)

    def tell_kept_values(self) -> None:
        """Says what becomes of options that differ from those of the checkpoint; the optimizer's values, too.

        Raises:
            UsageError: if those are of an optimizer of another kind.
        """
        for optimizer in self.trainer.optimizers:
            missing = sorted(optimizer.defaults.keys() - optimizer.param_groups[0].keys())
            if missing:
                raise UsageError(
                    f"the optimizer is {type(optimizer).__name__}, but the checkpoint's state is that of another kind, "
                    f"without {missing[0]}; give that of its run, or {ANEW}."
                )
        group = self.trainer.optimizers[0].param_groups[0]
        for name, own in self.configured.items():
            kept = group.get("initial_lr", group["lr"]) if name == "lr" else group.get(name)
            if own is not None and own != kept:
                rank_zero_warn(
                    f"the optimizer goes on with {name} {kept} of the checkpoint, not {own} of the config; to change "
                    f"it, {ANEW}."
                )
        kind, router = type(self.trainer.optimizers[0]).__name__, getattr(self, "router", None)
        for change in self.changed:
            if not change.of_router and change.owner == kind and change.option in self.configured:
                continue  # told right above
            tell = rank_zero_info if change.is_free(router) else rank_zero_warn
            tell(change.told(router))
        self.changed = []
        length = open_length(self.make_lr_scheduler)
        if length is None:
            return
        scheduler = self.trainer.lr_scheduler_configs[0].scheduler
        kept, own = getattr(scheduler, length), self.run_length(self.lr_interval)
        if kept != own:
            rank_zero_warn(
                f"{type(scheduler).__name__} goes on with {length} {kept} of the checkpoint, not {own}, the length of "
                f"the run; to change it, {ANEW}."
            )

    def set_logged_step(self, back: int = 0) -> None:
        """Sets the step that loggers are told: Lightning counts it apart and, after a resume, one off in places.

        Args:
            back: 1 while the last step is still to be counted.
        """
        steps = self.trainer.global_step if self.automatic_optimization else self.batches_done()
        self.trainer.fit_loop.epoch_loop._batches_that_stepped = steps - back

    # -- metrics -------------------------------------------------------------------------------------------------------

    def metric(self, stage: str) -> TaskMetrics:
        """The metric of a stage: train, val or test."""
        return cast(TaskMetrics, self.metrics[f"{stage}_metrics"])

    @on_host
    def count(self, stage: str, loss: Tensor, hits: Tensor, tasks: Tensor, logits: Tensor, labels: Tensor) -> None:
        """Counts a batch for the stage's metrics: mean loss (), hits (N,) bool, tasks (N,), logits and labels."""
        further = () if self.objective is None else (self.objective.predictions(logits.detach(), tasks), labels)
        self.metric(stage).update(loss.detach(), hits, tasks.to(hits.device, non_blocking=True), *further)

    def report(self, stage: str) -> None:
        """Logs the stage's metrics over the epoch, each sample counted once over all processes."""
        # The same on all processes: torchmetrics adds up their counts. It makes numbers of tensors with one entry.
        found = self.metric(stage).compute()
        loss, accuracies, micro = found[:3]
        self.log(f"{stage}/loss", loss)
        with_classes = self.objective is None or self.objective.targets.number("classes") > 0
        if with_classes:
            self.log(f"{stage}/acc", accuracies.reshape(-1).nanmean(), prog_bar=True)
            self.log(f"{stage}/acc_micro", micro)
        per_task = {"acc": accuracies}
        if isinstance(found, Scores):
            per_task |= {"f1": found.f1, "mae": found.mae, "r2": found.r2}
            for name in ("f1", "r2"):  # a mean of errors in different units would say nothing
                mean = per_task[name].reshape(-1).nanmean()
                if not mean.isnan():
                    self.log(f"{stage}/{name}", mean, prog_bar=not with_classes)
        for name, values in per_task.items():
            named = zip(self.task_names(), values.reshape(-1), strict=False)
            self.log_dict({f"{stage}/{name}_task/{task}": value for task, value in named if not value.isnan()})

    def logged_names(self) -> list[str]:
        """Names of the metrics that a training may log."""
        kinds = {"classes"} if self.objective is None else set(self.objective.targets.kinds)
        of_task, of_all = {"classes": ["acc"], "labels": ["f1"], "value": ["mae", "r2"]}, ["loss"]
        of_all += ["acc", "acc_micro"] if "classes" in kinds else []
        of_all += [name for kind, name in (("labels", "f1"), ("value", "r2")) if kind in kinds]
        found = [f"{stage}/{name}" for stage in ("val", "train") for name in of_all]
        found += [f"train/{name}" for name in ("loss_step", "auxiliary_loss", "joint_loss")]
        names = [name for kind in sorted(kinds) for name in of_task[kind]]
        tasks = self.task_names()
        return found + [f"{stage}/{name}_task/{task}" for stage in ("val", "train") for name in names for task in tasks]

    # -- steps ---------------------------------------------------------------------------------------------------------

    def losses(self, logits: Tensor, tasks: Tensor, labels: Tensor, apart: bool, smoothing: float = 0.0) -> Tensor:
        """Loss of each sample (N,), or, where ``apart`` is false and one operation gives it, their mean ()."""
        if self.objective is not None:
            return self.objective.losses(logits, tasks, labels, smoothing)
        if smoothing:
            return smoothed_cross_entropy(logits, labels, smoothing)
        return cross_entropy(logits.float(), labels, reduction="none" if apart else "mean")

    def trained_losses(
        self, losses: Tensor, logits: Tensor, features: list[Tensor], tasks: Tensor, labels: Tensor
    ) -> Tensor:
        """What a training step minimises, where that is more than the tasks' own losses.

        Args:
            losses: the tasks' own losses, (N,) or ().
            logits: (N, C).
            features: the features that the joint loss is of, where there is one, (N, size).
            tasks: (N,).
            labels: (N,) or (N, K).

        Returns:
            (N,) or ().
        """
        if self.label_smoothing:
            losses = self.losses(logits, tasks, labels, apart=True, smoothing=self.label_smoothing)
        if self.joint is None:
            return losses
        joint: Tensor = self.joint(features[0], tasks, labels, self.label_mask, self.label_smoothing)
        self.log("train/joint_loss", joint.detach().mean())
        weight = self.joint.weight
        return (1 - weight) * losses + weight * (joint if losses.dim() else joint.mean())

    def hits(self, logits: Tensor, tasks: Tensor, labels: Tensor) -> Tensor:
        """Whether each sample's class is predicted, (N,) bool; false for tasks of another kind."""
        return logits.argmax(1) == labels if self.objective is None else self.objective.hits(logits, tasks, labels)

    def predictions(self, logits: Tensor, tasks: Tensor) -> Tensor:
        """What logits say, in the form of a batch's labels: (N,) int64, or (N, C) float32 with tasks of other kinds."""
        return logits.argmax(1) if self.objective is None else self.objective.predictions(logits, tasks)

    def evaluate(self, batch: Batch, stage: str) -> dict[str, Any]:
        """One batch of validation or test; returns the ``prediction``, for callbacks."""
        images, tasks, labels = batch
        logits = self.with_mirrored(self(images, tasks), images, tasks)
        self.count_logits(stage, logits, tasks, labels)
        return {"prediction": self.predictions(logits, tasks)}

    def with_mirrored(self, logits: Tensor, images: Tensor, tasks: Tensor) -> Tensor:
        """Logits (N, C) of images, or, with ``flip_test``, their mean with those of the mirror images."""
        if not self.flip_test:
            return logits
        mirrored: Tensor = self(images.flip(-1), tasks)
        return (logits + mirrored) / 2

    def see_evaluation(self, batch_idx: int) -> None:
        """Stops if the images of a batch were not finite."""
        if self.detector is not None:
            self.detector.see_evaluation(self, batch_idx)

    def count_logits(self, stage: str, logits: Tensor, tasks: Tensor, labels: Tensor) -> None:
        """Counts a batch by its logits (N, C)."""
        loss = self.losses(logits, tasks, labels, apart=False).mean()
        self.count(stage, loss, self.hits(logits, tasks, labels), tasks, logits, labels)

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> dict[str, Any]:
        """Counts a batch for ``val/*``."""
        self.see_evaluation(batch_idx)
        return self.evaluate(batch, "val")

    def test_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> dict[str, Any]:
        """Counts a batch for ``test/*``."""
        self.see_evaluation(batch_idx)
        return self.evaluate(batch, "test")

    def logits_and_route(self, images: Tensor, tasks: Tensor) -> tuple[Tensor, Tensor | None]:
        """Logits (N, C) and, in a routed network, the block at each depth (N, D) on the host."""
        return self(images, tasks), None

    def predict_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> dict[str, Tensor]:
        """Predictions of a batch, on the host.

        Returns:
            ``task``, (N,) int64; ``label`` and ``prediction``, (N,) int64, and ``probability`` of the prediction, (N,)
            float32; in a routed network ``route``, the block at each depth, (N, D) int64. With tasks of other kinds
            than classes ``label`` is (N, K) and ``prediction`` and ``probability`` are (N, C) float32, as
            :class:`~routing_lightning.datamodules.base.MultiTaskDataset` says.
        """
        self.see_evaluation(batch_idx)
        images, tasks, labels = batch
        logits, route = self.logits_and_route(images, tasks)
        logits = self.with_mirrored(logits, images, tasks)
        if self.objective is None:
            probability = logits.float().softmax(1).amax(1)
        else:
            probability = self.objective.probabilities(logits, tasks)
        found = {
            "task": tasks,
            "label": labels,
            "prediction": self.predictions(logits, tasks),
            "probability": probability,
        }
        if route is not None:
            found["route"] = route
        return {name: values.cpu() for name, values in found.items()}

    # Metrics begin anew at the start of an epoch, not after its report: one that was broken off leaves nothing behind.

    def on_train_epoch_start(self) -> None:
        """Begins ``train/*``."""
        self.metric("train").reset()

    def on_validation_epoch_start(self) -> None:
        """Begins ``val/*``; all processes validate the model of the first one, which is the one that is saved.

        Raises:
            UsageError: if there are several loaders.
        """
        check_one_loader("validation", self.trainer.num_val_batches)
        self.metric("val").reset()
        if self.trainer.world_size > 1:
            self.share_buffers()
        if self.trainer.state.fn == TrainerFn.FITTING and not self.trainer.sanity_checking:
            self.set_logged_step(back=0 if self.is_accumulating() and self.automatic_optimization else 1)

    def share_buffers(self) -> None:
        """Gives all processes the buffers of the first one: each has the batch statistics of its own last batch."""
        own = set(getattr(self, "_ddp_params_and_buffers_to_ignore", ()))  # equal anyhow, and on the host
        for name, buffer in self.named_buffers():
            if name not in own:
                dist.broadcast(buffer, src=0)

    def on_test_epoch_start(self) -> None:
        """Begins ``test/*``.

        Raises:
            UsageError: if there are several loaders.
        """
        check_one_loader("test", self.trainer.num_test_batches)
        self.metric("test").reset()

    def on_train_epoch_end(self) -> None:
        """Reports ``train/*`` and steps the schedulers that look at metrics."""
        if self.detector is not None:
            self.detector.look(self, self.trainer.fit_loop.epoch_loop.batch_idx)
        self.set_logged_step()
        self.report("train")
        if self.milestones.last_batch != self.batches_done():
            return  # stopped within the epoch, which a resumed run completes
        for config in self.trainer.lr_scheduler_configs:
            if is_plateau(config.scheduler):
                config.scheduler.step(self.monitored(config.scheduler))  # type: ignore[arg-type]
        self.milestones.epoch_end = self.batches_done()

    def on_validation_epoch_end(self) -> None:
        """Reports ``val/*``."""
        if self.detector is not None:
            self.detector.meet(self)
        self.report("val")
        if self.trainer.state.fn == TrainerFn.FITTING and not self.trainer.sanity_checking:
            self.milestones.validation = self.batches_done()

    def on_test_epoch_end(self) -> None:
        """Reports ``test/*``."""
        if self.detector is not None:
            self.detector.meet(self)
        self.report("test")
