"""Random changes of training images, in batches, with other chances for each image."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torchvision.transforms import v2


class Augmentation(nn.Module):
    """Applies transforms of torchvision to a batch, each image with random numbers of its own.

    The transforms of torchvision draw once per call, which would change all images of a batch alike. So each is called
    image by image, on the device, except those below, which have an equal in batches:

    - ``RandomHorizontalFlip`` and ``RandomVerticalFlip``;
    - ``RandomCrop`` of a fixed size, with constant padding or none.

    Args:
        transforms: called one after the other; they must take uint8 images and bring all of a batch to one size.
    """

    def __init__(self, transforms: Sequence[nn.Module]) -> None:
        super().__init__()
        self.transforms = nn.ModuleList(transforms)

    def forward(self, images: Tensor) -> Tensor:
        """Changes a batch, uint8 (B, C, H, W), by torch's global source of random numbers; the result is a copy."""
        for transform in self.transforms:
            images = apply(transform, images)
        return images


def apply(transform: Any, images: Tensor) -> Tensor:
    """One transform on a batch (B, C, H, W), with random numbers of its own for each image."""
    if type(transform) is v2.RandomHorizontalFlip:
        return flipped(images, 3, transform.p)
    if type(transform) is v2.RandomVerticalFlip:
        return flipped(images, 2, transform.p)
    if (
        type(transform) is v2.RandomCrop
        and transform.padding_mode == "constant"
        and not transform.pad_if_needed
        and (transform.padding is None or isinstance(transform.fill, (int, float)))
    ):
        return cropped(images, transform)
    return torch.stack([transform(image) for image in images])


def flipped(images: Tensor, dim: int, p: float) -> Tensor:
    """Each image of (B, C, H, W) mirrored along ``dim`` with probability ``p``."""
    count, device = len(images), images.device
    chosen = torch.rand(count, device=device) < p
    # both of each and then one row of them: torch.where takes four times as long on a CPU
    both = torch.cat([images, images.flip(dim)]).permute(0, 2, 3, 1)
    return both.index_select(0, torch.arange(count, device=device) + count * chosen).permute(0, 3, 1, 2)


def cropped(images: Tensor, transform: v2.RandomCrop) -> Tensor:
    """A window of each image of (B, C, H, W), at a random place of the padded image."""
    if transform.padding is not None:
        images = pad(images, transform.padding, value=transform.fill)  # it keeps left, right, top, bottom
    height, width = transform.size
    rows, columns = images.shape[2] - height, images.shape[3] - width
    if rows < 0 or columns < 0:
        padded = "" if transform.padding is None else ", padding included"
        raise ValueError(
            f"RandomCrop takes {height} x {width} out of images of {images.shape[2]} x {images.shape[3]}{padded}"
        )
    device, count = images.device, len(images)
    top = torch.randint(rows + 1, (count,), device=device)
    left = torch.randint(columns + 1, (count,), device=device)
    windows = windows_by_copies if device.type == "cpu" else windows_by_gather
    return windows(images.permute(0, 2, 3, 1), top, left, height, width).permute(0, 3, 1, 2)


def windows_by_copies(pixels: Tensor, top: Tensor, left: Tensor, height: int, width: int) -> Tensor:
    """A window of each image of (B, H, W, C), from (B,) places; fast on a CPU, as it copies rows of pixels at once."""
    result = pixels.new_empty(len(pixels), height, width, pixels.shape[3])
    for window, image, y, x in zip(result, pixels, top.tolist(), left.tolist(), strict=True):
        window.copy_(image[y : y + height, x : x + width])
    return result


def windows_by_gather(pixels: Tensor, top: Tensor, left: Tensor, height: int, width: int) -> Tensor:
    """The same by one operation, without waiting for the device."""
    which = torch.arange(len(pixels), device=pixels.device).view(-1, 1, 1)
    ys = top.view(-1, 1, 1) + torch.arange(height, device=pixels.device).view(-1, 1)
    xs = left.view(-1, 1, 1) + torch.arange(width, device=pixels.device)
    return pixels[which, ys, xs]
