"""Memory that the process keeps for the next step."""

import ctypes
import os
import platform

SWITCH = "ROUTING_LIGHTNING_KEEP_MEMORY"
"""Environment variable; ``0`` leaves the C library's memory management as it is."""

# Numbers of the parameters in glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4


def keep_freed_memory() -> bool:
    """Makes glibc keep freed memory, up to 1 GiB at the end of the heap, and not return each large block at once.

    Each training step frees its activations and the next one asks for as much again. Returned to the system, every page
    of them must be mapped and zeroed anew, which takes a tenth of the step at batch 16 and near half of it at batch
    1,024 (docs/performance.md, memory). The price is a somewhat higher peak of resident memory.

    Leaves all as it is on another C library, where the user's environment sets glibc's own ``MALLOC_*`` variables or
    preloads another allocator, and where :data:`SWITCH` is 0.

    Returns:
        Whether it was done.
    """
    chosen = any(name.startswith("MALLOC_") for name in os.environ) or "LD_PRELOAD" in os.environ
    if os.environ.get(SWITCH) == "0" or chosen or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, 1 << 30))
