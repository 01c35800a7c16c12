"""What the callbacks of ``record`` cost: training with and without them, in turns.

Example:
    python benchmarks/callbacks.py --repeats 5 -- --config configs/cifar_mtl.yaml --data.init_args.root data

Everything after ``--`` goes to ``fit``. ``start`` is the time until the first batch, first pictures included; ``epoch``
the mean time of an epoch with validation, pictures and checkpoint. The processor time of the process is the steadier
figure on a machine with other work.
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

import lightning as L
import matplotlib
import torch

from routing_lightning.cli import main


class Clock(L.Callback):
    """Notes wall and processor time, in seconds, of the start of a fit and of its epochs."""

    latest: "Clock"

    def __init__(self) -> None:
        Clock.latest = self

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.begin = time.perf_counter(), time.process_time()

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.current_epoch == 0:
            self.first = time.perf_counter(), time.process_time()

    @property
    def spans(self) -> dict[str, list[float]]:
        """Wall and processor time of the start (until the first batch) and of all epochs."""
        pairs = {"start": (self.begin, self.first), "epoch": (self.first, self.end)}
        return {name: [late - early for early, late in zip(*pair, strict=True)] for name, pair in pairs.items()}

    # the first thing after the end of the last epoch, pictures and checkpoint included
    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.end = time.perf_counter(), time.process_time()


def one_fit(words: list[str], epochs: int, record: bool) -> dict[str, float]:
    """Trains once and returns times in seconds, and the size of the event files in MB per epoch."""
    gc.collect()
    with tempfile.TemporaryDirectory() as folder:
        words = ["fit", *words, "--trainer.max_epochs", str(epochs), "--trainer.default_root_dir", folder]
        words += ["--trainer.enable_progress_bar", "false", "--trainer.callbacks", f"{Clock.__module__}.Clock"]
        with contextlib.redirect_stdout(io.StringIO()):
            main(words if record else [*words, "--record", "null"])
        events = sum(path.stat().st_size for path in Path(folder).rglob("events.out.*"))
    clock = Clock.latest
    times = {"start": 1, "epoch": epochs}
    return {
        **{f"{name}_wall": clock.spans[name][0] / count for name, count in times.items()},
        **{f"{name}_cpu": clock.spans[name][1] / count for name, count in times.items()},
        "events_mb": events / epochs / 1e6,
    }


def cpu_name() -> str:
    """Name of the processor, as Linux tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="fits with and without callbacks")
    parser.add_argument("--epochs", type=int, default=1, help="epochs of each fit")
    parser.add_argument("fit", nargs="*", help="arguments of fit, after --")
    return parser.parse_args()


if __name__ == "__main__":
    options = parse()
    torch.set_num_threads(1)
    results: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    one_fit([*options.fit, "--trainer.limit_train_batches", "20"], 1, record=True)  # loads fonts and data
    for turn in range(options.repeats):
        for record in (True, False) if turn % 2 else (False, True):
            results[record].append(one_fit(options.fit, options.epochs, record))
    names = list(results[True][0])
    median = {
        name: {
            "on" if record else "off": round(statistics.median(run[name] for run in runs), 3)
            for record, runs in results.items()
        }
        for name in names
    }
    pairs = list(zip(results[True], results[False], strict=True))
    ratios = {
        name: round(statistics.median(on[name] / off[name] for on, off in pairs), 4)
        for name in ("epoch_wall", "epoch_cpu")
    }
    versions = {"torch": torch.__version__, "lightning": L.__version__, "matplotlib": matplotlib.__version__}
    print(json.dumps({**median, "on/off": ratios, "cpu": cpu_name(), **versions}, indent=2))
