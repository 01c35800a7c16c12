"""Metrics that callbacks and schedules look at or name files by: told at the start where nobody will log them."""

import re
from collections.abc import Iterable

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, LambdaCallback, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from routing_lightning.errors import UsageError, hint

OWN = ("lightning", "lightning_fabric", "pytorch_lightning", "routing_lightning")

COUNTED = ("epoch", "step")
"""What Lightning counts and a ModelCheckpoint may name besides metrics."""

_FIELD = re.compile(r"\{(.*?)[:}]")
# What LearningRateMonitor adds to the name of an optimizer: its number, parameter group and quantity.
_OF_RATE = r"(-\d+)?(/pg\d+)?(-momentum|-weight_decay)?"


def check_monitors(trainer: L.Trainer, model: L.LightningModule, names: Iterable[str]) -> None:
    """Checks that what callbacks and schedules monitor, or name files by, is among the metrics of a training.

    Only where all who may log are known: a model or callback of the user's may log what it likes. (A datamodule cannot:
    Lightning refuses it in all of its hooks.)

    Args:
        trainer: the Trainer of the run, with its schedulers.
        model: the model.
        names: the metrics that it may log.

    Raises:
        UsageError: if something is monitored that nobody logs, or the name of a file asks for it or cannot be written;
            it names the nearest that there is.
    """
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    users = [one for one in (model, *callbacks) if type(one).__module__.partition(".")[0] not in OWN]
    if users or any(isinstance(one, LambdaCallback) for one in callbacks):
        return
    known = list(names)
    rates = []
    if any(isinstance(one, LearningRateMonitor) for one in callbacks):
        rates = [f"lr-{type(optimizer).__name__}" for optimizer in trainer.optimizers]
    monitored = [
        (f"lr_scheduler {type(config.scheduler).__name__}", getattr(config.scheduler, "monitor", None))
        for config in trainer.lr_scheduler_configs
    ]
    for callback in callbacks:
        if isinstance(callback, (EarlyStopping, ModelCheckpoint)):
            is_needed = getattr(callback, "strict", True) and getattr(callback, "save_top_k", 1) != 0
            monitored.append((type(callback).__name__, callback.monitor if is_needed else None))
    for who, name in monitored:
        if name is None or _is_logged(name, known, rates) or (who == "ModelCheckpoint" and name in COUNTED):
            continue
        near = _nearest(name, [*known, *rates])
        raise UsageError(
            f"{near}monitor of {who} is {name!r}, which nobody logs; give one of {_shown([*known, *rates])}."
        )
    validates = trainer.enable_validation
    written = [name for name in known if validates or not name.startswith("val/")]
    for callback in callbacks:
        for option, pattern in _patterns(callback):
            for name in _FIELD.findall(pattern):
                if name in COUNTED or _is_logged(name, written, rates):
                    continue
                raise UsageError(
                    f"{_nearest(name, [*written, *rates, *COUNTED])}{option} of {type(callback).__name__} is "
                    f"{pattern!r}, but {name} is no metric of this training; give one of epoch, step, "
                    f"{_shown(written)}."
                )
            _check_format(callback, option, pattern, [*written, *_FIELD.findall(pattern)])


def note_unlogged(trainer: L.Trainer) -> None:
    """Notes, when a checkpoint is saved, what its name shall have and nobody has logged: Lightning writes 0 for it.

    At the start that cannot be known where a callback or model of the user's logs, or where the first file is saved
    before the first validation.
    """
    for callback in trainer.checkpoint_callbacks:
        if not isinstance(callback, ModelCheckpoint) or not (callback.best_model_path or callback.last_model_path):
            continue
        for option, pattern in _patterns(callback):
            for name in _FIELD.findall(pattern):
                if name not in COUNTED and name not in trainer.callback_metrics:
                    near = hint(name, trainer.callback_metrics)
                    rank_zero_warn(
                        f"{option} of {type(callback).__name__} is {pattern!r}, but nobody has logged {name} so far: "
                        f"0 stands for it in the name of the file{near}"
                    )


def _patterns(callback: L.Callback) -> list[tuple[str, str]]:
    """Patterns by which a callback names the files that it writes, each with the option that it is of."""
    if not isinstance(callback, ModelCheckpoint):
        return []
    names = [("filename", callback.filename if callback.save_top_k != 0 else None)]
    names.append(("CHECKPOINT_NAME_LAST", callback.CHECKPOINT_NAME_LAST if callback.save_last else None))
    return [(option, pattern) for option, pattern in names if pattern]


def _check_format(callback: ModelCheckpoint, option: str, pattern: str, names: Iterable[str]) -> None:
    """Writes a name as it will be written after an epoch, which ends the run where it cannot be."""
    values = {name: torch.tensor(0.5) for name in names} | {name: torch.tensor(1) for name in COUNTED}
    try:
        callback._format_checkpoint_name(pattern, values, auto_insert_metric_name=callback.auto_insert_metric_name)
    except (ValueError, TypeError, LookupError) as error:
        raise UsageError(
            f"{option} of {type(callback).__name__} is {pattern!r}, which cannot be filled in ({error}); write it as "
            "{epoch}-{val/loss:.2f}, with a format of numbers behind the colon, or none."
        ) from error


def _is_logged(name: str, known: Iterable[str], rates: Iterable[str]) -> bool:
    return name in known or any(re.fullmatch(re.escape(rate) + _OF_RATE, name) for rate in rates)


def _nearest(name: str, known: Iterable[str]) -> str:
    near = hint(name, known)
    return f"there is no {name}{near} " if near else ""


def _shown(known: Iterable[str]) -> str:
    return ", ".join(one for one in known if "_task/" not in one and "depth_" not in one)
