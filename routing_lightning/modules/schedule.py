"""Lengths of learning rate schedules that come from the run."""

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import StochasticWeightAveraging
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR, ReduceLROnPlateau

from routing_lightning.errors import UsageError

LENGTHS = ("total_steps", "T_max", "total_iters")
"""What torch's schedulers call the number of their steps: OneCycleLR, CosineAnnealingLR, LinearLR and PolynomialLR."""

LASTING = "end the run with it (trainer.max_epochs or max_steps), or start a new run with a schedule as long as the run"
"""What to do where a schedule is over before the run."""


def open_length(make: Any) -> str | None:
    """Name of the argument for a schedule's length that is left to the run, null or -1; None if there is none.

    Args:
        make: what makes a scheduler of an optimizer, as a config or ``functools.partial`` gives it.
    """
    if not isinstance(make, partial):
        return None
    kinds = [part for part in (make.func, *make.args) if inspect.isclass(part) and issubclass(part, LRScheduler)]
    if not kinds:
        return None
    for name in LENGTHS:
        if name in inspect.signature(kinds[0]).parameters:
            # OneCycleLR takes its length in two ways, of which torch checks the second.
            given = [make.keywords.get(other) for other in ("epochs", "steps_per_epoch")]
            is_open = name in make.keywords or inspect.signature(kinds[0]).parameters[name].default is None
            return name if is_open and make.keywords.get(name) in (None, -1) and given == [None, None] else None
    return None


def with_length(make: Any, length: Callable[[], int]) -> Any:
    """What makes a scheduler, with the length that its values leave open; as it is where they leave none open.

    Args:
        make: what makes a scheduler of an optimizer; None: there is none.
        length: gives the length.
    """
    name = open_length(make)
    return make if name is None else partial(make, **{name: length()})


def run_length(trainer: L.Trainer, batches_per_step: Callable[[int], int], interval: str) -> int:
    """Number of steps that a schedule makes in a run, at least 1.

    Args:
        trainer: the Trainer of the run.
        batches_per_step: batches per optimizer step, at least 1, in an epoch, from 0; its last step may have fewer.
        interval: ``"epoch"``, or ``"step"``: an optimizer step.

    Raises:
        UsageError: if nothing says how long the run is.
    """
    trainer.fit_loop.setup_data()
    batches, epochs, most = trainer.num_training_batches, trainer.max_epochs, trainer.max_steps
    endless, countless = epochs in (None, -1), math.isinf(batches)
    if countless and interval == "epoch" and not endless:
        return max(1, int(epochs or 1))
    if countless and interval == "step" and most != -1:
        return most
    if countless or (endless and most == -1):
        raise UsageError(
            f"the length of lr_scheduler is left to the run, but trainer.max_epochs {epochs} and trainer.max_steps "
            f"{most} do not say how many {interval}s that has; set trainer.max_{interval}s, or the length in the "
            "init_args of lr_scheduler."
        )
    done = steps = 0
    while (endless or done < max(1, int(epochs or 1))) and (most == -1 or steps < most):
        steps += max(1, math.ceil(batches / batches_per_step(done)))
        done += 1
    return max(1, done if interval == "epoch" else steps if most == -1 else min(steps, most))


def check_lasts(trainer: L.Trainer, length: Callable[[str], int]) -> None:
    """Checks, before the first batch, that no schedule ends before the run: OneCycleLR cannot be stepped on.

    Args:
        trainer: the Trainer of the run, with its schedulers as a checkpoint left them.
        length: number of ``"epoch"`` or ``"step"`` in the run.

    Raises:
        UsageError: if one does; with both numbers.
    """
    # It takes a schedule of its own in time, and adds an epoch that makes no steps. EarlyStopping and a Timer may end a
    # run before its schedule, or not.
    if any(isinstance(callback, StochasticWeightAveraging) for callback in trainer.callbacks):  # type: ignore[attr-defined]
        return
    endless = trainer.max_epochs in (None, -1) and trainer.max_steps == -1
    for config in trainer.lr_scheduler_configs:
        if not isinstance(config.scheduler, OneCycleLR):
            continue
        steps, interval = config.scheduler.total_steps, config.interval
        try:
            needed = math.inf if endless else length(interval)
        except UsageError:  # nobody knows how long an epoch is
            continue
        if needed > steps:
            way_out = (
                ""
                if endless
                else ", or its total_steps to null, which is the length of the run"
                if trainer.ckpt_path is None
                else ", since a resumed run keeps the length that it began with, or begin a new run with its weights "
                "(--weights in place of --ckpt_path)"
            )
            makes = "does not end by itself" if endless else f"makes {needed}"
            raise UsageError(
                f"lr_scheduler OneCycleLR ends after {steps} {interval}s but the run {makes}; set "
                f"trainer.max_{interval}s to at most {steps}{way_out}."
            )


def check_known(trainer: L.Trainer) -> None:
    """Checks, before the first batch, that what a schedule looks at in each epoch is measured in each.

    Args:
        trainer: the Trainer of the run, with its schedulers.

    Raises:
        UsageError: if it is of the validation, and that is not done in each epoch, or not at all.
    """
    # Lightning's number of epochs from one validation to the next, and of batches
    epochs, batches = trainer.check_val_every_n_epoch, trainer.val_check_batch
    if trainer.limit_val_batches == 0:
        why, mend = "there is no validation (trainer.limit_val_batches is 0)", "validate"
    elif getattr(trainer, "_val_check_time_interval", None) is not None:
        why, mend = "the validation goes by time (trainer.val_check_interval)", "leave that out"
    elif epochs not in (None, 1):  # then its loaders are not known yet
        why, mend = f"the validation is done every {epochs} epochs (trainer.check_val_every_n_epoch)", "leave that out"
    elif not any(trainer.num_val_batches):
        why, mend = "there is nothing to validate on", "give data for that"
    elif epochs is None and batches is not None and batches > trainer.num_training_batches:
        why = f"the validation is done after {batches} batches (trainer.val_check_interval), more than an epoch has"
        mend = "give fewer"
    else:
        return
    for config in trainer.lr_scheduler_configs:
        monitor = getattr(config.scheduler, "monitor", None)
        if isinstance(config.scheduler, ReduceLROnPlateau) and str(monitor).startswith("val/"):
            raise UsageError(
                f"lr_scheduler ReduceLROnPlateau looks at {monitor!r} at the end of each epoch, but {why}; {mend}, or "
                "let it monitor train/loss."
            )
