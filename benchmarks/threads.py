"""The number of threads that ``--threads auto`` takes against one and two, on an idle and on a busy machine."""

import multiprocessing
import os
import statistics
import time

from benchmarks.fit import train
from benchmarks.harness import Options, Table, significant

SIZES = {
    "digits, 32": (["--data.num_tasks=10", "--data.num_classes=2", "--data.channels=1", "--data.size=8"], 32, 400),
    "CIFAR, 16": ([], 16, 200),
    "CIFAR, 256": ([], 256, 24),
}
"""Options of the data, batch size and steps of an epoch."""
CHOICES = ("1", "2", "auto")
SETTLE = 75.0
"""Seconds after which the load of the last minute shows who else is there."""


def epoch(options: Options, size: str, threads: str) -> float:
    """Wall seconds of the second epoch of a training of noise."""
    data, batch_size, batches = SIZES[size]
    words = ["--data", "benchmarks.synthetic.Synthetic", *data, f"--data.batch_size={batch_size}"]
    words += [f"--threads={threads}", f"--trainer.limit_train_batches={batches}", "--trainer.max_epochs=2"]
    words += ["--trainer.limit_val_batches=0", "--trainer.accelerator=cpu"]
    found: list[tuple[float, float]] = train(options, "benchmarks.fit.Clock", words, threads=None)["epochs"]
    return found[-1][0]


def spin() -> None:
    """Keeps a core busy for ever."""
    while True:
        sum(range(10_000))


def run(options: Options) -> list[Table]:
    """Seconds per epoch by number of threads, and ``auto`` by the best of the others."""
    tables = []
    for busy in (False, True):
        others = [multiprocessing.Process(target=spin, daemon=True) for _ in range(os.cpu_count() or 1)] if busy else []
        for other in others:
            other.start()
        time.sleep(0 if options.quick else SETTLE)
        where = "as many other processes as cores" if busy else "idle machine"
        table = Table(f"second epoch of `fit` in s of wall clock, median of runs in turns; {where}")
        for size in SIZES:
            times: dict[str, list[float]] = {choice: [] for choice in CHOICES}
            for _ in range(1 if options.quick else 3):
                for choice in CHOICES:
                    times[choice].append(epoch(options, size, choice))
            medians = {choice: statistics.median(values) for choice, values in times.items()}
            best = min(medians["1"], medians["2"])
            table.rows.append(
                {
                    "data, batch": size,
                    **{f"{choice} threads": significant(value) for choice, value in medians.items()},
                    "auto / best": significant(medians["auto"] / best),
                }
            )
        for other in others:
            other.kill()
        tables.append(table)
    return tables
