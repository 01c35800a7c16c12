"""specialise(task): the network of one task equals the routing network on the task's samples."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torchvision.models.resnet import BasicBlock

from routing_lightning.errors import UsageError
from routing_lightning.networks import Recurrent, RoutedLayer, RoutingAllFC, RoutingNetwork, SimpleConvNet, route
from routing_lightning.nn import Blocks, LinearBlocks, ModuleBlocks
from routing_lightning.routers import (
    REINFORCE,
    WPL,
    BranchingRouter,
    Decision,
    FixedRoutes,
    GumbelRouter,
    MLPPolicy,
    QLearning,
    RewardRouter,
    Router,
    TabularPolicy,
    Top1Router,
)

TASKS = 4


def random_table(router: Router) -> None:
    """Another route for each task."""
    if isinstance(router, BranchingRouter):
        for counted in (router.opened, router.closed):
            counted.fill_(len(router.depths))
        router.routes_so_far.random_(router.candidates)
    if isinstance(router, RewardRouter):
        for decider in router.deciders():
            for depth, count in enumerate(decider.policy.num_actions.tolist()):
                row = decider.policy.table.data[:, depth, :count]
                row.copy_(torch.randn(row.shape).softmax(-1))


ROUTERS = {
    "table": lambda: RewardRouter(TabularPolicy(), WPL()),
    "values": lambda: RewardRouter(TabularPolicy(), QLearning()),
    "logits": lambda: RewardRouter(TabularPolicy(), REINFORCE()),
    "single": lambda: RewardRouter(TabularPolicy(), WPL(), agents="single"),
    "dispatched": lambda: RewardRouter(TabularPolicy(), WPL(), agents="dispatched"),
    "fixed": lambda: FixedRoutes(seed=3),
    "own": lambda: FixedRoutes("own"),
    "branching": lambda: BranchingRouter(candidates=3),
}

ALL_FC = partial(RoutingAllFC, (1, 8, 8), TASKS, 2, hidden=8, features=partial(SimpleConvNet, filters=4, num_layers=2))


def part() -> nn.Module:
    return nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())


def modules() -> nn.Sequential:
    """Blocks that are modules, with PASS in a recurrent layer; statistics of the batch inside."""
    return nn.Sequential(
        RoutedLayer([nn.Conv2d(1, 4, 3, stride=2, padding=1) for _ in range(3)]),
        Recurrent(RoutedLayer([part() for _ in range(3)], allow_pass=True), 3),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(64, 2),
    )


BODIES = {
    "layered": ALL_FC,
    "recurrent": partial(ALL_FC, recurrent_steps=2),
    "recurrent with PASS": partial(ALL_FC, recurrent_steps=3, allow_pass=True),
    "modules": modules,
}


def network(body: nn.Module, router: Router) -> RoutingNetwork:
    net = RoutingNetwork(body, router, TASKS, torch.zeros(1, 1, 8, 8))
    random_table(net.router)
    with torch.no_grad():  # statistics and weights as after some training
        for _ in range(3):
            net.train()(torch.randn(16, 1, 8, 8), torch.arange(16) % TASKS)
    return net.eval()


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("body", BODIES)
def test_it_gives_what_the_routing_network_gives(body, router):
    """To the bit; with gradients routed linear blocks may add up in another order than nn.Linear does."""
    torch.manual_seed(0)
    net = network(BODIES[body](), ROUTERS[router]())
    for task in range(TASKS):
        x, tasks = torch.randn(9, 1, 8, 8), torch.full((9,), task)
        one = net.specialise(task)
        with torch.no_grad():
            assert torch.equal(one(x), net(x, tasks)[0])
        close(one(x), net(x, tasks)[0])
        assert not any(isinstance(module, (Router, RoutedLayer, Blocks, RoutingNetwork)) for module in one.modules())
        assert not one.training


@pytest.mark.parametrize("body", BODIES)
def test_it_holds_the_tasks_own_blocks_alone(body):
    torch.manual_seed(0)
    net = network(BODIES[body](), FixedRoutes("own"))
    count = sum(parameter.numel() for parameter in net.body.parameters())
    blocks = sum(parameter.numel() for parameter in net.block_parameters())
    of_block = [sum(p.numel() for p in layer.blocks.block_parameters(1)) for layer in net.calls]
    one = net.specialise(1)
    held = sum(parameter.numel() for parameter in copy.deepcopy(one).parameters())
    assert held == count - blocks + sum(of_block)


def test_pass_takes_no_block():
    torch.manual_seed(0)
    layer = RoutedLayer(LinearBlocks(2, 5, 5), allow_pass=True)
    net = RoutingNetwork(Recurrent(layer, 2), FixedRoutes([[2, 2], [2, 1]]), 2, torch.zeros(1, 5)).eval()
    x = torch.randn(3, 5)
    assert torch.equal(net.specialise(0)(x), x) and not list(net.specialise(0).parameters())
    close(net.specialise(1)(x), layer.blocks(x, torch.ones(3).long()))


def test_changing_the_copy_does_not_change_the_original():
    torch.manual_seed(0)
    net = network(ALL_FC(), FixedRoutes("own"))
    before = copy.deepcopy(net.state_dict())
    x, tasks = torch.randn(5, 1, 8, 8), torch.full((5,), 2)
    y = net(x, tasks)[0]
    one = net.specialise(2)
    for parameter in one.parameters():
        parameter.data.zero_()
    one.train()(x)
    assert torch.equal(net(x, tasks)[0], y) and y.any()
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert [isinstance(layer, RoutedLayer) for layer in net.calls] == [True] * 3
    other = net.specialise(2)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    assert other(x).any()


def test_making_it_leaves_the_original_alone():
    net = network(ALL_FC(), ROUTERS["dispatched"]()).train()
    before = copy.deepcopy(net.state_dict())
    net.specialise(1)
    assert net.training and net.body[0].training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_making_it_draws_no_noise():
    net = network(ALL_FC(), FixedRoutes())
    noise = torch.get_rng_state()
    net.specialise(1)
    assert torch.equal(torch.get_rng_state(), noise)


def test_a_body_that_is_a_routed_layer_becomes_its_block():
    net = RoutingNetwork(RoutedLayer(LinearBlocks(3, 4, 2, relu=False)), FixedRoutes("own"), 3, torch.zeros(1, 4))
    one = net.specialise(2)
    assert type(one) is nn.Linear and torch.equal(one.weight, net.layers[0].blocks.linear(2)[0])


class Halving(FixedRoutes):
    """Weighs each output with 1 / (2 + depth)."""

    def decide(self, trace, x, depth):
        return Decision(trace.actions[:, depth], torch.full((len(trace.tasks),), 1 / (2 + depth)))


def test_the_weights_of_a_router_stay():
    torch.manual_seed(0)
    net = network(modules(), Halving("own"))
    x = torch.randn(6, 1, 8, 8)
    for task in range(TASKS):
        assert torch.equal(net.specialise(task)(x), net(x, torch.full((6,), task))[0])


class Shortcut(nn.Module):
    """A part that stands under two names, and one that is None."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = RoutedLayer(LinearBlocks(2, 4, 4))
        self.inner = nn.Sequential(nn.ReLU(), self.layer)
        self.nothing = None

    def forward(self, x):
        return self.inner(x)


def test_a_layer_under_two_names_is_replaced_under_both():
    torch.manual_seed(0)
    net, x = RoutingNetwork(Shortcut(), FixedRoutes("own"), 2, torch.zeros(1, 4)).eval(), torch.randn(3, 4)
    one = net.specialise(1)
    assert not any(isinstance(module, RoutedLayer) for module in one.modules())
    close(one(x), net(x, torch.ones(3).long())[0])


class Stage(nn.Module):
    """A part with a residual connection."""

    def __init__(self, planes: int) -> None:
        super().__init__()
        self.block = BasicBlock(planes, planes)
        self.after = nn.AdaptiveAvgPool2d(1)

    def forward(self, x):
        return self.after(self.block(x)).flatten(1)


@pytest.mark.parametrize("init", ["fresh", "copy"])
def test_parts_of_a_resnet(init):
    torch.manual_seed(0)
    made = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), Stage(4), nn.Linear(4, 3))
    example = torch.zeros(1, 1, 8, 8)
    net = route(made, {"1.block": 3, "2": 2}, FixedRoutes(seed=1), num_tasks=TASKS, example=example, init=init)
    assert isinstance(net.layers[0].blocks, ModuleBlocks) and isinstance(net.layers[1].blocks, LinearBlocks)
    net.train()(torch.randn(16, 1, 8, 8), torch.arange(16) % TASKS)
    net.eval()
    for task in range(TASKS):
        x = torch.randn(7, 1, 8, 8)
        with torch.no_grad():
            assert torch.equal(net.specialise(task)(x), net(x, torch.full((7,), task))[0])
        assert isinstance(net.specialise(task)[1].block, BasicBlock)


# -- what it refuses ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "router",
    [
        lambda: RewardRouter(MLPPolicy(4), REINFORCE()),
        lambda: RewardRouter(MLPPolicy(4), REINFORCE(), agents="dispatched"),
        GumbelRouter,
        Top1Router,
    ],
    ids=["network", "dispatched", "gumbel", "top1"],
)
def test_routers_that_look_at_activations_are_refused(router):
    net = RoutingNetwork(ALL_FC(), router(), TASKS, torch.zeros(1, 1, 8, 8))
    with pytest.raises(UsageError, match="looks at activations, so a task has no one route"):
        net.specialise(0)


@pytest.mark.parametrize("task", [-1, TASKS])
def test_a_task_that_is_none_is_refused(task):
    with pytest.raises(UsageError, match=f"task is {task}; give 0..3"):
        network(ALL_FC(), FixedRoutes()).specialise(task)


def test_without_an_example_it_is_refused():
    with pytest.raises(UsageError, match="has seen no example yet"):
        RoutingNetwork(ALL_FC(), FixedRoutes(), TASKS).specialise(0)


def test_a_layer_that_the_bodys_own_code_calls_twice_is_refused():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = RoutedLayer(LinearBlocks(2, 4, 4))

        def forward(self, x):
            return self.layer(self.layer(x))

    net = RoutingNetwork(Twice(), FixedRoutes("own"), 2, torch.zeros(1, 4))
    with pytest.raises(UsageError, match="a routed layer is called 2 times .* put it into Recurrent"):
        net.specialise(1)
