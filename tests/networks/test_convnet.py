import pytest
import torch
from torch import nn

from routing_lightning.errors import UsageError
from routing_lightning.networks import SimpleConvNet


@pytest.mark.parametrize(("size", "features"), [(32, 128), (28, 32), (84, 800), (8, 32)])
def test_feature_sizes(size, features):
    net = SimpleConvNet((1, size, size))
    assert net.out_features == features
    assert net(torch.randn(2, 1, size, size)).shape == (2, features)


def test_equals_the_paper_s_order_of_layers():
    """Convolution, batch normalisation, ReLU, pooling: pooling before ReLU gives the same."""
    torch.manual_seed(0)
    net = SimpleConvNet((3, 32, 32))
    layers = []
    for module in net.layers:
        if isinstance(module, nn.Conv2d):
            layers.append(module)
        elif isinstance(module, nn.BatchNorm2d):
            layers += [module, nn.ReLU(), nn.MaxPool2d(2)]
    x = torch.randn(4, 3, 32, 32)
    torch.testing.assert_close(net(x), nn.Sequential(*layers)(x).flatten(1))


def test_wrong_images_name_both_shapes():
    with pytest.raises(UsageError, match=r"\(1, 28, 28\).*\(3, 32, 32\)"):
        SimpleConvNet((3, 32, 32))(torch.zeros(2, 1, 28, 28))


def test_pictures_need_not_be_square():
    net = SimpleConvNet((2, 32, 8))
    assert net(torch.randn(3, 2, 32, 8)).shape == (3, net.out_features) and net.out_features == 4 * 32


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("image_shape", (0, 8, 8)),
        ("image_shape", (1, 0, 8)),
        ("image_shape", (1, 8, 0)),
        ("image_shape", (8, 8)),
        ("filters", 0),
        ("num_layers", 0),
    ],
)
def test_impossible_values_name_the_option(option, value):
    with pytest.raises(UsageError, match=option):
        SimpleConvNet(**{option: value})
