"""Finding runs and reading what they left behind."""

import csv
import itertools
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
from routing_lightning.record import FILE_NAME, RouteRecord

MARKS = ("config.yaml", "metrics.csv", "events.out.tfevents.*", FILE_NAME)


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
            raise UsageError(f"run {path} does not exist; give the folder of a run, such as lightning_logs/version_0.")
        folder = path if path.is_dir() else path.parent
        if folder.name == "checkpoints":
            folder = folder.parent
        folders = [folder] if _is_run(folder) else sorted({mark.parent for mark in _marks(folder, "**/")}, key=_order)
        if not folders:
            raise UsageError(
                f"run {path} holds no config.yaml, metrics.csv, event file or {FILE_NAME}; give the folder of a run, "
                "such as lightning_logs/version_0."
            )
        found.update(dict.fromkeys(folders))
    return list(found)


def _order(path: Path) -> list[Any]:
    """Sorts version_10 after version_9."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in str(path).replace("_", "/").split("/")]


def _marks(folder: Path, prefix: str = "") -> list[Path]:
    return [path for mark in MARKS for path in folder.glob(prefix + mark)]


def _is_run(folder: Path) -> bool:
    return bool(_marks(folder))


@dataclass
class Run:
    """What is known of a run.

    Attributes:
        folder: where it lies.
        config: its config, empty if it was not started from the command line.
        accuracy: ``val/acc`` in [0, 1] at the end of each epoch, counted from 1.
        task_accuracy: accuracy of each task by name, at the last epoch.
        epoch_seconds: median time of an epoch with its validation; None if unknown.
    """

    folder: Path
    config: dict[str, Any] = field(default_factory=dict)
    accuracy: dict[int, float] = field(default_factory=dict)
    task_accuracy: dict[str, float] = field(default_factory=dict)
    epoch_seconds: float | None = None

    @cached_property
    def record(self) -> RouteRecord | None:
        """What its router did, if that was recorded."""
        path = self.folder / FILE_NAME
        return RouteRecord.load(path) if path.is_file() else None

    @cached_property
    def parameters(self) -> int | None:
        """Trained weights in its newest checkpoint, without those of the router; None if there is no checkpoint."""
        checkpoints = sorted(self.folder.glob("checkpoints/*.ckpt"), key=lambda path: path.stat().st_mtime)
        if not checkpoints:
            return None
        try:
            state = torch.load(checkpoints[-1], map_location="cpu", weights_only=True, mmap=True)["state_dict"]
        except (OSError, RuntimeError, KeyError, ValueError):
            return None
        other = ("running_mean", "running_var", "num_batches_tracked")
        return sum(
            value.numel()
            for name, value in state.items()
            if not name.endswith(other) and ".router." not in name and not name.startswith("metrics.")
        )


def read_run(folder: Path) -> Run:
    """Reads a run from its folder; what is missing there stays empty.

    Raises:
        UsageError: if its config cannot be read.
    """
    run = Run(folder)
    config = folder / "config.yaml"
    if config.is_file():
        try:
            run.config = yaml.safe_load(config.read_text()) or {}
        except yaml.YAMLError as error:
            raise UsageError(f"{config} is no YAML ({error}); mend it, or leave this run out.") from error
    if any(folder.glob("events.out.tfevents.*")):
        _read_events(run)
    if not run.accuracy and (folder / "metrics.csv").is_file():
        _read_csv(run)
    return run


TASK = "val/acc_task/"


def _read_events(run: Run) -> None:
    """Reads TensorBoard's event files."""
    events = EventAccumulator(str(run.folder), size_guidance={"scalars": 0, "images": 1, "tensors": 1})
    events.Reload()
    tags = events.Tags()["scalars"]
    if "val/acc" not in tags:
        return
    epoch_at = {event.step: int(event.value) + 1 for event in events.Scalars("epoch")} if "epoch" in tags else {}
    times: dict[int, float] = {}
    for number, event in enumerate(events.Scalars("val/acc"), start=1):
        epoch = epoch_at.get(event.step, number)
        run.accuracy[epoch] = event.value
        times[epoch] = event.wall_time
    for tag in tags:
        if tag.startswith(TASK):
            run.task_accuracy[tag.removeprefix(TASK)] = events.Scalars(tag)[-1].value
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
    with (run.folder / "metrics.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if not row.get("val/acc") or not row.get("epoch"):
                continue
            run.accuracy[int(float(row["epoch"])) + 1] = float(row["val/acc"])
            tasks = {name: value for name, value in row.items() if name and name.startswith(TASK) and value}
            run.task_accuracy = {name.removeprefix(TASK): float(value) for name, value in tasks.items()}


def join_resumed(runs: list[Run]) -> list[Run]:
    """Makes one run of a run and those that went on from its checkpoints; the last one keeps its name.

    Returns:
        The runs, in order, without those that others continue.
    """
    by_folder = {run.folder.resolve(): run for run in runs}
    continued: set[Path] = set()
    for run in runs:
        checkpoint = run.config.get("ckpt_path")
        if not checkpoint:
            continue
        source = Path(checkpoint).resolve()
        folder = source.parent.parent if source.parent.name == "checkpoints" else source.parent
        before = by_folder.get(folder)
        if before is not None and before is not run:
            first = min(run.accuracy, default=0)
            run.accuracy = {epoch: v for epoch, v in before.accuracy.items() if epoch < first} | run.accuracy
            continued.add(before.folder)
    return [run for run in runs if run.folder not in continued]
