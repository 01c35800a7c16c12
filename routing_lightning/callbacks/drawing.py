"""What the callbacks that draw have in common."""

from typing import Any

import lightning as L
import numpy as np

from routing_lightning.callbacks.access import policy_of, router_of
from routing_lightning.callbacks.recorder import RouteRecorder
from routing_lightning.errors import UsageError
from routing_lightning.record import shares
from routing_lightning.routers import Router


class RouteCallback(L.Callback):
    """Base of the callbacks that show what a :class:`RouteRecorder` records.

    A derived class overrides :meth:`start`, :meth:`after_batch` or :meth:`after_epoch`, which are called for models
    with a router only, and in the first process only.
    """

    recorder: RouteRecorder
    router: Router

    def __init__(self) -> None:
        self._active = False

    def start(self, trainer: L.Trainer) -> None:
        """Called once before the first batch."""

    def after_batch(self, trainer: L.Trainer) -> None:
        """Called after each training batch."""

    def after_epoch(self, trainer: L.Trainer) -> None:
        """Called after each epoch and its validation."""

    @property
    def measure(self) -> str:
        """What :meth:`policy` gives, in words."""
        return "share of samples" if policy_of(self.router) is None else "probability"

    def policy(self) -> np.ndarray:
        """What each task does now, (T, D, K).

        The policy's probabilities; for routers without a table, how the latest training samples were spread.
        """
        table = policy_of(self.router)
        return shares(self.recorder.recent()) if table is None else table

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Finds router and recorder.

        Raises:
            UsageError: if there is no recorder among the callbacks, or an option does not fit the router.
        """
        router = router_of(pl_module) if stage == "fit" else None
        self._active = router is not None
        if router is None:
            return
        callbacks = trainer.callbacks  # type: ignore[attr-defined]
        before = callbacks[: callbacks.index(self)]
        recorders = [callback for callback in before if isinstance(callback, RouteRecorder)]
        if not recorders:
            raise UsageError(
                f"{type(self).__name__} has no RouteRecorder to draw from; put one before it in the list of callbacks."
            )
        self.router, self.recorder = router, recorders[0]
        self.check()
        self._active = trainer.is_global_zero

    def check(self) -> None:
        """Called at setup, when router and recorder are known; raises UsageError if an option does not fit."""

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Starts to count from here."""
        if self._active:
            self.start(trainer)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Hands over to :meth:`after_batch`."""
        if self._active:
            self.after_batch(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Hands over to :meth:`after_epoch`."""
        if self._active:
            self.after_epoch(trainer)
