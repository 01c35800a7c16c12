from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch import nn

from routing_lightning.callbacks import RouteRecorder, RoutingMap
from routing_lightning.errors import UsageError
from routing_lightning.record import RouteRecord, claim_file
from routing_lightning.routers import Router, RoutingSpec, Trace
from tests.callbacks.conftest import Spy, all_callbacks, table_of_checkpoint
from tests.conftest import ToyDataModule, toy_model


def load(trainer: L.Trainer) -> RouteRecord:
    return RouteRecord.load(Path(trainer.log_dir or trainer.default_root_dir) / "routes.npz")


def same(ours: RouteRecord, theirs: RouteRecord) -> bool:
    arrays = ("steps", "counts", "probabilities", "routes", "route_counts", "num_actions", "num_blocks")
    return all(np.array_equal(getattr(ours, name), getattr(theirs, name)) for name in arrays)


def test_counts_and_policies_are_those_of_the_training(fit):
    spy = Spy()
    trainer = fit([spy, RouteRecorder()], max_epochs=3)
    record = load(trainer)
    assert record.task_names == ["task_0", "task_1", "task_2"]
    assert record.steps.tolist() == list(range(19))  # the start is seen step by step
    for step, policy in zip(record.steps.tolist(), record.probabilities, strict=True):
        np.testing.assert_array_equal(policy, spy.policies[step].numpy())
    np.testing.assert_array_equal(record.counts.sum(0), spy.counts(record.counts.shape[1:]).numpy())
    assert record.counts[0].sum() == 0 and (record.counts[1:].sum((1, 3)) == 16).all()


def test_last_snapshot_is_the_policy_of_the_checkpoint(fit):
    trainer = fit([RouteRecorder(growth=10.0)])
    record = load(trainer)
    assert record.steps[-1] == trainer.global_step
    np.testing.assert_array_equal(record.probabilities[-1], table_of_checkpoint(trainer).numpy())


def test_snapshots_get_rarer_with_time_but_mark_each_epoch(fit):
    trainer = fit([RouteRecorder(growth=1.0)], max_epochs=3)
    assert load(trainer).steps.tolist() == [0, 1, 2, 4, 6, 12, 18]


@pytest.mark.parametrize("epochs_before", [1, 2])
def test_resumed_history_is_that_of_the_unbroken_run(epochs_before, fit, tmp_path):
    whole = fit(all_callbacks(), max_epochs=4)
    first = fit(all_callbacks(), max_epochs=epochs_before)
    second = fit(all_callbacks(), max_epochs=4, ckpt_path=first.checkpoint_callback.best_model_path)
    assert second.log_dir != first.log_dir
    assert same(load(whole), load(second))


def test_resume_within_an_epoch_counts_each_sample_once(fit):
    whole = fit([RouteRecorder()], max_epochs=2)
    keep = ModelCheckpoint(every_n_train_steps=4, save_top_k=-1, filename="{step}")
    fit([RouteRecorder(), keep], max_epochs=1)
    (path,) = Path(keep.dirpath).glob("step=4.ckpt")
    again = fit([RouteRecorder()], max_epochs=2, ckpt_path=path)
    np.testing.assert_array_equal(load(again).steps, load(whole).steps)
    np.testing.assert_array_equal(load(again).counts.sum((0, 1, 3)), load(whole).counts.sum((0, 1, 3)))


def test_thinning_bounds_the_history_and_keeps_all_counts(fit):
    spy, recorder = Spy(), RouteRecorder(max_values=1)
    trainer = fit([spy, recorder], max_epochs=8)
    record = load(trainer)
    assert len(record.steps) <= 9 and recorder.thinned > 0
    assert record.steps[0] == 0 and record.steps[-1] == trainer.global_step == 48
    np.testing.assert_array_equal(record.counts.sum(0), spy.counts(record.counts.shape[1:]).numpy())


def test_large_tables_begin_with_less_frequent_snapshots(fit, monkeypatch):
    recorder = RouteRecorder()
    size = recorder_size(fit)
    monkeypatch.setattr("routing_lightning.callbacks.recorder.QUICK", size / 4)
    record = load(fit([recorder], max_epochs=2))
    assert recorder.thinned == 2
    assert record.steps.tolist() == [0, 4, 6, 10, 12]  # every 4 steps, and at the end of an epoch of 6
    assert record.counts.sum() == 2 * 96 * 3


def recorder_size(fit) -> int:
    """Probabilities in a snapshot of the toy model."""
    return load(fit([RouteRecorder()], max_epochs=1)).probabilities[0].size


def test_checkpoint_stays_small_and_plain(fit):
    trainer = fit([RouteRecorder()])
    state = torch.load(trainer.checkpoint_callback.best_model_path, weights_only=True)["callbacks"]["RouteRecorder"]
    assert state["record"].numel() < 20_000
    assert set(state) == {"record", "pending", "thinned"}


def test_a_new_training_with_the_same_callback_begins_a_new_history(fit):
    recorder = RouteRecorder()
    fit([recorder], max_epochs=2)
    trainer = fit([recorder], max_epochs=1)
    assert load(trainer).steps.tolist() == list(range(7))
    assert load(trainer).counts.sum() == 96 * 3


@pytest.mark.parametrize("kind", ["tensorboard", "csv", "both", "none"])
def test_file_lies_beside_the_logs_of_any_logger(kind, fit, tmp_path):
    loggers = {
        "tensorboard": [TensorBoardLogger(tmp_path)],
        "csv": [CSVLogger(tmp_path)],
        "both": [TensorBoardLogger(tmp_path, version=5), CSVLogger(tmp_path, version=5)],
        "none": False,
    }
    trainer = fit(all_callbacks(), max_epochs=1, logger=loggers[kind])
    assert len(list(tmp_path.rglob("routes.npz"))) == 1
    assert load(trainer).steps[-1] == 6
    if kind in ("csv", "both"):
        (table,) = tmp_path.rglob("metrics.csv")
        header = table.read_text().splitlines()[0]
        for name in ("policy/depth_1/largest/task_2", "usage/entropy/depth_3", "usage/overlap", "val/acc"):
            assert name in header.split(",")


def test_fast_dev_run_writes_nothing(fit, tmp_path):
    fit(all_callbacks(), fast_dev_run=True)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_an_interrupted_run_leaves_what_there_is(fit, tmp_path):
    class Interrupt(L.Callback):
        def on_train_batch_end(self, trainer, *_) -> None:
            if trainer.global_step == 3:
                raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        fit([RouteRecorder(), Interrupt()])
    (path,) = tmp_path.rglob("routes.npz")
    assert RouteRecord.load(path).steps.tolist() == [0, 1, 2, 3]


def test_models_without_a_router_are_left_alone(fit, tmp_path):
    class Plain(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 2)

        def training_step(self, batch, batch_idx):
            images, _, labels = batch
            return nn.functional.cross_entropy(self.layer(images.float().flatten(1)), labels)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    fit(all_callbacks(), Plain(), max_epochs=1, limit_val_batches=0)
    assert not list(tmp_path.rglob("routes.npz"))


@pytest.mark.parametrize(("option", "value"), [("growth", 0), ("growth", -1.0), ("max_values", 0)])
def test_impossible_options_are_refused(option, value):
    with pytest.raises(UsageError, match=f"{option} of RouteRecorder is {value}"):
        RouteRecorder(**{option: value})


# -- routers that look at the activations ------------------------------------------------------------------------------


class StateRouter(Router):
    """Routes by the sample, not by a table."""

    def __init__(self) -> None:
        super().__init__()
        self.build(RoutingSpec(3, [3, 2]))

    def probabilities(self):
        raise AssertionError("there is no table")


class StateModel(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.router = StateRouter()
        self.layer = nn.Linear(1, 1, bias=False)
        self.seen: list[tuple[int, ...]] = []

    def task_names(self) -> list[str]:
        return ["a"]  # fewer names than tasks

    def trace(self, batch) -> dict:
        images, tasks, _ = batch
        actions = torch.stack([images.flatten(1).sum(1).long() % 3, tasks % 2], 1)
        actions[tasks == 2, 1] = -1  # no decision
        return {"trace": Trace(tasks=tasks, agents=tasks, actions=actions), "loss": self.layer.weight.sum()}

    def training_step(self, batch, batch_idx):
        return self.trace(batch)

    def validation_step(self, batch, batch_idx):
        outputs = self.trace(batch)
        if not self.trainer.sanity_checking:
            trace = outputs["trace"]
            self.seen += [(t, *a) for t, a in zip(trace.tasks.tolist(), trace.actions.tolist(), strict=True)]
        return outputs

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


def test_routes_of_routers_without_a_table_are_counted_in_validation(fit):
    model = StateModel()
    trainer = fit(all_callbacks(), model, max_epochs=1)
    record = load(trainer)
    assert record.probabilities is None and record.task_names == ["a", "1", "2"]
    routes, counts, step = record.map_routes()
    assert step == 6 and counts.sum() == 96
    for route, count in zip(routes.tolist(), counts.tolist(), strict=True):
        assert model.seen.count(tuple(route)) == count
    assert record.counts[:, :, 0].sum() == 96 and record.counts[:, 2, 1].sum() == 0
    # the toy data validates on what it trains on
    expected = np.zeros((3, 3))
    np.add.at(expected, (routes[:, 0], routes[:, 1]), counts)
    np.testing.assert_array_equal(record.counts.sum(0)[:, 0], expected)


def test_routing_map_needs_a_recorder_before_it(fit):
    for callbacks in ([RoutingMap()], [RoutingMap(), RouteRecorder()]):
        with pytest.raises(UsageError, match="RoutingMap has no RouteRecorder"):
            fit(callbacks)


# -- two processes -----------------------------------------------------------------------------------------------------


def test_two_processes_write_once_and_count_all(fit, tmp_path):
    trainer = fit(
        all_callbacks(),
        toy_model(),
        ToyDataModule(batch_size=8),
        max_epochs=2,
        devices=2,
        strategy="ddp_fork",
        logger=[TensorBoardLogger(tmp_path), CSVLogger(tmp_path, version=0)],
    )
    assert trainer.world_size == 2
    (path,) = tmp_path.rglob("routes.npz")
    record = RouteRecord.load(path)
    assert record.counts.sum((0, 3)).tolist() == [[64] * 3] * 3  # 96 samples, 2 epochs, 3 tasks
    assert record.steps[-1] == 12
    assert len(list(tmp_path.rglob("events.out.tfevents.*"))) == 1
    assert len(list(tmp_path.rglob("metrics.csv"))) == 1


def test_two_processes_add_up_the_routes_of_validation(fit, tmp_path):
    fit(all_callbacks(), StateModel(), ToyDataModule(batch_size=8), max_epochs=1, devices=2, strategy="ddp_fork")
    (path,) = tmp_path.rglob("routes.npz")
    routes, counts, _ = RouteRecord.load(path).map_routes()
    assert counts.sum() == 96
    assert len({tuple(route) for route in routes.tolist()}) == len(routes)


def test_a_second_run_in_a_folder_keeps_the_record_of_the_first(tmp_path):
    options = {
        "default_root_dir": tmp_path, "logger": False, "accelerator": "cpu", "enable_progress_bar": False,
        "enable_model_summary": False, "limit_val_batches": 0,
    }  # fmt: skip
    save = ModelCheckpoint(tmp_path / "saved", save_last=True)
    L.Trainer(callbacks=[RouteRecorder(), save], max_epochs=1, **options).fit(toy_model(), ToyDataModule())
    first = (tmp_path / "routes.npz").read_bytes()
    with pytest.warns(
        UserWarning, match="routes.npz is the record of another run: that of this one is .*routes-v1.npz"
    ):
        other = L.Trainer(callbacks=[RouteRecorder()], max_epochs=2, enable_checkpointing=False, **options)
        other.fit(toy_model(), ToyDataModule())
    assert (tmp_path / "routes.npz").read_bytes() == first
    assert RouteRecord.load(tmp_path / "routes-v1.npz").steps[-1] == other.global_step == 12
    # One that goes on from a checkpoint goes on with its file.
    third = L.Trainer(callbacks=[RouteRecorder()], max_epochs=2, enable_checkpointing=False, **options)
    third.fit(toy_model(), ToyDataModule(), ckpt_path=tmp_path / "saved" / "last.ckpt")
    assert RouteRecord.load(tmp_path / "routes.npz").steps[-1] == 12
    assert sorted(path.name for path in tmp_path.glob("*.npz")) == ["routes-v1.npz", "routes.npz"]


def test_of_runs_that_begin_together_each_has_a_file(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: claim_file(tmp_path / "routes.npz"), range(40)))
    assert len(set(found)) == 40 and tmp_path / "routes.npz" in found
