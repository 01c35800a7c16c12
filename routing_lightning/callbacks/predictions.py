"""Writes what ``predict`` finds."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import BasePredictionWriter

from routing_lightning.paths import local_path


class PredictionTable(BasePredictionWriter):
    """Writes ``predictions.csv`` beside the logs: index, task, label and prediction of each sample, by name.

    Where the datamodule has ``test_columns``, texts by name for each sample, these columns follow.

    With several processes the first one writes the samples of all.
    """

    def __init__(self) -> None:
        super().__init__(write_interval="epoch")

    def write_on_epoch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        predictions: Sequence[Any],
        batch_indices: Sequence[Any],
    ) -> None:
        """Writes the table."""
        parts: list[Any] = [predictions]
        if trainer.world_size > 1:
            parts = [None] * trainer.world_size
            dist.all_gather_object(parts, predictions)
        # All processes ask: the answer is the first one's.
        folder = Path(local_path(trainer.log_dir or trainer.default_root_dir))
        if not trainer.is_global_zero:
            return
        # The processes take turns, batch by batch (datamodules, EvaluationBatchSampler).
        batches = [batch for turn in zip(*parts, strict=True) for batch in turn]
        task, label, prediction = (
            torch.cat([batch[key] for batch in batches]).tolist() for key in ("task", "label", "prediction")
        )
        data = getattr(trainer, "datamodule", None)
        task_names, class_names = getattr(data, "task_names", None), getattr(data, "class_names", None)
        columns = {
            name: values
            for name, values in (getattr(data, "test_columns", None) or {}).items()
            if name not in ("index", "task", "label", "prediction")
        }
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "predictions.csv", "w", newline="", encoding="utf-8", errors="surrogateescape") as file:
            writer = csv.writer(file)
            writer.writerow(["index", "task", "label", "prediction", *columns])
            for index, row in enumerate(zip(task, label, prediction, strict=True)):
                names = class_names[row[0]] if class_names else None
                labels = [names[value] if names and value < len(names) else value for value in row[1:]]
                further = [values[index] for values in columns.values()]
                writer.writerow([index, task_names[row[0]] if task_names else row[0], *labels, *further])
        print(f"Predictions: {folder / 'predictions.csv'}")
