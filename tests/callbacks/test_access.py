"""What callbacks read from models and traces."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from routing_lightning.callbacks.access import depth_names, gains_of
from routing_lightning.networks import Recurrent, RoutedLayer, RoutingAllLayers, RoutingNetwork, route
from routing_lightning.nn import LinearBlocks, ModuleBlocks
from routing_lightning.routers import FixedRoutes
from tests.conftest import toy_model
from tests.routers.test_branching import TASKS, built, step


def named(network: RoutingNetwork) -> list[str]:
    return depth_names(SimpleNamespace(network=network)).tolist()


def test_layers_have_the_names_of_the_network_or_of_their_kind():
    body = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    named_body = nn.ModuleDict({"stem": nn.Linear(4, 4)})
    named_body.forward = lambda x: named_body["stem"](x)
    example = torch.zeros(2, 4)
    assert named(route(body, {"0": 3, "2": 3}, FixedRoutes(), num_tasks=3, example=example)) == ["fc 1", "fc 2"]
    assert named(route(named_body, {"stem": 3}, FixedRoutes(), num_tasks=3, example=example)) == ["stem"]
    layers = RoutedLayer(LinearBlocks(3, 4, 4)), RoutedLayer(ModuleBlocks([nn.Linear(4, 4) for _ in range(3)]))
    again = RoutingNetwork(nn.Sequential(layers[0], Recurrent(layers[1], 2)), FixedRoutes(), 3, example)
    assert named(again) == ["fc 1", "1.layer", "1.layer, call 2"]
    model = toy_model(network=partial(RoutingAllLayers, filters=4, conv_layers=2, depth=2, hidden=8))
    assert depth_names(model).tolist() == ["conv 1", "conv 2", "fc 1", "fc 2"]
    assert depth_names(SimpleNamespace(network=nn.Linear(2, 2))) is None


@pytest.mark.parametrize("gain", [0.25, -0.5])
def test_gains_are_of_parting_whichever_block_was_taken(gain):
    router = built()
    for number in range(3):
        depth = router.open_depth
        trace = step(router, gain, seed=number)
        found = gains_of(trace, np.array(router.spec.num_blocks))
        if number == 0:
            assert not found.any()  # no depth was open yet
            continue
        expected = np.zeros((3, 3))
        expected[depth] = len(TASKS), gain * len(TASKS), gain**2 * len(TASKS)
        np.testing.assert_allclose(found, expected, atol=1e-6)
