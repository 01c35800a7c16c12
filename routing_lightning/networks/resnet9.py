"""ResNet-9, a small residual network that trains fast on pictures of 32 x 32 pixels."""

import torch
from torch import Tensor, nn

from routing_lightning.errors import UsageError
from routing_lightning.networks.convnet import check_image_shape, check_images
from routing_lightning.networks.routed_layer import RoutedLayer
from routing_lightning.nn.blocks import ModuleBlocks
from routing_lightning.nn.norm import FewValuesBatchNorm2d


class ResNet9(nn.Module):
    """The features of ResNet-9: eight convolutions, two of them in each of two residual parts (Page, 2018, DAWNBench).

    A convolution to ``width`` channels; three stages, each a convolution to twice the channels and 2x2 max-pooling, the
    first and the last with a residual part; the maximum over what is left of the picture. The ninth layer is the
    classifier behind it. At the width of 64 it is the network of the source, at 32 it has a quarter of the parameters.

    With ``last_blocks`` the last residual part, 72 % of the parameters, is a routed layer: it is then for a routing
    network, such as ``RoutingAllFC(features=ResNet9, depth=1)``, which routes the classifier too.

    Args:
        image_shape: channels, height and width of the images, each at least 1. Stages of a picture that is one pixel
            wide do without pooling.
        width: channels of the first convolution, at least 1; there are 8 times as many features.
        last_blocks: blocks of the last residual part, at least 1; 0: it is not routed.

    Attributes:
        out_features: size of the feature vector.

    Raises:
        UsageError: if a value is out of its range.
    """

    def __init__(self, image_shape: tuple[int, int, int] = (3, 32, 32), width: int = 32, last_blocks: int = 0) -> None:
        super().__init__()
        check_image_shape(image_shape)
        if width < 1:
            raise UsageError(f"width of ResNet9 is {width}; give at least 1 channel.")
        if last_blocks < 0:
            raise UsageError(f"last_blocks of ResNet9 is {last_blocks}; give at least 1 block, or 0 for no routing.")
        self.image_shape = tuple(image_shape)
        self.out_features = 8 * width
        channels, *size = image_shape
        self.first = convolution(channels, width)
        stages: list[nn.Module] = []
        for number in range(3):
            stages.append(convolution(width << number, width << number + 1, pool=min(size) > 1))
            size = [side // 2 if min(size) > 1 else side for side in size]
            if number == 0 or (number == 2 and not last_blocks):
                stages.append(Residual(width << number + 1))
            elif number == 2:
                stages.append(RoutedLayer(ModuleBlocks([Residual(self.out_features) for _ in range(last_blocks)])))
        self.stages = nn.Sequential(*stages)
        self.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        """Features: images (N, C, H, W) float, of the shape given -> (N, out_features).

        Raises:
            UsageError: if the images have another shape.
        """
        check_images(images, self.image_shape)
        maps: Tensor = self.stages(self.first(images))
        return maps.amax((2, 3))


class Residual(nn.Module):
    """Two convolutions whose output is added to their input.

    Args:
        channels: channels of both.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(convolution(channels, channels), convolution(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, C, H, W)."""
        y: Tensor = self.layers(x)
        return x + y


def convolution(channels: int, filters: int, pool: bool = False) -> nn.Sequential:
    """A 3x3 convolution with batch normalisation and ReLU, and 2x2 max-pooling before that if it is asked for."""
    norm = FewValuesBatchNorm2d(filters)
    norm.enough = 2  # as nn.BatchNorm2d, which refuses a single value
    layers: list[nn.Module] = [nn.Conv2d(channels, filters, 3, padding=1, bias=False), norm]
    if pool:  # before ReLU, which then touches a quarter of the values
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.ReLU(inplace=True))
