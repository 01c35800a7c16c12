"""A routed layer by itself: what a router sees before it, and calls without a pass."""

import pytest
import torch
from torch import nn

from routing_lightning.errors import UsageError
from routing_lightning.networks import RoutedLayer, RoutingNetwork
from routing_lightning.nn import LinearBlocks
from routing_lightning.routers import WPL, FixedRoutes, RewardRouter, TabularPolicy


def test_a_call_outside_a_pass_is_told_in_one_sentence():
    layer = RoutedLayer(LinearBlocks(2, 4, 4))
    with pytest.raises(
        UsageError, match=r"^a routed layer was called outside a pass .* specialise\(task\)\.$"
    ) as error:
        layer(torch.zeros(3, 4))
    assert "\n" not in str(error.value)


def test_a_call_after_a_pass_or_inside_anothers_pass_is_outside():
    stranger = RoutedLayer(LinearBlocks(2, 4, 4))

    class Calling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.stranger = RoutedLayer(LinearBlocks(2, 4, 4)), None

        def forward(self, x):
            x = self.layer(x)
            return x if self.stranger is None else self.stranger[0](x)

    body = Calling()
    net = RoutingNetwork(body, RewardRouter(TabularPolicy(), WPL()), 1, torch.zeros(1, 4))
    net(torch.zeros(3, 4))
    with pytest.raises(UsageError, match="outside a pass"):
        body.layer(torch.zeros(3, 4))
    body.stranger = [stranger]
    with pytest.raises(UsageError, match="outside a pass"):
        net(torch.zeros(3, 4))


def test_the_state_of_feature_maps_is_their_average():
    layer, x = RoutedLayer(LinearBlocks(2, 4, 4)), torch.randn(5, 3, 4, 6)
    state = layer.state(x)
    assert state.shape == (5, 3)
    for n in range(5):
        for channel in range(3):
            torch.testing.assert_close(state[n, channel], x[n, channel].sum() / 24)


def test_the_state_of_sequences_is_the_average_of_their_vectors():
    x = torch.randn(5, 7, 4)
    torch.testing.assert_close(RoutedLayer(LinearBlocks(2, 4, 4)).state(x), x.sum(1) / 7)


@pytest.mark.parametrize(("dim", "size"), [(1, 3), (2, 4), (3, 6), (-1, 6), (-3, 3)])
def test_the_features_may_be_another_dimension(dim, size):
    x = torch.randn(5, 3, 4, 6)
    state = RoutedLayer(LinearBlocks(2, 4, 4), feature_dim=dim).state(x)
    assert state.shape == (5, size)
    others = [other for other in (1, 2, 3) if other != dim % 4]
    torch.testing.assert_close(state, x.mean(others))


def test_vectors_are_their_own_state_and_numbers_become_vectors():
    layer, x = RoutedLayer(LinearBlocks(2, 4, 4)), torch.randn(5, 4)
    assert layer.state(x) is x
    assert torch.equal(layer.state(x[:, 0]), x[:, :1])


def test_pass_is_one_action_more():
    assert RoutedLayer(LinearBlocks(2, 4, 4)).num_actions == 2
    assert RoutedLayer(LinearBlocks(2, 4, 4), allow_pass=True).num_actions == 3


def test_no_block_is_refused():
    with pytest.raises(UsageError, match="num_blocks is 0; give at least 1"):
        RoutedLayer([])


def test_a_layer_in_two_networks_follows_the_one_that_is_called():
    torch.manual_seed(0)
    layer, x = RoutedLayer(LinearBlocks(2, 4, 4)), torch.randn(3, 4)
    one, other = (RoutingNetwork(layer, FixedRoutes([[block]]), 1, torch.zeros(1, 4)) for block in (0, 1))
    assert torch.equal(one(x)[0], layer.blocks(x, torch.zeros(3).long()))
    assert torch.equal(other(x)[0], layer.blocks(x, torch.ones(3).long()))
