"""TaskResults: what a test finds of each task, as a file and as pictures."""

from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor

from routing_lightning.callbacks.access import log_png, writers
from routing_lightning.errors import UsageError
from routing_lightning.plots import draw_tested, figure_png
from routing_lightning.record import TestedTask, save_test, sum_up
from routing_lightning.rows import RowGatherer


class TaskResults(L.Callback):
    """Writes ``test.json`` and pictures at the end of ``test``: confusion of classes, F1 of labels, errors of values.

    The file lies in the run's folder; the report draws from it. Pictures are ``test/<task>``. For tasks of classes it
    logs ``test/f1_macro_task/<name>``, F1, mean over the classes that are there or predicted, and ``test/f1_macro``,
    the mean over tasks. It does nothing in other commands.

    Args:
        most_pictures: tasks to draw, the first ones; the file has all.
    """

    def __init__(self, most_pictures: int = 24) -> None:
        if most_pictures < 0:
            raise UsageError(f"most_pictures of TaskResults is {most_pictures}; give 0 or more.")
        self.most_pictures = most_pictures
        self._batches: list[tuple[Tensor, Tensor, Tensor]] = []
        self._found: list[TestedTask] = []

    def on_test_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Forgets what an earlier test left."""
        self._batches.clear()
        self._found = []

    def on_test_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Notes the predictions."""
        if isinstance(outputs, dict) and "prediction" in outputs:
            self._batches.append((batch[1], batch[2], outputs["prediction"]))

    def on_test_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Sums up the samples of all processes."""
        if not self._batches:
            return
        parts = [torch.cat([part.cpu() for part in column]) for column in zip(*self._batches, strict=True)]
        self._batches.clear()
        width = 1 if parts[1].dim() == 1 else parts[1].shape[1]
        rows = torch.cat([part.reshape(len(part), -1).double() for part in parts], 1)
        if trainer.world_size > 1:
            rows = torch.cat(RowGatherer()(rows, trainer.strategy.root_device))
        tasks, labels, predictions = np.split(rows.numpy(), [1, 1 + width], axis=1)
        tasks = tasks[:, 0]
        names: list[str] = pl_module.task_names()  # type: ignore[operator]
        data = getattr(trainer, "datamodule", None)
        objective, class_names = getattr(pl_module, "objective", None), getattr(data, "class_names", None)
        scores: dict[str, float] = {}
        for number, name in enumerate(names):
            own = tasks == number
            if not own.any():
                continue
            kind = "classes" if objective is None else objective.targets.kinds[number]
            if class_names:
                classes = list(class_names[number])
            else:
                size: Any = pl_module.num_classes if objective is None else objective.targets.sizes[number]
                classes = [str(place) for place in range(size)]
            task = sum_up(name, kind, classes, labels[own], predictions[own])
            self._found.append(task)
            if kind == "classes":
                scores[name] = task.f1_macro()
        for name, score in scores.items():
            pl_module.log(f"test/f1_macro_task/{name}", score)
        if scores:
            pl_module.log("test/f1_macro", float(np.mean(list(scores.values()))))

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Writes the file and the pictures."""
        folder = trainer.log_dir  # all processes ask: the answer is the first one's
        if not self._found or not trainer.is_global_zero or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        save_test(self._found, Path(folder or trainer.default_root_dir))
        pictures = writers(trainer)
        for task in self._found[: self.most_pictures] if pictures else []:
            png = figure_png(draw_tested(task))
            for writer in pictures:
                log_png(writer, f"test/{task.name}", png, trainer.global_step)
