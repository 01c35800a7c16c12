"""Finding runs and reading what they left behind."""

import csv
import itertools
import math
import pickle
import re
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from routing_lightning.errors import UsageError
from routing_lightning.paths import run_folder
from routing_lightning.record import FILE_NAME, TEST_FILE, RouteRecord, TestedTask, load_test

# What may differ between two runs of a group, since it does not change the training.
APART = (
    "seed_everything",
    "ckpt_path",
    "weights_only",
    "record",
    "trainer.default_root_dir",
    "trainer.logger",
    "trainer.callbacks",
    "trainer.enable_progress_bar",
    "trainer.enable_model_summary",
    "name",
    "threads",
    "trainer.enable_checkpointing",
    "trainer.enable_autolog_hparams",
    "trainer.log_every_n_steps",
    "trainer.num_sanity_val_steps",
    "trainer.profiler",
    "trainer.model_registry",
    "trainer.accelerator",
    "data.init_args.root",
    "data.init_args.cache_dir",
    "data.init_args.download",
)

MARKS = ("config.yaml", "metrics.csv", "events.out.tfevents.*", FILE_NAME, TEST_FILE)


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """Folders of runs at or below the paths, each once, in order.

    Args:
        paths: version folders, folders above them, or files and folders in them (such as a checkpoint).

    Raises:
        UsageError: if a path does not exist or holds no run.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if not path.exists():
            raise UsageError(f"run {path} does not exist; give the folder of a run, such as one below lightning_logs.")
        folder = run_folder(path if path.is_dir() else path.parent)
        # Also below a run: an evaluation without a logger leaves its config above all others.
        folders = sorted({mark.parent for mark in _marks(folder, "**/")}, key=_order)
        if not folders:
            raise UsageError(
                f"run {path} holds no config.yaml, metrics.csv, event file or {FILE_NAME}; give the folder of a run, "
                "such as one below lightning_logs."
            )
        found.update(dict.fromkeys(folders))
    return list(found)


def _order(path: Path) -> list[Any]:
    """Sorts version_10 after version_9."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in str(path).replace("_", "/").split("/")]


def _marks(folder: Path, prefix: str) -> list[Path]:
    return [path for mark in MARKS for path in folder.glob(prefix + mark)]


@dataclass
class Run:
    """What is known of a run.

    Attributes:
        folder: where it lies.
        config: its config, empty if it was not started from the command line.
        accuracy: ``val/acc`` in [0, 1] at the end of each epoch, counted from 1.
        test_accuracy: ``test/acc`` in [0, 1], None if it was not tested.
        task_accuracy: accuracy of each task of classes by name, at the last epoch.
        task_scores: F1, MAE and R² of each task of another kind by name, at the last epoch, by the name of the measure.
        epochs: epochs that ended with a validation.
        epoch_seconds: median time of an epoch with its validation; None if unknown.
        tags: names of what it logged.
        before: the training that this one went on from, where both are known.
        earlier: the configs of the trainings that it went on from, the latest first, as far as they are known.
        began_with: the checkpoint whose weights it began with at epoch 1; None if it began with none.
    """

    folder: Path
    config: dict[str, Any] = field(default_factory=dict)
    accuracy: dict[int, float] = field(default_factory=dict)
    test_accuracy: float | None = None
    task_accuracy: dict[str, float] = field(default_factory=dict)
    task_scores: dict[str, dict[str, float]] = field(default_factory=dict)
    epochs: int = 0
    epoch_seconds: float | None = None
    tags: set[str] = field(default_factory=set)
    before: "Run | None" = None
    earlier: list[dict[str, Any]] = field(default_factory=list)
    began_with: str | None = None

    @property
    def command(self) -> str:
        """The command that made it: ``fit``, ``validate``, ``test`` or ``predict``.

        What a training left behind tells first; else the options that the other commands alone have. (An evaluation
        without a logger leaves its config in the folder of a training.)
        """
        if (self.folder / FILE_NAME).is_file() or any(tag.startswith("train/") for tag in self.tags):
            return "fit"
        if "return_predictions" in self.config:
            return "predict"
        if "test/loss" in self.tags or "test/acc" in self.tags:
            return "test"
        return "validate" if "verbose" in self.config else "fit"

    @property
    def is_unlogged(self) -> bool:
        """Whether no epoch of its own was validated and logged, as without a logger."""
        return not self.epochs

    @property
    def is_finished(self) -> bool:
        """Whether it reached the last epoch that its config asks for."""
        asked = (self.config.get("trainer") or {}).get("max_epochs")
        return isinstance(asked, int) and 0 < asked <= max(self.accuracy, default=0)

    @property
    def source(self) -> Path | None:
        """The folder of the run whose checkpoint it began with."""
        if not self.config.get("ckpt_path"):
            return None
        return run_folder(Path(self.config["ckpt_path"]).resolve().parent)

    @cached_property
    def record(self) -> RouteRecord | None:
        """What its router did, if that was recorded, by it or by the run that it went on from."""
        if not self.has_own_record and self.before is not None:
            return self.before.record
        return self._own_record

    @property
    def has_own_record(self) -> bool:
        """Whether it recorded what its router did itself."""
        return self._own_record is not None and len(self._own_record.steps) > 0

    @cached_property
    def _own_record(self) -> RouteRecord | None:
        path = self.folder / FILE_NAME
        return RouteRecord.load(path) if path.is_file() else None

    @cached_property
    def tested(self) -> list[TestedTask]:
        """What its test found of each task, if it is one."""
        return load_test(self.folder)

    @cached_property
    def parameters(self) -> int | None:
        """Trained weights in its newest checkpoint, without those of the router; None if there is no checkpoint."""
        checkpoints = sorted(self.folder.glob("checkpoints/*.ckpt"), key=lambda path: path.stat().st_mtime)
        if not checkpoints:
            return self.before.parameters if self.before is not None else None
        try:
            state = torch.load(checkpoints[-1], map_location="cpu", weights_only=True, mmap=True)["state_dict"]
        except (OSError, RuntimeError, KeyError, ValueError):
            return None
        other = ("running_mean", "running_var", "num_batches_tracked")
        counts: list[int] = [
            value.numel()
            for name, value in state.items()
            if not name.endswith(other) and ".router." not in name and not name.startswith(("metrics.", "normalise."))
        ]
        return sum(counts)


def read_run(folder: Path) -> Run:
    """Reads a run from its folder; what is missing there stays empty.

    Raises:
        UsageError: if its config or table of metrics cannot be read.
    """
    run = Run(folder)
    run.config = _read_config(folder)
    if any(folder.glob("events.out.tfevents.*")):
        _read_events(run)
    if (folder / "metrics.csv").is_file():
        table = Run(folder)
        try:
            _read_csv(table)
        except (csv.Error, ValueError, TypeError) as error:
            metrics = folder / "metrics.csv"
            raise UsageError(f"{metrics} is no table of numbers ({error}); mend it, or leave this run out.") from error
        _add_log(run, table)
    return run


def _read_config(folder: Path) -> dict[str, Any]:
    """The config of the run of a folder, empty if there is none."""
    path = folder / "config.yaml"
    if not path.is_file():
        return {}
    try:
        config = yaml.safe_load(path.read_text()) or {}
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{path} is no YAML ({reason}); mend it, or leave this run out.") from error
    if not isinstance(config, dict):
        raise UsageError(f"{path} holds no keys with values; mend it, or leave this run out.")
    return config


def _add_log(run: Run, table: Run) -> None:
    """Adds a second log of a folder to the first: one training may have gone on there with another logger."""
    if not run.epochs or max(table.accuracy, default=0) > max(run.accuracy, default=0):
        run.task_accuracy, run.task_scores = table.task_accuracy, table.task_scores
    run.accuracy = table.accuracy | run.accuracy
    run.epochs = len(run.accuracy) or max(run.epochs, table.epochs)
    run.tags |= table.tags
    if run.test_accuracy is None:
        run.test_accuracy = table.test_accuracy


TASK = "val/acc_task/"
SCORES = ("f1", "mae", "r2")  # what tasks of other kinds than classes are measured by
EPOCH = ("epoch", "time/epoch")  # tags of the epoch's number: Lightning's, and that of our logger


def _read_events(run: Run) -> None:
    """Reads TensorBoard's event files."""
    events = EventAccumulator(str(run.folder), size_guidance={"scalars": 0, "images": 1, "tensors": 1})
    events.Reload()
    run.tags = set(events.Tags()["scalars"])
    if "test/acc" in run.tags:
        run.test_accuracy = events.Scalars("test/acc")[-1].value
    # Without tasks of classes there is no accuracy.
    ending = "val/acc" if "val/acc" in run.tags else "val/loss"
    if ending not in run.tags:
        return
    epoch_at = {event.step: int(event.value) + 1 for tag in EPOCH if tag in run.tags for event in events.Scalars(tag)}
    times: dict[int, float] = {}
    for number, event in enumerate(events.Scalars(ending), start=1):
        epoch = epoch_at.get(event.step, number)
        if ending == "val/acc":
            run.accuracy[epoch] = event.value
        times[epoch] = event.wall_time
    run.epochs = len(times)
    for tag in run.tags:
        if tag.startswith(TASK):
            run.task_accuracy[tag.removeprefix(TASK)] = events.Scalars(tag)[-1].value
        for score in SCORES:
            if tag.startswith(prefix := f"val/{score}_task/"):
                values = run.task_scores.setdefault(score, {})
                values[tag.removeprefix(prefix)] = events.Scalars(tag)[-1].value
    run.epoch_seconds = seconds_per_epoch(times, events.FirstEventTimestamp())


def seconds_per_epoch(ends: dict[int, float], start: float) -> float | None:
    """Median time of an epoch.

    Args:
        ends: when each epoch ended, in seconds.
        start: when the first event was written; counts only where no two epochs can be compared.
    """
    epochs = sorted(ends)
    pairs = list(itertools.pairwise(epochs))
    if pairs:
        return statistics.median((ends[late] - ends[early]) / (late - early) for early, late in pairs)
    return ends[epochs[0]] - start if epochs == [1] else None


def _read_csv(run: Run) -> None:
    """Reads the CSVLogger's file, which has no times."""
    epochs = set()  # an epoch may be validated several times, or begun again by a run that went on
    with (run.folder / "metrics.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            run.tags |= {name for name, value in row.items() if name and value}
            if row.get("test/acc"):
                run.test_accuracy = float(row["test/acc"])
            if not (row.get("val/acc") or row.get("val/loss")) or not row.get("epoch"):
                continue
            epochs.add(row["epoch"])
            if row.get("val/acc"):
                run.accuracy[int(float(row["epoch"])) + 1] = float(row["val/acc"])
            values = {name: float(value) for name, value in row.items() if name and "_task/" in name and value}
            run.task_accuracy = _below(TASK, values)
            found = {score: _below(f"val/{score}_task/", values) for score in SCORES}
            run.task_scores = {score: tasks for score, tasks in found.items() if tasks}
    run.epochs = len(epochs)


def _below(prefix: str, values: dict[str, float]) -> dict[str, float]:
    """The values whose names begin with a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


def join_resumed(runs: list[Run]) -> list[Run]:
    """Makes one training of a training and those that went on from its checkpoints; the last one keeps its name.

    Only a ``fit`` continues a ``fit``: the other commands read a checkpoint and leave its run as it was. Nor does
    a run that begins at epoch 1 with the weights of another. A finished training that went on with other settings,
    such as more epochs, stays beside it where other runs have its settings: it is one of their group. A run that went
    on and logged nothing takes no place: the one before stays, and it has no accuracy, since that of before is not its
    own.

    Returns:
        The trainings, in order, without those that others continue.
    """
    trainings = [run for run in runs if run.command == "fit"]
    for run in trainings:
        before = _source_among(trainings, run)
        checkpoint = run.config.get("ckpt_path")
        alone = _is_weights_alone(checkpoint)
        if alone is None:  # who does not go on within epoch 1 must have begun anew
            alone = before is not None and bool(before.accuracy)
        if min(run.accuracy, default=2) == 1 and alone:
            run.began_with = checkpoint
        else:
            run.before = before
    joined: set[Path] = set()

    def join(run: Run) -> None:
        if run.folder in joined:
            return
        joined.add(run.folder)
        if run.before is None:
            run.earlier = [] if run.began_with else _configs_before(run)
            return
        join(run.before)  # first, whatever the order in which the runs were given
        run.earlier = [run.before.config, *run.before.earlier]
        if run.is_unlogged:
            return
        first = min(run.accuracy, default=math.inf)
        past, epochs = _past(run)
        run.accuracy = {epoch: v for epoch, v in past.items() if epoch < first} | run.accuracy
        run.epochs = len(run.accuracy) or run.epochs + epochs
        run.epoch_seconds = run.before.epoch_seconds if run.epoch_seconds is None else run.epoch_seconds

    for run in trainings:
        join(run)
    later: dict[int, list[Run]] = {}
    for run in trainings:
        ahead = run
        while not run.is_unlogged and ahead.before is not None:
            later.setdefault(id(ahead.before), []).append(run)
            if not ahead.before.is_unlogged:
                break
            ahead = ahead.before
    others = [settings_of(run) for run in trainings if id(run) not in later]

    def stays(run: Run) -> bool:
        if id(run) not in later:
            return True
        settings = settings_of(run)
        same = any(settings_of(after) == settings for after in later[id(run)])
        return run.is_finished and settings in others and not same

    return [run for run in trainings if stays(run)]


def _past(run: Run) -> tuple[dict[int, float], int]:
    """Accuracy by epoch, and number of epochs, that were logged before a run by those that it went on from.

    Over a run that logged nothing it is known up to the checkpoint from which that one began, by the file's name.
    """
    limit, before = math.inf, run.before
    while before is not None and before.is_unlogged:
        found = re.search(r"epoch=(\d+)", str(before.config.get("ckpt_path")))
        limit = min(limit, int(found[1]) + 1 if found else 0)
        before = before.before
    if before is None:
        return {}, 0
    return {epoch: value for epoch, value in before.accuracy.items() if epoch <= limit}, before.epochs


def _is_weights_alone(checkpoint: Any) -> bool | None:
    """Whether a file holds weights and no state of a training, as that of ``extend``; None if it cannot be read."""
    if checkpoint is None or not Path(checkpoint).is_file():
        return None
    try:
        return "optimizer_states" not in torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
    except (OSError, RuntimeError, ValueError, pickle.UnpicklingError):
        return None


def _configs_before(run: Run) -> list[dict[str, Any]]:
    """The configs of runs that a run went on from, the latest first, of those whose folders are still there."""
    found: list[dict[str, Any]] = []
    seen = {run.folder.resolve()}
    while run.source is not None and run.source not in seen and (config := _read_config(run.source)):
        seen.add(run.source)
        found.append(config)
        run = Run(run.source, config)
    return found


def _source_among(trainings: list[Run], run: Run) -> Run | None:
    """The training whose checkpoint a run began with; of moved folders the only one of that name and seed."""
    if run.source is None:
        return None
    exact = [other for other in trainings if other.folder.resolve() == run.source]
    moved = [
        other
        for other in trainings
        if other.folder.resolve().name == run.source.name and seed_of(other) == seed_of(run)
    ]
    found = exact or (moved if len(moved) == 1 and not run.source.exists() else [])
    return found[0] if found and found[0] is not run else None


def seed_of(run: Run) -> int | None:
    """The seed of a run; None if it had none (``false``), or none is known."""
    seed = run.config.get("seed_everything")
    return None if isinstance(seed, bool) or not isinstance(seed, int) else seed


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """Nested values by their dotted names."""
    if isinstance(config, dict) and config:
        return {name: value for key, part in config.items() for name, value in flatten(part, f"{prefix}{key}.").items()}
    return {prefix.removesuffix("."): config}


# How long a run is: of no effect on what was before its end, unless something was planned by it.
LENGTH = ("trainer.max_epochs", "trainer.max_steps", "trainer.max_time", "trainer.min_epochs", "trainer.min_steps")
LENGTHS = ("total_steps", "T_max", "total_iters")  # of torch's schedules; null or -1: that of the run which begins it
BEFORE = " before"  # ends the name of a setting that a run had before it went on with another one


def settings_of(run: Run) -> dict[str, Any]:
    """The settings of a run that its group has in common, by their dotted names.

    With those that it had before it went on from a checkpoint with other ones, and the weights that it began with.
    """
    settings = _settings(run.config)
    if run.began_with is not None:
        settings["weights"] = run.began_with
    planned = _is_planned(settings)
    for config in run.earlier:
        had = _settings(config)
        for name in sorted({*settings, *had}):
            if name.endswith(BEFORE) or (name in LENGTH and not planned):
                continue
            if config and had.get(name) != settings.get(name):
                values = settings.setdefault(name + BEFORE, [])
                if had.get(name) not in values:
                    values.append(had.get(name))
    return settings


def _is_planned(settings: dict[str, Any]) -> bool:
    """Whether a run plans something by its length when it begins: a search, or a learning rate schedule."""
    for name, value in settings.items():
        place, _, option = name.rpartition(".")
        if option in LENGTHS and value in (None, -1):  # of a schedule, left to the run
            return True
        if option == "class_path" and str(value).rpartition(".")[2] == "BranchingRouter":
            args = f"{place}.init_args."
            if settings.get(args + "stage") is None or settings.get(args + "begin") != 0:
                return True
    return False


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in flatten(config).items()
        if not any(name == apart or name.startswith(f"{apart}.") for apart in APART)
    }
