"""SimpleConvNet, the feature extractor of the paper (section 4)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from routing_lightning.errors import UsageError
from routing_lightning.nn.norm import FewValuesBatchNorm2d


def check_image_shape(image_shape: Sequence[int]) -> None:
    """Checks that a shape of images is (channels, height, width), each at least 1.

    Raises:
        UsageError: if it is not.
    """
    if len(image_shape) != 3 or min(image_shape) < 1:
        raise UsageError(f"image_shape is {list(image_shape)}; give channels, height and width, each at least 1.")


def check_images(images: Tensor, image_shape: Sequence[int]) -> None:
    """Checks that images (N, C, H, W) have the shape that features were made for.

    Raises:
        UsageError: if they have another.
    """
    if tuple(images.shape[1:]) != tuple(image_shape):
        raise UsageError(
            f"the images are {tuple(images.shape[1:])} (channels, height, width) but the features expect "
            f"{tuple(image_shape)}; set image_shape of the model to that of the data."
        )


class SimpleConvNet(nn.Module):
    """Four convolutions (3x3, 32 filters), each with batch normalisation, ReLU and 2x2 max-pooling.

    The convolutional part of the paper's SimpleConvNet (section 4, taken from Ravi & Larochelle, 2017). Pooling is left
    out once the picture is one pixel wide, so that 8x8 digits work too. A 32x32 image gives 128 features, 28x28 gives
    32, 84x84 gives 800.

    Where a training batch has few values per channel (samples times pixels), such as a last batch of one sample whose
    features are one pixel wide, it is normalised by the running statistics, as in evaluation.

    Args:
        image_shape: channels, height and width of the images, each at least 1.
        filters: channels of each layer, at least 1.
        num_layers: number of layers, at least 1.

    Attributes:
        out_features: size of the feature vector.

    Raises:
        UsageError: if a value is below 1.
    """

    def __init__(self, image_shape: tuple[int, int, int] = (3, 32, 32), filters: int = 32, num_layers: int = 4) -> None:
        super().__init__()
        check_image_shape(image_shape)
        for name, value in (("filters", filters), ("num_layers", num_layers)):
            if value < 1:
                raise UsageError(f"{name} of SimpleConvNet is {value}; give at least 1.")
        self.image_shape = tuple(image_shape)
        channels, *size = image_shape
        layers: list[nn.Module] = []
        for _ in range(num_layers):
            norm = FewValuesBatchNorm2d(filters)
            norm.enough = 2  # as nn.BatchNorm2d, which refuses a single value (a last batch of one digit)
            layers += [nn.Conv2d(channels, filters, 3, padding=1, bias=False), norm]
            if min(size) > 1:
                # Pooling first gives the same values as ReLU first, and ReLU then touches a quarter of them.
                layers.append(nn.MaxPool2d(2))
                size = [side // 2 for side in size]
            layers.append(nn.ReLU(inplace=True))
            channels = filters
        self.layers = nn.Sequential(*layers).to(memory_format=torch.channels_last)
        self.out_features = filters * size[0] * size[1]

    def forward(self, images: Tensor) -> Tensor:
        """Features of images.

        Args:
            images: (N, C, H, W) float, of the shape given.

        Returns:
            (N, out_features).

        Raises:
            UsageError: if the images have another shape.
        """
        check_images(images, self.image_shape)
        maps: Tensor = self.layers(images)
        return maps.flatten(1)
