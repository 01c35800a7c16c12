"""Tasks of two modalities: some see each picture changed in a fixed way."""

import numpy as np
from torch import Tensor

from routing_lightning.datamodules.base import MultiTaskDataset


class TwoModalities(MultiTaskDataset):
    """Samples of which some see their image as :func:`other_modality`; changed as a batch is gathered, not in memory.

    Args:
        images: as for the base class.
        index: as for the base class.
        tasks: as for the base class.
        labels: as for the base class.
        changed: whether each image is changed, (M,), bool.
    """

    def __init__(self, images: Tensor, index: Tensor, tasks: Tensor, labels: Tensor, changed: Tensor) -> None:
        super().__init__(images, index, tasks, labels)
        self.changed = changed

    def pixels(self, rows: Tensor) -> Tensor:
        """Copies of images by row, as they are seen; see the base class."""
        found = super().pixels(rows)
        images, which = found.numpy(), self.changed[rows].numpy()
        images[which] = other_modality(images[which])
        return found


def other_modality(pixels: np.ndarray) -> np.ndarray:
    """Images inverted, rotated by 90 degrees and with the order of their channels reversed: uint8 (B, S, S, C)."""
    # numpy, in half of torch's time
    inverted: np.ndarray = 255 - np.rot90(pixels, 1, (1, 2))[..., ::-1]
    return inverted
