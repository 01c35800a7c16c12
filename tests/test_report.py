"""The commands plot and report, on runs that are written by hand."""

import copy
import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.tensorboard import SummaryWriter

from routing_lightning.cli import main
from routing_lightning.errors import UsageError
from routing_lightning.record import RouteRecord
from routing_lightning.report import find_runs, read_run, write_report
from routing_lightning.report.draw import figures
from routing_lightning.report.methods import (
    control_of,
    dataset_name,
    difference,
    group_runs,
    method_name,
    paper_values,
    unlike,
    validation_data,
)
from routing_lightning.report.runs import Run, join_resumed, seconds_per_epoch, settings_of
from tests.test_methods import merged as merged_row

CONFIGS = Path(__file__).parents[1] / "configs"


def merged(names) -> dict:
    return merged_row({"config": " ".join(f"`{name}`" for name in names)})


def config_of(seed: int = 0, *names: str, **trainer) -> dict:
    """What config files hold together, such as ``methods/wpl``; the later ones overrule; by default ``cifar_mtl``."""
    config = merged(names or ("cifar_mtl",))
    return {**config, "seed_everything": seed, "trainer": {**config.get("trainer", {}), **trainer}}


def record_of(tasks: int = 3, blocks: int = 4, snapshots: int = 6, seed: int = 0) -> RouteRecord:
    rng = np.random.default_rng(seed)
    shape = (snapshots, tasks, 2, blocks)
    counts = rng.integers(1, 9, shape)
    counts[:, :, 1, -1] = 0  # depth 2 has an action less
    return RouteRecord(
        task_names=[f"task <{task}>" for task in range(tasks)],
        num_actions=np.array([blocks, blocks - 1]),
        num_blocks=np.array([blocks, blocks - 2]),
        steps=np.arange(snapshots) ** 2,
        counts=counts,
        probabilities=(counts / counts.sum(-1, keepdims=True)).astype(np.float32),
    )


def write_run(
    folder: Path,
    config: dict | None = None,
    accuracies=(0.2, 0.3, 0.4),
    first_epoch: int = 0,
    kind: str = "events",
    record: RouteRecord | None = None,
) -> Path:
    """A run as fit leaves it: config, logs with 10 steps per epoch, record of routes."""
    folder.mkdir(parents=True)
    if config is not None:
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
    if kind == "events":
        with SummaryWriter(str(folder)) as writer:
            for epoch, accuracy in enumerate(accuracies, start=first_epoch):
                step, time = epoch * 10 + 9, 1000.0 + 20 * (epoch + 1)
                writer.add_scalar("epoch", epoch, step, walltime=time)
                writer.add_scalar("val/acc", accuracy, step, walltime=time)
                for task in range(3):
                    writer.add_scalar(f"val/acc_task/task <{task}>", accuracy + task / 100, step, walltime=time)
    elif kind == "csv":
        rows = ["epoch,step,val/acc,val/acc_task/a,train/loss"]
        for epoch, accuracy in enumerate(accuracies, start=first_epoch):
            rows += [f"{epoch},{epoch * 10 + 5},,,0.5", f"{epoch},{epoch * 10 + 9},{accuracy},{accuracy},"]
        (folder / "metrics.csv").write_text("\n".join(rows))
    if record is not None:
        record.save(folder / "routes.npz")
    return folder


# -- finding and reading -----------------------------------------------------------------------------------------------


def test_runs_are_found_from_any_folder_around_them(tmp_path):
    first = write_run(tmp_path / "a" / "lightning_logs" / "version_2", config_of())
    second = write_run(tmp_path / "a" / "lightning_logs" / "version_10", config_of())
    (first / "checkpoints").mkdir()
    (first / "checkpoints" / "x.ckpt").write_bytes(b"")
    assert find_runs([first]) == [first]
    assert find_runs([tmp_path]) == [first, second]
    assert find_runs([first / "checkpoints"]) == find_runs([first / "checkpoints" / "x.ckpt"]) == [first]
    assert find_runs([second, tmp_path / "a"]) == [second, first]


def test_folders_without_a_run_are_refused(tmp_path):
    with pytest.raises(UsageError, match="nowhere does not exist"):
        find_runs([tmp_path / "nowhere"])
    with pytest.raises(UsageError, match="holds no config.yaml"):
        find_runs([tmp_path])


@pytest.mark.parametrize("kind", ["events", "csv"])
def test_accuracy_is_read_by_epoch(kind, tmp_path):
    run = read_run(write_run(tmp_path / "run", config_of(), kind=kind, first_epoch=2))
    assert run.accuracy == pytest.approx({3: 0.2, 4: 0.3, 5: 0.4})
    assert run.task_accuracy["task <1>" if kind == "events" else "a"] == pytest.approx(
        0.41 if kind == "events" else 0.4
    )
    assert run.epoch_seconds == (pytest.approx(20) if kind == "events" else None)


def test_seconds_per_epoch():
    assert seconds_per_epoch({1: 10.0, 2: 12.0, 4: 20.0}, 0.0) == 3.0  # of 2 and 4 seconds
    assert seconds_per_epoch({1: 10.0}, 4.0) == 6.0
    assert seconds_per_epoch({}, 0.0) is None and seconds_per_epoch({7: 1.0}, 0.0) is None


def test_weights_are_counted_without_router_and_running_statistics(tmp_path):
    folder = write_run(tmp_path / "run", config_of())
    (folder / "checkpoints").mkdir()
    state = {
        "features.weight": torch.zeros(3, 4),
        "features.running_mean": torch.zeros(3),
        "network.router.policy.table": torch.zeros(9),
        "network.layers.0.weight.0": torch.zeros(5),
    }
    torch.save({"state_dict": state}, folder / "checkpoints" / "a.ckpt")
    assert read_run(folder).parameters == 17


def test_a_resumed_run_continues_the_one_before(tmp_path):
    first = write_run(tmp_path / "version_0", config_of())
    config = config_of() | {"ckpt_path": str(first / "checkpoints" / "epoch=1.ckpt")}
    second = write_run(tmp_path / "version_1", config, accuracies=(0.5, 0.6), first_epoch=2)
    (run,) = join_resumed([read_run(first), read_run(second)])
    assert run.folder == second and run.accuracy == pytest.approx({1: 0.2, 2: 0.3, 3: 0.5, 4: 0.6})


def write_evaluation(folder: Path, source: Path, command: str, options: dict | None = None) -> Path:
    """A run of another command, with the checkpoint of a training."""
    checkpoint = {"ckpt_path": str(source / "checkpoints" / "epoch=1-step=20.ckpt"), "weights_only": None}
    own = {"return_predictions": None} if command == "predict" else {"verbose": True}
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config_of() | checkpoint | own | (options or {})))
    tag = {"validate": "val", "test": "test"}.get(command)
    with SummaryWriter(str(folder)) as writer:
        if tag:
            writer.add_scalar("epoch", 0, 0)
            writer.add_scalar(f"{tag}/acc", 0.35, 0)
    return folder


def test_only_a_fit_continues_a_fit(tmp_path):
    first = write_run(tmp_path / "fit", config_of(), accuracies=(0.2, 0.3), record=record_of())
    resumed = config_of() | {"ckpt_path": str(first / "checkpoints" / "epoch=1-step=20.ckpt")}
    folders = [first, write_run(tmp_path / "resumed", resumed, (0.5,), first_epoch=2)]
    folders += [write_evaluation(tmp_path / name, first, name) for name in ("validate", "test", "predict")]
    found = [read_run(folder) for folder in folders]
    assert [run.command for run in found] == ["fit", "fit", "validate", "test", "predict"]
    for order in itertools.permutations(found):
        (group,) = group_runs(join_resumed([copy.deepcopy(run) for run in order]))
        assert group.name == "routing-all-fc"
        (run,) = group.runs
        assert run.folder == folders[1] and run.accuracy == pytest.approx({1: 0.2, 2: 0.3, 3: 0.5})
        assert run.record is not None and run.task_accuracy  # its own or that of the run before


@pytest.mark.parametrize("command", ["validate", "test", "predict"])
def test_an_evaluation_leaves_its_training_in_the_report(command, tmp_path):
    first = write_run(tmp_path / "logs" / "version_0", config_of(), record=record_of())
    write_evaluation(tmp_path / "logs" / "version_1", first, command)
    page = write_report(find_runs([tmp_path]), tmp_path / "out").read_text()
    assert "1 group of runs" in page and "<h2>Routing maps</h2>" in page and "<b>40.0</b>" in page
    assert "verbose" not in page and "return_predictions" not in page
    if command == "predict":
        assert "Evaluated checkpoints" not in page
    else:
        row = re.search(r"Evaluated checkpoints.*<tbody><tr>(.*?)</tr>", page, re.DOTALL)[1]
        assert "version_0, epoch=1-step=20.ckpt" in row and command in row and "<b>35.0</b>" in row


def test_an_evaluation_without_a_logger_hides_nothing(tmp_path):
    """It leaves its config in the Trainer's folder, which may be that of a training or above all of them."""
    first = write_run(tmp_path / "lightning_logs" / "version_0", config_of(), record=record_of())
    for folder in (tmp_path, first):
        config = config_of() | {"verbose": True, "ckpt_path": str(first / "checkpoints" / "a.ckpt")}
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (run,) = join_resumed([read_run(folder) for folder in find_runs([tmp_path])])
    assert run.folder == first and len(run.accuracy) == 3 and run.record is not None


def test_resumed_runs_are_joined_in_any_order(tmp_path):
    folders = [write_run(tmp_path / "0", config_of(), (0.1,), record=record_of())]
    for number in (1, 2):
        config = config_of() | {"ckpt_path": str(folders[-1] / "checkpoints" / "x.ckpt")}
        folders.append(write_run(tmp_path / str(number), config, (0.1 + number / 10,), first_epoch=number))
    for order in itertools.permutations(folders):
        (run,) = join_resumed([read_run(folder) for folder in order])
        assert run.accuracy == pytest.approx({1: 0.1, 2: 0.2, 3: 0.3})
        assert run.record is not None  # of the run two before


def resumed(config: dict, source: Path) -> dict:
    return config | {"ckpt_path": str(source / "checkpoints" / "x.ckpt")}


def test_repeats_of_a_seed_are_one_sample(tmp_path):
    """Whether a run was broken, continued twice, done again, or not: its seed counts once."""
    whole = write_run(tmp_path / "whole", config_of(0), (0.2, 0.3, 0.4))
    broken = write_run(tmp_path / "broken", config_of(0), (0.2,))
    folders = [whole, broken, write_run(tmp_path / "on", resumed(config_of(0), broken), (0.3, 0.5), first_epoch=1)]
    folders += [write_run(tmp_path / "on_2", resumed(config_of(0), broken), (0.3, 0.6), first_epoch=1)]
    folders += [write_run(tmp_path / "other", config_of(1), (0.2, 0.3, 0.7))]
    (group,) = group_runs(join_resumed([read_run(folder) for folder in folders]))
    assert len(group.runs) == 4 and list(group.seeds()) == [0, 1]
    assert group.at(3) == pytest.approx((0.6, 0.02**0.5))  # of 0.5, the mean of three, and 0.7
    assert "(n = 2)" in group.curve().name
    page = write_report(folders, tmp_path / "out").read_text()
    assert "<td>2 (4 runs)</td>" in page and "<b>60.0</b> ± 14.1" in page


def test_runs_without_a_seed_are_each_a_sample(tmp_path):
    folders = [write_run(tmp_path / str(n), config_of(False), (0.2 + n / 10,)) for n in range(2)]
    (group,) = group_runs(join_resumed([read_run(folder) for folder in folders]))
    assert group.at(1) == pytest.approx((0.25, 0.005**0.5)) and group.seeds_at(1) == {}


def test_an_unfinished_run_hides_no_last_value(tmp_path):
    folders = [
        write_run(tmp_path / "0", config_of(0), (0.2, 0.3, 0.8)),
        write_run(tmp_path / "1", config_of(1), (0.4,)),
    ]
    page = write_report(folders, tmp_path / "out").read_text()
    row = re.search(r'<tr><th scope="row">routing-all-fc</th>(.*?)</tr>', page)[1]
    last, first = re.findall(r"<td>(.*?)</td>", row)[:2]
    assert last == '<b>80.0</b> <span class="paper">(1 of 2 seeds)</span>'
    assert first.startswith("<b>30.0</b> ± 14.1") and "seeds" not in first
    assert "1 to 3" in row and "(n = 1 to 2)" in page
    tasks = re.search(r"<h3>Accuracy per task</h3>.*?<tbody>(.*?)</tbody>", page, re.DOTALL)[1]
    assert "80.0" in tasks and "61.0" not in tasks  # the mean with a task's accuracy at another epoch


def test_a_finished_run_stays_with_those_of_its_settings_when_it_goes_on(tmp_path):
    short = [write_run(tmp_path / str(n), config_of(n, max_epochs=2), (0.2, 0.3)) for n in range(2)]
    long = write_run(tmp_path / "long", resumed(config_of(0, max_epochs=4), short[0]), (0.4, 0.5), first_epoch=2)
    groups = group_runs(join_resumed([read_run(folder) for folder in [*short, long]]))
    assert [[run.folder for run in group.runs] for group in groups] == [short, [long]]
    assert groups[1].runs[0].accuracy == pytest.approx({1: 0.2, 2: 0.3, 3: 0.4, 4: 0.5})
    groups = group_runs(join_resumed([read_run(folder) for folder in (short[0], long)]))
    assert [[run.folder for run in group.runs] for group in groups] == [[long]]


def test_runs_are_joined_after_their_folders_moved(tmp_path):
    first = write_run(tmp_path / "copied" / "wpl-seed0", config_of(), (0.2,))
    config = resumed(config_of(), Path("elsewhere/wpl-seed0"))
    second = write_run(tmp_path / "copied" / "wpl-seed0-1", config, (0.3,), first_epoch=1)
    (run,) = join_resumed([read_run(first), read_run(second)])
    assert run.folder == second and run.accuracy == pytest.approx({1: 0.2, 2: 0.3})


def test_a_run_that_begins_with_weights_continues_nothing(tmp_path):
    first = write_run(tmp_path / "0", config_of(), (0.2, 0.3))
    second = write_run(tmp_path / "1", resumed(config_of(), first), (0.5,))  # from epoch 1 again
    found = join_resumed([read_run(first), read_run(second)])
    assert [run.folder for run in found] == [first, second] and found[1].accuracy == pytest.approx({1: 0.5})


@pytest.mark.parametrize("kind", ["none", "events"])  # no logger; stopped before the first validation
def test_what_a_run_did_not_log_is_not_told_by_older_figures(kind, tmp_path):
    """In a chain, too, and beside a whole run of its settings and seed."""
    config = config_of(max_epochs=12)
    first = write_run(tmp_path / "0", config_of(max_epochs=2), (0.8, 0.9))
    whole = write_run(tmp_path / "whole", config, (0.1,) * 11 + (0.5,))
    silent = write_run(tmp_path / "1", from_epoch(config, first, 1), (), kind=kind, record=record_of())
    deeper = write_run(tmp_path / "2", from_epoch(config, silent, 3), (), kind=kind, record=record_of())
    folders = [first, whole, silent, deeper]
    for order in ([0, 1, 2, 3], [3, 2, 1, 0]):
        groups = group_runs(join_resumed([read_run(folders[place]) for place in order]))
        found = {run.folder: (group, run) for group in groups for run in group.runs}
        assert set(found) == set(folders) and found[silent][0] is found[whole][0] is not found[first][0]
        assert found[silent][1].accuracy == found[deeper][1].accuracy == {}
        assert found[first][0].at(2) == pytest.approx((0.9, np.nan), nan_ok=True)
        assert found[whole][0].at(2) == pytest.approx((0.1, np.nan), nan_ok=True)
    page = write_report(folders, tmp_path / "out").read_text()
    row = next(row for row in re.findall(r"<tr>(.*?)</tr>", page) if "epochs 12" in row)
    assert "<b>50.0</b></td>" in row and "<td>12</td><td>1 (2 runs not logged)</td>" in row and "90.0" not in row
    assert f"Not logged: <code>{silent}</code>, <code>{deeper}</code>" in page
    alone = write_report([first, silent], tmp_path / "out").read_text()
    assert "not logged</td>" in alone and "<td>-</td><td>0 (1 run not logged)</td>" in alone


def from_epoch(config: dict, source: Path, epoch: int) -> dict:
    return config | {"ckpt_path": str(source / "checkpoints" / f"epoch={epoch}-step={epoch * 10 + 10}.ckpt")}


def test_a_run_goes_on_with_the_history_before_one_that_logged_nothing(tmp_path):
    """Up to the epoch at which that one began: what its source did afterwards is not of this history."""
    first = write_run(tmp_path / "0", config_of(), (0.1, 0.2, 0.9, 0.9))
    silent = write_run(tmp_path / "1", from_epoch(config_of(), first, 1), kind="none", record=record_of())
    last = write_run(tmp_path / "2", from_epoch(config_of(), silent, 3), (0.5, 0.6), first_epoch=4)
    for order in itertools.permutations([first, silent, last]):
        (run,) = join_resumed([read_run(folder) for folder in order])
        assert run.folder == last and run.accuracy == pytest.approx({1: 0.1, 2: 0.2, 5: 0.5, 6: 0.6})
    odd = write_run(tmp_path / "odd", resumed(config_of(), first), kind="none", record=record_of())
    last = write_run(tmp_path / "3", from_epoch(config_of(), odd, 3), (0.5,), first_epoch=4)
    (run,) = join_resumed([read_run(folder) for folder in (first, odd, last)])
    assert run.accuracy == pytest.approx({5: 0.5})  # nobody knows where the one between began


@pytest.mark.parametrize("order", ["events first", "csv first"])
def test_two_loggers_of_one_folder_are_both_read(order, tmp_path):
    parts = [((0.2, 0.3), 0), ((0.4,), 2)]
    events, table = parts if order == "events first" else parts[::-1]
    folder = write_run(tmp_path / "run", config_of(), events[0], events[1])
    other = write_run(tmp_path / "other", config_of(), table[0], table[1], kind="csv")
    (other / "metrics.csv").rename(folder / "metrics.csv")
    run = read_run(folder)
    assert run.accuracy == pytest.approx({1: 0.2, 2: 0.3, 3: 0.4}) and run.epochs == 3
    assert set(run.task_accuracy) == ({"a"} if order == "events first" else {f"task <{task}>" for task in range(3)})


def test_a_csv_run_goes_on_from_one_of_events(tmp_path):
    first = write_run(tmp_path / "0", config_of(), (0.2, 0.3))
    second = write_run(tmp_path / "1", from_epoch(config_of(), first, 1), (0.5,), 2, kind="csv")
    (run,) = join_resumed([read_run(first), read_run(second)])
    assert run.accuracy == pytest.approx({1: 0.2, 2: 0.3, 3: 0.5}) and run.task_accuracy == {"a": 0.5}


def test_routes_of_the_run_before_are_called_so(tmp_path):
    first = write_run(tmp_path / "0", config_of(), (0.2, 0.3), record=record_of())
    second = write_run(tmp_path / "1", from_epoch(config_of(), first, 1), (0.5,), 2)
    words = "(routes of the run before; it recorded none of its own)"
    assert words in write_report([first, second], tmp_path / "out").read_text()
    record_of().save(second / "routes.npz")
    assert words not in write_report([first, second], tmp_path / "out").read_text()


@pytest.mark.parametrize("weights", ["weights", "ckpt_path", "file"])
def test_runs_that_began_with_weights_are_no_repeats_of_those_that_did_not(weights, tmp_path):
    """By either option, also where the source is not among the runs."""
    first = write_run(tmp_path / "0", config_of(max_epochs=9), (0.2, 0.3))
    path = str(tmp_path / "extended.ckpt") if weights == "file" else str(first / "checkpoints" / "x.ckpt")
    torch.save({"state_dict": {}}, tmp_path / "extended.ckpt")
    config = config_of() | {"weights" if weights == "weights" else "ckpt_path": path}
    folders = [first, write_run(tmp_path / "1", config), write_run(tmp_path / "2", config_of())]
    groups = group_runs(join_resumed([read_run(folder) for folder in folders]))
    assert [len(group.runs) for group in groups] == [1, 1, 1] and "weights" in groups[1].name


def test_a_run_that_goes_on_within_epoch_1_began_with_no_weights(tmp_path):
    """Though both were validated in it, as with ``val_check_interval``."""
    first = write_run(tmp_path / "0", config_of(), (0.2,))
    (first / "checkpoints").mkdir()
    torch.save({"state_dict": {}, "optimizer_states": []}, first / "checkpoints" / "x.ckpt")
    second = write_run(tmp_path / "1", resumed(config_of(), first), (0.3, 0.4))
    (run,) = join_resumed([read_run(first), read_run(second)])
    assert run.folder == second and run.accuracy == pytest.approx({1: 0.3, 2: 0.4}) and run.began_with is None


def branching(**trainer) -> dict:
    config = config_of(0, "data/cifar_mtl", "methods/branching", **trainer)
    config["model"]["init_args"]["router"]["init_args"] |= {"begin": 0.05, "stage": None}
    return config


def one_cycle(**trainer) -> dict:
    config = config_of(0, "data/cifar_mtl", "methods/wpl", **trainer)
    schedule = {"class_path": "torch.optim.lr_scheduler.OneCycleLR", "init_args": {"max_lr": 0.1, "total_steps": None}}
    config["model"]["init_args"]["lr_scheduler"] = schedule
    return config


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("make", [branching, one_cycle])
def test_what_was_planned_for_another_length_is_no_repeat(make, given, tmp_path):
    """Nor in a chain, nor where the run that planned is not among those of the report."""
    whole = write_run(tmp_path / "whole", make(max_steps=-1), (0.1, 0.2, 0.3))
    short = write_run(tmp_path / "short", make(max_steps=70), (0.1,))
    longer = write_run(tmp_path / "long", from_epoch(make(max_steps=-1), short, 0), (0.5,), 1)
    last = write_run(tmp_path / "last", from_epoch(make(max_steps=-1), longer, 1), (0.6,), 2)
    folders = [whole, short, longer, last] if given else [whole, last]
    groups = group_runs(join_resumed([read_run(folder) for folder in folders]))
    assert [[run.folder for run in group.runs] for group in groups] == [[whole], [last]]
    assert "max_steps before as now" in groups[0].name and "max_steps before [70]" in groups[1].name


def test_a_length_that_plans_nothing_tells_no_runs_apart(tmp_path):
    staged, fixed = branching(), one_cycle()
    staged["model"]["init_args"]["router"]["init_args"] |= {"begin": 0, "stage": 5}
    fixed["model"]["init_args"]["lr_scheduler"]["init_args"]["total_steps"] = 100
    for number, config in enumerate((staged, fixed, config_of())):
        whole = write_run(tmp_path / f"{number}whole", config, (0.1, 0.2))
        short = write_run(tmp_path / f"{number}a", {**config, "trainer": config["trainer"] | {"max_steps": 70}}, (0.1,))
        rest = write_run(tmp_path / f"{number}b", from_epoch(config, short, 0), (0.3,), 1)
        (group,) = group_runs(join_resumed([read_run(folder) for folder in (whole, short, rest)]))
        assert len(group.runs) == 2


def test_a_run_that_went_on_with_other_settings_is_no_repeat_of_those_that_had_them_always(tmp_path):
    other = config_of()
    other["model"]["init_args"]["optimizer"]["init_args"]["lr"] = 0.5
    whole, first = write_run(tmp_path / "whole", config_of()), write_run(tmp_path / "0", other, (0.2,))
    second = write_run(tmp_path / "1", from_epoch(config_of(), first, 0), (0.3,), 1)
    groups = group_runs(join_resumed([read_run(folder) for folder in (whole, first, second)]))
    assert [group.name for group in groups] == [f"routing-all-fc (lr before {words})" for words in ("as now", "[0.5]")]


# -- names and groups --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "dataset", "method"),
    [
        ("cifar_mtl", "CIFAR-MTL", "routing-all-fc"),
        ("min_mtl", "MIN-MTL", "routing-all-fc"),
        ("mnist_mtl", "MNIST-MTL", "routing-all-fc"),
        ("data/mnist_mtl methods/soft_mixture", "MNIST-MTL", "soft mixture-all-fc"),
        ("data/min_mtl methods/wpl", "MIN-MTL", "routing-all-fc"),
        ("data/cifar_mtl methods/task_specific_1_fc", "CIFAR-MTL", "task specific-1-fc"),
        ("data/cifar_mtl methods/task_specific_all_fc", "CIFAR-MTL", "task specific-all-fc"),
        ("data/cifar_mtl methods/cross_stitch", "CIFAR-MTL", "cross stitch-all-fc"),
        ("data/cifar_mtl methods/soft_mixture", "CIFAR-MTL", "soft mixture-all-fc"),
        ("data/cifar_mtl methods/dispatched", "CIFAR-MTL", "routing-all-fc dispatched"),
        ("data/cifar_mtl methods/wpl networks/recurrent", "CIFAR-MTL", "routing-all-fc recursive"),
        ("data/cifar_mtl methods/single_agent", "CIFAR-MTL", "routing-all-fc single agent"),
        ("data/cifar_mtl methods/reinforce_mlp", "CIFAR-MTL", "REINFORCE: approx"),
        ("data/cifar_mtl methods/q_table", "CIFAR-MTL", "Qlearning: table"),
        ("data/cifar_mtl methods/q_mlp", "CIFAR-MTL", "Qlearning: approx"),
    ],
)
def test_shipped_configs_have_the_paper_s_names(names, dataset, method):
    config = config_of(0, *names.split())
    assert (dataset_name(config), method_name(config)) == (dataset, method)
    assert (dataset, method) in paper_values()


def test_data_that_are_not_the_whole_have_names_of_their_own():
    config = config_of(0, "data/cifar_mtl", "methods/wpl")
    config["data"]["init_args"] |= {"train_fraction": 0.1, "train_per_task": None}
    assert dataset_name(config) == "CIFAR-MTL, 10 % of the training data"
    config["data"]["init_args"] |= {"num_tasks": 4, "two_modalities": True}
    assert dataset_name(config) == "CIFAR-100 as 4 tasks, two modalities, 10 % of the training data"
    parts = [{"class_path": "MINMTLDataModule", "init_args": {}}, config["data"]]
    mix = {"data": {"class_path": "MixedMTLDataModule", "init_args": {"datamodules": parts}}}
    assert dataset_name(mix) == "MIN-MTL and CIFAR-100 as 4 tasks, two modalities, 10 % of the training data"
    config["data"]["init_args"] |= {"num_tasks": 20, "two_modalities": False}
    config["data"]["init_args"] |= {"train_fraction": 1.0, "train_per_task": [50] * 19 + [2500]}
    assert dataset_name(config) == "CIFAR-MTL, 3,450 training images"


@pytest.mark.parametrize(
    ("names", "method"),
    [
        ("methods/shared", "shared"),
        ("methods/separate", "separate networks"),
        ("methods/fixed_random", "fixed random routing"),
        ("methods/gumbel", "Gumbel-softmax routing"),
        ("methods/top1", "top-1 routing"),
        ("methods/wpl_mlp", "MARL-WPL: approx"),
        ("methods/reinforce_table", "REINFORCE: table"),
        ("methods/wpl methods/pcgrad", "routing-all-fc + PCGrad"),
        ("methods/task_specific_all_fc methods/pcgrad", "task specific-all-fc + PCGrad"),
        ("methods/wpl networks/all_layers", "routing-all-layers"),
        ("methods/single_agent networks/all_layers", "routing-all-layers single agent"),
        ("methods/gumbel networks/all_layers", "Gumbel-softmax routing, all layers"),
        ("methods/wpl networks/resnet18", "routing-resnet18"),
        ("methods/q_table networks/resnet18", "Qlearning: table, resnet18"),
        ("methods/fixed_random networks/recurrent", "fixed random routing, recursive"),
        ("cifar_best", "routing-all-fc, ResNet9 + joint loss + label smoothing + flip"),
    ],
)
def test_what_the_paper_lacks_has_names_of_its_own(names, method):
    name = method_name(config_of(0, *names.split()))
    assert name == method
    assert name not in {known for _, known in paper_values()}


def test_branching_is_named_with_a_learner_that_is_not_its_own():
    config = config_of(0, "data/cifar_mtl", "methods/branching")
    args = config["model"]["init_args"]
    for learner, name in ((None, "branching"), ("a.PairedDifference", "branching"), ("a.WPL", "branching by WPL")):
        args["router"] = {"class_path": "BranchingRouter", "init_args": {"learner": learner}}
        assert method_name(config) == name


def test_every_method_has_a_name_of_its_own():
    names = {path.stem: method_name(config_of(0, f"methods/{path.stem}")) for path in (CONFIGS / "methods").iterdir()}
    del names["pcgrad"]  # goes with another method
    assert len(set(names.values())) == len(names), names
    assert dataset_name(config_of(0, "data/digits_mtl")) == "Digits-MTL"


def test_paper_values_are_shares():
    values = paper_values()
    assert values["CIFAR-MTL", "routing-all-fc"][100] == 0.60
    assert values["MIN-MTL", "cross stitch-all-fc"][1] == 0.29
    assert all(0 < value < 1 for row in values.values() for value in row.values())


def test_runs_that_differ_in_the_seed_are_one_group(tmp_path):
    folders = [write_run(tmp_path / f"v{seed}", config_of(seed), (0.2 + seed / 10,)) for seed in range(3)]
    other = config_of(5)
    other["model"]["init_args"]["optimizer"]["init_args"]["lr"] = 0.5
    folders.append(write_run(tmp_path / "other", other))
    group, lone = group_runs([read_run(folder) for folder in folders])
    assert len(group.runs) == 3 and group.name == "routing-all-fc (lr 0.01)" and lone.name == "routing-all-fc (lr 0.5)"
    assert group.at(1) == (pytest.approx(0.3), pytest.approx(0.1))
    assert group.curve().mean.tolist() == pytest.approx([0.3]) and group.at(2) is None


def test_groups_of_one_method_have_names_of_their_own_without_the_insides_of_classes(tmp_path):
    crop = {"class_path": "torchvision.transforms.v2.RandomCrop", "init_args": {"size": 32, "padding": 4}}
    folders = []
    for number in range(4):
        config = config_of(0, "data/cifar_mtl", "methods/wpl")
        config["data"]["init_args"]["augment"] = [crop, "RandomHorizontalFlip"] if number else None
        config["data"]["init_args"] |= {"split_seed": 3, "cache_dir": "x", "test_fraction": 0.5} if number > 1 else {}
        config["model"]["init_args"]["lr_scheduler"]["class_path"] = f"torch.optim.lr_scheduler.{'ABCD'[number]}LR"
        folders.append(write_run(tmp_path / f"run{number}", config))
    names = [group.name for group in group_runs([read_run(folder) for folder in folders])]
    assert len(set(names)) == 4 and all("class_path" not in name and "torch" not in name for name in names)
    cropped = "augment [RandomCrop, RandomHorizontalFlip]"
    assert names == [
        "routing-all-fc (augment None, split_seed unset, test_fraction unset, lr_scheduler ALR)",
        f"routing-all-fc ({cropped}, split_seed unset, test_fraction unset, lr_scheduler BLR)",
        f"routing-all-fc ({cropped}, split_seed 3, test_fraction 0.5, lr_scheduler CLR)",
        f"routing-all-fc ({cropped}, split_seed 3, test_fraction 0.5, lr_scheduler DLR)",
    ]
    pair = group_runs([read_run(folder) for folder in folders[2:]])
    assert [group.name for group in pair] == [f"routing-all-fc (lr_scheduler {letter}LR)" for letter in "CD"]


ROUTER = "model.init_args.router.init_args"
OPTIONS = {
    f"{ROUTER}.stage": [None, 5, "5"],
    f"{ROUTER}.order": ["last_first", "first_last", [3, 1], [1, 3], list(range(40)), list(range(41))],
    f"{ROUTER}.learner": [
        {"class_path": "mine.Paired", "init_args": {"lr": 0.1}},
        {"class_path": "mine.Paired", "init_args": {"lr": 0.2}},
        {"class_path": "yours.Paired", "init_args": {"lr": 0.2}},
    ],
    f"{ROUTER}.stitch": [False],
    "model.init_args.optimizer.init_args.lr": [0.1, 1, 1.0],
    "model.init_args.router_optimizer.init_args.lr": [0.1, True],
    "data.init_args.augment": [
        None,
        [{"class_path": "a.Crop", "init_args": {"size": 32}}],
        [{"class_path": "a.Crop", "init_args": {"size": 28}}],
    ],
    "data.init_args.batch_size": [32, 64],
    "weights": [None, f"{'long/' * 20}a.ckpt", f"{'long/' * 20}b.ckpt"],
}


@given(st.lists(st.fixed_dictionaries({}, optional={k: st.sampled_from(v) for k, v in OPTIONS.items()}), min_size=2))
def test_any_two_groups_have_other_names_that_tell_each_option_in_which_they_differ(choices):
    runs = []
    for number, chosen in enumerate(choices):
        config: dict = {
            "model": {"class_path": "RoutedClassifier", "init_args": {"router": {"class_path": "a.BranchingRouter"}}},
            "data": {"class_path": "DigitsMTLDataModule"},
        }
        for name, value in chosen.items():
            *places, last = name.split(".")
            place = config
            for part in places:
                place = place.setdefault(part, {})
            place[last] = value
        runs.append(Run(Path(f"run{number}"), config))
    groups = group_runs(runs)
    names = [group.name for group in groups]
    assert len(set(names)) == len(names) and not any("run" in name for name in names)
    for ours, theirs in itertools.combinations(groups, 2):
        if ours.method != theirs.method:  # which tells the router's learner
            continue
        left, right = settings_of(ours.runs[0]), settings_of(theirs.runs[0])
        for name in OPTIONS:
            values = [[value for key, value in flat.items() if key.startswith(name)] for flat in (left, right)]
            if repr(values[0]) != repr(values[1]):
                label = name.rpartition(".")[2]
                assert all(label in group.name for group in (ours, theirs)), (name, ours.name, theirs.name)


def test_where_logs_lie_does_not_split_a_group(tmp_path):
    folders = [write_run(tmp_path / f"v{i}", config_of(i, default_root_dir=f"/somewhere/{i}")) for i in range(2)]
    assert len(group_runs([read_run(folder) for folder in folders])) == 1


# -- comparison --------------------------------------------------------------------------------------------------------


def test_difference_to_the_control_is_paired_by_seed(tmp_path):
    ours = [write_run(tmp_path / f"a{s}", config_of(s), (0.1, 0.5 + s / 10)) for s in range(3)]
    theirs = [
        write_run(tmp_path / f"b{s}", config_of(s, "data/cifar_mtl", "methods/fixed_random"), (0.1, 0.4 + s / 8))
        for s in range(3)
    ]
    group, control = group_runs([read_run(folder) for folder in ours + theirs])
    assert control_of([group, control], group) is control is control_of([group, control], control)
    found = difference(group, control)
    gaps = np.array([0.1, 0.075, 0.05])
    assert (found.epoch, found.seeds, found.mean) == (2, 3, pytest.approx(gaps.mean(), abs=1e-6))
    assert found.half == pytest.approx(4.303 * gaps.std(ddof=1) / np.sqrt(3), abs=1e-6)  # Student's t, 2 degrees
    page = write_report(ours + theirs, tmp_path).read_text()
    assert "Compared with the control" in page and "+7.5" in page and "+1.3 to +13.7" in page


@pytest.mark.parametrize("control", ["fixed_random", "fixed_own", "fixed_own_fc", "fixed_shared"])
def test_each_control_of_routing_is_one_for_the_network_that_it_routes(tmp_path, control):
    """Also beside controls of another network, which come first without a router, and whatever the methods' names."""
    names = {"ours": ["methods/branching"], "wpl": ["methods/wpl"], "theirs": [f"methods/{control}"]}
    runs = {name: (*parts, "networks/all_layers") for name, parts in names.items()}
    runs |= {"fc": ("methods/fixed_random",), "of fc": ("methods/q_table",), "without": ("methods/cross_stitch",)}
    folders = [
        write_run(tmp_path / name, config_of(0, "data/cifar_mtl", *parts), (0.1 * number,))
        for number, (name, parts) in enumerate(runs.items())
    ]
    groups = group_runs([read_run(folder) for folder in folders])
    ours, wpl, theirs, fc, of_fc, without = groups
    assert [control_of(groups, group) for group in (ours, wpl, theirs, of_fc, fc)] == [theirs] * 3 + [fc] * 2
    assert control_of(groups, without) in (theirs, fc)
    assert control_of([ours, theirs], ours) is theirs and control_of([ours, wpl], ours) is None
    page = write_report(folders, tmp_path).read_text()
    assert "a control of the same network" in page and "-20.0" in page.replace("\u2212", "-")


def test_the_control_is_that_trained_alike_and_what_was_trained_otherwise_is_named(tmp_path):
    ours = config_of(0)
    alike, other = (config_of(0, "data/cifar_mtl", "methods/fixed_random") for _ in range(2))
    shared = config_of(0, "data/cifar_mtl", "methods/shared")
    other["data"]["init_args"]["batch_size"] = shared["data"]["init_args"]["batch_size"] = 256
    other["trainer"]["limit_train_batches"] = 60
    ours["trainer"]["limit_train_batches"] = alike["trainer"]["limit_train_batches"] = None
    ours["data"]["init_args"]["batch_size"] = alike["data"]["init_args"]["batch_size"] = 16
    for one in (ours, alike, other, shared):
        one["trainer"]["max_epochs"] = 3 if one is ours else 2  # what is common to both is compared
    folders = {
        name: write_run(tmp_path / name, one, (0.1, 0.3 + number / 10))
        for number, (name, one) in enumerate({"other": other, "ours": ours, "alike": alike, "shared": shared}.items())
    }
    others, group, control, third = groups = group_runs([read_run(folder) for folder in folders.values()])
    assert [control_of(groups, one) for one in (group, control, others)] == [control, control, others]
    assert control_of(groups, third) is third and unlike(group, control) == []
    page = write_report([folders["ours"], folders["alike"]], tmp_path / "a").read_text()
    assert "trained otherwise" not in page and "-10.0" in page.replace("\u2212", "-")
    page = write_report([folders["ours"], folders["other"]], tmp_path / "b").read_text()
    words = "batch_size 16, of the control 256; limit_train_batches None, of the control 60"
    assert "trained otherwise" in page and words in page


def test_routes_that_were_learned_are_no_control(tmp_path):
    """Given ones, as prune leaves them; stitched ones; and fixed ones on weights that learned with others."""
    ours = config_of(0, "data/cifar_mtl", "methods/branching")
    others = [config_of(0, "data/cifar_mtl", "methods/fixed_random") for _ in range(5)]
    routers = [one["model"]["init_args"]["router"]["init_args"] for one in others]
    routers[0]["routes"] = [[0, 1, 0]] * 20
    routers[1] |= {"routes": [[0, 1, 0]] * 20, "stitch": True}
    routers[2]["stitch"] = True
    others[3]["weights"] = "learned.ckpt"
    source = write_run(tmp_path / "learned", ours, (0.1,))
    others[4] = from_epoch(others[4], source, 0)
    runs = [read_run(write_run(tmp_path / f"{n}", one, (0.3,), first_epoch=n // 4)) for n, one in enumerate(others)]
    own, *groups = group_runs([read_run(write_run(tmp_path / "ours", ours)), *join_resumed([read_run(source), *runs])])
    assert len(groups) >= 5 and control_of([own, *groups], own) is None
    assert {"given routes", "given routes, stitched"} <= {group.method for group in groups}
    folders = [tmp_path / "ours", *(run.folder for run in runs), source]
    assert "No control is among these runs" in write_report(folders, tmp_path / "out").read_text()
    with_weights = ours | {"weights": "learned.ckpt"}
    (fair,) = group_runs([read_run(write_run(tmp_path / "fair", with_weights))])
    assert control_of([fair, *groups], fair).runs[0].config["weights"] == "learned.ckpt"


def test_differences_need_common_seeds_and_equal_data(tmp_path):
    config = config_of(0, "data/cifar_mtl", "methods/fixed_random")
    (control,) = group_runs([read_run(write_run(tmp_path / "c", config))])
    (one,) = group_runs([read_run(write_run(tmp_path / "1", config_of(0)))])
    (other,) = group_runs([read_run(write_run(tmp_path / "2", config_of(1)))])
    held_out = config_of(0)
    held_out["data"]["init_args"]["val_fraction"] = 0.1
    (part,) = group_runs([read_run(write_run(tmp_path / "3", held_out))])
    assert difference(one, control).seeds == 1 and np.isnan(difference(one, control).half)
    assert difference(other, control) is None and difference(part, control) is None


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"class_path": "CIFARMTLDataModule"}, "test set"),
        ({"class_path": "routing_lightning.datamodules.CIFAR", "init_args": {"val_fraction": 0.0}}, "test set"),
        ({"class_path": "CIFARMTLDataModule", "init_args": {"val_fraction": 0.1}}, "validation part"),
        ({"class_path": "mine.Data", "init_args": {"val_fraction": 0.0}}, "validation data"),  # maybe its own
        ({}, "validation data"),
    ],
)  # fmt: skip
def test_it_is_said_what_accuracy_was_measured_on(data, words, tmp_path):
    config = config_of()
    config["data"] = data
    assert validation_data(config) == words
    page = write_report([write_run(tmp_path / "run", config)], tmp_path).read_text()
    assert f"measured on the {words}" in page  # overview
    assert f"accuracy on the {words} (mean over tasks)" in page  # axis
    assert f"Accuracy in % on the {words}" in page  # table
    assert f"last epoch, {words}" in page  # table per task


def test_rows_of_the_paper_that_were_not_run_are_folded(tmp_path):
    page = write_report([write_run(tmp_path / "run", config_of())], tmp_path).read_text()
    shown, folded = re.search(r"<h2>CIFAR-MTL.*?<h3>", page, re.DOTALL)[0].split("<details>")
    assert "cross stitch-all-fc" in folded and "cross stitch-all-fc" not in shown
    assert "MARL-WPL: table" not in shown + folded  # the same as routing-all-fc
    assert "epoch 1" in shown and "epoch 5" not in shown and "epoch 100" in folded  # no columns of dashes
    assert "<td>-</td>" not in shown + folded


def test_tasks_are_ordered_by_accuracy(tmp_path):
    page = write_report([write_run(tmp_path / "run", config_of())], tmp_path).read_text()
    table = page.split("Accuracy per task</h3>")[1].split("</table>")[0]
    assert re.findall(r'"row">task &lt;(\d)', table) == ["2", "1", "0"]


# -- plot --------------------------------------------------------------------------------------------------------------


def test_plot_draws_every_figure_as_png_and_svg(tmp_path, capsys):
    folder = write_run(tmp_path / "run", record=record_of())
    assert main(["plot", str(folder)]) is None
    names = {path.name for path in (folder / "plots").iterdir()}
    stems = {f"policy_depth_{d}" for d in (1, 2)} | {f"policy_evolution_depth_{d}" for d in (1, 2)}
    stems |= {"routing_map", "sharing_profile", "block_usage", "block_usage_evolution", "task_overlap"}
    assert {f"{stem}{ending}" for stem in stems for ending in (".png", ".svg")} <= names
    assert sum(name.startswith("policy_dynamics_depth_") for name in names) == 4
    assert f"{len(names)} figures in {folder / 'plots'}" in capsys.readouterr().out


def test_plot_writes_where_it_is_told(tmp_path):
    for number in range(2):
        write_run(tmp_path / "logs" / f"version_{number}", record=record_of())
    main(["plot", str(tmp_path / "logs"), "--out", str(tmp_path / "out"), "--block", "2"])
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"1_version_0", "2_version_1"}
    assert (tmp_path / "out" / "1_version_0" / "policy_dynamics_depth_1_block_2.svg").is_file()


def test_figures_are_those_of_the_record():
    record = record_of()
    drawn = dict(figures(record))
    np.testing.assert_array_equal(
        drawn["policy_depth_2"].axes[0].images[0].get_array(), record.probabilities[-1, :, 1, :3]
    )
    block = record.probabilities[-1, :, 0].sum(0).argmax()
    lines = drawn[f"policy_dynamics_depth_1_block_{block}"].axes[0].lines
    for task, line in enumerate(lines):
        np.testing.assert_array_equal(line.get_ydata(), record.probabilities[:, task, 0, block])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plot", "{run}"], "no routes.npz in"),
        (["plot", "{run}/nowhere"], "does not exist"),
        (["report", "{run}/nowhere"], "does not exist"),
        (["plot", "{recorded}", "--block", "9"], "--block is 9.*blocks 0 to 3"),
    ],
)
def test_mistakes_are_told_in_one_sentence(words, message, tmp_path, capsys):
    places = {
        "run": write_run(tmp_path / "run", config_of()),
        "recorded": write_run(tmp_path / "recorded", record=record_of()),
    }
    with pytest.raises(SystemExit) as stop:
        main([word.format(**places) for word in words])
    assert stop.value.code == 1
    error = capsys.readouterr().err
    assert re.search(message, error) and "Traceback" not in error


def test_help_tells_of_both_commands(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "plot draw what the router of a run learned" in text and "report write one HTML page about runs" in text


# -- report ------------------------------------------------------------------------------------------------------------


def test_report_stands_alone(tmp_path, capsys):
    folder = write_run(tmp_path / "run", config_of(), record=record_of())
    main(["report", str(folder), "--out", str(tmp_path / "out")])
    path = tmp_path / "out" / "report.html"
    assert f"Report: {path}" in capsys.readouterr().out
    page = path.read_text()
    assert "default-src 'none'" in page
    assert not re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', page)
    assert "@import" not in page and "url(http" not in page
    assert "prefers-color-scheme: dark" in page and 'type="range"' in page
    for heading in ("CIFAR-MTL", "Accuracy per task", "Routing maps", "Policy evolution", "Training cost"):
        assert re.search(f"<h[23]>{heading}</h", page)
    assert '<b>20.0</b> <span class="paper">[31]</span>' in page  # epoch 1, beside the paper's
    assert "task &lt;1&gt;" in page and "task <1>" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert "20.0" in page and "cross stitch-all-fc" in page


def test_report_holds_the_policies_for_its_slider(tmp_path):
    import base64

    record = record_of()
    page = write_report([write_run(tmp_path / "run", config_of(), record=record)], tmp_path).read_text()
    data = json.loads(re.search(r'id="policies">(.*?)</script>', page, re.DOTALL).group(1))
    (run,) = data["runs"]
    assert run["steps"] == record.steps.tolist() and run["tasks"] == record.task_names
    assert run["actions"] == [["0", "1", "2", "3"], ["0", "1", "PASS"]]
    levels = np.frombuffer(base64.b64decode(run["levels"]), np.uint8).reshape(6, 2, 3, 4)
    np.testing.assert_allclose(levels / 255, record.probabilities.transpose(0, 2, 1, 3), atol=0.5 / 255 + 1e-6)


def test_report_tells_where_tasks_share_and_what_a_search_found(tmp_path):
    record = record_of()
    record.depth_names, record.gains = np.array(["conv <1>", "fc"]), np.array([[4, 2, 1.5], [0, 0, 0]])
    record.probabilities[:] = 0
    record.probabilities[:, :, 0, 3], record.probabilities[:, :, 1, 2] = 1, 1
    record.probabilities[3, :, 0, [3, 0]] = [[0.01] * 3, [0.99, 0.99, 0.9]]  # asked at step 9
    record.probabilities[4:, 0, 0] = [1, 0, 0, 0]  # one has parted
    folders = [write_run(tmp_path / "0", config_of(0), record=record)]
    folders += [write_run(tmp_path / "1", config_of(0, "data/mnist_mtl", "methods/wpl"), record=record_of())]
    page = write_report(folders, tmp_path / "out").read_text()
    section = page[page.index("<h2>Sharing</h2>") : page.index("<h2>Routing maps</h2>")]
    rows = [
        [re.sub("<.*?>", "", cell) for cell in re.findall(r"<t[hd].*?</t[hd]>", row)]
        for row in re.findall("<tr>(.*?)</tr>", section)
    ]
    assert rows[:3] == [
        ["layer", "own block", "gain of parting", "certain tasks", "asked", "blocks taken"],
        ["conv &lt;1&gt;", "1 of 3", "+0.5 ± 0.2", "2 of 3", "9 to 9", "2"],
        ["fc", "0 of 3", "-", "-", "not asked", "1"],
    ]
    assert rows[3] == ["layer", "own block", "blocks taken"] and rows[4][0] == "depth 1"


def test_mean_and_spread_over_seeds_stand_in_the_table(tmp_path):
    folders = [write_run(tmp_path / f"v{seed}", config_of(seed), (0.2 + seed / 10,)) for seed in range(3)]
    page = write_report(folders, tmp_path).read_text()
    assert "<b>30.0</b> ± 10.0" in page and "routing-all-fc (n = 3)" in page


def test_sixty_runs_give_one_page_of_bounded_size(tmp_path):
    folders = []
    for number in range(60):
        config = config_of(number % 2)
        config["model"]["init_args"]["hidden"] = 16 + number // 2
        folders.append(write_run(tmp_path / f"v{number}", config, kind="csv", record=record_of(20, 20, 50, number)))
    page = write_report(folders, tmp_path).read_text()
    assert len(page) < 8_000_000
    assert "30 groups" in page and "Routes of 6 more groups are left out" in page


def test_report_of_a_run_without_anything_but_its_config(tmp_path):
    page = write_report([write_run(tmp_path / "run", config_of(), kind="none")], tmp_path).read_text()
    assert "No accuracy was logged yet" in page


def test_report_of_a_run_without_config(tmp_path):
    page = write_report([write_run(tmp_path / "my_run", kind="csv")], tmp_path).read_text()
    assert "my_run" in page


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("config.yaml", b"garbage", "config.yaml holds no keys with values; mend it"),
        ("config.yaml", b"[1]", "config.yaml holds no keys with values; mend it"),
        ("config.yaml", b"a: [", "config.yaml is no YAML"),
        ("config.yaml", b"\xff\xfe\x00", "config.yaml is no YAML"),
        ("metrics.csv", b"epoch,val/acc\nx,y\n", "metrics.csv is no table of numbers"),
        ("metrics.csv", b"epoch,val/acc\n\xff\xfe\n", "metrics.csv is no table of numbers"),
        ("test.json", b"garbage", "test.json is not what a test writes"),
        ("test.json", b'{"tasks": [{"nothing": 3}]}', "test.json is not what a test writes"),
        ("test.json", b"[]", "test.json is not what a test writes"),
        ("routes.npz", b"garbage", "routes.npz cannot be read"),
    ],
)
def test_a_broken_file_of_a_run_is_named_in_one_sentence(name, content, sentence, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(config_of() | {"verbose": True}))
    (tmp_path / "run" / name).write_bytes(content)
    with pytest.raises(SystemExit):
        main(["report", str(tmp_path / "run"), f"--out={tmp_path / 'report'}"])
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1 and sentence in error, error


def test_event_files_that_are_none_leave_the_run_without_curves(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(config_of()))
    (tmp_path / "run" / "events.out.tfevents.1").write_bytes(b"garbage")
    main(["report", str(tmp_path / "run"), f"--out={tmp_path / 'report'}"])
    assert (tmp_path / "report" / "report.html").is_file()
