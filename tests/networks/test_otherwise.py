"""A pass taken up again with other actions: equal to a whole pass with them, and it leaves nothing behind."""

import copy

import pytest
import torch
from torch import Tensor, nn

from routing_lightning.errors import UsageError
from routing_lightning.networks import Recurrent, RoutedLayer, RoutingAllLayers, RoutingNetwork
from routing_lightning.nn import ConvBlocks, LinearBlocks
from routing_lightning.routers import FixedRoutes, Router, Trace

TASKS = torch.arange(12) % 3


class Asking(Router):
    """Sends task t to block t and asks, at given depths, what block t + 1 had brought."""

    uses_state = False

    def __init__(self, *depths: int) -> None:
        super().__init__()
        self.depths = list(depths)

    def start(self, tasks: Tensor, *, explore: bool, generator: torch.Generator | None = None) -> Trace:
        sizes = torch.tensor(self.spec.num_blocks)
        trace = Trace(tasks, tasks, explore, generator, actions=tasks[:, None] % sizes)
        trace.alternatives = torch.full_like(trace.actions, -1)
        trace.alternatives[:, self.depths] = ((tasks[:, None] + 1) % sizes)[:, self.depths]
        return trace


class Own(nn.Module):
    """A body with its own way through its parts."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x


def linear(*sizes: int, relu: bool = True) -> RoutedLayer:
    return RoutedLayer(LinearBlocks(3, *sizes, relu=relu))


BODIES = {
    "layers": lambda: nn.Sequential(linear(6, 5), linear(5, 5), linear(5, 4)),
    "dropout and normalisation": lambda: nn.Sequential(
        nn.Linear(6, 6), linear(6, 5), nn.Dropout(0.5), nn.BatchNorm1d(5), linear(5, 5), nn.Dropout(0.5), linear(5, 4)
    ),
    "in place": lambda: nn.Sequential(
        nn.Linear(6, 6), nn.Sequential(nn.ReLU(inplace=True), linear(6, 5, relu=False)),
        nn.Sequential(nn.ReLU(inplace=True), linear(5, 5, relu=False)), nn.Sequential(nn.Tanh(), linear(5, 4)),
    ),
    "recurrent": lambda: nn.Sequential(linear(6, 5), Recurrent(linear(5, 5), 2), nn.Dropout(0.3), linear(5, 4)),
    "its own way": lambda: Own(linear(6, 5), nn.Dropout(0.5), nn.BatchNorm1d(5), linear(5, 5), linear(5, 4)),
    "no layer before": lambda: nn.Sequential(Own(linear(6, 5), nn.Dropout(0.5), linear(5, 5)), linear(5, 4)),
}  # fmt: skip


def made(name: str, *depths: int) -> tuple[RoutingNetwork, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(12, 6)
    return RoutingNetwork(BODIES[name](), Asking(*depths), 3, x), x


def everything(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in network.state_dict().items()}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("depths", [(0,), (1,), (2,), (0, 2)])
@pytest.mark.parametrize("name", BODIES)
def test_it_equals_a_whole_pass_with_those_actions(name, depths, training):
    network, x = made(name, *depths)
    network.train(training)
    twin = copy.deepcopy(network)
    torch.manual_seed(1)
    output, trace = network(x, TASKS)
    output.square().sum().backward()
    found = network.otherwise(trace)

    actions = trace.actions.clone()
    actions[:, list(depths)] = trace.alternatives[:, list(depths)]
    twin.router = FixedRoutes([actions[task == TASKS][0].tolist() for task in range(3)])
    twin.build(x)
    twin.train(training)
    torch.manual_seed(1)
    expected, _ = twin(x, TASKS)
    assert torch.equal(found, expected)
    assert not torch.equal(found, output)


@pytest.mark.parametrize("name", [name for name in BODIES if name != "recurrent"])  # which calls its layer twice
def test_a_gradient_reaches_the_blocks_of_the_alternatives_alone_and_is_that_of_a_whole_pass(name):
    network, x = made(name, 1)
    network.train()
    twin = copy.deepcopy(network)
    torch.manual_seed(1)
    _, trace = network(x, TASKS)
    network.otherwise(trace).square().mean().backward()
    tried = {
        f"body.{path}.blocks.blocks.{block}"
        for path, layer in network.body.named_modules()
        if layer is network.calls[1]
        for block in range(3)
    }
    twin.router = FixedRoutes([[task, (task + 1) % 3, *[task] * (len(network.calls) - 2)] for task in range(3)])
    twin.build(x)
    twin.train()
    torch.manual_seed(1)
    twin(x, TASKS)[0].square().mean().backward()
    expected = dict(twin.named_parameters())
    for path, parameter in network.named_parameters():
        assert parameter.requires_grad
        assert (parameter.grad is not None) == (path in tried)
        assert path not in tried or torch.allclose(parameter.grad, expected[path].grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", BODIES)
def test_without_a_gradient_it_leaves_nothing_behind(name):
    network, x = made(name, 1)
    network.train()
    output, trace = network(x, TASKS)
    output.square().sum().backward()
    active = [set(layer.blocks.active) for layer in network.layers]
    gradients = [None if p.grad is None else p.grad.clone() for p in network.parameters()]
    state, noise = everything(network), torch.get_rng_state()
    with torch.no_grad():
        found = network.otherwise(trace)
    assert not found.requires_grad
    assert all(torch.equal(value, state[key]) for key, value in network.state_dict().items())
    assert torch.equal(noise, torch.get_rng_state())
    assert [set(layer.blocks.active) for layer in network.layers] == active
    for parameter, gradient in zip(network.parameters(), gradients, strict=True):
        assert (parameter.grad is None) == (gradient is None)
        assert gradient is None or torch.equal(parameter.grad, gradient)


def test_convolutions_and_their_statistics_stay():
    for norm in ("shared", "block", "group", "none"):
        torch.manual_seed(0)
        body = RoutingAllLayers((3, 8, 8), 3, 4, filters=4, conv_layers=2, depth=2, hidden=8, norm=norm)
        network = RoutingNetwork(body, Asking(0), 3, torch.randn(1, 3, 8, 8)).train()
        images = torch.randn(12, 3, 8, 8)
        state = everything(network)
        _, trace = network(images, TASKS)
        moved = everything(network)
        assert norm in ("group", "none") or any(not torch.equal(moved[name], state[name]) for name in state)
        network.otherwise(trace).sum().backward()
        assert all(torch.equal(value, moved[name]) for name, value in network.state_dict().items())


def test_only_the_part_above_is_run():
    network, x = made("dropout and normalisation", 1)
    network.train()
    calls: list[int] = []
    for number, child in enumerate(network.body):
        child.register_forward_hook(lambda *_, number=number: calls.append(number))
    _, trace = network(x, TASKS)
    assert calls == list(range(7))
    calls.clear()
    network.otherwise(trace)
    assert calls == [4, 5, 6]


def test_it_can_be_asked_once_and_where_there_is_something_to_ask():
    network, x = made("layers", 1)
    _, trace = network(x, TASKS)
    network.otherwise(trace)
    with pytest.raises(UsageError, match="no alternatives"):
        network.otherwise(trace)
    fixed = RoutingNetwork(nn.Sequential(linear(6, 4)), FixedRoutes("own"), 3, x)
    with pytest.raises(UsageError, match="no alternatives"):
        fixed.otherwise(fixed(x, TASKS)[1])


@pytest.mark.parametrize("norm", ["shared", "block", "group", "none"])
def test_copied_blocks_give_the_same(norm):
    torch.manual_seed(0)
    blocks = ConvBlocks(4, 3, 5, norm=norm)
    x = torch.randn(6, 3, 8, 8)
    for _ in range(3):
        blocks(x, torch.full((6,), 2))
    blocks.copy_block(2, [0, 3])
    blocks.eval()
    outputs = [blocks(x, torch.full((6,), block)) for block in range(4)]
    assert torch.equal(outputs[0], outputs[2]) and torch.equal(outputs[3], outputs[2])
    assert not torch.equal(outputs[1], outputs[2])
