"""What every multi-task classifier shares: batches, metrics, optimizer."""

import math
import os
import warnings
from types import FrameType
from typing import Any, cast

import lightning as L
import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.nn.functional import cross_entropy

from routing_lightning.errors import UsageError
from routing_lightning.metrics import TaskMetrics
from routing_lightning.modules.masking import label_mask, mask_logits
from routing_lightning.noise import NoiseKeys

Batch = tuple[Tensor, Tensor, Tensor]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """The optimizer of the paper (section 4): SGD with learning rate 1e-2, no momentum."""
    return torch.optim.SGD(parameters, lr=1e-2)


def is_plain(value: Any) -> bool:
    """Whether a value consists of numbers, text, None, lists and dicts alone."""
    if isinstance(value, dict):
        return all(is_plain(key) and is_plain(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return all(is_plain(item) for item in value)
    return value is None or isinstance(value, (bool, int, float, str))


class TaskClassifier(L.LightningModule):
    """Base of the classifiers: takes batches ``(image, task, label)`` and reports accuracy per task.

    Logs ``<stage>/loss``, ``<stage>/acc`` (macro: the mean over tasks) and ``<stage>/acc_task/<name>`` at the end of
    each epoch, stage being train, val or test.

    Args:
        num_tasks: T, number of tasks, at least 1.
        num_classes: C, the largest number of labels of a task, at least 2.
        optimizer: makes the optimizer from the parameters; SGD with lr 1e-2 (paper, section 4) by default.
        lr_scheduler: makes the learning rate scheduler from the optimizer; none by default.
        lr_interval: step the scheduler each ``"epoch"`` or each optimizer ``"step"``.

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
    ) -> None:
        super().__init__()
        if num_tasks < 1:
            raise UsageError(f"num_tasks is {num_tasks}; give at least 1 task.")
        if num_classes < 2:
            raise UsageError(f"num_classes is {num_classes}; give the number of labels of a task, at least 2.")
        if lr_interval not in ("epoch", "step"):
            raise UsageError(f"lr_interval is {lr_interval!r}; give 'epoch' or 'step'.")
        self.num_tasks = num_tasks
        self.num_classes = num_classes
        self.make_optimizer = optimizer
        self.make_lr_scheduler = lr_scheduler
        self.lr_interval = lr_interval
        self.label_mask: Tensor | None = None  # all tasks have all labels, unless the data say otherwise
        self.metrics = torch.nn.ModuleDict(
            {f"{stage}_metrics": TaskMetrics(num_tasks) for stage in ("train", "val", "test")}
        )

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

    # -- batches -------------------------------------------------------------------------------------------------------

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Checks a batch while it is on the host.

        Raises:
            UsageError: if it is not ``(image, task, label)`` with one task and label per image, in their ranges.
        """
        if not (isinstance(batch, (tuple, list)) and len(batch) == 3 and all(isinstance(x, Tensor) for x in batch)):
            raise UsageError(f"a batch is a {type(batch).__name__}; the data must yield tensors (image, task, label).")
        images, tasks, labels = batch
        if not (tasks.shape == labels.shape == images.shape[:1]):
            raise UsageError(
                f"a batch has shapes {tuple(images.shape)}, {tuple(tasks.shape)} and {tuple(labels.shape)}; the data "
                "must yield as many tasks (N,) and labels (N,) as images (N, ...)."
            )
        for name, values, option, count in (
            ("task", tasks, "num_tasks", self.num_tasks),
            ("label", labels, "num_classes", self.num_classes),
        ):
            if len(values) and not (int(values.min()) >= 0 and int(values.max()) < count):
                bad = int(values[(values < 0) | (values >= count)][0])
                raise UsageError(
                    f"a batch has {name} {bad}, allowed is 0..{count - 1}; mend the data or set {option} of the model."
                )
        return batch

    def task_names(self) -> list[str]:
        """Names of the tasks, from the datamodule where there is one."""
        names = getattr(getattr(self._trainer, "datamodule", None), "task_names", None)
        return list(names) if names else [str(task) for task in range(self.num_tasks)]

    def setup(self, stage: str) -> None:
        """Checks the model against the data, once, before the first batch.

        Raises:
            UsageError: if the data has more tasks or labels than the model.
        """
        data = getattr(self.trainer, "datamodule", None)
        for option in ("num_tasks", "num_classes"):
            needed, own = getattr(data, option, None), getattr(self, option)
            if isinstance(needed, int) and needed > own:
                raise UsageError(
                    f"{option} of the model is {own} but the data has {needed}; set --model.init_args.{option}={needed}"
                )

        self.label_mask = label_mask(getattr(data, "classes_per_task", ()), self.num_classes)

    # -- labels that a task does not have ------------------------------------------------------------------------------

    def masked(self, logits: Tensor, tasks: Tensor) -> Tensor:
        """Logits (N, C) with those at minus infinity that the samples' tasks (N,) do not have."""
        if self.label_mask is None:
            return logits
        if self.label_mask.device != tasks.device:
            self.label_mask = self.label_mask.to(tasks.device)
        return mask_logits(logits, tasks, self.label_mask)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keeps which labels each task has."""
        checkpoint["label_mask"] = None if self.label_mask is None else self.label_mask.tolist()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restores which labels each task has, for a model without its data."""
        mask = checkpoint.get("label_mask")
        if mask is not None:
            self.label_mask = torch.tensor(mask)

    # -- optimizer -----------------------------------------------------------------------------------------------------

    def trained_parameters(self) -> list[torch.nn.Parameter]:
        """Parameters that the optimizer moves."""
        return list(self.parameters())

    def configure_optimizers(self) -> Any:
        """Optimizer and scheduler as configured.

        Raises:
            UsageError: if the optimizer or scheduler refuses its values.
        """
        try:
            optimizer = self.make_optimizer(self.trained_parameters())
            if isinstance(optimizer, torch.optim.LBFGS):
                raise ValueError("LBFGS evaluates the loss several times per step, which is not supported here")
            if not all(math.isfinite(group.get("lr", 0)) for group in optimizer.param_groups):
                raise ValueError(f"lr is {optimizer.param_groups[0]['lr']}, which is no finite number")
            self.configured = dict(optimizer.defaults)
            if self.make_lr_scheduler is None:
                return optimizer
            scheduler = self.make_lr_scheduler(optimizer)
        except (ValueError, TypeError) as error:
            raise UsageError(
                f"the optimizer or lr_scheduler refuses its values: {error}; mend its init_args."
            ) from error
        plateau = isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
        if plateau and not hasattr(scheduler, "monitor"):
            raise UsageError(
                "lr_scheduler ReduceLROnPlateau of torch does not say what it monitors; use "
                "lightning.pytorch.cli.ReduceLROnPlateau with monitor, for example val/loss."
            )
        config: dict[str, Any] = {"scheduler": scheduler, "interval": self.lr_interval}
        if hasattr(scheduler, "monitor"):
            config["monitor"] = scheduler.monitor
        return {"optimizer": optimizer, "lr_scheduler": config}

    # -- noise ---------------------------------------------------------------------------------------------------------

    def on_fit_start(self) -> None:
        """Notes the seed of the run: that of ``seed_everything``, or torch's own."""
        self.noise_keys = NoiseKeys(int(os.environ.get("PL_GLOBAL_SEED", torch.initial_seed())))

    def noise_key(self, batch_idx: int) -> int:
        """Seed of a training batch's noise on this process, in [0, 2^63)."""
        return self.noise_keys.key(self.current_epoch, self.global_rank, batch_idx)

    def on_train_start(self) -> None:
        """Says which values of the optimizer a resumed run takes from its checkpoint and not from its config."""
        group = self.trainer.optimizers[0].param_groups[0]
        for name in ("lr", "momentum", "weight_decay"):
            own = self.configured.get(name)
            kept = group.get("initial_lr", group["lr"]) if name == "lr" else group.get(name)
            # Schedulers such as OneCycleLR set values of their own, also without a checkpoint.
            if self.trainer.ckpt_path and own is not None and own != kept:
                rank_zero_warn(
                    f"the optimizer goes on with {name} {kept} of the checkpoint, not {own} of the config; to change "
                    "it, start a new run from the weights."
                )

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Seeds what draws from torch's global source (dropout, Gumbel noise), apart from the actions' own."""
        seed = self.noise_key(batch_idx)
        # Only the sources in use: torch.manual_seed would note the call, with a trace of the stack, for each kind of
        # device that was never used, which costs time each step and memory for good.
        torch.default_generator.manual_seed(seed)
        if self.device.type != "cpu":
            torch.get_device_module(self.device).manual_seed(seed)

    # -- metrics -------------------------------------------------------------------------------------------------------

    def metric(self, stage: str) -> TaskMetrics:
        """The metric of a stage: train, val or test."""
        return cast(TaskMetrics, self.metrics[f"{stage}_metrics"])

    def count(self, stage: str, loss: Tensor, hits: Tensor, tasks: Tensor) -> None:
        """Counts a batch for the stage's metrics: mean loss (), hits (N,) bool, tasks (N,)."""
        self.metric(stage).update(loss.detach(), hits, tasks.to(hits.device, non_blocking=True))

    def report(self, stage: str) -> None:
        """Logs the stage's metrics over the epoch, each sample counted once over all processes."""
        metric = self.metric(stage)
        loss, accuracies = metric.compute()  # the same on all processes: torchmetrics adds up their counts
        metric.reset()
        self.log(f"{stage}/loss", loss)
        self.log(f"{stage}/acc", accuracies.nanmean(), prog_bar=True)
        # torchmetrics makes a number of the accuracy of a single task
        named = zip(self.task_names(), accuracies.reshape(-1), strict=False)
        self.log_dict({f"{stage}/acc_task/{name}": value for name, value in named if not value.isnan()})

    # -- steps ---------------------------------------------------------------------------------------------------------

    def evaluate(self, batch: Batch, stage: str) -> dict[str, Any] | None:
        """One batch of validation or test; what it returns reaches the callbacks."""
        images, tasks, labels = batch
        self.count_logits(stage, self(images, tasks), tasks, labels)
        return None

    def count_logits(self, stage: str, logits: Tensor, tasks: Tensor, labels: Tensor) -> None:
        """Counts a batch by its logits (N, C)."""
        self.count(stage, cross_entropy(logits.float(), labels), logits.argmax(1) == labels, tasks)

    def validation_step(self, batch: Batch, batch_idx: int) -> dict[str, Any] | None:
        """Counts a batch for ``val/*``."""
        return self.evaluate(batch, "val")

    def test_step(self, batch: Batch, batch_idx: int) -> dict[str, Any] | None:
        """Counts a batch for ``test/*``."""
        return self.evaluate(batch, "test")

    def predict_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """Predictions of a batch: ``task``, ``label`` and ``prediction``, each (N,) int64 on the host."""
        images, tasks, labels = batch
        prediction = self(images, tasks).argmax(1)
        return {"task": tasks.cpu(), "label": labels.cpu(), "prediction": prediction.cpu()}

    def on_train_epoch_end(self) -> None:
        """Reports ``train/*``."""
        self.report("train")

    def on_validation_epoch_end(self) -> None:
        """Reports ``val/*``."""
        self.report("val")

    def on_test_epoch_end(self) -> None:
        """Reports ``test/*``."""
        self.report("test")
