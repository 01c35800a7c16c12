"""``doctor``: what is installed, which devices and data there are, what is missing and what to do."""

import os
import platform
import shutil
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import NamedTuple

from routing_lightning import __version__
from routing_lightning.cli.threads import available_cores
from routing_lightning.errors import UsageError

OPTIONAL = {
    "torchjd": 'gradients of the tasks combined (methods/pcgrad): pip install -e ".[jd]"',
    "onnxruntime": 'export as ONNX: pip install -e ".[export]"',
    "pyarrow": 'tables of your own data as Parquet: pip install -e ".[parquet]"',
}
_DATA = {
    "MNIST-MTL": (
        "MNIST/raw",
        ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
        "downloaded at the first run (12 MB)",
    ),
    "CIFAR-MTL": (
        "cifar-100-python",
        ("train", "test", "meta"),
        "downloaded at the first run (169 MB), or put images at cifar100/train/<class>/* and cifar100/test/<class>/*",
    ),
}


def examine(roots: Sequence[Path]) -> None:
    """Prints all that is known, and at the end what to do.

    Args:
        roots: folders of data to look at; ``data`` by default.

    Raises:
        UsageError: if one that was named is no folder.
    """
    for root in roots:
        if not root.is_dir():
            raise UsageError(f"{root} is no folder; give folders of data: train.py doctor ROOT ...")
    todo: list[str] = []
    print(f"routing_lightning {__version__} at {Path(__file__).parents[1]}")
    print(f"Python {platform.python_version()} on {platform.system()} {platform.machine()}: {sys.executable}")
    print("\nlibraries:")
    for name, bound in needed():
        _tell_library(name, bound, todo)
    for name, what in OPTIONAL.items():
        installed = _version(name)
        print(f"  {name:<14} {installed or f'not installed; optional: {what}'}")
    print("\ncomputing:")
    _tell_devices(todo)
    print("\ndata:")
    print("  Digits-MTL     comes with scikit-learn")
    found = [state for root in roots or [Path("data")] for state in data_in(root)]
    for state in found:
        print(f"  {state.name:<14} {state.text}")
    for folder in {*roots, Path(".")}:
        parent = folder if folder.is_dir() else Path(".")
        free = shutil.disk_usage(parent).free / 2**30
        if free < 1 or not os.access(parent, os.W_OK):
            todo.append(f"{parent.resolve()} has {free:.1f} GiB free or cannot be written; make room, or use another")
    print("\n" + "\n".join(f"to do: {line}" for line in todo) if todo else "\nThe installation is complete.")
    complete = {state.name for state in found if state.complete}
    if absent := [name for name in dict.fromkeys(state.name for state in found) if name not in complete]:
        print(f"Not there in full: {', '.join(absent)} (above: where from). configs/digits_mtl.yaml needs none.")


def needed() -> Iterable[tuple[str, str]]:
    """Libraries that the package needs, with their bounds."""
    try:
        lines = requires("routing-lightning") or []
    except PackageNotFoundError:
        lines = ["torch", "torchvision", "lightning", "torchmetrics", "jsonargparse", "rich", "numba", "matplotlib"]
    for line in lines:
        text, _, condition = line.partition(";")
        if "extra" in condition:
            continue
        name = "".join(char if char.isalnum() or char in "-_." else " " for char in text).split()[0]
        yield name, text.strip()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _tell_library(name: str, bound: str, todo: list[str]) -> None:
    installed = _version(name)
    note = ""
    if installed is None:
        todo.append(f'install {name}: pip install -e . in a checkout (or pip install "{bound}")')
    else:
        try:
            from packaging.requirements import Requirement

            if installed not in Requirement(bound).specifier:
                note = f"  (needed: {bound})"
                todo.append(f'{name} is {installed}; install another: pip install "{bound}"')
        except ImportError:
            pass
    print(f"  {name:<14} {installed or 'missing'}{note}")


def _tell_devices(todo: list[str]) -> None:
    cores = available_cores()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    print(f"  cores          {cores} usable, of which others keep {min(load, cores):.1f} busy")
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY"):
        if name in os.environ:
            print(f"  {name:<14} {os.environ[name]} (set by you; --threads auto keeps it)")
    try:
        import torch
    except ImportError as error:
        todo.append(f"torch cannot be imported ({error}); install it again")
        return
    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    print(f"  GPU            {', '.join(gpus) or 'none that torch can use; runs take the CPU'}")
    if torch.version.cuda and not gpus and shutil.which("nvidia-smi"):
        todo.append(
            "there is an NVIDIA driver but torch sees no GPU; compare the driver with CUDA " + torch.version.cuda
        )
    if torch.backends.mps.is_available():
        print("  MPS            available: --trainer.accelerator mps")


class DataState(NamedTuple):
    """What is known of one data set in one root."""

    name: str
    complete: bool
    text: str


def data_in(root: Path) -> list[DataState]:
    """What is known of each data set that has a place of its own in a root."""
    states = []
    for name, (folder, files, remedy) in _DATA.items():
        missing = [file for file in files if not (root / folder / file).is_file()]
        if name == "CIFAR-MTL" and missing and (tree := _cifar_tree(root)) is not None:
            states.append(tree)
        elif not missing:
            states.append(DataState(name, True, f"complete in {root / folder}"))
        elif len(missing) < len(files):
            states.append(DataState(name, False, f"incomplete: {root / folder} lacks {', '.join(missing)}; {remedy}"))
        else:
            states.append(DataState(name, False, f"not in {root}; {remedy}"))
    images = root / "mini-imagenet"
    lists = [part for part in ("train", "val", "test") if (images / f"{part}.csv").is_file()]
    if not images.is_dir():
        text = f"not in {images}; there is no download (data/README.md says where it comes from)"
    elif lists and not (images / "images").is_dir():
        text = f"incomplete: {images} has lists but no folder images"
    else:
        return [*states, DataState("MIN-MTL", True, f"in {images}")]
    return [*states, DataState("MIN-MTL", False, text)]


def _cifar_tree(root: Path) -> DataState | None:
    """What there is of CIFAR-100 as a tree of images; None if nothing."""
    for tree in (root / "cifar100", root):
        counts = {}
        for part in ("train", "test"):
            if (tree / part).is_dir():
                counts[part] = sum(1 for path in (tree / part).iterdir() if path.is_dir() and any(path.iterdir()))
        if counts:
            lacking = [f"{part} has {counts.get(part, 0)} of 100 classes" for part in ("train", "test")
                       if counts.get(part, 0) < 100]  # fmt: skip
            text = f"incomplete: in {tree} {' and '.join(lacking)}" if lacking else f"complete as images in {tree}"
            return DataState("CIFAR-MTL", not lacking, text)
    return None
