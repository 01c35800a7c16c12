"""A run resumed from a checkpoint equals the unbroken one to the bit, wherever and however that was saved."""

from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    Checkpoint,
    EarlyStopping,
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    LearningRateFinder,
    LearningRateMonitor,
    ModelCheckpoint,
    StochasticWeightAveraging,
    Timer,
)
from lightning.pytorch.cli import ReduceLROnPlateau
from lightning.pytorch.loggers import Logger

from routing_lightning.errors import UsageError
from routing_lightning.modules import MultiTaskClassifier
from routing_lightning.modules.resume import forget_strange_files
from routing_lightning.networks import TaskSpecific
from routing_lightning.routers import (
    REINFORCE,
    BranchingRouter,
    MLPPolicy,
    PairedDifference,
    QLearning,
    RewardRouter,
    TabularPolicy,
)
from tests.conftest import ToyDataModule, toy_features, toy_model


class Curves(Logger):
    """Keeps what is logged."""

    name, version = "curves", 0

    def __init__(self) -> None:
        self.rows: list[tuple[int | None, dict[str, float]]] = []

    def log_metrics(self, metrics, step=None):
        self.rows.append((step, {name: float(value) for name, value in metrics.items()}))

    def log_hyperparams(self, *args, **kwargs):
        pass


class Save:
    """Saves a checkpoint at each of some hooks, and notes how much was logged before."""

    def __init__(self, folder: Path, hooks: list[str]) -> None:
        self.logged: dict[str, int] = {}
        for hook in hooks:
            setattr(self, hook, partial(self.save, folder, hook))

    def save(self, folder: Path, hook: str, trainer, *_):
        if trainer.sanity_checking:
            return
        path = folder / f"{len(self.logged):03}_{type(self).__name__}_{hook}_step_{trainer.global_step}.ckpt"
        trainer.save_checkpoint(path)
        self.logged[str(path)] = len(trainer.logger.rows)


class SaveEarly(Save, Callback):
    """Before the module's own hook at the end of an epoch, as other callbacks do."""


class SaveLate(Save, Checkpoint):
    """After it, as ModelCheckpoint does."""


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def halving(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)


def step_wise(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)


def plateau(optimizer):
    return ReduceLROnPlateau(optimizer, monitor="val/loss", patience=0, threshold=10.0, factor=0.5)


SCHEDULES = {
    "epoch": {"lr_scheduler": halving},
    "step": {"lr_scheduler": step_wise, "lr_interval": "step"},
    "plateau": {"lr_scheduler": plateau},
}


def routed(**options) -> LightningModule:
    router = RewardRouter(TabularPolicy(), QLearning(epsilon_samples=300), collaboration=0.2)
    return toy_model(**{"router": router, "optimizer": momentum, "num_blocks": 4} | options)


def by_network(**options) -> LightningModule:
    router = RewardRouter(MLPPolicy(4), REINFORCE(0.1, baseline=True, optimizer=momentum, lr_scheduler=halving))
    return routed(router=router, **options)


def baseline(**options) -> LightningModule:
    seed_everything(0, verbose=False)
    network = partial(TaskSpecific, hidden=8, own_layers=1)
    return MultiTaskClassifier(3, 2, (1, 8, 8), network, toy_features, optimizer=momentum, **options)


def branching(**options) -> LightningModule:
    """In search at each place: five batches of an epoch, 15 in all, three depths of four."""
    return routed(
        router=BranchingRouter(PairedDifference(lr=5.0), begin=0, stage=4), final_reward="negative_loss", **options
    )


def stitched(**options) -> LightningModule:
    """The search ends within the second epoch of five batches; from then on towers are mixed."""
    router = BranchingRouter(PairedDifference(lr=5.0), begin=0, stage=2, stitch=True)
    return routed(router=router, final_reward="negative_loss", **options)


MODELS = {
    "routed": routed,
    "branching": branching,
    "stitched": stitched,
    "by_network": by_network,
    "baseline": baseline,
}


def fit(model: LightningModule, *callbacks: Callback, ckpt_path=None, **options) -> tuple[Trainer, Curves]:
    curves = Curves()
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    # Lightning adds a ModelCheckpoint, which writes into the working directory, where nobody else saves.
    quiet["enable_checkpointing"] = any(isinstance(callback, Checkpoint) for callback in callbacks)
    trainer = Trainer(
        **{
            "accelerator": "cpu",
            "max_epochs": 2,
            "log_every_n_steps": 1,
            "num_sanity_val_steps": 0,
            **quiet,
            **options,
        },
        logger=curves,
        callbacks=list(callbacks),
    )
    trainer.fit(model, ToyDataModule(count=72), ckpt_path=ckpt_path)  # 5 batches, the last one of 8 samples
    return trainer, curves


def equal(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(equal(*pair) for pair in zip(a, b, strict=True))  # type: ignore[arg-type]
    return a == b


def check(whole: Trainer, resumed: Trainer, where: str, finished: bool = False) -> None:
    assert whole.global_step == resumed.global_step, where
    for name, value in whole.lightning_module.state_dict().items():
        assert torch.equal(value, resumed.lightning_module.state_dict()[name]), (where, name)
    for ours, theirs in zip(whole.optimizers, resumed.optimizers, strict=True):
        assert equal(ours.state_dict(), theirs.state_dict()), where
    for ours, theirs in zip(whole.lr_scheduler_configs, resumed.lr_scheduler_configs, strict=True):
        assert ours.scheduler.state_dict() == theirs.scheduler.state_dict(), where
    if finished:  # by the saved run
        return
    assert whole.current_epoch == resumed.current_epoch, where
    for name, value in whole.callback_metrics.items():
        assert torch.equal(value, resumed.callback_metrics[name]), (where, name)


EARLY = ["on_train_epoch_start", "on_train_batch_start", "on_validation_start", "on_train_epoch_end", "on_train_end"]
LATE = ["on_train_batch_end", "on_validation_batch_end", "on_validation_end", "on_train_epoch_end"]


def check_every_place(make, tmp_path: Path, model_options: dict, **options) -> None:
    early, late = SaveEarly(tmp_path, EARLY), SaveLate(tmp_path, LATE)
    whole, curves = fit(make(**model_options), early, late, **options)
    logged = early.logged | late.logged
    assert len(logged) > 15
    for path, before in sorted(logged.items()):
        resumed, rest = fit(make(**model_options), ckpt_path=path, **options)
        check(whole, resumed, path, finished=not rest.rows)
        if not rest.rows and whole.global_step == whole.max_steps:
            continue  # max_steps is reached already
        # Lightning writes the numbers of a step or epoch after these hooks, so the run that saved still does.
        written = "SaveLate_on_train_batch_end" in path or "SaveLate_on_train_epoch_end" in path
        assert rest.rows in [curves.rows[before:], curves.rows[before + written :]], path


@pytest.mark.parametrize(
    ("model", "schedule"),
    [
        ("routed", "epoch"),
        ("routed", "step"),
        ("branching", "step"),
        ("stitched", "epoch"),
        ("routed", "plateau"),
        ("by_network", "epoch"),
        ("baseline", "plateau"),
    ],
)
def test_from_every_place_of_a_run(model, schedule, tmp_path):
    check_every_place(MODELS[model], tmp_path, SCHEDULES[schedule])


@pytest.mark.parametrize(
    "options",
    [
        {"val_check_interval": 2},
        {"limit_train_batches": 3, "limit_val_batches": 0},
        {"check_val_every_n_epoch": 2, "overfit_batches": 3},
        {"max_epochs": -1, "max_steps": 8},
    ],
    ids=str,
)
def test_from_every_place_with_other_limits(options, tmp_path):
    check_every_place(baseline if "val_check_interval" in options else routed, tmp_path, SCHEDULES["epoch"], **options)


@pytest.mark.parametrize("model", ["routed", "baseline"])
def test_from_every_place_while_gradients_are_collected(model, tmp_path):
    where = [{"accumulate_grad_batches": 3}, {}]
    if model == "baseline":
        where.reverse()
    check_every_place(MODELS[model], tmp_path, SCHEDULES["step"] | where[0], val_check_interval=2, **where[1])


@pytest.mark.parametrize("steps", [5, 7])
@pytest.mark.parametrize("model", ["routed", "baseline"])
@pytest.mark.parametrize("schedule", ["epoch", "plateau"])
def test_a_run_that_ended_by_max_steps_goes_on(model, schedule, steps, tmp_path):
    """At the end of an epoch, which is 5 steps long, and within one."""
    options = SCHEDULES[schedule]
    whole, curves = fit(MODELS[model](**options), max_epochs=-1, max_steps=13)
    late = SaveLate(tmp_path, ["on_train_epoch_end", "on_train_end"])
    fit(MODELS[model](**options), late, max_epochs=-1, max_steps=steps)
    for path in sorted(late.logged)[-2:]:
        resumed, rest = fit(MODELS[model](**options), ckpt_path=path, max_epochs=-1, max_steps=13)
        check(whole, resumed, path)
        assert rest.rows == curves.rows[-len(rest.rows) :]


@pytest.mark.parametrize("model", ["routed", "baseline"])
def test_validation_between_collected_batches_keeps_the_gradient(model):
    options = [{"accumulate_grad_batches": 4}, {}]
    if model == "baseline":
        options.reverse()
    trained = []
    for interval in (1.0, 2):
        trainer, _ = fit(MODELS[model](**options[0]), val_check_interval=interval, **options[1])
        trained.append(trainer.lightning_module)
    for ours, theirs in zip(trained[0].parameters(), trained[1].parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_checkpoint_after_an_error_within_the_step_is_whole_and_can_be_resumed(error, tmp_path):
    class Breaking(torch.optim.Adam):
        def step(self, closure=None):
            if self.state and not tmp_path.joinpath("broken").exists():
                tmp_path.joinpath("broken").touch()
                raise error("within the step")
            return super().step(closure)

    options = {"optimizer": lambda p: Breaking(p, lr=0.01), "num_blocks": 12}
    save = ModelCheckpoint(tmp_path, save_on_exception=True)
    with pytest.raises(SystemExit if error is KeyboardInterrupt else error):
        fit(routed(**options), save)
    (path,) = tmp_path.glob("*.ckpt")
    saved = torch.load(path, weights_only=True)["optimizer_states"][0]
    assert len(saved["param_groups"][0]["params"]) == len(list(routed(**options).trained_parameters()))
    trainer, _ = fit(routed(**options), ckpt_path=path)
    assert trainer.global_step == 10


def accumulating():
    return GradientAccumulationScheduler({0: 2, 1: 3})


def averaging():
    """From the second epoch on; a third one gives batch normalisation its statistics and makes no steps."""
    return StochasticWeightAveraging(0.01, swa_epoch_start=2, annealing_epochs=2)


@pytest.mark.parametrize(
    ("model", "callback"), [("baseline", accumulating), ("baseline", averaging), ("routed", averaging)]
)
def test_callbacks_that_prepare_an_epoch_at_its_start_do_so_within_it(model, callback, tmp_path):
    saves = SaveLate(tmp_path, ["on_train_batch_end"])
    whole, _ = fit(MODELS[model](**SCHEDULES["epoch"]), callback(), saves)
    assert len(saves.logged) == 10 + 5 * (callback is averaging)
    for path in saves.logged:
        resumed, _ = fit(MODELS[model](**SCHEDULES["epoch"]), callback(), ckpt_path=path)
        assert whole.global_step == resumed.global_step, path
        ours, theirs = (trainer.optimizers[0].state_dict()["state"] for trainer in (whole, resumed))
        assert equal(ours, theirs), path  # its rate in the epoch without steps does not matter
        assert equal(whole.lightning_module.state_dict(), resumed.lightning_module.state_dict()), path


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("model", ["routed", "baseline"])
def test_callbacks_that_log_before_a_batch_are_told_the_same_step(model, accumulate, tmp_path):
    of_model, of_run = {"accumulate_grad_batches": accumulate}, {}
    if model == "baseline":
        of_model, of_run = of_run, of_model

    def rates(curves: Curves) -> list[tuple[int | None, dict[str, float]]]:
        return [row for row in curves.rows if "lr-SGD" in row[1]]

    def run(*callbacks, **options):
        made = MODELS[model](**SCHEDULES["step"], **of_model)
        return fit(made, LearningRateMonitor("step"), *callbacks, **of_run, **options)[1]

    saves = SaveLate(tmp_path, ["on_train_batch_end"])
    whole = rates(run(saves))
    assert len(whole) == len(saves.logged) == 10
    for path in sorted(saves.logged)[1:-1:3]:
        rest = rates(run(ckpt_path=path))
        assert rest and rest == whole[-len(rest) :], path


WITHIN = ["on_before_backward", "on_after_backward", "on_before_optimizer_step", "on_before_zero_grad"]


@pytest.mark.parametrize("model", ["routed", "baseline"])
def test_a_checkpoint_saved_within_a_step_is_whole_and_the_doubt_is_told(model, tmp_path, recwarn):
    saves = SaveEarly(tmp_path, WITHIN)
    whole, _ = fit(MODELS[model](), saves, max_epochs=1)
    alone, _ = fit(MODELS[model](), max_epochs=1)
    assert equal(whole.lightning_module.state_dict(), alone.lightning_module.state_dict())
    assert len(saves.logged) > 9 and any("saved within a training step" in str(said.message) for said in recwarn)
    path = next(path for path in sorted(saves.logged) if "optimizer_step_step_3" in path)
    assert fit(MODELS[model](), ckpt_path=path, max_epochs=1)[0].global_step == 5


def test_counts_begin_anew_after_a_validation_or_a_training_that_was_broken_off():
    model, data = routed(), ToyDataModule(count=72)
    data.setup()
    data.train_dataset.labels[70] = 7
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    for method in ("validate", "fit"):
        with pytest.raises(UsageError, match="label 7"):
            getattr(Trainer(**quiet, max_epochs=1, num_sanity_val_steps=0), method)(model, data)
    data.train_dataset.labels[70] = 0
    trainer = Trainer(**quiet)
    trainer.validate(model, data)
    assert int(model.metric("val").total.sum()) == 72
    fit(model, max_epochs=1)
    assert int(model.metric("train").total.sum()) == 72


@pytest.mark.parametrize("options", [{}, {"save_last": True}, {"monitor": "val/loss", "save_top_k": 2}], ids=str)
@pytest.mark.parametrize("model", ["routed", "baseline"])
def test_a_checkpoint_does_not_say_which_files_are_removed(model, options, tmp_path, recwarn):
    saves = ModelCheckpoint(tmp_path / "saved", **options)
    trainer, _ = fit(MODELS[model](), saves, max_epochs=1)
    trainer.save_checkpoint(tmp_path / "whole.ckpt")
    precious = tmp_path / "precious"
    files = [precious / "a", tmp_path / "b.ckpt", tmp_path / "saved" / "c.txt"]
    for name in ("saved/../precious", "saved/../b.ckpt", "saved/c.txt"):
        content = torch.load(tmp_path / "whole.ckpt", weights_only=True)
        for path in files:
            path.parent.mkdir(exist_ok=True)
            path.touch()
        (state,) = (state for key, state in content["callbacks"].items() if "ModelCheckpoint" in key)
        planted, worst = str(tmp_path / name), torch.tensor(99.0)
        state |= {f"{which}_path": planted for which in ("best_model", "kth_best_model", "last_model")}
        state |= {"best_k_models": {planted: worst}, "kth_value": worst, "best_model_score": worst}
        torch.save(content, tmp_path / "bad.ckpt")
        fit(MODELS[model](), ModelCheckpoint(tmp_path / "saved", **options), ckpt_path=tmp_path / "bad.ckpt")
        assert all(path.is_file() for path in files), name
    assert any("as a file of its run, which it cannot be" in str(said.message) for said in recwarn)


@pytest.mark.parametrize("top", [1, 2])
@pytest.mark.parametrize("model", ["routed", "baseline"])
def test_the_best_of_a_run_that_goes_on_elsewhere_is_that_of_the_whole(model, top, tmp_path):
    def best(folder: str, **options) -> ModelCheckpoint:
        name = tmp_path / folder
        saves = ModelCheckpoint(name, "{epoch}", monitor="val/acc", mode="max", save_last=True, save_top_k=top)
        fit(MODELS[model](), saves, **options)
        return saves

    whole, part = best("whole", max_epochs=4), best("part", max_epochs=2)
    rest = best("rest", max_epochs=4, ckpt_path=tmp_path / "part" / "last.ckpt")
    assert whole.best_model_score == rest.best_model_score
    assert sorted(whole.best_k_models.values()) == sorted(rest.best_k_models.values())
    assert Path(whole.best_model_path).name == Path(rest.best_model_path).name
    assert all(Path(name).is_file() for name in (*rest.best_k_models, *part.best_k_models))
    Path(part.best_model_path).unlink()  # what is gone is not the best
    rest = best("other", max_epochs=3, ckpt_path=tmp_path / "part" / "last.ckpt")
    assert Path(rest.best_model_path).is_file()


def test_files_of_the_run_are_kept_in_mind_wherever_it_saves():
    def kept(*names: str, folders=("s3://mine/run", "/here")) -> set[str]:
        states = {"a": {"best_model_path": names[0], "best_k_models": dict.fromkeys(names, 1.0)}, "b": 3}
        forget_strange_files(states, folders, ".ckpt")
        assert states["a"]["best_model_path"] in ("", names[0])
        return set(states["a"]["best_k_models"])

    own = {"/here/epoch=1.ckpt", "/elsewhere/a/b.ckpt", "s3://mine/run/epoch=1-v1.ckpt"}
    assert kept(*own) == own
    strange = [
        "s3://other/run/a.ckpt",
        "s3://mine/run/../a.ckpt",
        "s3://mine/running/a.ckpt",
        "/here/../a.ckpt",
        "/here/a",
    ]
    assert kept(*strange) == set()


def test_a_checkpoint_by_time_is_saved(tmp_path):
    save = ModelCheckpoint(tmp_path, train_time_interval=timedelta(0), save_top_k=-1, filename="{step}")
    fit(routed(), save, max_epochs=1)
    assert len(list(tmp_path.glob("*.ckpt"))) == 5


def test_what_lightning_says_about_manual_optimization_is_not_passed_on(tmp_path, recwarn):
    fit(routed(lr_scheduler=plateau), ModelCheckpoint(tmp_path, every_n_train_steps=2), max_epochs=1)
    said = [str(warning.message) for warning in recwarn]
    assert not [text for text in said if "manual optimization" in text]


@pytest.mark.parametrize("finder", [LearningRateFinder(num_training_steps=2), BatchSizeFinder(max_trials=1)])
def test_a_run_that_goes_on_looks_for_no_rate_or_batch_size(finder, tmp_path):
    trainer, _ = fit(routed(), max_epochs=1)
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    name = type(finder).__name__
    with pytest.raises(UsageError, match=f"{name} looks for a value from the start .* goes on from .*run.ckpt"):
        fit(routed(), finder, ckpt_path=tmp_path / "run.ckpt", max_epochs=2)
    # as SLURM calls what a job saves that is begun again with the same words
    trainer.save_checkpoint(tmp_path / "hpc_ckpt_1.ckpt")
    again, _ = fit(routed(), finder, ckpt_path=tmp_path / "hpc_ckpt_1.ckpt", max_epochs=2)
    assert again.global_step == 2 * trainer.global_step and finder not in again.callbacks


def early(**options) -> EarlyStopping:
    return EarlyStopping("val/loss", **{"patience": 1, "min_delta": 100.0} | options)


STOPS = {
    "patience": ({}, {"patience": 2}),
    "threshold": ({"stopping_threshold": 100.0}, {"stopping_threshold": 0.0}),
    "divergence": ({"divergence_threshold": 0.0}, {"divergence_threshold": 100.0}),
}


@pytest.mark.parametrize(("stops", "goes_on"), STOPS.values(), ids=STOPS)
@pytest.mark.parametrize("model", ["routed", "baseline"])
def test_a_run_that_was_stopped_early_stays_so(model, stops, goes_on, tmp_path, caplog):
    save = partial(ModelCheckpoint, tmp_path, filename="end", enable_version_counter=False)
    first, _ = fit(MODELS[model](), early(**stops), save(), max_epochs=9)
    epochs = first.current_epoch
    assert epochs < 9
    path = tmp_path / "end.ckpt"
    again, _ = fit(MODELS[model](), early(**stops), ckpt_path=path, max_epochs=9)
    assert again.global_step == first.global_step and not again.lightning_module.began
    assert "nothing was trained: EarlyStopping has stopped the run: " in caplog.text
    least, _ = fit(MODELS[model](), early(**stops), ckpt_path=path, max_epochs=9, min_epochs=epochs + 1)
    assert least.current_epoch == epochs + 1
    longer, _ = fit(MODELS[model](), early(**goes_on), save(), ckpt_path=path, max_epochs=epochs + 1)
    assert longer.current_epoch == epochs + 1
    assert torch.load(path, weights_only=True)["epoch"] == epochs  # the run's, from 0
    assert ("goes on with patience 2, not 1 as before" in caplog.text) == ("patience" in goes_on)
    without, _ = fit(MODELS[model](), ckpt_path=path, max_epochs=epochs + 2)
    assert without.current_epoch == epochs + 2


@pytest.mark.parametrize("options", [{"max_epochs": 2}, {"max_epochs": -1, "max_steps": 7}])
def test_a_run_that_is_over_has_its_averages_and_says_so(options, tmp_path, caplog):
    average = partial(EMAWeightAveraging, decay=0.9)
    whole, _ = fit(routed(), average(), ModelCheckpoint(tmp_path, filename="end", save_last=True), **options)
    path = sorted(tmp_path.glob("*.ckpt"))[-1]
    again, _ = fit(routed(), average(), ckpt_path=path, **options)
    limit = "max_steps is 7" if "max_steps" in options else "max_epochs is 2"
    assert "nothing was trained: the run has made " in caplog.text and limit in caplog.text
    for name, value in whole.lightning_module.state_dict().items():
        assert torch.equal(value, again.lightning_module.state_dict()[name]), name


SHORT, LONG = {"microseconds": 1}, {"minutes": 5}
ENDS = {
    "epochs": ({"max_epochs": 2}, ["2 epochs, and trainer.max_epochs is 2; give more to go on"], {"max_epochs": 3}),
    "steps": ({"max_epochs": -1, "max_steps": 7}, ["7 steps, and trainer.max_steps is 7; give"], {"max_steps": 9}),
    "epochs and steps": (
        {"max_epochs": 1, "max_steps": 5},
        ["max_steps is 5; the run", "max_epochs is 1; give more of each"],
        {"max_epochs": 2, "max_steps": 8},
    ),
    "epochs before steps": ({"max_epochs": 1, "max_steps": 9}, ["made 1 epochs"], {"max_epochs": 2}),
    "time": ({"max_epochs": -1, "max_time": SHORT}, ["trainer.max_time (or the duration of"], {"max_time": LONG}),
    "time before epochs": ({"max_epochs": 9, "max_time": SHORT}, ["trainer.max_time (or"], {"max_time": LONG}),
    "time, at least an epoch": (
        {"max_epochs": -1, "max_time": SHORT, "min_epochs": 1},
        ["trainer.max_time (or"],
        {"max_time": LONG},
    ),
    "time and steps": (
        {"max_epochs": -1, "max_steps": 4, "max_time": SHORT, "min_steps": 4},
        ["max_steps is 4; the run has taken", "more of each"],
        {"max_time": LONG, "max_steps": 8},
    ),
}


@pytest.mark.parametrize(("options", "told", "more"), ENDS.values(), ids=ENDS)
def test_each_way_in_which_a_run_ends_is_named_and_more_of_it_goes_on(options, told, more, tmp_path, caplog):
    save = ModelCheckpoint(tmp_path, filename="end", save_last=True)
    first, _ = fit(routed(), save, **options)
    path = tmp_path / "last.ckpt"
    again, _ = fit(routed(), ckpt_path=path, **options)
    assert again.global_step == first.global_step and not again.lightning_module.began
    (sentence,) = [text for text in caplog.messages if text.startswith("nothing was trained")]
    assert all(part in sentence for part in told)
    assert {name for name in ("max_epochs", "max_steps", "max_time") if f"trainer.{name} " in sentence} == set(more)
    longer, _ = fit(routed(), ckpt_path=path, **(options | {"max_steps": first.global_step + 2} | more))
    assert longer.lightning_module.began and longer.global_step > first.global_step
    timers = [one for one in longer.callbacks if isinstance(one, Timer)]
    assert all(one.time_elapsed() >= one._offset > 0 for one in timers)  # the time of the first run counts


@pytest.mark.parametrize("left", [1, 3])
@pytest.mark.parametrize("model", ["routed", "baseline"])
def test_an_epoch_that_has_fewer_batches_than_are_done_is_told(model, left, tmp_path):
    fit(MODELS[model](), ModelCheckpoint(tmp_path, filename="within", every_n_train_steps=3), max_epochs=1)
    path = tmp_path / "within.ckpt"
    with pytest.raises(UsageError, match=f"3 batches of the epoch are done, but now it has {left}"):
        fit(MODELS[model](), ckpt_path=path, max_epochs=2, limit_train_batches=left)
    more, _ = fit(MODELS[model](), ckpt_path=path, max_epochs=2, limit_train_batches=4)
    assert more.global_step == 8


def test_a_batch_size_that_changes_within_an_epoch_is_told(tmp_path, recwarn):
    save = [ModelCheckpoint(tmp_path, filename=f"{{step}}-{at}", every_n_train_steps=at) for at in (3, 5)]
    fit(routed(), *save, max_epochs=1)
    within, after = sorted(tmp_path.glob("*.ckpt"))
    words = "batch_size is 8, but the 3 batches done of the epoch were made with 16"
    for path, size, told in ((within, 8, True), (within, 16, False), (after, 8, False)):
        recwarn.clear()
        fit_with = ToyDataModule(count=72)
        fit_with.batch_size = size
        trainer = Trainer(accelerator="cpu", max_epochs=2, logger=False, enable_progress_bar=False,
                          enable_checkpointing=False, num_sanity_val_steps=0)  # fmt: skip
        trainer.fit(routed(), fit_with, ckpt_path=path)
        assert any(words in str(one.message) for one in recwarn) == told
