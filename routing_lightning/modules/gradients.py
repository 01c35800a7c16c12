"""Gradient combination across tasks: Jacobian descent with an aggregator of the library torchjd."""

from collections.abc import Iterable, Iterator

import lightning as L
import torch
from torch import Tensor, nn

from routing_lightning.errors import UsageError


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
            f"trainer.precision is {trainer.precision}, whose scaled gradients an aggregator cannot combine; set "
            "32-true or bf16-mixed, or leave the aggregator out."
        )


def combine_gradients(losses: Tensor, tasks: Tensor, parameters: Iterable[nn.Parameter], aggregator: nn.Module) -> None:
    """Backward pass that combines the gradients of the batch's tasks (Jacobian descent) in place of adding them up.

    One row per task in the batch: the gradient of the sum of its samples' losses. Parameters on which two or more
    tasks have a gradient that is not zero are shared: on them the aggregator combines the rows. A parameter that one
    task alone moves gets that task's gradient as it is, and does not enter the rows. A parameter that no sample used
    gets nothing.

    The result is added to ``.grad``, like that of a backward pass; it equals that of a backward pass from
    ``losses.sum()`` if the aggregator adds up the rows (``torchjd.aggregation.Sum``), as PCGrad (Yu et al., 2020) does
    where no two tasks conflict. One that averages (UPGrad, MGDA, Mean) gives less, about that divided by the number of
    tasks in the batch: raise the learning rate to match. The cost of the pass grows with that number.

    Args:
        losses: (N,), each sample's part of the loss: for the batch's mean loss, the samples' losses divided by N.
        tasks: (N,) int64; best on the host: on a device the call waits for it.
        parameters: those to fill; those without ``requires_grad`` are left alone.
        aggregator: maps a matrix of gradients, one row per task, (M, P) -> (P,), with M >= 2.
    """
    wanted = [parameter for parameter in parameters if parameter.requires_grad]
    tasks = tasks.cpu()
    masks = (tasks == tasks.unique()[:, None]).to(losses)  # (M, N): the samples of each task
    rows = [
        torch.autograd.grad(losses, wanted, mask, retain_graph=i + 1 < len(masks), allow_unused=True)
        for i, mask in enumerate(masks)
    ]
    used = [
        (parameter, torch.stack(gradients))
        for parameter, *gradients in zip(wanted, *rows, strict=True)
        if gradients[0] is not None
    ]
    if not used:  # all samples took frozen blocks
        return
    # Collected on the device and read once. Zeros count as no use: the pass reaches all that the batch used.
    is_shared = torch.stack([matrix.flatten(1).any(1).sum() > 1 for _, matrix in used]).tolist()
    shared = [matrix.flatten(1) for (_, matrix), flag in zip(used, is_shared, strict=True) if flag]
    combined: Iterator[Tensor] = iter(())
    if shared:
        rows_of_all = torch.cat(shared, dim=1)
        with torch.autocast(rows_of_all.device.type, enabled=False):  # gradients are float32 at mixed precision, too
            whole = aggregator(rows_of_all)
        combined = iter(whole.split([matrix.shape[1] for matrix in shared]))
    for (parameter, matrix), flag in zip(used, is_shared, strict=True):
        gradient = next(combined).view_as(parameter) if flag else matrix.sum(0)
        parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
