"""What the callbacks of ``record`` cost.

Example:
    python benchmarks/callbacks.py -- --config configs/cifar_mtl.yaml --data.init_args.root data

Everything after ``--`` goes to ``fit``. Two figures, each from within one fit, so that other work on the machine slows
both sides alike:

- ``share``: time inside our callbacks' hooks as a share of the rest of the epochs (pictures and file included);
- ``step_on_ms``, ``step_off_ms``: mean processor time from one batch to the next, with the callbacks taken out and put
  back every 40 batches: what their mere presence costs, too.

``--repeats`` adds whole fits with and without callbacks, in turns, for a quiet machine.
"""

import argparse
import contextlib
import gc
import io
import json
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import lightning as L
import matplotlib
import torch

from routing_lightning.callbacks import (
    BlockUsage,
    PolicyDynamics,
    PolicyHeatmap,
    RouteRecorder,
    RoutingMap,
    TaskAccuracy,
)
from routing_lightning.cli import main

OURS = (RouteRecorder, PolicyHeatmap, PolicyDynamics, RoutingMap, BlockUsage, TaskAccuracy)
PHASE = 40  # batches


class Clock(L.Callback):
    """Notes when the epochs begin and end, in seconds of wall and of processor time."""

    latest: "Clock"

    def __init__(self) -> None:
        Clock.latest = self

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.begin = time.perf_counter()

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.current_epoch == 0:
            self.first = time.perf_counter(), time.process_time()

    # the first thing after the end of the last epoch, pictures and checkpoint included
    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.end = time.perf_counter(), time.process_time()


class Toggle(Clock):
    """Takes our callbacks out and puts them back, and notes the time of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: dict[bool, list[float]] = {True: [], False: []}
        self.on = True
        self.last: float | None = None

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self.last is not None:
            self.steps[self.on].append(time.process_time() - self.last)
        self.last = time.process_time()
        if batch_idx == 0:
            self.all = list(trainer.callbacks)
        if batch_idx % PHASE == 0:
            self.on = not self.on
            trainer.callbacks[:] = [c for c in self.all if self.on or not isinstance(c, OURS)]
            self.last = None  # this step is neither

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.last = None


def fit(words: list[str], clock: type[Clock], *options: str) -> tuple[Clock, dict[str, list[float]], float]:
    """Trains once; returns the clock, the durations of all hooks in seconds, and the size of the event files in MB."""
    gc.collect()
    with tempfile.TemporaryDirectory() as folder:
        words = [
            "fit",
            *words,
            "--trainer.default_root_dir",
            folder,
            "--trainer.enable_progress_bar",
            "false",
            *options,
        ]
        words += ["--trainer.callbacks", f"{clock.__module__}.{clock.__name__}", "--trainer.profiler", "simple"]
        with contextlib.redirect_stdout(io.StringIO()):
            trainer = main(words).trainer
        events = sum(path.stat().st_size for path in Path(folder).rglob("events.out.*"))
    return clock.latest, trainer.profiler.recorded_durations, events / 1e6


def inside_epochs(durations: dict[str, list[float]]) -> float:
    """Time inside our callbacks' hooks during epochs, in seconds."""
    own = tuple(f"[Callback]{callback.__name__}." for callback in OURS)
    outside = ("setup", "teardown", "fit_start", "fit_end", "train_start", "train_end", "check_start", "check_end")
    return sum(sum(d) for name, d in durations.items() if name.startswith(own) and not name.endswith(outside))


def cpu_name() -> str:
    """Name of the processor, as Linux tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures."""
    words = [*options.fit, "--trainer.max_epochs", str(options.epochs)]
    fit(options.fit, Clock, "--trainer.max_epochs=1", "--trainer.limit_train_batches=20")  # loads fonts and data
    clock, durations, events = fit(words, Clock)
    inside, epochs = inside_epochs(durations), clock.end[0] - clock.first[0]
    toggle, _, _ = fit(words, Toggle)
    assert isinstance(toggle, Toggle)
    off, on = (1000 * statistics.fmean(toggle.steps[state]) for state in (False, True))
    results: dict[str, Any] = {
        "epochs": options.epochs,
        "share": round(inside / (epochs - inside), 4),
        "step_off_ms": round(off, 3),
        "step_on_ms": round(on, 3),
        "start_s": round(clock.first[0] - clock.begin, 2),
        "events_mb_per_epoch": round(events / options.epochs, 3),
    }
    ratios = []
    for _ in range(options.repeats):
        both = [fit(words, Clock, *extra)[0] for extra in ((), ("--record", "null"))]
        with_ours, without = (run.end[1] - run.first[1] for run in both)
        ratios.append(round(with_ours / without, 3))
    versions = {"torch": torch.__version__, "lightning": L.__version__, "matplotlib": matplotlib.__version__}
    return {**results, "epochs_on_by_off": ratios, "cpu": cpu_name(), **versions}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=1, help="epochs of each fit")
    parser.add_argument("--repeats", type=int, default=0, help="pairs of whole fits with and without callbacks")
    parser.add_argument("fit", nargs="*", help="arguments of fit, after --")
    torch.set_num_threads(1)
    print(json.dumps(measure(parser.parse_args()), indent=2))
