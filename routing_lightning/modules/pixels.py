"""What makes pixels numbers that a network takes; part of the model, so that it goes wherever that goes."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from routing_lightning.errors import UsageError
from routing_lightning.routers.host import FixedPrecisionModule


class PixelNormalisation(FixedPrecisionModule):
    """Normalises uint8 images by statistics that it learns from the data once and keeps in the checkpoint.

    Args:
        channels: C, channels of the images.

    Attributes:
        known: whether it has the statistics.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.known = False
        for name in ("scale", "shift"):
            self.register_buffer(name, torch.zeros(channels, 1, 1))

    def learn(self, mean: Sequence[float], std: Sequence[float]) -> None:
        """Takes the statistics: mean and standard deviation of each channel, (C,), in units of [0, 1]."""
        means, stds = torch.tensor(mean).view(-1, 1, 1), torch.tensor(std).view(-1, 1, 1)
        self.scale.copy_(1 / (255 * stds))
        self.shift.copy_(-means / stds)
        self.known = True

    def forward(self, images: Tensor) -> Tensor:
        """Images (N, C, H, W): uint8 ones normalised, float32; others, which are normalised already, as they are.

        Raises:
            UsageError: if they are uint8 and the statistics are not known.
        """
        if images.dtype != torch.uint8:
            return images
        if not self.known:
            raise UsageError(
                "the images are uint8 but the model has seen no data whose mean and std it could normalise them by; "
                "give normalised float images, or train it with a datamodule."
            )
        return images.to(torch.float32).mul_(self.scale).add_(self.shift)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if f"{prefix}scale" not in state_dict:  # a checkpoint from before
            state_dict |= {f"{prefix}{name}": value for name, value in self.named_buffers()}
        super()._load_from_state_dict(state_dict, prefix, *args)
        self.known = bool(state_dict[f"{prefix}scale"].any())
