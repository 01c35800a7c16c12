"""SimpleConvNet, the feature extractor of the paper (section 4)."""

import torch
from torch import Tensor, nn

from routing_lightning.errors import UsageError


class SimpleConvNet(nn.Module):
    """Four convolutions (3x3, 32 filters), each with batch normalisation, ReLU and 2x2 max-pooling.

    The convolutional part of the paper's SimpleConvNet (section 4, taken from Ravi & Larochelle, 2017). Pooling is left
    out once the picture is one pixel wide, so that 8x8 digits work too. A 32x32 image gives 128 features, 28x28 gives
    32, 84x84 gives 800.

    Args:
        in_channels: channels of the image, at least 1.
        image_size: height and width of the image in pixels, at least 1.
        filters: channels of each layer, at least 1.
        num_layers: number of layers, at least 1.

    Attributes:
        out_features: size of the feature vector.

    Raises:
        UsageError: if a value is below 1.
    """

    def __init__(self, in_channels: int = 3, image_size: int = 32, filters: int = 32, num_layers: int = 4) -> None:
        super().__init__()
        for name, value in (
            ("in_channels", in_channels),
            ("image_size", image_size),
            ("filters", filters),
            ("num_layers", num_layers),
        ):
            if value < 1:
                raise UsageError(f"{name} of SimpleConvNet is {value}; give at least 1.")
        self.image_shape = (in_channels, image_size, image_size)
        layers: list[nn.Module] = []
        size, channels = image_size, in_channels
        for _ in range(num_layers):
            layers += [nn.Conv2d(channels, filters, 3, padding=1, bias=False), nn.BatchNorm2d(filters)]
            if size > 1:
                # Pooling first gives the same values as ReLU first, and ReLU then touches a quarter of them.
                layers.append(nn.MaxPool2d(2))
                size //= 2
            layers.append(nn.ReLU(inplace=True))
            channels = filters
        self.layers = nn.Sequential(*layers).to(memory_format=torch.channels_last)
        self.out_features = filters * size * size

    def forward(self, images: Tensor) -> Tensor:
        """Features of images.

        Args:
            images: (N, in_channels, image_size, image_size) float.

        Returns:
            (N, out_features).

        Raises:
            UsageError: if the images have another shape.
        """
        if tuple(images.shape[1:]) != self.image_shape:
            raise UsageError(
                f"the images are {tuple(images.shape[1:])} (channels, height, width) but the features expect "
                f"{self.image_shape}; set in_channels and image_size of SimpleConvNet to those of the data."
            )
        return self.layers(images).flatten(1)
