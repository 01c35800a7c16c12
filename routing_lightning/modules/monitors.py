"""Metrics that callbacks and schedules look at: told at the start where nobody will log them."""

from collections.abc import Iterable

import lightning as L
from lightning.pytorch.callbacks import EarlyStopping, LambdaCallback, ModelCheckpoint

from routing_lightning.errors import UsageError, hint

OWN = ("lightning", "lightning_fabric", "pytorch_lightning", "routing_lightning")


def check_monitors(trainer: L.Trainer, model: L.LightningModule, names: Iterable[str]) -> None:
    """Checks that what callbacks and schedules monitor is among the metrics of a training.

    Only where all who may log are known: a model or callback of the user's may log what it likes. (A datamodule cannot:
    Lightning refuses it in all of its hooks.)

    Args:
        trainer: the Trainer of the run, with its schedulers.
        model: the model.
        names: the metrics that it may log.

    Raises:
        UsageError: if something is monitored that nobody logs; it names the nearest that there is.
    """
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    users = [one for one in (model, *callbacks) if type(one).__module__.partition(".")[0] not in OWN]
    if users or any(isinstance(one, LambdaCallback) for one in callbacks):
        return
    known = list(names)
    monitored = [
        (f"lr_scheduler {type(config.scheduler).__name__}", getattr(config.scheduler, "monitor", None))
        for config in trainer.lr_scheduler_configs
    ]
    for callback in callbacks:
        if isinstance(callback, (EarlyStopping, ModelCheckpoint)):
            is_needed = getattr(callback, "strict", True) and getattr(callback, "save_top_k", 1) != 0
            monitored.append((type(callback).__name__, callback.monitor if is_needed else None))
    for who, name in monitored:
        if name is None or name in known or name.startswith("lr-"):  # that of LearningRateMonitor
            continue
        if who == "ModelCheckpoint" and name in ("epoch", "step"):
            continue
        shown = ", ".join(one for one in known if "_task/" not in one and "depth_" not in one)
        near = hint(name, known)
        asked = f"there is no {name}{near} " if near else ""
        raise UsageError(f"{asked}monitor of {who} is {name!r}, which nobody logs; give one of {shown}.")
