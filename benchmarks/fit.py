"""A whole training through the command line against bare loops, each in fresh processes, in turns."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import lightning as L
import torch

from benchmarks.harness import Options, Table, forget_peak, in_fresh_process, memory, significant
from benchmarks.steps import RoutedStep, fully_connected, plain_step, textbook_convnet
from benchmarks.synthetic import Synthetic
from routing_lightning.allocator import keep_freed_memory
from routing_lightning.datamodules import CIFARMTLDataModule, MultiTaskDataModule

ROOT = Path(__file__).parents[1]


class Clock(L.Callback):
    """Writes the seconds of each epoch of training to ``clock.json`` in the run's root, by wall and by processor."""

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.epochs: list[tuple[float, float]] = []

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.start = time.perf_counter(), time.process_time()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.epochs.append((time.perf_counter() - self.start[0], time.process_time() - self.start[1]))
        if trainer.is_global_zero:
            content = {"epochs": self.epochs, "peak_mb": memory("cpu", peak=True)}
            Path(trainer.default_root_dir, "clock.json").write_text(json.dumps(content))


def command(options: Options, batch_size: int, batches: int, words: list[str]) -> dict[str, float]:
    """Runs ``train.py fit`` on CIFAR-MTL as shipped, without validation: wall and processor seconds of an epoch."""
    data = ["--data", "CIFARMTLDataModule", "--data.root", str(options.root)]
    data = ["--data", "benchmarks.synthetic.Synthetic"] if options.root is None else data
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, str(ROOT / "train.py"), "fit", f"--config={ROOT / 'configs' / 'cifar_mtl.yaml'}", *data]
        line += [f"--data.batch_size={batch_size}", f"--trainer.limit_train_batches={batches}"]
        line += ["--trainer.max_epochs=2", "--trainer.limit_val_batches=0", "--trainer.enable_progress_bar=false"]
        line += ["--trainer.callbacks=benchmarks.fit.Clock", f"--trainer.default_root_dir={folder}", *words]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(options.threads)}
        subprocess.run(line, env=environment, cwd=folder, check=True, capture_output=True)
        content = json.loads((Path(folder) / "clock.json").read_text())
    wall, cpu = content["epochs"][-1]
    return {"wall": wall, "cpu": cpu, "peak_mb": content["peak_mb"]}


def bare(options: Options, batch_size: int, batches: int, way: str) -> dict[str, float]:
    """A loop over tensors in memory: gather, normalise, step. Nothing logged, nothing recorded."""
    torch.set_num_threads(options.threads)
    if way == "kept":
        keep_freed_memory()
    data: MultiTaskDataModule = Synthetic() if options.root is None else CIFARMTLDataModule(root=options.root)
    data.prepare_data()
    data.setup("fit")
    part = data.train_dataset
    rows = part.images.permute(0, 2, 3, 1)
    if way == "textbook":
        images = part.images.contiguous()
        step = plain_step(textbook_convnet(), fully_connected(128), options.device)
    else:
        step = RoutedStep(20, 20, options.device)
    mean, std = (torch.tensor(values, device=options.device).view(-1, 1, 1) for values in (data.mean, data.std))
    forget_peak(options.device)

    def epoch() -> None:
        for chosen in torch.randperm(len(part))[: batches * batch_size].split(batch_size):
            index = part.index[chosen]
            batch = images[index] if way == "textbook" else rows.index_select(0, index).permute(0, 3, 1, 2)
            normalised = (batch.to(options.device).float() / 255 - mean) / std
            step((normalised, part.tasks[chosen], part.labels[chosen].to(options.device)))

    epoch()
    start = time.perf_counter(), time.process_time()
    epoch()
    wall, cpu = time.perf_counter() - start[0], time.process_time() - start[1]
    return {"wall": wall, "cpu": cpu, "peak_mb": memory(options.device, peak=True)}


def run(options: Options) -> list[Table]:
    """Images per second of ``fit`` and of bare loops, and the share that the command line adds."""
    clock = "cpu" if options.clock is time.process_time else "wall"
    where = "noise of CIFAR's shape" if options.root is None else "CIFAR-MTL"
    table = Table(f"training on {where}, configs/cifar_mtl.yaml, second epoch, without validation")
    turns = 1 if options.quick else 5
    for batch_size in (16,) if options.quick else (16, 64, 256):
        batches = (2_000 if options.quick else 12_800) // batch_size
        device = "gpu" if options.device == "cuda" else "cpu"
        runs: dict[str, list[dict[str, float]]] = {"fit": [], "bare": [], "kept": [], "textbook": []}
        for _ in range(turns):
            runs["fit"].append(command(options, batch_size, batches, [f"--trainer.accelerator={device}"]))
            for way in ("bare", "kept", "textbook"):
                runs[way].append(in_fresh_process(bare, options, batch_size, batches, way))
        times = {name: [found[clock] for found in values] for name, values in runs.items()}

        def compared(above: str, below: str, times: dict[str, list[float]] = times) -> float:
            pairs = zip(times[above], times[below], strict=True)
            return significant(statistics.median(a / b for a, b in pairs))

        table.rows.append(
            {
                "batch": batch_size,
                **{
                    f"{title}, images/s": round(batches * batch_size / statistics.median(times[name]))
                    for name, title in (
                        ("fit", "fit"),
                        ("bare", "bare loop, same network"),
                        ("kept", "the same, memory kept"),
                        ("textbook", "textbook loop, unrouted"),
                    )
                },
                "fit / bare": compared("fit", "bare"),
                "fit / kept": compared("fit", "kept"),
                "textbook / fit": compared("textbook", "fit"),
                "fit, peak MB": round(statistics.median(found["peak_mb"] for found in runs["fit"])),
                "bare, peak MB": round(statistics.median(found["peak_mb"] for found in runs["bare"])),
            }
        )
    return [table]
