"""What the callbacks send to the loggers."""

import gc
import io
import re
from pathlib import Path

import lightning as L
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from tensorboard.plugins.custom_scalar import layout_pb2

from routing_lightning.callbacks import (
    BlockUsage,
    PolicyDynamics,
    PolicyHeatmap,
    RouteRecorder,
    RoutingMap,
)
from routing_lightning.callbacks.access import Interval, every_steps
from routing_lightning.cli import main
from routing_lightning.errors import UsageError
from routing_lightning.plots import HeatmapFrame, overlap, policy_heatmap
from routing_lightning.record import RouteRecord, shares
from routing_lightning.report.draw import figures
from routing_lightning.routers import REINFORCE, MLPPolicy, RewardRouter
from tests.callbacks.conftest import Spy, all_callbacks, events, table_of_checkpoint
from tests.conftest import ToyDataModule, toy_model

DIGITS = str(Path(__file__).parents[2] / "configs" / "digits_mtl.yaml")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short training with all callbacks: trainer, spy and events."""
    spy = Spy()
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        callbacks=[spy, *all_callbacks()],
        default_root_dir=tmp_path_factory.mktemp("run"),
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(toy_model(), datamodule=ToyDataModule())
    return trainer, spy, events(trainer.log_dir)


def test_tensorboard_gets_all_pictures(run):
    _, _, logged = run
    names = [f"task_{task}" for task in range(3)]
    expected = {f"policy/depth_{depth}" for depth in (1, 2, 3)} | {"routing_map", "policy_dynamics/depth_1"}
    expected |= {f"policy_evolution/depth_{depth}/{name}" for depth in (1, 2, 3) for name in names}
    expected |= {"usage/share", "usage/overlap_of_tasks"}
    assert set(logged.Tags()["images"]) == expected
    for tag in expected:
        for picture in logged.Images(tag):
            image = Image.open(io.BytesIO(picture.encoded_image_string))
            assert image.size == (picture.width, picture.height)
            image.load()


def test_pictures_come_at_several_steps(run):
    _, _, logged = run
    assert [image.step for image in logged.Images("policy/depth_2")] == [0, 1, 4, 6, 8, 12]
    assert [image.step for image in logged.Images("routing_map")] == [6, 12]
    assert [image.step for image in logged.Images("policy_evolution/depth_1/task_0")] == [6, 12]


def frame_of_toy() -> HeatmapFrame:
    figure = policy_heatmap(np.zeros((3, 3)), [f"task_{task}" for task in range(3)], ["0", "1", "2"])
    return HeatmapFrame(figure, np.arange(4) - 0.5, np.arange(4) - 0.5)


def test_heatmap_shows_the_policy_of_its_step(run):
    _, spy, logged = run
    frame = frame_of_toy()
    for picture in logged.Images("policy/depth_2"):
        assert picture.encoded_image_string == frame.png(spy.policies[picture.step][:, 1].numpy())


def test_dynamics_scalars_are_the_policy(run):
    _, spy, logged = run
    for task in range(3):
        values = logged.Scalars(f"policy/depth_1/largest/task_{task}")
        assert [value.step for value in values] == [1, 4, 6, 8, 12]  # also the last step of each epoch
        for value in values:
            assert value.value == pytest.approx(spy.policies[value.step][task, 0].max().item())


def test_dynamics_of_a_chosen_block(fit):
    spy = Spy()
    trainer = fit([spy, RouteRecorder(), PolicyDynamics(block=2, depth=3, every_n_steps=4)])
    for task in range(3):
        for value in events(trainer.log_dir).Scalars(f"policy/depth_3/block_2/task_{task}"):
            assert value.value == pytest.approx(spy.policies[value.step][task, 2, 2].item())


def test_usage_is_that_of_the_last_samples_everywhere(run):
    """One meaning of "in use": TensorBoard's numbers, block_usage and the map are of the same samples."""
    trainer, spy, logged = run
    record = RouteRecord.load(Path(trainer.log_dir) / "routes.npz")
    recent = Spy()
    recent.tasks, recent.actions = spy.tasks[-2:], spy.actions[-2:]  # a tenth of 12 steps: the last two
    counts = recent.counts((3, 3, 3)).numpy()
    np.testing.assert_array_equal(record.recent_counts(), counts)
    share = shares(counts).mean(0)
    for depth in range(3):
        last = {name: logged.Scalars(f"usage/{name}/depth_{depth + 1}")[-1] for name in ("in_use", "entropy")}
        assert last["in_use"].step == last["entropy"].step == trainer.global_step
        assert last["in_use"].value == (share[depth] >= 0.1 / 3).sum() == record.in_use()[depth].sum()
        positive = share[depth][share[depth] > 0]
        assert last["entropy"].value == pytest.approx(-(positive * np.log(positive)).sum(), abs=1e-6)
    common = overlap(shares(counts))
    last = logged.Scalars("usage/overlap")[-1]
    assert last.value == pytest.approx(common[~np.eye(3, dtype=bool)].mean(), abs=1e-6)
    drawn = dict(figures(record))
    for depth, axes in enumerate(drawn["block_usage"].axes):
        number = int(record.in_use()[depth].sum())
        assert f"{number} of 3 in use" in axes.get_title("left")
        assert f"depth {depth + 1}\n{record.layers()[depth]}\n{number} of 3\nin use" in [
            text.get_text() for text in drawn["routing_map"].axes[0].texts
        ]


def test_nothing_stops_before_the_last_step(run):
    trainer, _, logged = run
    tags = [tag for tag in logged.Tags()["scalars"] if tag.startswith(("usage/", "policy/"))]
    assert len(tags) == 3 + 3 + 1 + 3
    assert {logged.Scalars(tag)[-1].step for tag in tags} == {trainer.global_step}
    assert {logged.Images(tag)[-1].step for tag in logged.Tags()["images"]} == {trainer.global_step}


def test_an_evaluation_is_logged_at_the_step_of_its_checkpoint(fit, tmp_path):
    trained = fit(all_callbacks())
    best = trained.checkpoint_callback.best_model_path
    for stage, tag in (("validate", "val/acc"), ("test", "test/acc")):
        trainer = L.Trainer(
            accelerator="cpu", default_root_dir=tmp_path / stage, callbacks=all_callbacks(), enable_progress_bar=False
        )
        getattr(trainer, stage)(toy_model(), datamodule=ToyDataModule(), ckpt_path=best)
        assert [value.step for value in events(trainer.log_dir).Scalars(tag)] == [12]


def test_custom_scalars_group_the_tasks(run):
    _, _, logged = run
    (event,) = logged.Tensors("custom_scalars__config__")
    layout = layout_pb2.Layout.FromString(event.tensor_proto.string_val[0])
    charts = {chart.title: list(chart.multiline.tag) for category in layout.category for chart in category.chart}
    tags = logged.Tags()["scalars"]
    assert charts.keys() == {
        "val, all tasks",
        "train, all tasks",
        "largest probability at depth 1, all tasks",
        "entropy, all depths",
        "blocks in use, all depths",
    }
    for title, patterns in charts.items():
        assert sum(bool(re.match(pattern, tag)) for pattern in patterns for tag in tags) == 3, title


def test_map_is_the_policy_of_the_checkpoint(run):
    trainer, _, _ = run
    best = table_of_checkpoint(trainer).argmax(-1)
    routes, _, _ = RouteRecord.load(Path(trainer.log_dir) / "routes.npz").map_routes()
    assert routes.tolist() == [[task, *actions] for task, actions in enumerate(best.tolist())]


def test_last_heatmap_is_the_policy_of_the_checkpoint(run):
    trainer, _, logged = run
    names = [f"task_{task}" for task in range(3)]
    frame = HeatmapFrame(
        policy_heatmap(np.zeros((3, 3)), names, ["0", "1", "2"]), np.arange(4) - 0.5, np.arange(4) - 0.5
    )
    table = table_of_checkpoint(trainer).numpy()
    for depth in range(3):
        last = logged.Images(f"policy/depth_{depth + 1}")[-1]
        assert last.step == trainer.global_step
        assert last.encoded_image_string == frame.png(table[:, depth])


def test_routers_that_look_at_the_activations_are_shown_by_their_routes(fit):
    model = toy_model(router=RewardRouter(MLPPolicy(hidden=4), REINFORCE()))
    trainer = fit(all_callbacks(), model)
    logged = events(trainer.log_dir)
    assert [image.step for image in logged.Images("policy/depth_1")] == [1, 4, 6, 8, 12]
    assert [image.step for image in logged.Images("routing_map")] == [6, 12]
    assert logged.Images("policy_evolution/depth_3/task_2")
    record = RouteRecord.load(Path(trainer.log_dir) / "routes.npz")
    assert record.probabilities is None and record.counts.sum() == 2 * 96 * 3
    routes, counts, step = record.map_routes()
    assert counts.sum() == 96 and step == 12
    # what one would see by sending the validation data through the network
    model.eval()
    data = trainer.datamodule
    seen: dict[tuple[int, ...], int] = {}
    for images, tasks, _ in data.val_dataloader():
        _, trace = model.route(images, tasks, explore=False)
        for route in zip(tasks.tolist(), *trace.actions.T.tolist(), strict=True):
            seen[route] = seen.get(route, 0) + 1
    assert {tuple(route): count for route, count in zip(routes.tolist(), counts.tolist(), strict=True)} == seen


def test_interval_is_dense_at_the_start():
    interval = every_steps(100, "X")
    assert [step for step in range(1, 405) if interval.due(step)] == [1, 4, 16, 64, 100, 200, 300, 400]


def test_interval_misses_nothing_when_steps_jump():
    interval = Interval(10, "x", base=2)
    assert [step for step in range(3, 40, 7) if interval.due(step)] == [3, 10, 24, 31]
    assert not interval.due(31) and not interval.due(31)


def test_resumed_run_goes_on_with_its_interval(fit):
    first = fit(all_callbacks(), max_epochs=1)
    second = fit(all_callbacks(), max_epochs=2, ckpt_path=first.checkpoint_callback.best_model_path)
    logged = events(second.log_dir)
    assert [image.step for image in logged.Images("policy/depth_1")] == [8, 12]
    assert [value.step for value in logged.Scalars("policy/depth_1/largest/task_0")] == [8, 12]


def test_events_of_a_large_run_stay_below_a_megabyte_per_epoch(fit):
    """20 tasks, 3 layers, 20 blocks, and as many logs as the first epoch of 3,125 steps has at default intervals."""
    data = ToyDataModule(num_tasks=20, count=1000, batch_size=16)
    callbacks = [
        RouteRecorder(),
        PolicyHeatmap(every_n_steps=21, every_n_epochs=10),  # 1, 4, 16, 21, 42, 63 and the start
        PolicyDynamics(every_n_steps=2, every_n_epochs=10),
        RoutingMap(),
        BlockUsage(every_n_steps=21),
    ]
    trainer = fit(callbacks, toy_model(num_tasks=20), data, max_epochs=1)
    assert trainer.global_step == 63
    (path,) = Path(trainer.log_dir).glob("events.*")
    assert path.stat().st_size < 1_000_000


def test_no_figure_stays_open_after_many_logs(fit):
    def alive() -> int:
        gc.collect()
        return sum(isinstance(thing, Figure) for thing in gc.get_objects())

    before = alive()
    trainer = fit(all_callbacks(every_n_steps=1), data=ToyDataModule(count=816), max_epochs=4)
    assert trainer.global_step == 204
    assert alive() <= before + 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PolicyHeatmap(every_n_steps=0), "every_n_steps of PolicyHeatmap is 0"),
        (lambda: PolicyHeatmap(every_n_epochs=-1), "every_n_epochs of PolicyHeatmap is -1"),
        (lambda: PolicyDynamics(block=-1), "block of PolicyDynamics is -1"),
        (lambda: PolicyDynamics(depth=0), "depth of PolicyDynamics is 0"),
        (lambda: RoutingMap(every_n_epochs=0), "every_n_epochs of RoutingMap is 0"),
        (lambda: BlockUsage(every_n_steps=0), "every_n_steps of BlockUsage is 0"),
        (lambda: BlockUsage(every_n_epochs=0), "every_n_epochs of BlockUsage is 0"),
    ],
)
def test_impossible_options_are_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block": 3}, "block of PolicyDynamics is 3.*blocks 0 to 2"),
        ({"depth": 4}, "depth of PolicyDynamics is 4.*1 to 3"),
    ],
)
def test_a_block_that_is_not_there_is_refused_before_training(options, message, fit):
    with pytest.raises(UsageError, match=message):
        fit([RouteRecorder(), PolicyDynamics(**options)])


# -- command line ------------------------------------------------------------------------------------------------------


def short(tmp_path: Path, *words: str):
    limits = ["--trainer.max_epochs=1", "--trainer.limit_train_batches=4", "--trainer.limit_val_batches=4"]
    quiet = [
        "--trainer.enable_progress_bar=false",
        f"--trainer.default_root_dir={tmp_path}",
        "--trainer.accelerator=cpu",
    ]
    return main(["fit", f"--config={DIGITS}", *limits, *quiet, *words]).trainer


OURS = {"RouteRecorder", "PolicyHeatmap", "PolicyDynamics", "RoutingMap", "BlockUsage"}


def names(trainer) -> list[str]:
    return [type(callback).__name__ for callback in trainer.callbacks]


def test_callbacks_of_the_user_add_to_ours(tmp_path):
    trainer = short(tmp_path, "--trainer.callbacks=lightning.pytorch.callbacks.LearningRateMonitor")
    assert set(names(trainer)) >= OURS | {"LearningRateMonitor", "ModelCheckpoint"}
    (path,) = tmp_path.rglob("routes.npz")
    assert RouteRecord.load(path).task_names[3] == "digit_3"


def test_record_null_turns_ours_off(tmp_path):
    trainer = short(tmp_path, "--record=null", "--trainer.callbacks=lightning.pytorch.callbacks.LearningRateMonitor")
    assert not OURS & set(names(trainer)) and "LearningRateMonitor" in names(trainer)
    assert not list(tmp_path.rglob("routes.npz"))


def test_the_last_figures_are_drawn_where_the_number_of_steps_ends_the_training(tmp_path):
    trainer = L.Trainer(
        max_epochs=-1,
        max_steps=15,  # in mid-epoch 3, at the end of which nothing is due
        accelerator="cpu",
        callbacks=all_callbacks(),
        default_root_dir=tmp_path,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(toy_model(), datamodule=ToyDataModule())
    logged = events(trainer.log_dir)
    assert trainer.global_step == 15
    for tag in ("policy/depth_1", "policy_evolution/depth_1/task_0", "policy_dynamics/depth_1"):
        assert logged.Images(tag)[-1].step == 15
