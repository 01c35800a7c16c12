"""Digits-MTL: MNIST-MTL's protocol on the handwritten digits that scikit-learn ships."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torchvision.transforms import v2

from routing_lightning.datamodules.base import MultiTaskData, MultiTaskDataModule, draw
from routing_lightning.datamodules.one_against_rest import one_against_rest, rows_by_class

TEST_PER_CLASS = 20
NUM_CLASSES = 10


class DigitsMTLDataModule(MultiTaskDataModule):
    """Digits-MTL: 10 tasks on 1,797 images of 8x8 pixels, "is it a c?"; needs no download.

    MNIST-MTL's protocol at the size that the images allow. 20 images of each class are held out; they are the
    test part of every task (200 images). From the rest each task draws as many images of each class as the
    scarcest class has (154, so 1,540 per task).

    Args:
        batch_size: samples per batch and process, at least 1.
        val_fraction: part of the training data for validation, in [0, 1), the same for each class; 0: validate on the
            test part.
        split_seed: seed of all draws.
        augment: transforms of torchvision, v2, that change training images at random; see
            :class:`~routing_lightning.datamodules.augment.Augmentation`.
        train_fraction: part of the training data to train on; see the base class.
        train_per_task: training images of each task; see the base class.
    """

    num_tasks = NUM_CLASSES
    num_classes = 2
    image_shape = (1, 8, 8)
    mean = (0.3053,)
    std = (0.3760,)

    def __init__(
        self,
        batch_size: int = 16,
        val_fraction: float = 0.0,
        split_seed: int = 0,
        augment: list[v2.Transform] | None = None,
        train_fraction: float = 1.0,
        train_per_task: list[int] | None = None,
    ) -> None:
        super().__init__(None, batch_size, val_fraction, split_seed, augment, train_fraction, train_per_task)
        # a checkpoint holds plain types; the config in it names the transforms
        self.save_hyperparameters(ignore=["augment"])

    def load_data(self) -> MultiTaskData:
        """Loads scikit-learn's digits; see the base class."""
        digits = load_digits()
        # grey values 0..16 -> 0..255
        grey = np.rint(digits.images * (255 / 16)).astype(np.uint8)
        images = torch.from_numpy(grey).unsqueeze(1)
        generator = torch.Generator().manual_seed(self.split_seed)
        classes = rows_by_class(torch.from_numpy(digits.target), NUM_CLASSES)
        pools = [draw(rows, len(rows), generator) for rows in classes]
        test_pools = [rows[:TEST_PER_CLASS] for rows in pools]
        train_pools = [rows[TEST_PER_CLASS:] for rows in pools]
        train_per_class = min(len(rows) for rows in train_pools)
        return one_against_rest(
            images,
            train_pools,
            test_pools,
            train_per_class,
            TEST_PER_CLASS,
            self.val_fraction,
            self.split_seed,
        )
