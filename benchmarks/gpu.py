"""All that needs a GPU, in one go and within 8 minutes: tests, steps by precision, waits, two processes, learning.

Example:
    python -m benchmarks gpu --device cuda --root <folder of CIFAR-100>
    python -m benchmarks gpu                 # a rehearsal on the CPU, small

Each part has its share of the time; what does not fit into it, or fails, is told in its table and does not end the
rest.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from benchmarks.fit import train
from benchmarks.harness import Options, Table, Way, in_turns, milliseconds, ratio, significant
from benchmarks.steps import CLASSES, SHAPE, Batch, RoutedStep, batch_of, fully_connected, sgd
from routing_lightning.networks import RoutingAllLayers, SimpleConvNet

ROOT = Path(__file__).parents[1]
TASKS = 20
PRECISIONS = {"32-true": None, "16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}
LIMIT = 480.0
"""Seconds for everything."""


class Scaled:
    """A training step at a precision, as the Trainer makes it: autocast, and a scaled loss at 16-mixed.

    Args:
        step: the routed step whose network is trained; None: the unrouted network.
        lower: the lower type of the precision, or None.
        device: where it runs.
    """

    def __init__(self, step: RoutedStep | None, lower: torch.dtype | None, device: str) -> None:
        self.step, self.lower, self.device = step, lower, device
        if step is None:
            features = SimpleConvNet()
            self.plain = torch.nn.Sequential(features, fully_connected(features.out_features)).to(device)
            self.optimizer = sgd(self.plain.parameters())
        self.scaler = torch.amp.GradScaler(device, enabled=lower is torch.float16)

    def __call__(self, batch: Batch) -> None:
        with torch.autocast(self.device, self.lower, enabled=self.lower is not None):
            if self.step is not None:
                self.step(batch, self.scaler)
                return
            images, _, labels = batch
            loss = cross_entropy(self.plain(images).float(), labels)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()


def steps(options: Options, sizes: tuple[int, ...]) -> Table:
    """A plain step, routing-all-fc and routing through all layers, by batch size and precision."""
    table = Table(
        "one training step in ms, 20 blocks per layer, 20 tasks; routed: all-fc; all layers: convolutions too"
    )
    device = options.device
    for size in sizes:
        batch = batch_of(size, TASKS, device)
        for precision, lower in PRECISIONS.items():
            body = RoutingAllLayers(SHAPE, TASKS, CLASSES)
            makers: dict[str, Callable[[], RoutedStep | None]] = {
                "plain": lambda: None,
                "routed": lambda: RoutedStep(TASKS, TASKS, device),
                "all layers": partial(RoutedStep, TASKS, TASKS, device, body),
            }
            ways: dict[str, Way] = {
                name: partial(Scaled(make(), lower, device), batch) for name, make in makers.items()
            }
            times = in_turns(ways, options, turn_seconds=0.05)
            row: dict[str, Any] = {"batch": size, "precision": precision}
            row |= {f"{name} ms": milliseconds(values) for name, values in times.items()}
            row |= {f"{name} / plain": significant(ratio(times, name, "plain")) for name in ("routed", "all layers")}
            table.rows.append(row)
    return table


def blocks(options: Options, counts: tuple[int, ...]) -> Table:
    """How a routed step grows with the number of blocks."""
    table = Table("routed step at batch 64 with K blocks in each of 3 layers and as many tasks")
    device = options.device
    made: dict[str, Way] = {
        str(count): partial(RoutedStep(count, count, device), batch_of(64, count, device)) for count in (10, *counts)
    }
    times = in_turns(made, options, turn_seconds=0.05)
    for name, values in times.items():
        over = significant(ratio(times, name, "10"))
        table.rows.append({"blocks per layer": name, "ms": milliseconds(values), "step / step at 10": over})
    return table


def synchronisations(options: Options) -> Table:
    """How often a pass and a whole step wait for the device."""
    table = Table("waits for the device")
    if options.device != "cuda":
        table.rows.append({"what": "not on the CPU", "waits": "-"})
        return table
    for name, body in (("routing-all-fc", None), ("all layers", RoutingAllLayers(SHAPE, TASKS, CLASSES))):
        step, batch = RoutedStep(TASKS, TASKS, "cuda", body), batch_of(64, TASKS, "cuda")
        for _ in range(3):
            step(batch)
        for what, way in (
            ("forward pass", lambda step=step, batch=batch: step.network(batch[0], batch[1], explore=True)),
            ("step", lambda step=step, batch=batch: step(batch)),
        ):
            torch.cuda.set_sync_debug_mode("warn")
            try:
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    way()
            finally:
                torch.cuda.set_sync_debug_mode("default")
            waits = sum("synchroniz" in str(warning.message) for warning in caught)
            table.rows.append({"what": f"{name}, {what}", "waits": waits})
    return table


def command(line: list[str], limit: float, **environment: str) -> tuple[bool, str]:
    """Runs a command in a process of its own: whether it succeeded, and the end of what it said."""
    try:
        done = subprocess.run(
            line, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
            capture_output=True, text=True, timeout=limit,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False, f"not done within {limit:.0f} s"
    lines = (done.stdout + done.stderr).strip().splitlines()
    return done.returncode == 0, lines[-1] if lines else ""


def tests(options: Options, limit: float) -> Table:
    """The tests that need a GPU, and those of networks, blocks and modules beside it."""
    words = ["tests/test_exactness.py", "-q", "-q", "-rs", "-p", "no:cacheprovider"]
    words += [] if options.device == "cuda" else ["-k", "not cuda"]
    passed, said = command([sys.executable, "-m", "pytest", *words], limit)
    return Table("tests of exactness on the device", [{"passed": passed, "last line": said}])


def two_processes(options: Options, limit: float) -> Table:
    """Two processes share the device, by NCCL where it allows that, else by gloo; their policies must stay equal."""
    table = Table("two processes on one device, digits, 20 steps")
    accelerator = "gpu" if options.device == "cuda" else "cpu"
    for backend in ("nccl", "gloo") if options.device == "cuda" else ("gloo",):
        with tempfile.TemporaryDirectory() as folder:
            line = [sys.executable, "-m", "benchmarks.shared_device", folder, accelerator, backend]
            port = str(29_500 + os.getpid() % 1_000)
            share = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
            environment = os.environ | {"PYTHONPATH": str(ROOT)} | share
            start = time.perf_counter()
            both = [
                subprocess.Popen(
                    line, cwd=ROOT, env=environment | {"NODE_RANK": str(rank)}, stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE, text=True,
                )
                for rank in range(2)
            ]  # fmt: skip
            said = []
            for process in both:
                try:
                    said.append(process.communicate(timeout=max(1.0, limit - (time.perf_counter() - start)))[1])
                except subprocess.TimeoutExpired:
                    process.kill()
                    said.append(f"not done within {limit:.0f} s")
            works = all(process.returncode == 0 for process in both)
            files = [Path(folder) / f"rank_{rank}.pt" for rank in range(2)]
            equal: bool | str = "-"
            if works:
                ours, theirs = (torch.load(path, weights_only=True) for path in files)
                equal = all(torch.equal(value, theirs[name]) for name, value in ours.items())
            last = [re.sub(r"\s+", " ", text.strip().splitlines()[-1])[:160] for text in said if text.strip()]
            table.rows.append(
                {"backend": backend, "works": works, "policies equal": equal, "else": "" if works else "; ".join(last)}
            )
    return table


def learning(options: Options, limit: float) -> Table:
    """A short training through the command line, which must end above chance by far."""
    table = Table(
        "short training: CIFAR-MTL, batch 64, learning rate 0.05, chance is 20 %; noise where there is no --root"
    )
    if options.root is None:
        table.rows.append({"precision": "-", "accuracy %": "not run: give --root", "learned": "-"})
        return table
    device = "gpu" if options.device == "cuda" else "cpu"
    batches = 700 if options.device == "cuda" else 60
    for precision in ("32-true", "bf16-mixed") if options.device == "cuda" else ("32-true",):
        words = [f"--trainer.accelerator={device}", f"--trainer.precision={precision}", "--trainer.max_epochs=1"]
        words += [f"--trainer.limit_train_batches={batches}", f"--data.init_args.root={options.root}"]
        words += ["--data.init_args.batch_size=64", "--model.init_args.optimizer.init_args.lr=0.05"]
        start = time.perf_counter()
        accuracy = train(options, "benchmarks.accuracy.Accuracies", [*words, "--trainer.num_sanity_val_steps=0"])[-1]
        learned = accuracy > (30 if device == "gpu" else 20)
        seconds = round(time.perf_counter() - start)
        table.rows.append({"precision": precision, "accuracy %": accuracy, "learned": learned, "s": seconds})
    return table


def run(options: Options) -> list[Table]:
    """All parts, one after the other."""
    begin = time.perf_counter()
    small = options.device != "cuda"
    quick = replace(options, quick=True)
    sizes = (16, 64) if small else (16, 64, 256, 1024, 4096)
    parts: list[tuple[str, Callable[[], Table]]] = [
        ("tests", lambda: tests(options, 90)),
        ("steps", lambda: steps(quick, sizes)),
        ("blocks", lambda: blocks(quick, (100,) if small else (100, 1000))),
        ("synchronisations", lambda: synchronisations(options)),
        ("two processes", lambda: two_processes(options, 60)),
        ("learning", lambda: learning(options, 120)),
    ]
    tables = []
    for name, part in parts:
        if time.perf_counter() - begin > LIMIT:
            tables.append(Table(f"{name}: no time left"))
            continue
        start = time.perf_counter()
        try:
            table = part()
        except (RuntimeError, OSError, ValueError, subprocess.SubprocessError) as error:
            table = Table(f"{name}: failed, {type(error).__name__}: {str(error).splitlines()[0][:200]}")
        table.title += f" ({time.perf_counter() - start:.0f} s)"
        tables.append(table)
        print(table.markdown(), flush=True)
    return tables
