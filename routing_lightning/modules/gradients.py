"""Gradient combination across tasks: Jacobian descent with an aggregator of the library torchjd."""

import importlib
from collections.abc import Iterable
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn

from routing_lightning.errors import UsageError


def make_aggregator(aggregator: nn.Module | str | None) -> nn.Module | None:
    """The aggregator as a module.

    The command line's parser makes a module of a class path where it can, and hands over the text where it cannot: then
    this function says why.

    Args:
        aggregator: a module, the path of a class that needs no arguments (``"torchjd.aggregation.PCGrad"``), or None.

    Returns:
        A module that maps a matrix of gradients, one row per task, (M, P) -> (P,); None if None was given.

    Raises:
        UsageError: if torchjd is not installed or there is no such class.
    """
    if not isinstance(aggregator, str):
        return aggregator
    module, _, name = aggregator.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)()
    except ImportError as error:
        hint = 'pip install "routing-lightning[jd]"' if (error.name or "").startswith("torchjd") else str(error)
        raise UsageError(f"aggregator is {aggregator}, which needs a package that is not installed: {hint}.") from error
    except (AttributeError, ValueError, TypeError) as error:
        raise UsageError(
            f"aggregator is {aggregator!r}, which cannot be made ({error}); give a class of torchjd.aggregation by its "
            "full path, for example torchjd.aggregation.PCGrad."
        ) from error


def check_aggregator(aggregator: nn.Module | None, trainer: L.Trainer) -> None:
    """Checks that gradients can be combined under this Trainer.

    Raises:
        UsageError: if there is an aggregator and several processes, or gradients are scaled (precision 16-mixed).
    """
    if aggregator is None:
        return
    if trainer.world_size > 1:
        raise UsageError(
            f"an aggregator combines the gradients of one process but the run has {trainer.world_size}; set "
            "trainer.devices and trainer.num_nodes to 1, or leave the aggregator out."
        )
    if getattr(trainer.precision_plugin, "scaler", None) is not None:
        raise UsageError(
            f"trainer.precision is {trainer.precision}, whose scaled gradients an aggregator cannot combine; set 32-true "
            "or bf16-mixed, or leave the aggregator out."
        )


def combine_gradients(losses: Tensor, tasks: Tensor, parameters: Iterable[nn.Parameter], aggregator: Any) -> None:
    """Backward pass that combines the gradients of the batch's tasks (Jacobian descent) in place of adding them up.

    One row per task in the batch: the gradient of the sum of its samples' losses. Parameters on which two or more tasks
    have a gradient that is not zero are shared: on them the aggregator combines the rows. A parameter that one task alone
    moves gets that task's gradient as it is, and does not enter the rows. A parameter that no sample used gets nothing.

    The result is added to ``.grad``, like that of a backward pass; it equals that of a backward pass from
    ``losses.sum()`` if the aggregator adds up the rows (``torchjd.aggregation.Sum``), as PCGrad (Yu et al., 2020) does
    where no two tasks conflict. One that averages (UPGrad, MGDA, Mean) gives less, about that divided by the number of
    tasks in the batch: raise the learning rate to match.

    Args:
        losses: (N,), each sample's part of the loss: for the batch's mean loss, the samples' losses divided by N.
        tasks: (N,) int64; best on the host: on a device the call waits for it.
        parameters: those to fill; those without ``requires_grad`` are left alone.
        aggregator: maps a matrix of gradients (M, P) -> (P,).
    """
    wanted = [parameter for parameter in parameters if parameter.requires_grad]
    tasks = tasks.cpu()
    rows = (tasks == tasks.unique()[:, None]).to(losses)  # (M, N): which samples a row adds up
    jacobian = [
        torch.autograd.grad(losses, wanted, row, retain_graph=i + 1 < len(rows), allow_unused=True)
        for i, row in enumerate(rows)
    ]
    used = [i for i, gradient in enumerate(jacobian[0]) if gradient is not None]
    matrices = [torch.stack([row[i] for row in jacobian]).flatten(1) for i in used]
    # Without a look at the values on the host, for which a device would have to wait: parts that are not shared are
    # zeroed in the aggregator's matrix, which leaves all inner products of rows as they were without them.
    shared = [matrix.any(1).sum() > 1 for matrix in matrices]
    combined = aggregator(torch.cat([matrix * own for matrix, own in zip(matrices, shared, strict=True)], dim=1))
    pieces = combined.split([matrix.shape[1] for matrix in matrices])
    for i, matrix, own, piece in zip(used, matrices, shared, pieces, strict=True):
        gradient = torch.where(own, piece, matrix.sum(0)).view_as(wanted[i])
        wanted[i].grad = gradient if wanted[i].grad is None else wanted[i].grad + gradient
