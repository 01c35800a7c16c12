"""TaskAccuracy: the accuracy of all tasks in one picture, each in its colour."""

from typing import Any

import lightning as L
import numpy as np
from lightning.pytorch.trainer.states import TrainerFn

from routing_lightning.callbacks.access import Epochs, log_png, writers
from routing_lightning.plots import Curve, accuracy_curves, figure_png
from routing_lightning.plots.style import shortened

# Pictures by the prefix of what they show: name, title and axis.
SHOWN = {
    "val/acc_task/": ("accuracy_of_tasks", "Accuracy of each task", "accuracy in validation"),
    "val/f1_task/": ("f1_of_tasks", "F1 of each task of labels", "F1 in validation, mean over labels"),
    "val/r2_task/": ("r2_of_tasks", "R² of each task of values", "R² in validation, 0 where it is below"),
}


class TaskAccuracy(L.Callback):
    """Draws the accuracy of each task over the epochs as the picture ``accuracy_of_tasks``, with and without a router.

    Tasks of labels are in ``f1_of_tasks``, those of values in ``r2_of_tasks``.

    TensorBoard's charts colour by run, so that all tasks of a run look alike there. Drawn after epoch 2, 4, ..., then
    every ``every_n_epochs`` epochs, and the last. The history is part of the checkpoint.

    Args:
        every_n_epochs: epochs between two pictures, at least 1.

    Raises:
        UsageError: if the value is below 1.
    """

    def __init__(self, every_n_epochs: int = 10) -> None:
        self.epochs = Epochs(every_n_epochs, "TaskAccuracy")
        self.history: dict[str, dict[int, float]] = {}  # by the name that is logged

    def state_dict(self) -> dict[str, Any]:
        """The history."""
        return {"history": self.history}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes a history over."""
        self.history = {task: dict(values) for task, values in state_dict["history"].items()}

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Starts to count from here, and forgets what a later epoch of another training left."""
        self.epochs.last = trainer.current_epoch
        for values in self.history.values():
            for epoch in [epoch for epoch in values if epoch > trainer.current_epoch]:
                del values[epoch]

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Notes the accuracies."""
        if trainer.sanity_checking or trainer.state.fn != TrainerFn.FITTING:
            return
        for name, value in trainer.callback_metrics.items():
            if name.startswith(tuple(SHOWN)):
                values = self.history.setdefault(name, {})
                values[trainer.current_epoch + 1] = float(value)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Draws the picture if it is due."""
        if not self.epochs.over(trainer) or not writers(trainer) or not self.history:
            return
        for prefix, (tag, title, axis) in SHOWN.items():
            curves = [
                Curve(
                    shortened(name.removeprefix(prefix), 22),
                    np.array(list(values)),
                    np.maximum(list(values.values()), 0),
                    np.zeros(len(values)),
                )
                for name, values in self.history.items()
                if name.startswith(prefix)
            ]
            if not curves:
                continue
            # Narrow: TensorBoard shows it 240 pixels wide, and its words should still be read.
            png = figure_png(accuracy_curves(curves, title, what=axis, inches=3.0), dpi=120)
            for writer in writers(trainer):
                log_png(writer, tag, png, trainer.global_step)
