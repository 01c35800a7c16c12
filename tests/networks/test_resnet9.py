"""ResNet-9: its size, its parts by hand, and routed."""

from functools import partial

import pytest
import torch
from torch import nn

from routing_lightning.errors import UsageError
from routing_lightning.modules import RoutedClassifier
from routing_lightning.networks import ResNet9, RoutingAllFC
from routing_lightning.routers import FixedRoutes

SHAPE = (3, 32, 32)


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_at_full_width_it_has_the_parameters_of_the_source():
    """The eight convolutions and normalisations of Page's network; its classifier has 512 weights per class."""
    convolutions = 3 * 64 + 64 * 128 + 2 * 128**2 + 128 * 256 + 256 * 512 + 2 * 512**2
    normalisations = 64 + 3 * 128 + 256 + 3 * 512
    assert parameters(ResNet9(width=64)) == 9 * convolutions + 2 * normalisations
    assert ResNet9(width=64).out_features == 512


def test_it_is_convolutions_pooling_and_two_residual_parts():
    network = ResNet9(width=4).eval()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean), nn.init.uniform_(module.weight)

    def layer(x, part, pool=False):
        convolution, norm = part[0], part[1]
        x = norm(nn.functional.conv2d(x, convolution.weight, padding=1)).relu()
        return nn.functional.max_pool2d(x, 2) if pool else x

    x = images = torch.randn(2, *SHAPE)
    x = layer(x, network.first)
    one, first, two, three, last = network.stages
    x = layer(x, one, pool=True)
    x = x + layer(layer(x, first.layers[0]), first.layers[1])
    x = layer(layer(x, two, pool=True), three, pool=True)
    x = x + layer(layer(x, last.layers[0]), last.layers[1])
    assert x.shape == (2, 32, 4, 4)
    assert torch.allclose(network(images), x.flatten(2).amax(2), atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 5, 84), (2, 1, 1)])
def test_pictures_of_all_sizes_give_vectors(shape):
    network = ResNet9(shape, width=2)
    assert network(torch.randn(2, *shape)).shape == (2, network.out_features)
    assert network(torch.randn(1, *shape)).isfinite().all()  # a last batch of one sample


@pytest.mark.parametrize("blocks", [0, 2])
def test_the_last_part_and_the_classifier_are_routed(blocks):
    body = partial(RoutingAllFC, features=partial(ResNet9, width=2, last_blocks=blocks), depth=1)
    model = RoutedClassifier(3, 5, SHAPE, FixedRoutes(), body, joint_loss=0.5)
    assert model.router.spec.num_blocks == ([blocks, 3] if blocks else [3])
    assert model.joint.head.in_features == 16
    model.eval()
    x, tasks = torch.randn(6, *SHAPE), torch.arange(6) % 3
    with torch.no_grad():
        logits = model(x, tasks)
        for task in range(3):
            one = model.network.specialise(task)
            assert torch.allclose(one(x[tasks == task]), logits[tasks == task], atol=1e-5)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [({"width": 0}, "width of ResNet9 is 0"), ({"last_blocks": -1}, "last_blocks of ResNet9 is -1")],
)
def test_wrong_values_are_told(options, sentence):
    with pytest.raises(UsageError, match=sentence):
        ResNet9(**options)
    with pytest.raises(UsageError, match=r"the images are \(1, 8, 8\)"):
        ResNet9(width=1)(torch.randn(1, 1, 8, 8))
