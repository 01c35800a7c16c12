"""What all benchmarks share: options, timing in turns, fresh processes, and files of results."""

import json
import math
import multiprocessing
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import lightning
import numba
import numpy
import torch

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Options:
    """How to measure.

    Attributes:
        device: ``cpu`` or ``cuda``.
        threads: threads of PyTorch.
        quick: short, for a first look: the numbers are rougher and the largest sizes left out.
        root: folder of the data for ``fit`` and ``input``, as the datamodules expect it; None: synthetic pictures.
    """

    device: str = "cpu"
    threads: int = 1
    quick: bool = False
    root: str | None = None

    @property
    def seconds(self) -> float:
        """Time to spend on each comparison."""
        return 1.0 if self.quick else 12.0

    @property
    def clock(self) -> Callable[[], float]:
        """Processor time of the process where that is what a quiet machine's clock would show, else the wall's.

        With one thread on the CPU the two differ only by what other programs take away.
        """
        return time.process_time if self.device == "cpu" and self.threads == 1 else time.perf_counter


@dataclass
class Table:
    """Numbers under a title: one dict per row, all with the same keys."""

    title: str
    rows: list[dict[str, Any]] = field(default_factory=list)

    def markdown(self) -> str:
        """The table as Markdown."""
        if not self.rows:
            return f"### {self.title}\n\nnothing measured\n"
        head = list(self.rows[0])
        lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        lines += ["| " + " | ".join(str(row[name]) for name in head) + " |" for row in self.rows]
        return f"### {self.title}\n\n" + "\n".join(lines) + "\n"


def significant(value: float, digits: int = 3) -> float:
    """Rounds to so many digits."""
    return float(f"{value:.{digits}g}")


def machine(options: Options) -> dict[str, Any]:
    """Processor, device and versions."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    gpu = {"gpu": torch.cuda.get_device_name()} if options.device == "cuda" else {}
    return {
        "cpu": names[0] if names else platform.machine(),
        "cores": len(names) or None,
        **gpu,
        "threads": options.threads,
        "clock": options.clock.__name__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "lightning": lightning.__version__,
        "numpy": numpy.__version__,
        "numba": numba.__version__,
    }


def synchronize(device: str) -> None:
    """Waits until the device has done its work."""
    if device == "cuda":
        torch.cuda.synchronize()


def turn(way: Callable[[], object], repeats: int, options: Options) -> float:
    """Seconds per call of so many calls in a row."""
    synchronize(options.device)
    start = options.clock()
    for _ in range(repeats):
        way()
    synchronize(options.device)
    return (options.clock() - start) / repeats


def _serve(pipe: Connection, options: Options, make: Callable[..., Callable[[], object]], arguments: tuple) -> None:
    torch.set_num_threads(options.threads)
    way = make(*arguments)
    while repeats := pipe.recv():
        pipe.send(turn(way, repeats, options))


class Elsewhere:
    """A way in a process of its own, for settings that last as long as a process; waits while others have their turn.

    Args:
        options: where it runs.
        make: makes the way in that process; a function of a module.
        arguments: what to make it from.
    """

    def __init__(self, options: Options, make: Callable[..., Callable[[], object]], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, options, make, arguments), daemon=True)
        self.process.start()

    def turn(self, repeats: int) -> float:
        """Seconds per call of so many calls in a row, by the other process's clock."""
        self.pipe.send(repeats)
        return self.pipe.recv()

    def close(self) -> None:
        """Ends the process."""
        self.pipe.send(0)
        self.process.join()


Way = Callable[[], object] | Elsewhere


def in_turns(ways: Mapping[str, Way], options: Options, turn_seconds: float = 0.0) -> dict[str, list[float]]:
    """Times several ways in turns, so that whatever else the machine does hits all of them alike.

    Args:
        ways: what to time, by name.
        options: where it runs, and about how long to go on (at least 10 turns).
        turn_seconds: a turn repeats its way until the fastest way would have gone on for so long. A training step
            follows another of its kind, whose weights and code are still in the caches; after a step of another network
            they are not.

    Returns:
        Seconds per call in each turn, by name; turn i of one way was next to turn i of the others.
    """

    def timed(way: Way, repeats: int) -> float:
        return way.turn(repeats) if isinstance(way, Elsewhere) else turn(way, repeats, options)

    for way in ways.values():
        timed(way, 3)
    repeats = math.ceil(turn_seconds / min(timed(way, 1) for way in ways.values())) or 1
    times: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    end = time.perf_counter() + options.seconds
    while time.perf_counter() < end or len(times[names[0]]) < 10:
        for name in names:
            times[name].append(timed(ways[name], repeats))
        names = names[1:] + names[:1]  # nobody always follows the same one
    return times


def ratio(times: dict[str, list[float]], above: str, below: str) -> float:
    """Median over the turns of one way's time divided by another's."""
    return statistics.median(a / b for a, b in zip(times[above], times[below], strict=True))


def milliseconds(times: list[float]) -> float:
    """Median, in ms."""
    return significant(1e3 * statistics.median(times))


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function in a process of its own, for peak memory and settings that last as long as a process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


def memory(device: str, peak: bool) -> float:
    """Memory of this process in MB, now or at its peak since :func:`forget_peak`; of the GPU where there is one."""
    if device == "cuda":
        return (torch.cuda.max_memory_allocated() if peak else torch.cuda.memory_allocated()) / 1e6
    name = "VmHWM" if peak else "VmRSS"
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(name))


def forget_peak(device: str) -> None:
    """Begins anew with the peak of the memory."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")


def write(name: str, tables: list[Table], options: Options) -> None:
    """Writes ``results/<name>[_cuda]_<threads>.json`` and ``.md``."""
    RESULTS.mkdir(exist_ok=True)
    stem = f"{name}_{options.device}" if options.device != "cpu" else f"{name}_{options.threads}_threads"
    about = machine(options)
    content = {"benchmark": name, "machine": about, "tables": [{"title": t.title, "rows": t.rows} for t in tables]}
    (RESULTS / f"{stem}.json").write_text(json.dumps(content, indent=1) + "\n")
    where = ", ".join(f"{key} {value}" for key, value in about.items())
    text = f"## {name}\n\n{where}\n\n" + "\n".join(table.markdown() for table in tables)
    (RESULTS / f"{stem}.md").write_text(text)
