"""SaveOnStop: a run that is stopped saves where it stands; checkpoints are written whole."""

import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.fabric.plugins.environments import SLURMEnvironment
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint, WeightAveraging
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from lightning.pytorch.plugins.io.wrapper import _WrappingCheckpointIO
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn

from routing_lightning.errors import NonFiniteError, UsageError
from routing_lightning.paths import local_path
from routing_lightning.saving import save_whole

TOGETHER = 16
"""Batches after which several processes ask each other whether to stop."""


class WholeCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its place and then puts it there, so that a reader sees the old or the new one.

    Lightning writes it to the system's folder for temporary files, from which it is copied where that is another disk.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Saves a checkpoint.

        Raises:
            UsageError: if it cannot be written, such as on a full disk; the one before it is kept.
        """
        if "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        try:
            save_whole(checkpoint, Path(path))
        except OSError as error:
            raise UsageError(
                f"checkpoint {path} cannot be written ({error.strerror}); the last good one is kept: make room and "
                "go on from it."
            ) from error


class SaveOnStop(Checkpoint):
    """Saves ``last.ckpt`` when the run is stopped by SIGTERM, Ctrl-C or an error, from which it goes on to the bit.

    A signal lets the batch under way come to its end; a second one stops at once and saves nothing, as an error within
    a training step does: its state is that of no step, so the run goes on from the checkpoint before. With several
    processes a signal to any of them stops all after the same batch, within ``TOGETHER`` batches.

    The file lies with those of ModelCheckpoint, or in ``checkpoints`` beside the logs. All checkpoints of the run are
    written whole: see :class:`WholeCheckpointIO`.

    Under SLURM with ``auto_requeue`` the signal by which Lightning saves and queues the job again is followed after the
    batch under way, too: within a step there is no state to go on from.
    """

    def __init__(self) -> None:
        self.asked = 0
        self.requeue = 0
        self._agreed = False
        self._handlers: dict[int, Any] = {}
        self._path: Path | None = None
        self._first_step = 0

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Sees to it that checkpoints are written whole, within plugins that wrap what writes them, too.

        Raises:
            UsageError: if a plugin writes them later.
        """
        outer: Any = trainer.strategy
        writer: Any = outer.checkpoint_io
        while isinstance(writer, _WrappingCheckpointIO):
            if isinstance(writer, AsyncCheckpointIO):
                raise UsageError(
                    f"trainer.plugins has {type(writer).__name__}, with which a checkpoint is removed before the next "
                    "one is written, so that a stop or a full disk may leave none; leave it out."
                )
            outer, writer = writer, writer.checkpoint_io
        if type(writer) is TorchCheckpointIO:
            outer._checkpoint_io = WholeCheckpointIO()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Takes over the signals, and finds the place of the file."""
        folder = trainer.log_dir or trainer.default_root_dir  # all processes ask: the answer is the first one's
        found = [call.dirpath for call in trainer.checkpoint_callbacks if isinstance(call, ModelCheckpoint)]
        self._path = Path(found[0] if found and found[0] else Path(local_path(folder)) / "checkpoints") / "last.ckpt"
        self._first_step = trainer.fit_loop.total_batch_idx
        self.asked, self.requeue, self._agreed = 0, 0, False
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._handlers[number] = signal.signal(number, self._note)
            environment = getattr(trainer.strategy, "cluster_environment", None) or _environment(trainer)
            if isinstance(environment, SLURMEnvironment) and environment.auto_requeue:
                number = environment.requeue_signal or signal.SIGUSR1
                self._handlers[number] = signal.signal(number, self._note_requeue)

    def _note_requeue(self, number: int, frame: FrameType | None) -> None:
        self.requeue = number

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            self._release()
            raise KeyboardInterrupt if number == signal.SIGINT else SIGTERMException(128 + number)
        self.asked = number

    def _release(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()

    def _stop_if_asked(self, trainer: L.Trainer) -> None:
        if trainer.sanity_checking:
            return
        asked, requeue = self.asked, self.requeue
        if trainer.world_size > 1:
            numbers = torch.tensor([asked, requeue], device=trainer.strategy.root_device)
            dist.all_reduce(numbers, dist.ReduceOp.MAX)
            asked, requeue = numbers.tolist()
        if requeue:
            self.requeue = 0
            self._handlers[requeue](requeue, None)  # Lightning's: saves, and queues the job again
        if asked:
            self._agreed = True
            rank_zero_info(f"{signal.Signals(asked).name}: saving where the run stands, once more stops at once.")
            if self._trained(trainer):
                self._save(trainer)  # here: processes that were forked or spawned call no on_exception
            # Forked and spawned processes end silently by a KeyboardInterrupt, and the one that waits for them hangs.
            alone = not isinstance(trainer.strategy.launcher, _MultiProcessingLauncher)
            raise KeyboardInterrupt if asked == signal.SIGINT and alone else SIGTERMException(128 + asked)

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stops if asked to."""
        self._stop_if_asked(trainer)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Stops if asked to: the numbers of the batch before are written by now."""
        # Several processes must agree, and a message each time would cost as much as that of the routes.
        if trainer.world_size == 1 or batch_idx % TOGETHER == 0:
            self._stop_if_asked(trainer)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stops if asked to: the validation is done when the run goes on."""
        if trainer.state.fn == TrainerFn.FITTING:
            self._stop_if_asked(trainer)

    def on_validation_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Stops if asked to; with several processes, which may have other numbers of batches, the validation ends."""
        if trainer.state.fn == TrainerFn.FITTING and trainer.world_size == 1 and not _averaged(trainer):
            self._stop_if_asked(trainer)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Saves where the run stands after an error, if that is a place to go on from."""
        self._release()
        fitting = trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking
        if self._agreed or isinstance(exception, NonFiniteError) or not fitting or not self._trained(trainer):
            return
        batches: Any = trainer.fit_loop.epoch_loop.batch_progress.current
        if batches.started > batches.processed or trainer.world_size > 1:
            rank_zero_warn("The run was broken off within a step: go on from the last checkpoint.")
        elif trainer.validating and _averaged(trainer):
            rank_zero_warn("The run was broken off while averages were validated: go on from the last checkpoint.")
        else:
            self._save(trainer)

    def _trained(self, trainer: L.Trainer) -> bool:
        """Whether there is something new to save: not before training began, though a checkpoint has been read."""
        if self._path is None:
            return False
        batches: Any = trainer.fit_loop.epoch_loop.batch_progress
        return bool(batches.total.processed > max(0, self._first_step + 1)) and not trainer.fast_dev_run  # type: ignore[attr-defined]

    def _save(self, trainer: L.Trainer) -> None:
        assert self._path is not None
        try:
            trainer.save_checkpoint(self._path)
            rank_zero_info(f"Saved where the run stands: {self._path}")
        except (UsageError, OSError) as error:
            rank_zero_warn(f"Where the run stands is not saved: {error}")

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Gives the signals back."""
        self._release()


def _averaged(trainer: L.Trainer) -> bool:
    """Whether a callback puts averaged weights in the place of the model's while it is validated."""
    return any(isinstance(callback, WeightAveraging) for callback in trainer.callbacks)  # type: ignore[attr-defined]


def _environment(trainer: L.Trainer) -> Any:
    """Where the processes come from: with one process the strategy does not say."""
    return trainer._accelerator_connector.cluster_environment
