"""Averages of a model's weights leave its counts alone."""

from collections.abc import Iterator

import lightning as L
import torch
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel


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
