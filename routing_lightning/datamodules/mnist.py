"""MNIST-MTL: ten tasks, each digit against the rest."""

import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torchvision.datasets import MNIST
from torchvision.datasets.mnist import read_image_file, read_label_file
from torchvision.transforms import v2

from routing_lightning.datamodules.base import MultiTaskData, MultiTaskDataModule, require_at_least
from routing_lightning.datamodules.download import explained_download
from routing_lightning.datamodules.one_against_rest import one_against_rest, rows_by_class
from routing_lightning.errors import UsageError
from routing_lightning.paths import local_path

NUM_CLASSES = 10
FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


class MNISTMTLDataModule(MultiTaskDataModule):
    """MNIST-MTL (paper, Table 1): 10 tasks, "is it a c?", each with 10,000 training and 200 test images.

    Each task draws ``train_per_class`` images of each digit from MNIST's training part and ``test_per_class`` from its
    test part, without replacement within the task and independently of the other tasks; an image may so serve several
    tasks. With the defaults always saying no is right for 90 %. The files are torchvision's, in ``root/MNIST/raw``.

    Args:
        root: folder of the data, ``~`` is expanded.
        batch_size: samples per batch and process, at least 1.
        download: fetch the files if they are not there.
        train_per_class: training images of each digit per task, at least 1.
        test_per_class: test images of each digit per task, at least 1.
        val_fraction: part of the training data for validation, in [0, 1), the same for each digit; 0: validate on the
            test part.
        split_seed: seed of all draws.
        augment: transforms of torchvision, v2, that change training images at random; see
            :class:`~routing_lightning.datamodules.augment.Augmentation`.
        train_fraction: part of the training data to train on; see the base class.
        train_per_task: training images of each task; see the base class.
    """

    num_tasks = NUM_CLASSES
    num_classes = 2
    image_shape = (1, 28, 28)
    mean = (0.1307,)
    std = (0.3081,)

    def __init__(
        self,
        root: str = "data",
        batch_size: int = 16,
        download: bool = True,
        train_per_class: int = 1000,
        test_per_class: int = 20,
        val_fraction: float = 0.0,
        split_seed: int = 0,
        augment: list[v2.Transform] | None = None,
        train_fraction: float = 1.0,
        train_per_task: list[int] | None = None,
    ) -> None:
        root = os.fspath(root)
        super().__init__(root, batch_size, val_fraction, split_seed, augment, train_fraction, train_per_task)
        # a checkpoint holds plain types; the config in it names the transforms
        self.save_hyperparameters(ignore=["augment"])
        self.folder = Path(local_path(root)) / "MNIST" / "raw"
        self.download = download
        self.train_per_class = train_per_class
        self.test_per_class = test_per_class

    def check_options(self) -> None:
        """Checks the values of the options; see the base class."""
        super().check_options()
        require_at_least(1, train_per_class=self.train_per_class, test_per_class=self.test_per_class)

    def prepare_data(self) -> None:
        """Fetches the files unless all of them are there; see the base class.

        Raises:
            UsageError: if the download fails.
        """
        super().prepare_data()
        if self.download and not all((self.folder / name).is_file() for name in FILES):
            with explained_download("MNIST", self.folder):
                MNIST(self.folder.parent.parent, train=False, download=True)

    def load_data(self) -> MultiTaskData:
        """Reads the four files; see the base class."""
        train_images, train_labels = self._read_part("train")
        test_images, test_labels = self._read_part("t10k")
        return one_against_rest(
            torch.cat([train_images, test_images]).unsqueeze(1),
            rows_by_class(train_labels, NUM_CLASSES),
            rows_by_class(test_labels, NUM_CLASSES, first_row=len(train_images)),
            self.train_per_class,
            self.test_per_class,
            self.val_fraction,
            self.split_seed,
        )

    def _read_part(self, part: str) -> tuple[Tensor, Tensor]:
        """Images, uint8 (M, H, W), and labels, int64 (M,), of "train" or "t10k"."""
        image_path, label_path = (self.folder / name for name in FILES if name.startswith(part))
        images, labels = self._read(image_path, read_image_file), self._read(label_path, read_label_file)
        if len(images) != len(labels):
            raise UsageError(
                f"{image_path} has {len(images)} images but {label_path} has {len(labels)} labels: remove "
                "both and set download: true, or copy them again"
            )
        return images, labels

    def _read(self, path: Path, reader: Callable[[str], Tensor]) -> Tensor:
        if not path.is_file():
            raise UsageError(
                f"no MNIST in {self.root}: {path} is missing; set root to the right folder, download: true, "
                "or unpack the four files there"
            )
        try:
            return reader(str(path))
        # torchvision checks these files with whatever comes to hand, assertions included
        except Exception as error:
            raise UsageError(
                f"{path} is no complete MNIST file: remove it and set download: true, or copy it again"
            ) from error
