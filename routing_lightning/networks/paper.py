"""The paper's routed networks: routing through the fully connected layers, or through all layers."""

from collections.abc import Callable, Sequence

from torch import nn

from routing_lightning.errors import UsageError
from routing_lightning.networks.convnet import SimpleConvNet, check_image_shape
from routing_lightning.networks.recurrent import Recurrent
from routing_lightning.networks.routed_layer import RoutedLayer
from routing_lightning.nn.blocks import LinearBlocks
from routing_lightning.nn.conv import ConvBlocks, Norm
from routing_lightning.nn.layers import layer_sizes

ImageShape = tuple[int, int, int]
FeaturesMaker = Callable[[ImageShape], nn.Module]


def feature_size(features: nn.Module) -> int:
    """Size of the vectors that features give, their ``out_features``.

    Raises:
        UsageError: if they do not say it.
    """
    size = getattr(features, "out_features", None)
    if not isinstance(size, int):
        raise UsageError(f"features {type(features).__name__} has no integer attribute out_features; give it one.")
    return size


def blocks_per_layer(num_blocks: int | Sequence[int] | None, num_tasks: int, depth: int) -> list[int]:
    """Number of blocks of each of D layers: as given, one number for all or one each; None: one block per task.

    Raises:
        UsageError: if the numbers do not fit.
    """
    count = num_tasks if num_blocks is None else num_blocks
    counts = [count] * depth if isinstance(count, int) else count
    if not isinstance(counts, (list, tuple)) or not all(type(one) is int for one in counts):
        raise UsageError(f"num_blocks is {num_blocks!r}; give a whole number, one per layer, or null for one per task.")
    if len(counts) != depth:
        raise UsageError(f"num_blocks lists {len(counts)} layers but there are {depth}; give one number per layer.")
    return list(counts)


class RoutingAllFC(nn.Sequential):
    """The paper's routing-all-fc: shared features, then fully connected layers that are routed (section 4).

    Args:
        image_shape: channels, height and width of the images.
        num_tasks: T, number of tasks.
        num_classes: C, the largest number of labels of a task.
        features: makes the features from ``image_shape``: a module that maps images to vectors of ``out_features``.
        depth: D, number of routed layers, at least 1 (paper: 3).
        hidden: units of each hidden layer, at least 1 (paper: 128).
        num_blocks: blocks per layer, one number or one per layer; by default one block per task, as in the paper.
        recurrent_steps: how often the layer between first and last is routed through, any of its blocks each time; 0:
            layered, once. Needs depth 3: first layer, recurrent layer, classification (paper, appendix).
        allow_pass: whether the recurrent steps have PASS, which leaves the activation as it is.

    Raises:
        UsageError: if a value is out of its range.
    """

    def __init__(
        self,
        image_shape: ImageShape,
        num_tasks: int,
        num_classes: int,
        features: FeaturesMaker = SimpleConvNet,
        depth: int = 3,
        hidden: int = 128,
        num_blocks: int | list[int] | None = None,
        recurrent_steps: int = 0,
        allow_pass: bool = False,
    ) -> None:
        if recurrent_steps < 0 or (recurrent_steps > 0 and depth != 3):
            raise UsageError(f"recurrent_steps is {recurrent_steps} with {depth} layers; give 0, or more with depth 3.")
        if allow_pass and not recurrent_steps:
            raise UsageError("allow_pass is true but nothing is recurrent; set recurrent_steps to at least 1.")
        front = features(image_shape)
        layers = routed_fc(feature_size(front), num_tasks, num_classes, hidden, depth, num_blocks)
        if recurrent_steps:
            layers[1].allow_pass = allow_pass
            super().__init__(front, layers[0], Recurrent(layers[1], recurrent_steps), layers[2])
        else:
            super().__init__(front, *layers)


class RoutingAllLayers(nn.Sequential):
    """The paper's network with all of its layers routed, the convolutions too.

    Measurements (docs/results.md) say that this is where routes matter: which of them share is then decided for every
    parameter of the network.

    Args:
        image_shape: channels, height and width of the images.
        num_tasks: T, number of tasks.
        num_classes: C, the largest number of labels of a task.
        filters: channels of each convolutional layer, at least 1.
        conv_layers: number of convolutional layers, at least 1.
        depth: number of fully connected layers, at least 1 (paper: 3).
        hidden: units of each hidden layer, at least 1 (paper: 128).
        num_blocks: blocks per layer, one number or one per layer; by default one block per task.
        norm: what the convolutions are normalised by, see :class:`~routing_lightning.nn.ConvBlocks`.

    Raises:
        UsageError: if a value is out of its range.
    """

    def __init__(
        self,
        image_shape: ImageShape,
        num_tasks: int,
        num_classes: int,
        filters: int = 32,
        conv_layers: int = 4,
        depth: int = 3,
        hidden: int = 128,
        num_blocks: int | list[int] | None = None,
        norm: Norm = "shared",
    ) -> None:
        if conv_layers < 1:
            raise UsageError(f"conv_layers is {conv_layers}; give at least 1.")
        check_image_shape(image_shape)
        counts = blocks_per_layer(num_blocks, num_tasks, conv_layers + depth)
        channels, *size = image_shape
        layers: list[nn.Module] = []
        for count in counts[:conv_layers]:
            layers.append(RoutedLayer(ConvBlocks(count, channels, filters, norm=norm)))
            channels, size = filters, [side // 2 if min(size) > 1 else side for side in size]
        head = routed_fc(filters * size[0] * size[1], num_tasks, num_classes, hidden, depth, counts[conv_layers:])
        super().__init__(*layers, nn.Flatten(), *head)


def routed_fc(
    in_features: int,
    num_tasks: int,
    num_classes: int,
    hidden: int = 128,
    depth: int = 3,
    num_blocks: int | Sequence[int] | None = None,
) -> list[RoutedLayer]:
    """The paper's routed layers: (features -> hidden), (hidden -> hidden) ..., (hidden -> classes) (section 4).

    Args:
        in_features: size of the feature vector.
        num_tasks: T, number of tasks.
        num_classes: C, size of the output.
        hidden: units of a hidden layer.
        depth: D, number of layers, at least 1.
        num_blocks: blocks per layer, one number or one per layer; None: one block per task.

    Returns:
        D routed layers, with ReLU after all but the last.
    """
    sizes = layer_sizes(in_features, num_tasks, num_classes, hidden, depth)
    counts = blocks_per_layer(num_blocks, num_tasks, depth)
    return [RoutedLayer(LinearBlocks(count, *size)) for count, size in zip(counts, sizes, strict=True)]
