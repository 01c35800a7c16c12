"""Images on disk that are larger than memory: of a batch only its own pages are read, and all of them at once.

Left to itself the system reads much around each image that is asked for (128 KiB by default, up to megabytes). In
memory that is large enough this is soon worth it; in memory that is not it throws away what the next batch needs.
"""

import ctypes
import mmap
import sys
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor

_MACHINE = Path("/proc/meminfo")
_OWN_GROUPS = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")


def scarce(size: int) -> bool:
    """Whether so many bytes of images take more than half of the memory that the process may have; Linux only."""
    return sys.platform == "linux" and 2 * size > free_memory()


def free_memory() -> int:
    """Bytes that the process may use: what the machine has left, or the limit of a control group if that is less."""
    lines = _MACHINE.read_text().splitlines()
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")]
    groups = _OWN_GROUPS.read_text() if _OWN_GROUPS.is_file() else ""
    for line in groups.splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            folder, name = _GROUPS, "memory.max"
        elif "memory" in controllers.split(","):
            folder, name = _GROUPS / "memory", "memory.limit_in_bytes"
        else:
            continue
        inner = folder / path.strip("/")
        # in a container the path may be that of the machine outside, where the file is the topmost
        for group in (inner, *inner.parents):
            if group.is_relative_to(folder) and (group / name).is_file():
                limit = (group / name).read_text().strip()
                found += [] if limit == "max" else [int(limit)]
    return min(found, default=sys.maxsize)


def read_only_what_is_asked_for(rows: Tensor) -> None:
    """Keeps the system from reading around the rows (M, ...) of a mapped array."""
    _advise(rows, rows.data_ptr(), rows.numel() * rows.element_size(), mmap.MADV_RANDOM)


def fetch(rows: Tensor, chosen: Tensor) -> None:
    """Starts to read the chosen rows, (B,) int64, of a mapped array (M, ...), all at the same time."""
    size = rows.stride(0) * rows.element_size()
    for row in sorted(chosen.tolist()):
        _advise(rows, rows.data_ptr() + row * size, size, mmap.MADV_WILLNEED)


@cache
def _madvise() -> Any:
    call = ctypes.CDLL(None).madvise
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return call


def _advise(rows: Tensor, address: int, size: int, advice: int) -> None:
    start = address - address % mmap.PAGESIZE
    _madvise()(start, address + size - start, advice)  # no more than advice: what it answers does not matter
