"""What callbacks and schedules look at is logged, or that is told before the first batch."""

import re
import warnings
from functools import partial

import pytest
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import EarlyStopping, LambdaCallback, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.cli import ReduceLROnPlateau
from lightning.pytorch.loggers import CSVLogger

from routing_lightning.errors import UsageError
from routing_lightning.modules import MultiTaskClassifier
from routing_lightning.networks import TaskSpecific
from tests.conftest import ToyDataModule, toy_features, toy_model


def fit(model, *callbacks, **options):
    options = {
        "logger": False,
        "max_epochs": 1,
        "limit_train_batches": 2,
        "limit_val_batches": 1,
        "num_sanity_val_steps": 0,
    } | options
    trainer = Trainer(
        accelerator="cpu",
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


@pytest.mark.parametrize(
    ("filename", "sentence"),
    [
        (
            "{epoch}-{val/los:.2f}",
            r"no val/los; did you mean val/loss\?.*'\{epoch\}-\{val/los:.2f\}', but val/los is no",
        ),
        ("{epohc}", r"did you mean epoch\?"),
        ("{test/loss:.2f}", "test/loss is no metric of this training; give one of epoch, step, val/loss,"),
        ("{lr-SGD}", "lr-SGD is no metric"),  # without LearningRateMonitor
        ("{}", "is no metric"),
        ("{val/loss:.2x}", "cannot be filled in .*write it as"),
        ("{val/loss:d}", "cannot be filled in"),
        ("{val/loss", "cannot be filled in"),
    ],
)
def test_names_of_files_that_ask_for_what_nobody_logs_are_told(filename, sentence, tmp_path):
    model = toy_model()
    with pytest.raises(UsageError, match=sentence):
        fit(model, ModelCheckpoint(tmp_path, filename=filename))
    assert model.trainer.global_step == 0


class LastByLoss(ModelCheckpoint):
    CHECKPOINT_NAME_LAST = "last-{val/lss:.1f}"


LastByLoss.__module__ = "routing_lightning.callbacks.last"  # one that is known to log nothing


def test_the_name_of_the_last_checkpoint_is_looked_at_where_it_is_written(tmp_path):
    assert fit(toy_model(), LastByLoss(tmp_path)).global_step == 2
    with pytest.raises(UsageError, match="did you mean val/loss.*CHECKPOINT_NAME_LAST of LastByLoss"):
        fit(toy_model(), LastByLoss(tmp_path, save_last=True))


def test_without_validation_its_metrics_are_in_no_name(tmp_path):
    with pytest.raises(UsageError, match="val/loss is no metric of this training; give one of epoch, step, train/loss"):
        fit(toy_model(), ModelCheckpoint(tmp_path, filename="{val/loss:.2f}"), limit_val_batches=0)


def test_names_of_files_have_all_that_is_logged(tmp_path):
    """The metrics of all stages, tasks and depths, learning rates, and what Lightning counts."""
    name = "{epoch:02d}-{step}-{val/acc:.2f}-{train/acc_task/task_1:.1f}-{router/entropy/depth_1:.1f}-{lr-SGD:.3f}"
    logger = CSVLogger(tmp_path)
    rates, saves = LearningRateMonitor(logging_interval="step"), ModelCheckpoint(tmp_path / "saved", filename=name)
    trainer = fit(toy_model(), rates, saves, logger=logger, log_every_n_steps=1)
    (path,) = tmp_path.rglob("*lr-SGD*")
    found = dict(part.split("=") for part in re.findall(r"(?:step|val/acc|lr-SGD)=[\d.]*\d", str(path)))
    assert found["step"] == "2" and float(found["lr-SGD"]) > 0
    assert float(found["val/acc"]) == pytest.approx(trainer.callback_metrics["val/acc"].item(), abs=0.01)


@pytest.mark.parametrize("name", ["val/own", "val/onw"])
def test_what_an_own_callback_does_not_log_is_noted_when_a_file_has_it_in_its_name(name, tmp_path):
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        fit(toy_model(), Own(), ModelCheckpoint(tmp_path, filename=f"{{{name}:.2f}}"))
    told = [str(note.message) for note in noted if "nobody has logged" in str(note.message)]
    assert bool(told) == (name == "val/onw")
    assert all("val/onw so far: 0 stands for it" in one and one.endswith("did you mean val/own?") for one in told)


def test_a_file_saved_before_the_first_validation_is_noted(tmp_path):
    with pytest.warns(UserWarning, match="nobody has logged val/loss so far: 0 stands for it"):
        fit(toy_model(), ModelCheckpoint(tmp_path, filename="{val/loss:.2f}", every_n_train_steps=1))
