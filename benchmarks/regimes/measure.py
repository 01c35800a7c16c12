"""What a run of the matrix leaves behind."""

import json
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor


class Measured(L.Callback):
    """Writes to a file what was measured at the end of a training.

    That is accuracy in % (mean over tasks, and over samples), seconds of the training with its one validation, training
    images of each task, and for each task by depth whether its block is its own (1) or serves others too (0), if its
    route depends on the task alone.

    Args:
        file: path of a JSON file.
    """

    def __init__(self, file: str) -> None:
        self.file = file

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.start = time.perf_counter()

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        metrics = trainer.callback_metrics
        router = getattr(pl_module, "router", None)
        found = {
            "accuracy": round(100 * float(metrics["val/acc"]), 2),
            "accuracy_micro": round(100 * float(metrics["val/acc_micro"]), 2),
            "seconds": round(time.perf_counter() - self.start, 1),
            "images": torch.bincount(data.train_dataset.tasks, minlength=data.num_tasks).tolist(),
            "private": None if router is None or router.uses_state else private_blocks(router.routes()).tolist(),
        }
        Path(self.file).write_text(json.dumps(found))


def private_blocks(routes: Tensor) -> Tensor:
    """Whether a task alone takes its block: routes (T, D) -> (T, D), 1 or 0."""
    return ((routes.unsqueeze(1) == routes.unsqueeze(0)).sum(1) == 1).long()
