"""Runs that were over when they were to go on."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, Timer
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor


def stopped_early(
    saved: Mapping[str, Any], stops: Iterable[EarlyStopping], metrics: Mapping[str, Tensor]
) -> str | None:
    """Why a run that goes on is one that has been stopped early; None if it is not, or no longer by these callbacks.

    Lightning would train it for an epoch more, or, if that was better, for many.

    Args:
        saved: what a checkpoint holds of each callback. Patience that is another one now holds from here on, and what
            stopped the run is forgotten where it does so no more; changed in place.
        stops: the callbacks that will get it.
        metrics: the latest metrics.
    """
    for callback in stops:
        state = saved.get(callback.state_key)
        if not isinstance(state, dict) or not {"wait_count", "patience"} <= set(state):
            continue
        if state["patience"] != callback.patience:
            rank_zero_info(
                f"EarlyStopping goes on with patience {callback.patience}, not {state['patience']} as before"
            )
            state["patience"] = callback.patience
        reason = EarlyStoppingReason(state.get("stopping_reason", EarlyStoppingReason.NOT_STOPPED.value))
        if reason == EarlyStoppingReason.NOT_STOPPED:
            continue
        if _still_stops(callback, reason, state["wait_count"], metrics.get(callback.monitor)):
            why = str(state.get("stopping_reason_message") or f"{callback.monitor} is followed").removesuffix(
                " Signaling Trainer to stop."
            )
            return f"EarlyStopping has stopped the run: {why.rstrip('.')}"
        state.update(stopping_reason=EarlyStoppingReason.NOT_STOPPED.value, stopping_reason_message=None)
    return None


def _still_stops(callback: EarlyStopping, reason: EarlyStoppingReason, waited: int, latest: Tensor | None) -> bool:
    """Whether a callback stops a run for a reason for which it, or one with other options, has stopped it before."""
    if reason == EarlyStoppingReason.PATIENCE_EXHAUSTED:
        return waited >= callback.patience
    if latest is None:
        return True
    if reason == EarlyStoppingReason.NON_FINITE_METRIC:
        return callback.check_finite and not bool(torch.isfinite(latest))
    if reason == EarlyStoppingReason.STOPPING_THRESHOLD:
        limit = callback.stopping_threshold
        return limit is not None and bool(callback.monitor_op(latest, limit))
    limit = callback.divergence_threshold
    return limit is not None and bool(callback.monitor_op(-latest, -limit))


def why_over(trainer: L.Trainer, stopped: str | None) -> str:
    """Why a run that was to go on had nothing left to do, and what to do, in a sentence.

    Args:
        trainer: the Trainer, after it.
        stopped: why it was stopped early, if it was.
    """
    if trainer.limit_train_batches == 0:
        return "trainer.limit_train_batches is 0"
    epochs, steps = trainer.current_epoch, trainer.global_step
    reached = []
    if trainer.max_steps != -1 and steps >= trainer.max_steps:
        reached.append(f"the run has made {steps} steps, and trainer.max_steps is {trainer.max_steps}")
    if trainer.max_epochs not in (None, -1) and epochs >= trainer.max_epochs:
        reached.append(f"the run has made {epochs} epochs, and trainer.max_epochs is {trainer.max_epochs}")
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        left = callback.time_remaining() if isinstance(callback, Timer) else None
        if left is not None and left <= 0:
            took, most = (timedelta(seconds=round(time)) for time in (callback.time_elapsed(), callback._duration))
            reached.append(f"the run has taken {took}, and trainer.max_time (or the duration of Timer) is {most}")
    sentences = [f"{'; '.join(reached)}; give more{' of each' if len(reached) > 1 else ''} to go on"] if reached else []
    if stopped is not None:
        sentences.append(f"{stopped}; to go on, give it other options, or leave it out of trainer.callbacks")
    return "; and ".join(sentences) or "a callback has stopped the run; to go on, leave it out of trainer.callbacks"
