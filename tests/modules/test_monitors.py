"""What callbacks and schedules look at is logged, or that is told before the first batch."""

from functools import partial

import pytest
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import EarlyStopping, LambdaCallback, ModelCheckpoint
from lightning.pytorch.cli import ReduceLROnPlateau

from routing_lightning.errors import UsageError
from routing_lightning.modules import MultiTaskClassifier
from routing_lightning.networks import TaskSpecific
from tests.conftest import ToyDataModule, toy_features, toy_model


def fit(model, *callbacks, **options):
    options = {"max_epochs": 1, "limit_train_batches": 2, "limit_val_batches": 1, "num_sanity_val_steps": 0} | options
    trainer = Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=any(isinstance(one, ModelCheckpoint) for one in callbacks),
        callbacks=list(callbacks),
        **options,
    )
    trainer.fit(model, ToyDataModule())
    return trainer


def baseline(**options):
    return MultiTaskClassifier(
        3, 2, (1, 8, 8), network=partial(TaskSpecific, hidden=8), features=toy_features, **options
    )


MODELS = {"routed": toy_model, "baseline": baseline}


@pytest.mark.parametrize("made", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize(
    ("monitor", "nearest"), [("val/los", "val/loss"), ("val_acc", "val/acc"), ("test/loss", None), ("x", None)]
)
@pytest.mark.parametrize("who", ["schedule", "EarlyStopping", "ModelCheckpoint"])
def test_what_nobody_logs_is_told_before_the_first_batch(who, monitor, nearest, made, tmp_path):
    callbacks = {
        "EarlyStopping": partial(EarlyStopping, monitor),
        "ModelCheckpoint": partial(ModelCheckpoint, tmp_path, monitor=monitor),
    }
    options = {"lr_scheduler": partial(ReduceLROnPlateau, monitor=monitor)} if who == "schedule" else {}
    model = made(**options)
    with pytest.raises(
        UsageError, match=rf"monitor of .* is '{monitor}', which nobody logs; give one of val/loss,"
    ) as told:
        fit(model, *([callbacks[who]()] if who in callbacks else []))
    assert nearest is None or f"did you mean {nearest}?" in str(told.value)
    assert model.trainer.global_step == 0


@pytest.mark.parametrize("made", MODELS.values(), ids=MODELS)
def test_all_that_is_logged_may_be_looked_at(made):
    """And nothing is said to be logged that is not, apart from losses that not each network has."""
    model = made()
    trainer = fit(model, limit_val_batches=1.0, limit_train_batches=1.0)
    logged = {name for name in trainer.callback_metrics if not name.endswith(("_epoch", "loss_step"))}
    optional = {"train/auxiliary_loss", "train/joint_loss", "train/loss_step"}
    assert logged == set(model.logged_names()) - optional


class Own(Callback):
    """A callback of the user's that logs."""

    def on_validation_epoch_end(self, trainer, pl_module):
        pl_module.log("val/own", 0.5)


class OwnModel(MultiTaskClassifier):
    """A model of the user's, likewise."""

    def on_validation_epoch_end(self):
        super().on_validation_epoch_end()
        self.log("val/own", 0.5)


@pytest.mark.parametrize(
    "case",
    [
        lambda: fit(toy_model(), Own(), EarlyStopping("val/own")),
        lambda: fit(
            toy_model(),
            LambdaCallback(on_validation_epoch_end=lambda trainer, module: module.log("val/own", 0.5)),
            EarlyStopping("val/own"),
        ),
        lambda: fit(OwnModel(3, 2, (1, 8, 8), TaskSpecific, toy_features), EarlyStopping("val/own")),
        lambda: fit(toy_model(), EarlyStopping("val/own", strict=False, verbose=False)),
        lambda: fit(toy_model(), EarlyStopping("router/entropy/depth_1", check_on_train_epoch_end=True)),
        lambda: fit(toy_model(), EarlyStopping("val/acc_task/task_1")),
        lambda: fit(toy_model(lr_scheduler=partial(ReduceLROnPlateau, monitor="train/acc_micro"))),
    ],
)
def test_nothing_is_refused_that_may_be_logged(case):
    assert case().global_step == 2


@pytest.mark.parametrize("monitor", ["step", "epoch"])
def test_checkpoints_may_go_by_what_lightning_counts(monitor, tmp_path):
    fit(toy_model(), ModelCheckpoint(tmp_path, monitor=monitor, mode="max"))
    assert list(tmp_path.glob("*.ckpt"))
