"""What makes pixels numbers that a network takes; part of the model, so that it goes wherever that goes."""

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor

from routing_lightning.errors import UsageError
from routing_lightning.nn.tracing import is_traced
from routing_lightning.routers.host import FixedPrecisionModule


class PixelNormalisation(FixedPrecisionModule):
    """Normalises uint8 images by statistics that it learns from the data once and keeps in the checkpoint.

    Args:
        channels: C, channels of the images.

    Attributes:
        known: whether it has the statistics.
        goes_below_zero: whether black is below 0 once it is normalised.
        warned: whether it has told of images that nobody seems to have normalised.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.known = False
        self.goes_below_zero = False
        self.warned = False
        for name in ("scale", "shift"):
            self.register_buffer(name, torch.zeros(channels, 1, 1))

    def learn(self, mean: Sequence[float], std: Sequence[float]) -> None:
        """Takes the statistics: mean and standard deviation of each channel, (C,), in units of [0, 1]."""
        means, stds = torch.tensor(mean).view(-1, 1, 1), torch.tensor(std).view(-1, 1, 1)
        self.scale.copy_(1 / (255 * stds))
        self.shift.copy_(-means / stds)
        self.known = True
        self.goes_below_zero = all(value > 0 for value in mean)

    def forward(self, images: Tensor) -> Tensor:
        """Images (N, C, H, W): uint8 ones normalised, float32; floats, which are normalised already, as they are.

        Raises:
            UsageError: if they are uint8 and the statistics are not known, or of another type of numbers.
        """
        if not isinstance(images, Tensor) or not (images.dtype == torch.uint8 or images.is_floating_point()):
            kind = str(images.dtype).removeprefix("torch.") if isinstance(images, Tensor) else type(images).__name__
            raise UsageError(f"the images are {kind}; give uint8 ones of 0 to 255, or normalised floats.")
        if images.dtype != torch.uint8:
            if images.device.type == "cpu":
                self.check(images)
            return images
        if not self.known:
            raise UsageError(
                "the images are uint8 but the model has seen no data whose mean and std it could normalise them by; "
                "give normalised float images, or train it with a datamodule."
            )
        return images.to(torch.float32).mul_(self.scale).add_(self.shift)

    def check(self, images: Tensor) -> None:
        """Warns, once, of floats on the host that look as if nobody had normalised them: none is below 0.

        Args:
            images: a batch, (N, C, H, W).
        """
        if self.warned or not self.goes_below_zero or not images.is_floating_point():
            return
        if torch.compiler.is_compiling() or is_traced():  # a look would be recorded
            return
        if images.numel() and float(images.detach().amin()) >= 0:
            self.warned = True
            rank_zero_warn(
                f"the float images, {float(images.amin()):g} to {float(images.amax()):g}, look as if nobody had "
                "normalised them; give uint8 ones, which the model normalises, or subtract the mean and divide by the "
                "std of its data."
            )

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if f"{prefix}scale" not in state_dict:  # a checkpoint from before
            state_dict |= {f"{prefix}{name}": value for name, value in self.named_buffers()}
        super()._load_from_state_dict(state_dict, prefix, *args)
        self.known = bool(state_dict[f"{prefix}scale"].any())
        self.goes_below_zero = bool((state_dict[f"{prefix}shift"] < 0).all())
