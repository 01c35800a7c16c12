"""Averages of a model's weights leave its counts alone, and have its copies of blocks."""

from collections.abc import Iterator
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import StochasticWeightAveraging, WeightAveraging
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from routing_lightning.routers import BlockCopy


def keep_counts(trainer: L.Trainer) -> None:
    """Makes callbacks that average weights copy what is a count, a sum or an index: its average is none.

    Torch averages all buffers alike, and cuts what has become a fraction where a whole number belongs. Those are the
    buffers that hold no floats, and those that their module names in ``counted``.

    Args:
        trainer: the Trainer, whose callbacks are set up.
    """
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, WeightAveraging) and callback._average_model is not None:
            _copy_after_update(callback._average_model)


def end_with_averages(trainer: L.Trainer, module: L.LightningModule) -> None:
    """Gives a model the averages of its weights, as the end of a training does, where none was begun.

    Args:
        trainer: the Trainer, whose callbacks may average weights.
        module: the model, as a checkpoint of a run that is over left it.
    """
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, WeightAveraging) and callback._average_model is not None:
            callback.on_train_end(trainer, module)


def copy_in_averages(trainer: L.Trainer, copied: BlockCopy) -> None:
    """Copies a block in the averages, too, where the copies would be mixed with their first weights for long.

    Args:
        trainer: the Trainer, whose callbacks may average weights.
        copied: which block, and to which others.
    """
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        average = getattr(callback, "_average_model", None)
        if isinstance(callback, (WeightAveraging, StochasticWeightAveraging)) and average is not None:
            model: Any = average.module if isinstance(average, AveragedModel) else average
            model.network.calls[copied.depth].blocks.copy_block(copied.source, copied.targets)


def _copy_after_update(average: AveragedModel) -> None:
    update = average.update_parameters

    @torch.no_grad()
    def updated(model: nn.Module) -> None:
        update(model)
        for ours, theirs in zip(_counts(average.module), _counts(model), strict=True):
            ours.copy_(theirs)

    average.update_parameters = updated  # type: ignore[method-assign]


def _counts(module: nn.Module) -> Iterator[Tensor]:
    for part in module.modules():
        for name, buffer in part.named_buffers(recurse=False):
            if not buffer.is_floating_point() or name in getattr(part, "counted", ()):
                yield buffer
