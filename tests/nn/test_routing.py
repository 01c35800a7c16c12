import pytest
import torch

from routing_lightning.errors import UsageError
from routing_lightning.nn import LinearBlocks, RoutingNetwork
from routing_lightning.routers import WPL, Router, TabularPolicy


def network(num_tasks=3) -> RoutingNetwork:
    layers = [LinearBlocks(4, 6, 5), LinearBlocks(3, 5, 2, relu=False)]
    return RoutingNetwork(layers, Router(TabularPolicy(), WPL()), num_tasks)


def test_follows_the_trace_layer_by_layer():
    torch.manual_seed(0)
    net, x = network(), torch.randn(10, 6)
    y, trace = net(x, torch.randint(3, (10,)), explore=True)
    for n in range(10):
        row = x[n : n + 1]
        for depth, layer in enumerate(net.layers):
            row = layer(row, trace.actions[n : n + 1, depth])
        torch.testing.assert_close(y[n : n + 1], row)


def test_explores_in_training_alone():
    net, x, tasks = network(), torch.randn(300, 6), torch.zeros(300, dtype=torch.long)
    assert len(net.train()(x, tasks)[1].actions.unique(dim=0)) > 1
    assert len(net.eval()(x, tasks)[1].actions.unique(dim=0)) == 1


def test_evaluation_does_not_mark_blocks_as_active():
    net = network().eval()
    net(torch.randn(5, 6), torch.zeros(5, dtype=torch.long))
    assert not list(net.active_parameters())


def test_no_layer_and_no_task_are_refused():
    with pytest.raises(UsageError, match="depth 0"):
        RoutingNetwork([], Router(TabularPolicy(), WPL()), 3)
    with pytest.raises(UsageError, match="num_tasks is 0"):
        network(0)
