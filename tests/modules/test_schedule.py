"""Schedules whose length comes from the run end with it, whatever says how long that is."""

from functools import partial
from pathlib import Path

import pytest
import yaml
from lightning.pytorch.callbacks import (
    Callback,
    EarlyStopping,
    GradientAccumulationScheduler,
    ModelCheckpoint,
    StochasticWeightAveraging,
    Timer,
)
from lightning.pytorch.cli import ReduceLROnPlateau
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, OneCycleLR, PolynomialLR, StepLR

from routing_lightning.cli import main
from routing_lightning.errors import UsageError
from routing_lightning.modules import RoutedClassifier
from routing_lightning.modules.schedule import open_length
from routing_lightning.routers import REINFORCE, MLPPolicy, RewardRouter
from tests.modules.test_resume import MODELS, check, fit

ROOT = Path(__file__).parents[2]
BATCHES = 5  # of an epoch of `fit`
ONE_CYCLE = partial(OneCycleLR, max_lr=0.1, total_steps=None)


class BatchesForbidden(Callback):
    def on_train_batch_start(self, *arguments):
        raise AssertionError("a batch was begun")


def schedulers(trainer):
    return [config.scheduler for config in trainer.lr_scheduler_configs]


@pytest.mark.parametrize("interval", ["step", "epoch"])
@pytest.mark.parametrize(
    ("schedule", "name"),
    [
        (ONE_CYCLE, "total_steps"),
        (partial(OneCycleLR, max_lr=0.1), "total_steps"),
        (partial(CosineAnnealingLR, T_max=-1), "T_max"),
        (partial(LinearLR, total_iters=None), "total_iters"),
        (partial(PolynomialLR, total_iters=-1), "total_iters"),
    ],
)
def test_each_schedule_has_the_length_of_the_run(schedule, name, interval):
    trainer, _ = fit(MODELS["routed"](lr_scheduler=schedule, lr_interval=interval), max_epochs=3)
    [scheduler] = schedulers(trainer)
    assert getattr(scheduler, name) == scheduler.last_epoch == {"step": 3 * BATCHES, "epoch": 3}[interval]


@pytest.mark.parametrize(
    ("of_the_model", "of_the_run", "steps"),
    [
        ({"accumulate_grad_batches": 2}, {}, 6),  # 2 + 2 + 1 batches, twice
        ({"accumulate_grad_batches": 9}, {}, 2),
        ({}, {"max_steps": 7}, 7),
        ({}, {"max_epochs": -1, "max_steps": 7}, 7),
        ({}, {"limit_train_batches": 0.4}, 4),
        ({}, {"overfit_batches": 1}, 2),
    ],
)
@pytest.mark.parametrize("model", ["routed", "baseline"])
def test_the_length_is_that_of_the_steps_made(model, of_the_model, of_the_run, steps):
    if model == "baseline":  # Lightning optimizes it, and has these options
        of_the_model, of_the_run = {}, of_the_run | of_the_model
    made = MODELS[model](lr_scheduler=ONE_CYCLE, lr_interval="step", **of_the_model)
    trainer, _ = fit(made, **of_the_run)
    [scheduler] = schedulers(trainer)
    assert scheduler.total_steps == scheduler.last_epoch == trainer.global_step == steps


def test_accumulation_that_changes_counts_epoch_by_epoch():
    model = MODELS["baseline"](lr_scheduler=ONE_CYCLE, lr_interval="step")
    trainer, _ = fit(model, GradientAccumulationScheduler({0: 1, 1: 3}))
    assert schedulers(trainer)[0].total_steps == trainer.global_step == 5 + 2


def test_routers_schedules_have_the_length_of_the_run_each_time():
    learner = REINFORCE(0.1, lr_scheduler=partial(LinearLR, total_iters=-1))
    model = MODELS["routed"](router=RewardRouter(MLPPolicy(4), learner), lr_scheduler=partial(StepLR, step_size=1))
    for epochs in (2, 3):
        trainer, _ = fit(model, max_epochs=epochs)
        assert [getattr(one, "total_iters", None) for one in schedulers(trainer)] == [None, epochs]


@pytest.mark.parametrize("model", ["routed", "baseline"])
def test_a_resumed_run_keeps_its_schedule_and_says_nothing_of_it(model, tmp_path, recwarn):
    made = partial(MODELS[model], lr_scheduler=ONE_CYCLE, lr_interval="step")
    whole, _ = fit(made(), ModelCheckpoint(tmp_path, every_n_train_steps=3, save_top_k=-1))
    for path in sorted(tmp_path.glob("*.ckpt")):
        resumed, _ = fit(made(), ckpt_path=path)
        check(whole, resumed, str(path), finished=True)
    assert not [warning for warning in recwarn if "goes on with" in str(warning.message)]


@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_a_length_that_was_left_to_a_shorter_run_stays_and_is_told(interval, tmp_path, recwarn):
    cosine = partial(CosineAnnealingLR, T_max=-1)
    made = partial(MODELS["routed"], lr_scheduler=cosine, lr_interval=interval)
    fit(made(), ModelCheckpoint(tmp_path, filename="end"))
    resumed, _ = fit(made(), ckpt_path=tmp_path / "end.ckpt", max_epochs=3)
    before, now = (2 * BATCHES, 3 * BATCHES) if interval == "step" else (2, 3)
    assert schedulers(resumed)[0].T_max == before
    said = f"CosineAnnealingLR goes on with T_max {before} of the checkpoint, not {now}, the length of the run"
    assert [said in str(warning.message) for warning in recwarn].count(True) == 1


def test_given_lengths_stay():
    for schedule in (
        partial(OneCycleLR, max_lr=0.1, total_steps=7),
        partial(OneCycleLR, max_lr=0.1, epochs=1, steps_per_epoch=9),
        partial(OneCycleLR, max_lr=0.1, epochs=1),  # which torch refuses
        partial(LinearLR, start_factor=0.5),  # 5 by default
        partial(StepLR, step_size=3),
        lambda optimizer: LinearLR(optimizer),
    ):
        assert open_length(schedule) is None


@pytest.mark.parametrize("model", ["routed", "baseline"])
@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_a_run_that_goes_on_beyond_its_schedule_is_told_before_it_trains(model, interval, tmp_path):
    made = partial(MODELS[model], lr_scheduler=ONE_CYCLE, lr_interval=interval)
    fit(made(), ModelCheckpoint(tmp_path, filename="end"))
    length = {"step": 2 * BATCHES, "epoch": 2}[interval]
    ends = f"OneCycleLR ends after {length} {interval}s but the run makes"
    way_out = f"set trainer.max_{interval}s to at most {length}, since a resumed .* or begin a new run with its weights"
    with pytest.raises(UsageError, match=f"{ends} .*; {way_out}"):
        fit(made(), max_epochs=3, ckpt_path=tmp_path / "end.ckpt")
    late = partial(MODELS[model], lr_scheduler=partial(OneCycleLR, max_lr=0.1, total_steps=2), lr_interval=interval)
    with pytest.raises(UsageError, match=f"ends after 2 {interval}s but .* or its total_steps to null"):
        fit(late(), max_epochs=3)
    for perhaps in (EarlyStopping("val/loss"), Timer("00:01:00:00")):  # which may end it first, or not
        with pytest.raises(UsageError, match=f"ends after 2 {interval}s but"):
            fit(late(), perhaps, max_epochs=3)
    with pytest.raises(UsageError, match=rf"does not end by itself; set trainer.max_{interval}s to at most 2\."):
        fit(late(), max_epochs=None, max_time="00:01:00:00")
    fit(made(), StochasticWeightAveraging(0.01, swa_epoch_start=1))  # an epoch more, without steps


@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_a_run_without_end_is_told(interval):
    model = MODELS["routed"](lr_scheduler=ONE_CYCLE, lr_interval=interval)
    with pytest.raises(UsageError, match=rf"max_epochs -1 and .*set trainer.max_{interval}s, or"):
        fit(model, max_epochs=-1)


@pytest.mark.parametrize("model", ["routed", "baseline"])
@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_a_schedule_that_is_over_before_the_resumed_run_is_told_at_its_start(model, interval, tmp_path):
    made = partial(MODELS[model], lr_scheduler=ONE_CYCLE, lr_interval=interval)
    steps = {"step": BATCHES, "epoch": 1}[interval]
    fit(made(), ModelCheckpoint(tmp_path, every_n_train_steps=3, save_top_k=-1))  # 2 epochs
    for path in sorted(tmp_path.glob("*.ckpt")):  # in the midst of it and near its end
        with pytest.raises(UsageError, match=f"after {2 * steps} {interval}s but the run makes {3 * steps};"):
            fit(made(), BatchesForbidden(), ckpt_path=path, max_epochs=3)


LATE = [
    ({"check_val_every_n_epoch": 2}, "every 2 epochs"),
    ({"limit_val_batches": 0}, "there is no validation"),
    ({"check_val_every_n_epoch": None, "val_check_interval": BATCHES + 1}, f"after {BATCHES + 1} batches"),
    ({"val_check_interval": "00:00:01:00"}, "goes by time"),
]


@pytest.mark.parametrize(("options", "why"), LATE)
@pytest.mark.parametrize("model", ["routed", "baseline"])
def test_a_schedule_that_looks_at_what_is_not_known_in_each_epoch_is_told_before_the_first_batch(model, options, why):
    made = partial(MODELS[model], lr_scheduler=partial(ReduceLROnPlateau, monitor="val/loss"))
    with pytest.raises(UsageError, match=f"looks at 'val/loss' at the end of each epoch, but .*{why}.*train/loss"):
        fit(made(), BatchesForbidden(), **options)
    fit(MODELS[model](lr_scheduler=partial(ReduceLROnPlateau, monitor="train/loss")), max_epochs=1, **options)


def test_a_validation_within_each_epoch_is_enough():
    made = MODELS["routed"](lr_scheduler=partial(ReduceLROnPlateau, monitor="val/loss"))
    trainer, _ = fit(made, check_val_every_n_epoch=None, val_check_interval=2)
    assert schedulers(trainer)[0].last_epoch == 2


def test_from_the_command_line_the_saved_config_leaves_it_open(tmp_path):
    configs = [f"--config={ROOT / 'configs' / place}.yaml" for place in ("data/digits_mtl", "methods/wpl")]
    schedule = "{class_path: OneCycleLR, init_args: {max_lr: 0.05, total_steps: null}}"
    words = [f"--model.init_args.lr_scheduler={schedule}", "--model.init_args.lr_interval=step", "--record=null"]
    short = ["--trainer.limit_train_batches=4", "--trainer.limit_val_batches=1", "--trainer.enable_progress_bar=false"]
    place = [f"--trainer.default_root_dir={tmp_path}", "--trainer.accelerator=cpu"]
    cli = main(["fit", *configs, *words, *short, *place, "--trainer.max_epochs=2"])
    config = Path(cli.trainer.log_dir) / "config.yaml"
    saved = yaml.safe_load(config.read_text())["model"]["init_args"]["lr_scheduler"]["init_args"]
    assert saved["total_steps"] is None
    assert schedulers(cli.trainer)[0].total_steps == 8
    path = cli.trainer.checkpoint_callback.best_model_path
    assert RoutedClassifier.load_from_checkpoint(path).make_lr_scheduler.keywords["total_steps"] is None
    other = "--model.init_args.lr_scheduler={class_path: LinearLR, init_args: {total_iters: null}}"
    again = main(["fit", f"--config={config}", other, "--trainer.max_epochs=1"])
    assert schedulers(again.trainer)[0].total_iters == 4
