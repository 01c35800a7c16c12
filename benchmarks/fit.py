"""A whole training through the command line against bare loops, each in fresh processes, in turns."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.harness import Options, Table, in_fresh_process, memory, ratio, significant
from benchmarks.steps import RoutedStep, fully_connected, plain_step, textbook_convnet
from benchmarks.synthetic import Synthetic
from routing_lightning.allocator import keep_freed_memory
from routing_lightning.datamodules import CIFARMTLDataModule, MultiTaskDataModule

ROOT = Path(__file__).parents[1]


class Clock(L.Callback):
    """Writes ``measured.json`` to the run's root: wall and processor seconds of each epoch, and growth of memory."""

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.epochs: list[tuple[float, float]] = []
        self.before = memory("cpu", peak=False)

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.start = time.perf_counter(), time.process_time()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.epochs.append((time.perf_counter() - self.start[0], time.process_time() - self.start[1]))
        if trainer.is_global_zero:
            content = {"epochs": self.epochs, "grown_mb": memory("cpu", peak=True) - self.before}
            Path(trainer.default_root_dir, "measured.json").write_text(json.dumps(content))


def train(options: Options, callback: str, words: list[str], threads: int | None = 0) -> Any:
    """Runs ``train.py fit`` with ``configs/cifar_mtl.yaml``; returns what a callback left in ``measured.json``.

    Args:
        options: where it runs.
        callback: class of the callback.
        words: more words for the command line.
        threads: for the environment, which the command line keeps to; 0: those of ``options``; None: none are set.
    """
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, str(ROOT / "train.py"), "fit", f"--config={ROOT / 'configs' / 'cifar_mtl.yaml'}"]
        line += ["--trainer.enable_progress_bar=false", f"--trainer.callbacks={callback}"]
        line += [f"--trainer.default_root_dir={folder}", *words]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(threads or options.threads)}
        if threads is None:
            del environment["OMP_NUM_THREADS"]
        subprocess.run(line, env=environment, cwd=folder, check=True, capture_output=True)
        return json.loads((Path(folder) / "measured.json").read_text())


def command(options: Options, batch_size: int, batches: int, words: list[str]) -> dict[str, float]:
    """Trains on CIFAR-MTL as shipped, without validation: wall and processor seconds of an epoch."""
    data = ["--data", "CIFARMTLDataModule", "--data.root", str(options.root)]
    data = ["--data", "benchmarks.synthetic.Synthetic"] if options.root is None else data
    data += [f"--data.batch_size={batch_size}", f"--trainer.limit_train_batches={batches}"]
    data += ["--trainer.max_epochs=2", "--trainer.limit_val_batches=0"]
    content = train(options, "benchmarks.fit.Clock", [*data, *words])
    wall, cpu = content["epochs"][-1]
    return {"wall": wall, "cpu": cpu, "grown_mb": content["grown_mb"]}


def bare(options: Options, batch_size: int, batches: int, way: str) -> dict[str, float]:
    """A plain loop, nothing logged, nothing recorded: wall and processor seconds of the second epoch.

    Args:
        options: where it runs.
        batch_size: images per step.
        batches: steps.
        way: ``bare``: our network over tensors in memory; ``kept``: the same and freed memory kept, as the command line
            does; ``textbook``: the network without routing as a user would write it, over tensors in memory;
            ``loader``: the same with a ``DataLoader`` over a ``TensorDataset`` of normalised images.
    """
    torch.set_num_threads(options.threads)
    if way == "kept":
        keep_freed_memory()
    data: MultiTaskDataModule = Synthetic() if options.root is None else CIFARMTLDataModule(root=options.root)
    data.prepare_data()
    data.setup("fit")
    part = data.train_dataset
    device, count = options.device, batches * batch_size
    mean, std = (torch.tensor(values, device=device).view(-1, 1, 1) for values in (data.mean, data.std))
    if way in ("bare", "kept"):
        step = RoutedStep(20, 20, device)
        rows = part.images.permute(0, 2, 3, 1)
    else:
        step = plain_step(textbook_convnet(), fully_connected(128), device)
        images = part.images[part.index[:count]].contiguous()

    def epoch() -> None:
        if way == "loader":
            for batch, labels in loader:
                step((batch.to(device), None, labels.to(device)))
            return
        for chosen in torch.randperm(count).split(batch_size):
            batch = images[chosen] if way == "textbook" else rows[part.index[chosen]].permute(0, 3, 1, 2)
            normalised = (batch.to(device).float() / 255 - mean) / std
            step((normalised, part.tasks[chosen], part.labels[chosen].to(device)))

    if way == "loader":
        whole = TensorDataset((images.float() / 255 - mean.cpu()) / std.cpu(), part.labels[:count])
        loader = DataLoader(whole, batch_size, shuffle=True)
    epoch()
    start = time.perf_counter(), time.process_time()
    epoch()
    return {"wall": time.perf_counter() - start[0], "cpu": time.process_time() - start[1]}


NAMES = {
    "fit": "fit",
    "bare": "bare loop, same network",
    "kept": "the same, memory kept",
    "textbook": "textbook loop, unrouted",
    "loader": "the same with a DataLoader",
}


def run(options: Options) -> list[Table]:
    """Images per second of ``fit`` and of bare loops, and the share that the command line adds."""
    clock = "cpu" if options.clock is time.process_time else "wall"
    where = "noise of CIFAR's shape" if options.root is None else "CIFAR-MTL"
    table = Table(f"training on {where}, configs/cifar_mtl.yaml, second epoch, without validation")
    for batch_size in (16,) if options.quick else (16, 64, 256):
        batches = (2_000 if options.quick else 6_400) // batch_size
        device = "gpu" if options.device == "cuda" else "cpu"
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in NAMES}
        for _ in range(1 if options.quick else 3):
            runs["fit"].append(command(options, batch_size, batches, [f"--trainer.accelerator={device}"]))
            for way in list(NAMES)[1:]:
                runs[way].append(in_fresh_process(bare, options, batch_size, batches, way))
        times = {name: [found[clock] for found in values] for name, values in runs.items()}
        table.rows.append(
            {
                "batch": batch_size,
                **{
                    f"{title}, images/s": round(batches * batch_size / statistics.median(times[name]))
                    for name, title in NAMES.items()
                },
                "fit / bare": significant(ratio(times, "fit", "bare")),
                "fit / kept": significant(ratio(times, "fit", "kept")),
                "textbook / fit": significant(ratio(times, "textbook", "fit")),
                "textbook with DataLoader / fit": significant(ratio(times, "loader", "fit")),
                "fit, growth of memory in MB": round(statistics.median(found["grown_mb"] for found in runs["fit"])),
            }
        )
    return [table]
