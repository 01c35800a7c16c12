"""What a run of the matrix leaves behind."""

import json
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch

from routing_lightning.plots import private_blocks


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
        routed = router is not None and not router.uses_state
        found = {
            "accuracy": round(100 * float(metrics["val/acc"]), 2),
            "accuracy_micro": round(100 * float(metrics["val/acc_micro"]), 2),
            "seconds": round(time.perf_counter() - self.start, 3),
            "images": torch.bincount(data.train_dataset.tasks, minlength=data.num_tasks).tolist(),
            "private": private_blocks(router.routes().numpy()).astype(int).tolist() if routed else None,
        }
        Path(self.file).write_text(json.dumps(found))
