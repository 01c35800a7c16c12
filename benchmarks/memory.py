"""Own images, decoded into a mapped cache, with memory for all of them and for a quarter: speed, first batch, peaks.

The limit is simulated, since a real one needs rights that few have: the datamodule is told that there is memory for a
quarter of the cache, and as soon as more of the file than that lies in memory, all of it is dropped from there, this
process's pages and the system's. A real limit drops pages one by one, so the figures with one are on the low side.
"""

import ctypes
import mmap
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.harness import Options, Table, in_fresh_process, significant
from routing_lightning.datamodules import FolderMTLDataModule, paging
from routing_lightning.modules.pixels import PixelNormalisation

TASKS, LABELS = 10, 2
BATCH = 64
LOOK = 8  # batches between looks at what lies in memory


def write_images(root: Path, count: int) -> None:
    """Writes ``count`` small images of noise, 10 tasks of 2 labels."""
    generator = np.random.default_rng(0)
    for number in range(count):
        folder = root / f"task_{number % TASKS}" / f"label_{number // TASKS % LABELS}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (32, 32, 3), np.uint8)).save(folder / f"{number}.bmp")


def resident(name: str) -> float:
    """``RssAnon`` (the process's own memory) or ``RssFile`` (pages of mapped files) of this process, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(name))


class CacheInMemory:
    """What of a mapped file lies in memory, in this process's pages or the system's.

    Args:
        images: the mapped array.
        path: the file.
    """

    def __init__(self, images: torch.Tensor, path: Path) -> None:
        self.path = path
        self.start = images.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
        self.size = images.data_ptr() + images.numel() - self.start
        self.pages = np.zeros(-(-self.size // mmap.PAGESIZE), np.uint8)
        self.libc = ctypes.CDLL(None)

    def look(self) -> float:
        """MB in memory."""
        arguments = ctypes.c_void_p(self.start), ctypes.c_size_t(self.size), ctypes.c_void_p(self.pages.ctypes.data)
        assert self.libc.mincore(*arguments) == 0
        return int((self.pages & 1).sum()) * mmap.PAGESIZE / 1e6

    def drop(self) -> None:
        """Leaves nothing of it in memory."""
        self.libc.madvise(ctypes.c_void_p(self.start), ctypes.c_size_t(self.size), mmap.MADV_DONTNEED)
        drop(self.path)


def drop(path: Path) -> None:
    """Has the system forget what it keeps of a file that nobody has mapped."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(options: Options, root: str, size: int, limit: float | None, fetches: bool) -> dict[str, Any]:
    """Reads two epochs of batches, the first one from a file that is not in memory.

    Args:
        options: where it runs.
        root: folder of the images, decoded already.
        size: height and width of an image.
        limit: MB that may be in memory of the cache; None: all.
        fetches: whether the datamodule may know of the limit.
    """
    torch.set_num_threads(options.threads)
    if limit is not None and fetches:
        paging.free_memory = lambda: int(limit * 1e6)
    before = {name: resident(name) for name in ("RssAnon", "RssFile")}
    data = FolderMTLDataModule(root=root, batch_size=BATCH, image_size=size)
    (path,) = Path(root, ".cache").glob(f"images-{size}-*.npy")
    drop(path)
    start = time.perf_counter()
    data.prepare_data()
    data.setup("fit")
    loader = data.train_dataloader()
    normalise = PixelNormalisation(len(data.mean))
    normalise.learn(data.mean, data.std)
    normalise(next(iter(loader))[0])
    first = time.perf_counter() - start
    cache = CacheInMemory(data.train_dataset.images, path)
    rates, peaks = [], {**before, "cache": 0.0}
    for epoch in range(2):
        if epoch == 0:
            cache.drop()
        loader.sampler.set_epoch(epoch)
        count, looking = 0, 0.0
        start = time.perf_counter()
        for number, batch in enumerate(loader):
            count += len(normalise(batch[0]))
            if number % LOOK == 0:
                begin = time.perf_counter()
                in_memory = cache.look()
                peaks["cache"] = max(peaks["cache"], in_memory)
                for name in before:
                    peaks[name] = max(peaks[name], resident(name))
                if limit is not None and in_memory > limit:
                    cache.drop()
                looking += time.perf_counter() - begin
            if options.quick and count >= 6_400:
                break
        rates.append(count / (time.perf_counter() - start - looking))
    return {
        "seconds to the first batch": significant(first, 2),
        "images / s, first epoch": significant(rates[0]),
        "second epoch": significant(rates[1]),
        "imports, RssAnon + RssFile, MB": f"{before['RssAnon']:.0f} + {before['RssFile']:.0f}",
        "peak RssAnon, MB": round(peaks["RssAnon"]),
        "peak RssFile, MB": round(peaks["RssFile"]),
        "peak of the cache in memory, MB": round(peaks["cache"]),
    }


def decode(root: str, size: int) -> float:
    """Seconds to decode."""
    data = FolderMTLDataModule(root=root, batch_size=BATCH, image_size=size)
    start = time.perf_counter()
    data.prepare_data()
    return time.perf_counter() - start


def run(options: Options) -> list[Table]:
    """Caches of about 400 MB, of images of two sizes."""
    tables = []
    for size, count in ((64, 33_000), (224, 2_700)):
        with tempfile.TemporaryDirectory() as root:
            write_images(Path(root), count)
            seconds = in_fresh_process(decode, root, size)
            megabytes = count * size * size * 3 / 1e6
            table = Table(
                f"{count} own images of {size} x {size}, a cache of {megabytes:.0f} MB, decoded once in {seconds:.0f} "
                f"s; batches of {BATCH}, normalised; memory for the cache simulated; wall clock"
            )
            ways = {
                "all (1x)": (None, True),
                "a quarter (4x)": (megabytes / 4, True),
                "a quarter, the system reads around": (megabytes / 4, False),
            }
            for name, (limit, fetches) in ways.items():
                found = in_fresh_process(read, options, root, size, limit, fetches)
                table.rows.append({"memory for the cache": name, **found})
            tables.append(table)
    return tables
