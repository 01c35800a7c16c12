"""How many threads a run computes with."""

import os
import time
from collections.abc import MutableMapping
from typing import Any, NamedTuple

from routing_lightning.errors import UsageError

# Multiply-adds of one training step per thread that pay for waking it.
_WORK_PER_THREAD = 400e6

MOST = 1024
"""Threads that may be asked for; each takes memory as soon as it is asked for."""


def wait_passively(environment: MutableMapping[str, str] = os.environ) -> None:
    """Makes threads that wait sleep in place of spinning; before torch is imported, else it has no effect.

    Two threads that wait for each other by spinning take minutes where other jobs use the cores, too. The user's own
    setting stays.
    """
    if "OMP_WAIT_POLICY" not in environment and "GOMP_SPINCOUNT" not in environment:
        environment["OMP_WAIT_POLICY"] = "PASSIVE"


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def checked(value: int | str) -> int | None:
    """The number that ``--threads`` says; None for ``auto``.

    Raises:
        UsageError: if it is neither a number from 1 to :data:`MOST` nor ``auto``.
    """
    if value == "auto":
        return None
    try:
        count = int(value)
    except (ValueError, TypeError):
        count = 0
    if not 1 <= count <= MOST or isinstance(value, bool):
        raise UsageError(f"threads is {value!r}; give auto, or a number from 1 to {MOST}.")
    return count


class Moment(NamedTuple):
    """Seconds of the clock, of processor time of the whole machine (None: it does not tell), and of this process."""

    clock: float
    machine: float | None
    own: float


def moment() -> Moment:
    """This moment."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _idle, _wait, *interrupts = map(int, file.readline().split()[1:9])
        machine = (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        machine = None
    return Moment(time.monotonic(), machine, time.process_time())


_START = moment()


def busy_cores(since: Moment | None = None) -> float:
    """Cores that others keep busy: since the start of the imports, which take seconds; else in the last minute.

    The load of the last minute also counts what has ended, such as the run before this one.
    """
    since, now = since or _START, moment()
    elapsed = now.clock - since.clock
    if since.machine is not None and now.machine is not None and 1 <= elapsed <= 60:
        return max(0.0, now.machine - since.machine - (now.own - since.own)) / elapsed
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def free_cores() -> int:
    """Usable cores that nobody else keeps busy, at least 1."""
    return max(1, round(available_cores() - busy_cores()))


def best_number(batch_size: int, image_shape: tuple[int, ...], cores: int, processes: int = 1) -> int:
    """Threads for a step on batches of images of this shape, of the ``cores`` that ``processes`` share.

    A step on few small images is many tiny operations, in which threads wait for each other. The work is taken to grow
    with the number of pixels in a batch (docs/performance.md has the measurements).
    """
    pixels = batch_size * image_shape[-1] * image_shape[-2]
    work = pixels * _WORK_PER_PIXEL
    return max(1, min(cores // max(processes, 1), int(work / _WORK_PER_THREAD)))


# Multiply-adds per pixel, forward and backward, of the paper's network.
_WORK_PER_PIXEL = 30e3


def set_threads(value: int | str, datamodule: Any, processes: int = 1) -> int:
    """Sets the number of torch's threads for a run.

    Args:
        value: ``auto`` or a number.
        datamodule: tells the size of a batch and of the images.
        processes: how many the run has on this machine.

    Returns:
        The number.

    Raises:
        UsageError: if the value is none.
    """
    import torch

    count = checked(value)
    if count is None:
        if "OMP_NUM_THREADS" in os.environ or "MKL_NUM_THREADS" in os.environ:
            return torch.get_num_threads()  # the user has chosen
        shape = getattr(datamodule, "image_shape", None)
        if not shape:
            return torch.get_num_threads()
        count = best_number(getattr(datamodule, "batch_size", 1), tuple(shape), free_cores(), processes)
    torch.set_num_threads(count)
    return count
