"""Lightning's callbacks that change weights work with our models, or one sentence says why not."""

import warnings
from functools import partial

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import BackboneFinetuning, BaseFinetuning, ModelPruning
from torch import nn

from routing_lightning.errors import UsageError
from routing_lightning.modules import MultiTaskClassifier
from routing_lightning.networks import TaskSpecific
from routing_lightning.nn import Blocks
from tests.conftest import ToyDataModule, toy_model
from tests.modules.test_monitors import baseline

MODELS = {"routed": toy_model, "baseline": baseline}


def fit(model, callback, epochs=2):
    trainer = Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        max_epochs=epochs,
        limit_train_batches=2,
        limit_val_batches=1,
        callbacks=[callback],
    )
    trainer.fit(model, ToyDataModule())
    return model


@pytest.mark.parametrize("made", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize(
    ("callback", "sentence"),
    [
        (partial(ModelPruning, "l1_unstructured"), "cannot prune .*weight, whose channels come last.*name other"),
        (partial(ModelPruning, "l1_unstructured", use_global_unstructured=False), "whose channels come last"),
        (
            partial(ModelPruning, "random_structured", amount=0.5, pruning_dim=0, use_global_unstructured=False),
            "by a structure cannot prune .*, of one dimension; name other|whose channels come last",
        ),
        (BackboneFinetuning, "freezes the part backbone of the model, which .* does not have; derive"),
    ],
)
def test_what_does_not_fit_is_told_before_the_first_batch(callback, sentence, made):
    model = made()
    with pytest.raises(UsageError, match=sentence):
        fit(model, callback())
    assert model.trainer.global_step == 0


class LinearFeatures(nn.Sequential):
    out_features = 8

    def __init__(self, image_shape):
        super().__init__(nn.Flatten(), nn.Linear(64, 8), nn.ReLU())


def baseline_linear():
    return MultiTaskClassifier(3, 2, (1, 8, 8), partial(TaskSpecific, hidden=8), LinearFeatures)


def test_what_can_be_pruned_is():
    model = baseline_linear()
    fit(model, ModelPruning("l1_unstructured", amount=0.5))
    weights = [part.weight for part in model.modules() if isinstance(part, nn.Linear)]
    assert weights and 0.3 < torch.cat([weight.flatten() for weight in weights]).eq(0).float().mean() < 0.9


def routed_linear():
    """A routed model all of whose unrouted layers can be pruned."""
    return toy_model(features=LinearFeatures)


def pruning_notes(model, **options):
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        fit(model, ModelPruning("l1_unstructured", amount=0.5, **options), epochs=1)
    return [str(note.message) for note in noted if "leaves the function blocks" in str(note.message)]


@pytest.mark.parametrize(
    ("made", "first"), [(routed_linear, "network.body.1.blocks"), (baseline_linear, "network.own.0")]
)
def test_blocks_that_are_not_pruned_are_told(made, first):
    model = made()
    (note,) = pruning_notes(model)
    blocks = [part for part in model.modules() if isinstance(part, Blocks)]
    left = sum(value.numel() for part in blocks for value in part.parameters())
    assert len(blocks) == 3 and f"{left:,} of " in note and first in note
    assert all((value != 0).all() for part in blocks for value in part.parameters())


def test_nothing_is_told_where_the_parts_were_chosen():
    model = routed_linear()
    chosen = [(part, "weight") for part in model.modules() if isinstance(part, nn.Linear)]
    assert chosen and not pruning_notes(model, parameters_to_prune=chosen)


class Thaw(BaseFinetuning):
    """Freezes the features for an epoch, and notes them at the start and after each epoch."""

    def features(self, module):
        return module.features if hasattr(module, "features") else module.network.body[0]

    def note(self, module):
        self.seen.append(torch.cat([value.detach().flatten().clone() for value in self.features(module).parameters()]))

    def freeze_before_training(self, module):
        self.seen = []
        self.note(module)
        self.freeze(self.features(module), train_bn=False)

    def finetune_function(self, module, epoch, optimizer):
        if epoch == 1:
            self.unfreeze_and_add_param_group(self.features(module), optimizer, lr=0.01)

    def on_train_epoch_end(self, trainer, module):
        self.note(module)


@pytest.mark.parametrize("made", MODELS.values(), ids=MODELS)
def test_parts_may_be_frozen_for_a_while(made):
    callback = Thaw()
    fit(made(), callback)
    start, frozen, thawed = callback.seen
    assert torch.equal(start, frozen) and not torch.equal(frozen, thawed)
