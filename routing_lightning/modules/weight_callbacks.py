"""Callbacks of Lightning that change weights: told at the start where they do not fit the network."""

import lightning as L
from lightning.pytorch.callbacks import BackboneFinetuning, ModelPruning
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from routing_lightning.errors import UsageError
from routing_lightning.nn import Blocks

BLOCKS = "the command prune drops blocks that no task takes"


def check_backbone(trainer: L.Trainer, model: L.LightningModule) -> None:
    """Checks that what BackboneFinetuning freezes is there; to be called before callbacks are set up.

    Raises:
        UsageError: if the model has no ``backbone``.
    """
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        freezes_backbone = getattr(type(callback), "freeze_before_training", None)
        if freezes_backbone is BackboneFinetuning.freeze_before_training and not hasattr(model, "backbone"):
            raise UsageError(
                f"{type(callback).__name__} freezes the part backbone of the model, which {type(model).__name__} does "
                "not have; derive a callback from BaseFinetuning that freezes parts of model.network, or leave it out."
            )


def check_pruning(trainer: L.Trainer, model: L.LightningModule) -> None:
    """Checks that ModelPruning can prune what it is to prune, and notes which function blocks it does not find.

    To be called after callbacks are set up.

    Torch makes one vector of weights, which it cannot of convolutions whose channels come last in memory; and it finds
    weights by the names ``weight`` and ``bias``, which function blocks, being many in one layer, do not have.

    Raises:
        UsageError: if it cannot.
    """
    names = {part: name for name, part in model.named_modules()}
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if not isinstance(callback, ModelPruning):
            continue
        for part, kind in callback._parameters_to_prune or ():
            weight, where = getattr(part, kind), f"{names.get(part, type(part).__name__)}.{kind}"
            if weight.dim() < 2 and "dim" in getattr(callback.pruning_fn, "keywords", ()):
                raise UsageError(
                    f"ModelPruning by a structure cannot prune {where}, of one dimension; name other parts with "
                    f"parameters_to_prune, or leave ModelPruning out; {BLOCKS}."
                )
            if not weight.is_contiguous():
                raise UsageError(
                    f"ModelPruning cannot prune {where}, whose channels come last in memory, which is faster; name "
                    f"other parts with parameters_to_prune, or leave ModelPruning out; {BLOCKS}."
                )
        _note_blocks_left(callback, model)


def _note_blocks_left(callback: ModelPruning, model: L.LightningModule) -> None:
    """Says which function blocks stay as they are, where the parts to prune were left to Lightning."""
    chosen = [(id(part), kind) for part, kind in callback._parameters_to_prune or ()]
    found = callback.sanitize_parameters_to_prune(model, (), callback._parameter_names)
    if chosen != [(id(part), kind) for part, kind in found]:  # the user knows
        return
    pruned = {id(getattr(part, kind)) for part, kind in found}
    left = {
        name: sum(value.numel() for value in blocks.parameters())
        for name, blocks in model.named_modules()
        if isinstance(blocks, Blocks) and not any(id(value) in pruned for value in blocks.parameters())
    }
    if not left:
        return
    numbers, all_of_them = sum(left.values()), sum(value.numel() for value in model.parameters())
    rank_zero_warn(
        f"{type(callback).__name__} leaves the function blocks of {', '.join(left)} as they are, {numbers:,} of "
        f"{all_of_them:,} weights: it knows weights by the names weight and bias, which these do not have"
        + (f"; {BLOCKS}." if hasattr(model, "router") else ".")
    )
