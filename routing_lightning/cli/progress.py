"""A progress bar that fits into 80 columns."""

from typing import Any

import lightning as L
from lightning.pytorch.callbacks import RichProgressBar
from rich.progress import BarColumn, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

# What is shown beside the bar, by the names under which it is logged.
SHOWN = {"train/loss_step": "loss", "val/acc": "acc", "val/f1": "F1", "val/r2": "R²"}


class TimeLeft(ProgressColumn):
    """Time left in the epoch, such as ``1:05 left``."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        """The time; nothing where it is not known yet."""
        if task.finished or task.time_remaining is None:
            return Text("")
        minutes, seconds = divmod(int(task.time_remaining), 60)
        hours, minutes = divmod(minutes, 60)
        return Text(f"{hours}:{minutes:02}:{seconds:02} left" if hours else f"{minutes}:{seconds:02} left")


class NarrowProgressBar(RichProgressBar):
    """Epoch, bar, step, time left, loss and accuracy, in one line of at most 80 columns.

    Without tasks of classes F1 and R² are in the place of accuracy.
    """

    def configure_columns(self, trainer: L.Trainer) -> list[Any]:
        """The columns; Lightning adds the metrics."""
        return [
            TextColumn("{task.description}", table_column=Column(no_wrap=True, max_width=18)),
            BarColumn(bar_width=12),
            TextColumn("{task.completed:.0f}/{task.total:.0f}", table_column=Column(no_wrap=True)),
            TimeLeft(table_column=Column(no_wrap=True)),
        ]

    def _get_train_description(self, current_epoch: int) -> str:
        description: str = super()._get_train_description(current_epoch)
        # Lightning counts to max_epochs - 1, also where that is -1: no end.
        return description.replace("/-2", "") if self.trainer.max_epochs == -1 else description

    def get_metrics(self, trainer: L.Trainer, pl_module: L.LightningModule) -> dict[str, Any]:
        """Loss of the step and accuracy of the last validation."""
        metrics = super().get_metrics(trainer, pl_module)
        return {label: metrics[name] for name, label in SHOWN.items() if name in metrics}
