"""Small data sets of the real layouts, made on the spot."""

import hashlib
import json
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import CIFAR100

from routing_lightning.datamodules.cifar import SUPERCLASSES

FINE_CLASSES = sorted(name for names in SUPERCLASSES.values() for name in names)
MNIST_TRAIN_PER_DIGIT = 12
MNIST_TEST_PER_DIGIT = 5


def save_image(path: Path, colour: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (32, 32), (colour, colour, colour)).save(path)


def write_cifar_tree(root: Path) -> Path:
    """Root with cifar100/{train,test}; PNG and BMP; an image has the colour of its class's number."""
    for number, name in enumerate(FINE_CLASSES):
        for part, extensions in (("train", ("png", "bmp", "png")), ("test", ("png",))):
            for i, extension in enumerate(extensions):
                save_image(root / "cifar100" / part / name / f"{name}_{i}.{extension}", number)
    return root


@pytest.fixture
def cifar_tree(tmp_path: Path) -> Path:
    return write_cifar_tree(tmp_path / "tree")


@pytest.fixture
def write_cifar_archive(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Writes torchvision's layout with `per_class` training images and 1 test image per class."""

    def write(root: Path, per_class: int = 2, wrong_group: bool = False) -> Path:
        folder = root / "cifar-100-python"
        folder.mkdir(parents=True)
        coarse_of = {name: task for task, names in enumerate(SUPERCLASSES.values()) for name in names}
        if wrong_group:
            coarse_of["whale"], coarse_of["trout"] = coarse_of["trout"], coarse_of["whale"]
        contents: dict[str, dict] = {
            "meta": {"fine_label_names": FINE_CLASSES, "coarse_label_names": list(SUPERCLASSES)}
        }
        for part, count in (("train", per_class), ("test", 1)):
            fine = [label for _ in range(count) for label in range(100)]
            data = np.repeat(np.array(fine, np.uint8)[:, None], 3 * 32 * 32, 1)
            # red is told apart from the other channels, and the first pixel from the others
            data[:, :1024] += 100
            data[:, 0] = 255
            coarse = [coarse_of[FINE_CLASSES[label]] for label in fine]
            contents[part] = {"data": data, "fine_labels": fine, "coarse_labels": coarse}
        sums = {}
        for name, content in contents.items():
            raw = pickle.dumps(content)
            (folder / name).write_bytes(raw)
            sums[name] = hashlib.md5(raw).hexdigest()
        monkeypatch.setattr(CIFAR100, "train_list", [["train", sums["train"]]])
        monkeypatch.setattr(CIFAR100, "test_list", [["test", sums["test"]]])
        monkeypatch.setattr(CIFAR100, "meta", {**CIFAR100.meta, "md5": sums["meta"]})
        return folder

    return write


def write_mnist(root: Path) -> Path:
    """Root with MNIST/raw: 12 training and 5 test images of each digit; the first pixel is the digit."""
    folder = root / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for part, per_digit in (("train", MNIST_TRAIN_PER_DIGIT), ("t10k", MNIST_TEST_PER_DIGIT)):
        digits = np.tile(np.arange(10, dtype=np.uint8), per_digit)
        images = np.zeros((len(digits), 28, 28), np.uint8)
        images[:, 0, 0] = digits
        header = np.array([0x803, len(digits), 28, 28], ">i4")
        (folder / f"{part}-images-idx3-ubyte").write_bytes(header.tobytes() + images.tobytes())
        header = np.array([0x801, len(digits)], ">i4")
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(header.tobytes() + digits.tobytes())
    return root


@pytest.fixture
def mnist_root(tmp_path: Path) -> Path:
    return write_mnist(tmp_path / "mnist")


def write_mini_imagenet(root: Path) -> Path:
    """Root with a folder for each of 50 labels, 3 images of noise in each."""
    for label in range(50):
        folder = root / f"n{label:04d}"
        folder.mkdir(parents=True)
        for image in range(3):
            noise = np.random.default_rng(10 * label + image).integers(0, 255, (20, 20, 3), np.uint8)
            Image.fromarray(noise).save(folder / f"{image}.png")
    return root


@pytest.fixture
def mini_imagenet_root(tmp_path: Path) -> Path:
    return write_mini_imagenet(tmp_path / "mini")


def small_options(text: str, root_of: Callable[[str], Path]) -> list[str]:
    """Options that point configs to small data.

    Args:
        text: content of the configs.
        root_of: where the data of a name lie: ``cifar_tree``, ``mnist_root`` or ``mini_imagenet_root``.
    """
    if "MixedMTL" in text:
        cifar = {"class_path": "CIFARMTLDataModule", "init_args": {"root": str(root_of("cifar_tree"))}}
        small = {"root": str(root_of("mini_imagenet_root")), "train_per_label": 2, "test_per_label": 1}
        mini = {"class_path": "MINMTLDataModule", "init_args": {**small, "image_size": 32}}
        return [f"--data.init_args.datamodules={json.dumps([cifar, mini])}"]
    if "CIFARMTL" in text or "FolderMTL" in text:
        return [f"--data.init_args.root={root_of('cifar_tree')}"]
    if "MNISTMTL" in text:
        counts = ["--data.init_args.train_per_class=10", "--data.init_args.test_per_class=4"]
        return [f"--data.init_args.root={root_of('mnist_root')}", *counts]
    if "MINMTL" in text:
        counts = ["--data.init_args.train_per_label=2", "--data.init_args.test_per_label=1"]
        return [f"--data.init_args.root={root_of('mini_imagenet_root')}", *counts]
    return []
