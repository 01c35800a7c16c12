"""RoutingNetwork: Algorithm 1 over any body, and what it refuses."""

import copy
import pickle
import threading

import pytest
import torch
from torch import nn

from routing_lightning.errors import UsageError
from routing_lightning.networks import Recurrent, RoutedLayer, RoutingAllFC, RoutingNetwork, replace_by_routed
from routing_lightning.nn import LinearBlocks, ModuleBlocks
from routing_lightning.routers import (
    REINFORCE,
    WPL,
    Decision,
    FixedRoutes,
    GumbelRouter,
    MLPPolicy,
    RewardRouter,
    Router,
    TabularPolicy,
    Top1Router,
)


def table() -> RewardRouter:
    return RewardRouter(TabularPolicy(), WPL())


def body() -> nn.Sequential:
    return nn.Sequential(RoutedLayer(LinearBlocks(4, 6, 5)), RoutedLayer(LinearBlocks(3, 5, 2, relu=False)))


def network(num_tasks=3, router=None) -> RoutingNetwork:
    return RoutingNetwork(body(), router or table(), num_tasks, torch.zeros(1, 6))


def uncertain(net: RoutingNetwork) -> RoutingNetwork:
    """Random policies, other routes for other tasks in evaluation."""
    for depth, count in enumerate(net.router.spec.num_actions):
        row = net.router.policy.table[:, depth, :count]
        row.copy_(torch.randn(row.shape).softmax(-1))
    return net


class Spy(Router):
    """Notes what it is asked; takes block 0, or what `choose` says."""

    def __init__(self, choose=lambda depth, count: torch.zeros(count, dtype=torch.long)) -> None:
        super().__init__()
        self.asked: list = []
        self.choose = choose

    def decide(self, trace, x, depth):
        self.asked.append((depth, x))
        return Decision(self.choose(depth, len(x)))


# -- what it computes --------------------------------------------------------------------------------------------------


def test_follows_the_trace_layer_by_layer():
    torch.manual_seed(0)
    net, x = network(), torch.randn(10, 6)
    y, trace = net(x, torch.randint(3, (10,)), explore=True)
    for n in range(10):
        row = x[n : n + 1]
        for depth, layer in enumerate(net.layers):
            row = layer.blocks(row, trace.actions[n : n + 1, depth])
        torch.testing.assert_close(y[n : n + 1], row)


def test_explores_in_training_alone():
    net, x, tasks = network(), torch.randn(300, 6), torch.zeros(300, dtype=torch.long)
    assert len(net.train()(x, tasks)[1].actions.unique(dim=0)) > 1
    assert len(net.eval()(x, tasks)[1].actions.unique(dim=0)) == 1


def test_evaluation_does_not_mark_blocks_as_active():
    net = network().eval()
    net(torch.randn(5, 6), torch.zeros(5, dtype=torch.long))
    assert not list(net.active_parameters())


class Reversed(nn.Module):
    """Calls its layers in another order than it holds them, with ordinary code in between."""

    def __init__(self) -> None:
        super().__init__()
        self.last = RoutedLayer(LinearBlocks(2, 5, 3, relu=False))
        self.norm = nn.LayerNorm(5)
        self.first = RoutedLayer(LinearBlocks(4, 6, 5))

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.first(x))))


def test_the_depths_are_the_calls_in_their_order():
    made = Reversed()
    net, x = RoutingNetwork(made, table(), 3, torch.zeros(1, 6)), torch.randn(20, 6)
    assert [layer is other for layer, other in zip(net.calls, [made.first, made.last], strict=True)] == [True, True]
    assert net.router.spec.num_blocks == [4, 2] and net.router.spec.state_sizes == [6, 5]
    y, trace = net(x, torch.randint(3, (20,)), explore=True)
    middle = torch.tanh(made.norm(made.first.blocks(x, trace.actions[:, 0])))
    assert torch.equal(y, made.last.blocks(middle, trace.actions[:, 1]))


def test_a_router_that_looks_sees_the_state_before_each_depth_and_its_actions_fill_the_trace():
    router = Spy(lambda depth, count: torch.arange(count) % (3 - depth))
    net = network(router=router).eval()
    x = torch.randn(7, 6)
    _, trace = net(x, torch.zeros(7, dtype=torch.long))
    assert [depth for depth, _ in router.asked] == [0, 1]
    assert torch.equal(router.asked[0][1], x)
    assert torch.equal(router.asked[1][1], net.layers[0].blocks(x, trace.actions[:, 0]))
    assert torch.equal(trace.actions, torch.stack([torch.arange(7) % 3, torch.arange(7) % 2], 1))


@pytest.mark.parametrize("kind", ["network", "table"])
def test_blocks_of_any_shape_are_routed(kind):
    """A router that looks at activations gets their sizes from the example: no block has to say them."""
    torch.manual_seed(0)
    parts = [RoutedLayer([nn.Conv2d(1, 4, 3), nn.Conv2d(1, 4, 3)]), nn.Flatten(), RoutedLayer([nn.Linear(16, 2)] * 2)]
    router = table() if kind == "table" else RewardRouter(MLPPolicy(4), REINFORCE())
    net = RoutingNetwork(nn.Sequential(*parts), router, 2, torch.zeros(1, 1, 4, 4))
    assert net.router.spec.state_sizes == [1, 16]
    y, trace = net(torch.randn(6, 1, 4, 4), torch.arange(6) % 2, explore=True)
    assert y.shape == (6, 2) and trace.actions.shape == (6, 2)


def test_an_empty_batch_gives_an_empty_output():
    for router in (table(), RewardRouter(MLPPolicy(4), REINFORCE())):
        y, trace = network(router=router)(torch.zeros(0, 6), torch.zeros(0, dtype=torch.long), explore=True)
        assert y.shape == (0, 2) and trace.actions.shape == (0, 2)


class Weighted(Spy):
    """Weighs the output of each depth."""

    def __init__(self, weights: list[torch.Tensor]) -> None:
        super().__init__()
        self.weights = weights

    def decide(self, trace, x, depth):
        return Decision(torch.zeros(len(x), dtype=torch.long), self.weights[depth])


@pytest.mark.parametrize("shape", [(6,), (3, 6), (6, 4, 4)])
def test_a_weight_multiplies_the_output_and_gets_its_gradient(shape):
    torch.manual_seed(0)
    part = nn.Conv2d(6, 5, 3) if len(shape) == 3 else nn.Linear(6, 5)
    weights = [torch.rand(8, requires_grad=True)]
    net = RoutingNetwork(RoutedLayer([part, copy.deepcopy(part)]), Weighted(weights), 1, torch.zeros(1, *shape))
    x, direction = torch.randn(8, *shape), torch.randn(8, *part(torch.zeros(1, *shape)).shape[1:])
    y, _ = net(x)
    alone = part(x).detach()
    torch.testing.assert_close(y, alone * weights[0].view(8, *[1] * (y.dim() - 1)))
    (y * direction).sum().backward()
    torch.testing.assert_close(weights[0].grad, (alone * direction).flatten(1).sum(1))


# -- the example -------------------------------------------------------------------------------------------------------


class Everything(nn.Module):
    """Dropout, statistics of the batch, a part in evaluation mode, and blocks that differ in all that."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.frozen = nn.BatchNorm1d(6).eval()
        self.drop = nn.Dropout(0.5)
        self.layer = RoutedLayer([nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)) for _ in range(3)])

    def forward(self, x):
        return self.layer(self.drop(self.frozen(self.norm(x))))


def test_the_example_leaves_weights_modes_and_noise_alone():
    made = Everything()
    before = copy.deepcopy(made.state_dict())
    modes = [module.training for module in made.modules()]
    example, noise = torch.ones(3, 6), torch.get_rng_state()
    net = RoutingNetwork(made, table(), 2, example)
    assert torch.equal(torch.get_rng_state(), noise)
    assert [module.training for module in made.modules()] == modes and False in modes and True in modes
    assert all(torch.equal(value, before[name]) for name, value in made.state_dict().items())
    assert all(parameter.grad is None for parameter in made.parameters())
    assert not list(net.active_parameters())


def test_modes_come_back_after_an_example_that_does_not_fit():
    made = Everything()
    with pytest.raises(UsageError):
        RoutingNetwork(made, table(), 2, torch.zeros(1, 7))
    assert made.training and not made.frozen.training and made.layer.training


def test_the_first_batch_is_the_example_where_there_was_none():
    net = RoutingNetwork(body(), table(), 3)
    assert net.calls == []
    y, trace = net(torch.randn(4, 6), torch.zeros(4, dtype=torch.long))
    assert y.shape == (4, 2) and trace.actions.shape == (4, 2) and net.router.spec.state_sizes == [6, 5]


def test_an_example_of_one_sample_is_enough_and_its_output_is_returned():
    net = RoutingNetwork(body(), table(), 3)
    assert net.build(torch.zeros(1, 6)).shape == (1, 2)


# -- passes do not share state -----------------------------------------------------------------------------------------


class Waiting(nn.Module):
    """Waits in the middle of a pass until the other thread is there too."""

    def __init__(self, inner: nn.Module, meet: threading.Barrier) -> None:
        super().__init__()
        self.inner, self.meet, self.on = inner, meet, False

    def forward(self, x):
        y = self.inner(x)
        if self.on:
            self.meet.wait(10)
        return y


@pytest.mark.parametrize("policy", [(TabularPolicy, WPL), (lambda: MLPPolicy(4), REINFORCE)], ids=["table", "network"])
def test_two_threads_in_one_network_get_what_each_alone_gets(policy):
    torch.manual_seed(0)
    first, last = RoutedLayer(LinearBlocks(4, 6, 5)), RoutedLayer(LinearBlocks(3, 5, 2))
    waiting = Waiting(first, threading.Barrier(2))
    router = RewardRouter(policy[0](), policy[1]())
    net = RoutingNetwork(nn.Sequential(waiting, last), router, 3, torch.zeros(1, 6))
    batches = [(torch.randn(count, 6), torch.randint(3, (count,))) for count in (5, 9)]

    def run(index: int):
        generator = torch.Generator().manual_seed(index)
        return net(*batches[index], explore=True, generator=generator)

    alone = [run(index) for index in (0, 1)]
    waiting.on = True
    for _ in range(5):
        together: dict = {}

        def keep(index: int, found: dict = together) -> None:
            found[index] = run(index)

        threads = [threading.Thread(target=keep, args=(index,)) for index in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for index in (0, 1):
            assert torch.equal(together[index][0], alone[index][0])
            assert torch.equal(together[index][1].actions, alone[index][1].actions)


class Around(nn.Module):
    """Routes, calls another routing network, which is no part of it, and routes again."""

    def __init__(self, inner: RoutingNetwork) -> None:
        super().__init__()
        self.layer = RoutedLayer(LinearBlocks(2, 6, 6))
        self.last = RoutedLayer(LinearBlocks(2, 2, 2))
        self.inner = [inner]

    def forward(self, x):
        return self.last(self.inner[0](self.layer(x), explore=False)[0])


def test_a_routing_network_may_be_called_inside_anothers_body():
    torch.manual_seed(0)
    inner = uncertain(network(1))
    made = Around(inner)
    outer = RoutingNetwork(made, table(), 2, torch.zeros(1, 6))
    assert outer.calls == [made.layer, made.last] and outer.router.spec.num_blocks == [2, 2]
    x, tasks = torch.randn(8, 6), torch.arange(8) % 2
    y, trace = outer(x, tasks, explore=True)
    middle, _ = inner(made.layer.blocks(x, trace.actions[:, 0]), explore=False)
    assert torch.equal(y, made.last.blocks(middle, trace.actions[:, 1]))


def test_a_routing_network_may_be_a_part_of_anothers_body():
    torch.manual_seed(0)
    inner = uncertain(network(1))
    made = Around(inner)
    made.part = inner
    outer = RoutingNetwork(made, table(), 2, torch.zeros(1, 6))
    assert outer.calls == [made.layer, made.last]


def test_the_pass_ends_also_when_the_body_fails():
    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.fail = RoutedLayer(LinearBlocks(2, 6, 6)), False

        def forward(self, x):
            y = self.layer(x)
            if self.fail:
                raise KeyError("broken")
            return y

    made = Failing()
    net = RoutingNetwork(made, table(), 1, torch.zeros(1, 6))
    made.fail = True
    with pytest.raises(KeyError):
        net(torch.zeros(3, 6))
    with pytest.raises(UsageError, match="outside a pass"):
        made.layer(torch.zeros(3, 6))
    made.fail = False
    assert net(torch.zeros(3, 6))[0].shape == (3, 6)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))], ids=["copy", "pickle"])
def test_copies_work_apart_from_the_original(copied):
    torch.manual_seed(0)
    layer = RoutedLayer(LinearBlocks(3, 5, 5), allow_pass=True)
    made = nn.Sequential(nn.Linear(6, 5), Recurrent(layer, 2), RoutedLayer(LinearBlocks(2, 5, 2)))
    net = uncertain(RoutingNetwork(made, table(), 4, torch.zeros(1, 6))).eval()
    other = copied(net)
    x, tasks = torch.randn(12, 6), torch.arange(12) % 4
    y, trace = net(x, tasks)
    assert torch.equal(other(x, tasks)[0], y) and torch.equal(other(x, tasks)[1].actions, trace.actions)
    assert all(copied is not ours for copied in other.layers for ours in net.layers)
    assert [any(call is layer for layer in other.layers) for call in other.calls] == [True] * 3
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    other.router.policy.table.zero_()
    assert torch.equal(net(x, tasks)[0], y) and not other(x, tasks)[0].any()
    other.train()(x, tasks)
    assert list(other.active_parameters()) and not list(net.active_parameters())


def test_state_dicts_name_each_layer_once():
    layer = RoutedLayer(LinearBlocks(2, 5, 5))
    net = RoutingNetwork(nn.Sequential(layer, nn.ReLU(), layer), table(), 1, torch.zeros(1, 5))
    names = [name for name, _ in net.named_parameters()]
    assert len(names) == 2 and all(name.startswith("body.0.") for name in names)


# -- what it refuses ---------------------------------------------------------------------------------------------------


def test_no_layer_and_no_task_are_refused():
    with pytest.raises(UsageError, match="Sequential holds no routed layer; give at least 1, or use route"):
        RoutingNetwork(nn.Sequential(nn.Linear(6, 2)), table(), 3)
    with pytest.raises(UsageError, match="num_tasks is 0"):
        network(0)


def refused(made: nn.Module, message: str, example=None) -> None:
    with pytest.raises(UsageError, match=message) as error:
        RoutingNetwork(made, table(), 2, torch.zeros(1, 6) if example is None else example)
    assert str(error.value).endswith(".") and "\n" not in str(error.value)


def test_a_block_that_cannot_take_the_activation_is_refused():
    blocks = [nn.Linear(6, 5), nn.Linear(7, 5)]
    refused(RoutedLayer(blocks), r"block 1 of the routed layer at depth 1 cannot take activations \('N', 6\)")
    second = nn.Sequential(RoutedLayer(LinearBlocks(2, 6, 5)), RoutedLayer(LinearBlocks(2, 6, 5)))
    refused(second, r"block 0 of the routed layer at depth 2 cannot take activations \('N', 5\)")


def test_blocks_whose_outputs_differ_are_refused():
    blocks = [nn.Linear(6, 5), nn.Linear(6, 5), nn.Linear(6, 4)]
    refused(RoutedLayer(blocks), r"blocks of the routed layer at depth 1 .* \(5,\) and, block 2, \(4,\)")


def test_pass_that_changes_sizes_is_refused():
    refused(RoutedLayer(LinearBlocks(2, 6, 5), allow_pass=True), r"PASS but its blocks map \(6,\) to \(5,\)")


def test_a_layer_that_is_not_called_is_refused():
    made = nn.Sequential(RoutedLayer(LinearBlocks(2, 6, 5)))
    made[0].spare = RoutedLayer(LinearBlocks(2, 6, 5))
    refused(made, "Sequential does not call its routed layers 0.spare with the example; remove")


def test_a_layer_inside_a_block_is_refused():
    inner = nn.Sequential(RoutedLayer(LinearBlocks(2, 6, 6)))
    refused(RoutedLayer([inner, nn.Linear(6, 6)]), "stands inside a block of another one")


class Moved(nn.Module):
    """Moves the batch to the second dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = RoutedLayer(LinearBlocks(2, 6, 6))

    def forward(self, x):
        return self.layer(x.transpose(0, 1)).transpose(0, 1)


@pytest.mark.parametrize("length", [1, 3])
def test_a_first_dimension_that_is_not_the_batch_is_refused(length):
    refused(Moved(), "for 2 samples; the first dimension must be the batch", torch.zeros(1, length, 6))


def test_a_first_dimension_that_is_not_the_batch_later_is_refused():
    class Later(Moved):
        moves = False

        def forward(self, x):
            return super().forward(x) if self.moves else self.layer(x)

    made = Later()
    net = RoutingNetwork(made, table(), 1, torch.zeros(1, 3, 6))
    made.moves = True
    with pytest.raises(UsageError, match=r"at depth 1 got activations \(3, 5, 6\) for 5 samples"):
        net(torch.zeros(5, 3, 6))


def test_an_example_that_does_not_fit_is_refused():
    made = nn.Sequential(nn.Linear(7, 6), RoutedLayer(LinearBlocks(2, 6, 5)))
    refused(made, r"Sequential cannot take an example of shape \(6,\) \(.*\); give inputs that fit")


def test_an_output_that_is_no_tensor_is_refused():
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = RoutedLayer(LinearBlocks(2, 6, 5))

        def forward(self, x):
            return self.layer(x), x

    refused(Pair(), "Pair gives a tuple; a routed network must give a tensor")


class Changing(nn.Module):
    """Calls two layers as `order` says."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([RoutedLayer(LinearBlocks(2, 6, 6)), RoutedLayer(LinearBlocks(2, 6, 6))])
        self.order = [0, 1]

    def forward(self, x):
        for index in self.order:
            x = self.layers[index](x)
        return x


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([1, 0], "the call number 1 of a routed layer is to another layer than with the example"),
        ([0, 0], "the call number 2 of a routed layer is to another layer"),
        ([0, 1, 1], "the call number 3 of a routed layer"),
        ([0], "the body called 1 routed layers but 2 with the example"),
        ([], "the body called 0 routed layers but 2 with the example"),
    ],
)
def test_other_calls_than_with_the_example_are_refused(order, message):
    made = Changing()
    net = RoutingNetwork(made, table(), 1, torch.zeros(1, 6))
    made.order = order
    with pytest.raises(UsageError, match=message):
        net(torch.zeros(3, 6))
    made.order = [0, 1]
    assert net(torch.zeros(3, 6))[0].shape == (3, 6)


@pytest.mark.parametrize(
    "choose", [lambda depth, count: torch.full((count,), 9), lambda depth, count: torch.ones(1).long()]
)
def test_actions_that_do_not_fit_are_refused(choose):
    net = network(router=Spy(choose))
    with pytest.raises(UsageError, match="a layer got"):
        net(torch.zeros(3, 6))


def test_a_router_that_does_not_decide_says_so():
    with pytest.raises(TypeError, match="router Router does not say how to decide"):
        network(router=Router())(torch.zeros(3, 6))


def test_module_blocks_may_be_given_as_they_are():
    assert isinstance(RoutedLayer([nn.Linear(2, 2)]).blocks, ModuleBlocks)


# -- what new users tried ----------------------------------------------------------------------------------------------


class Skip(nn.Module):
    """A block beside a connection that keeps its input."""

    def __init__(self, blocks) -> None:
        super().__init__()
        self.first, self.layer = nn.Linear(4, 6), RoutedLayer(blocks)

    def forward(self, x):
        y = self.first(x)
        return self.layer(y) + y


class Doubling(nn.Module):
    """Changes its input in place."""

    def forward(self, x):
        return x.mul_(2)


def test_blocks_that_work_in_place_give_the_same_whoever_shares_the_batch():
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.ReLU(inplace=True), nn.Dropout(0.0, inplace=True), nn.Linear(6, 6)) for _ in range(3)]
    net = RoutingNetwork(Skip(blocks), FixedRoutes("own"), 3, torch.zeros(1, 4))
    x = torch.randn(6, 4)
    net(x, torch.arange(6) % 3)[0].sum().backward()
    net.eval()
    with torch.no_grad():
        mixed = net(x, torch.arange(6) % 3)[0]
        for task in range(3):
            own = torch.arange(6) % 3 == task
            torch.testing.assert_close(mixed[own], net(x[own], torch.full((2,), task))[0])
            torch.testing.assert_close(mixed[own], net.specialise(task)(x[own]))
    refused(Skip([Doubling(), nn.Linear(6, 6)]), "block 0 of .* changes its input in place", torch.zeros(1, 4))


@pytest.mark.parametrize("length", [2, 3, 5])
def test_a_batch_that_is_not_the_first_dimension_is_refused_at_any_length(length):
    class Transposed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = RoutedLayer(LinearBlocks(2, 4, 4))

        def forward(self, x):
            return self.layer(x.transpose(0, 1)).mean(0)

    refused(Transposed(), "the first dimension must be the batch", torch.zeros(1, length, 4))


@pytest.mark.parametrize("router", [GumbelRouter, Top1Router, lambda: RewardRouter(MLPPolicy(4), REINFORCE())])
def test_activations_may_be_whole_numbers(router):
    body = nn.Sequential(RoutedLayer([nn.Embedding(10, 6), nn.Embedding(10, 6)]), nn.Flatten(), nn.Linear(30, 3))
    net = RoutingNetwork(body, router(), 2, torch.zeros(1, 5, dtype=torch.long))
    assert net(torch.randint(10, (4, 5)), torch.arange(4) % 2)[0].shape == (4, 3)


def test_parts_that_are_no_tensor_to_tensor_are_named():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    body = replace_by_routed(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), {"layers.0": 2})
    refused(body, "uses a routed layer as more than a module that takes one tensor and gives one", torch.zeros(1, 3, 8))
    refused(RoutedLayer([nn.LSTM(6, 6)]), "block 0 of .* gives a tuple; a block takes one tensor", torch.zeros(1, 3, 6))


def test_a_state_does_not_load_before_there_was_an_example():
    made = [RoutingNetwork(RoutedLayer(LinearBlocks(2, 6, 6)), table(), 2) for _ in range(2)]
    made[0].build(torch.zeros(1, 6))
    with pytest.raises(RuntimeError, match=r"seen no example yet, .* call build\(example\)"):
        made[1].load_state_dict(made[0].state_dict())
    made[1].build(torch.zeros(1, 6))
    made[1].load_state_dict(made[0].state_dict())


@pytest.mark.parametrize("tasks", [[0, 1], torch.zeros(2), torch.tensor([True, False]), torch.zeros(2, 1, dtype=int)])
def test_tasks_that_are_no_whole_numbers_are_refused(tasks):
    net = RoutingNetwork(RoutedLayer(LinearBlocks(2, 6, 6)), table(), 2, torch.zeros(1, 6))
    with pytest.raises(UsageError, match=r"give a tensor \(N,\) of whole numbers"):
        net(torch.zeros(2, 6), tasks)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RoutingNetwork(RoutedLayer([nn.ReLU()]), RewardRouter, 2), "router is .* give a Router"),
        (lambda: RoutingNetwork(RoutedLayer([nn.ReLU()]), table(), "4"), "num_tasks is '4'"),
        (lambda: RoutingNetwork(RoutedLayer([nn.ReLU()]), table(), True), "num_tasks is True"),
        (lambda: RewardRouter(TabularPolicy, WPL), "give a Policy and a Learner"),
        (lambda: RewardRouter(WPL(), TabularPolicy()), "give a Policy and a Learner"),
        (lambda: RoutedLayer(nn.Linear(2, 2)), "a routed layer got one Linear; give a set of blocks or several"),
        (lambda: RoutedLayer([1]), "a set of blocks got int; give torch modules"),
        (lambda: FixedRoutes(None), "routes of FixedRoutes is None"),
        (lambda: RoutingAllFC((3, 8, 8), 2, 2, num_blocks="3"), "num_blocks is '3'; give a whole number"),
        (lambda: RoutingAllFC((3, 8, 8), 2, 2, num_blocks=1.5), "num_blocks is 1.5"),
        (lambda: RoutingAllFC((3, 8, 8), 2, 2, num_blocks=True), "num_blocks is True"),
        (lambda: table().routes(), "serves no network yet"),
        (lambda: RoutingNetwork(RoutingNetwork(RoutedLayer([nn.ReLU()]), table(), 2), table(), 2), "give its body"),
    ],
)
def test_values_of_the_wrong_kind_are_told_in_a_sentence(make, message):
    with pytest.raises(UsageError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


def test_learning_without_a_reward_is_told():
    net = RoutingNetwork(RoutedLayer(LinearBlocks(2, 6, 6)), table(), 2, torch.zeros(1, 6))
    _, trace = net(torch.zeros(2, 6), torch.arange(2))
    with pytest.raises(UsageError, match=r"the trace has final_reward None; set it to one reward per sample, \(2,\)"):
        net.router.learn(trace)
