"""What the callbacks of ``record`` cost: training with and without them, in turns.

Example:
    python benchmarks/callbacks.py --repeats 5 -- --config configs/cifar_mtl.yaml --data.init_args.root data

Everything after ``--`` goes to ``fit``. Times are those of the whole fit, first pictures included; the processor time
of the process is the steadier figure on a machine with other work.
"""

import argparse
import contextlib
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
    """Notes the wall and processor time of a fit, in seconds."""

    latest: "Clock"

    def __init__(self) -> None:
        Clock.latest = self

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.begin = time.perf_counter(), time.process_time()

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.wall = time.perf_counter() - self.begin[0]
        self.cpu = time.process_time() - self.begin[1]


def one_fit(words: list[str], epochs: int, record: bool) -> dict[str, float]:
    """Trains once and returns times in seconds per epoch, and the size of the event files in MB per epoch."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["fit", *words, "--trainer.max_epochs", str(epochs), "--trainer.default_root_dir", folder]
        words += ["--trainer.enable_progress_bar", "false", "--trainer.callbacks", f"{Clock.__module__}.Clock"]
        with contextlib.redirect_stdout(io.StringIO()):
            main(words if record else [*words, "--record", "null"])
        events = sum(path.stat().st_size for path in Path(folder).rglob("events.out.*"))
    clock = Clock.latest
    return {"wall": clock.wall / epochs, "cpu": clock.cpu / epochs, "events": events / epochs / 1e6}


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
    median = {
        f"{key}_{'on' if record else 'off'}": round(statistics.median(run[key] for run in runs), 3)
        for record, runs in results.items()
        for key in ("wall", "cpu", "events")
    }
    ratios = {
        key: round(
            statistics.median(on[key] / off[key] for on, off in zip(results[True], results[False], strict=True)), 4
        )
        for key in ("wall", "cpu")
    }
    versions = {"torch": torch.__version__, "lightning": L.__version__, "matplotlib": matplotlib.__version__}
    print(json.dumps({"per_epoch": median, "on/off": ratios, "machine": platform.processor(), **versions}, indent=2))
