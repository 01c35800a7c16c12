"""Ways from a trainer and a module to what the callbacks look at."""

from typing import Any

import lightning as L
import numpy as np
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.compat.proto.summary_pb2 import Summary
from torch.utils.tensorboard import SummaryWriter

from routing_lightning.errors import UsageError
from routing_lightning.routers import Router, Trace


def router_of(pl_module: L.LightningModule) -> Router | None:
    """The module's router, or None for models without one."""
    router = getattr(pl_module, "router", None)
    return router if isinstance(router, Router) else None


def trace_of(outputs: Any) -> Trace | None:
    """The trace that a step returned, or None where it returned none."""
    trace = outputs.get("trace") if isinstance(outputs, dict) else None
    return trace if isinstance(trace, Trace) else None


def policy_of(router: Router) -> np.ndarray | None:
    """The policy of each task, (T, D, K) float32; None if it depends on the activations."""
    return None if router.uses_state else router.probabilities().numpy()


def depth_names(pl_module: L.LightningModule) -> np.ndarray | None:
    """The layer of each depth, (D,) str, as the network names it; None where the network has no such names."""
    names = getattr(getattr(pl_module, "network", None), "depth_names", None)
    return np.array(names(), dtype=np.str_) if callable(names) else None


def gains_of(trace: Trace, num_blocks: np.ndarray) -> np.ndarray:
    """What other blocks brought more than the common one, the last, in a batch of a search.

    Args:
        trace: of the batch, with alternatives and returns, or without.
        num_blocks: (D,), blocks of each depth.

    Returns:
        (D, 3) float64, of each depth the number of samples, the sum of their gains and the sum of their squares.
    """
    found = np.zeros((len(num_blocks), 3))
    if trace.alternatives is None or trace.returns is None:
        return found
    taken, other, gains = trace.actions.cpu().numpy(), trace.alternatives.cpu().numpy(), trace.returns.cpu().numpy()
    common = num_blocks - 1
    sign = (other >= 0) * ((other == common).astype(float) - (taken == common))  # 0 where none of them, or both
    signed = sign * gains
    return np.stack([np.abs(sign).sum(0), signed.sum(0), (signed**2).sum(0)], axis=1)


def writers(trainer: L.Trainer) -> list[SummaryWriter]:
    """The TensorBoard writers of the run; none on processes other than the first."""
    if not trainer.is_global_zero:
        return []
    return [logger.experiment for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]


def log_scalars(trainer: L.Trainer, values: dict[str, float]) -> None:
    """Sends numbers to all loggers, at the current optimizer step."""
    for logger in trainer.loggers:
        logger.log_metrics(values, step=trainer.global_step)


def log_png(writer: SummaryWriter, tag: str, png: bytes, step: int) -> None:
    """Writes a picture that is a PNG file already (``add_image`` would encode it once more, slowly)."""
    # Width and height stand in the header, behind the signature and the name of the first part.
    width, height = int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")
    picture = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=png)
    file_writer = writer.file_writer or writer._get_file_writer()  # none yet after the writer was closed
    file_writer.add_summary(Summary(value=[Summary.Value(tag=tag, image=picture)]), step)


class Interval:
    """When something is due: at each multiple of a number and, before the first one, at each power of a base.

    So the start, where policies move most, is seen closely.

    Args:
        every: the number, at least 1.
        option: name of the option, for the error.
        base: the base, at least 2.
        first: the power to begin with.

    Raises:
        UsageError: if ``every`` is below 1.
    """

    def __init__(self, every: int, option: str, base: int, first: int = 1) -> None:
        if every < 1:
            raise UsageError(f"{option} is {every}; give at least 1, or leave the callback out.")
        self.every = every
        self.base = base
        self.first = first
        self.last = 0

    def begin(self, count: int) -> bool:
        """Goes on from a count; whether something was due at it, which a run that goes on from there has done."""
        self.last = max(0, count - 1)
        return self.due(count)

    def due(self, count: int) -> bool:
        """Whether a due count lies after the one of the last call, up to ``count``."""
        last, self.last = self.last, max(count, self.last)
        if count // self.every > last // self.every:
            return True
        power = self.first
        while power <= last:
            power *= self.base
        return power <= min(count, self.every)


def every_steps(every: int, callback: str) -> Interval:
    """Interval of optimizer steps: 1, 4, 16, ... and then every so many.

    Raises:
        UsageError: if ``every`` is below 1.
    """
    return Interval(every, f"every_n_steps of {callback}", base=4)


class Epochs(Interval):
    """Interval of epochs: 2, 4, ..., then every so many, and the last one.

    Not the first, which has most to log otherwise.

    Args:
        every: the number, at least 1.
        callback: name of the callback, for the error.

    Raises:
        UsageError: if ``every`` is below 1.
    """

    def __init__(self, every: int, callback: str) -> None:
        super().__init__(every, f"every_n_epochs of {callback}", base=2, first=2)

    def over(self, trainer: L.Trainer) -> bool:
        """Whether it is due at the end of the current epoch."""
        epoch = trainer.current_epoch + 1
        is_last = epoch == trainer.max_epochs or 0 < trainer.max_steps <= trainer.global_step
        return self.due(epoch) or trainer.should_stop or is_last
