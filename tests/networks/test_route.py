"""route(): named parts of networks of others become routed layers."""

import copy

import pytest
import torch
from torch import nn
from torchvision.models import resnet18

from routing_lightning.errors import UsageError
from routing_lightning.networks import RoutedLayer, replace_by_routed, route
from routing_lightning.nn import LinearBlocks, ModuleBlocks
from routing_lightning.routers import REINFORCE, WPL, FixedRoutes, GumbelRouter, MLPPolicy, RewardRouter, TabularPolicy

IMAGES = torch.zeros(1, 3, 32, 32)


def table() -> RewardRouter:
    return RewardRouter(TabularPolicy(), WPL())


def resnet() -> nn.Module:
    torch.manual_seed(0)
    return resnet18(num_classes=5)


def transformer(**options) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=12, batch_first=True, **{"dropout": 0.0, **options})
    return nn.TransformerEncoder(layer, 2)


FEED_FORWARD = {f"layers.{layer}.{name}": 3 for layer in (0, 1) for name in ("linear1", "linear2")}


def parameters_of(net, depth: int) -> list[list[torch.Tensor]]:
    blocks = net.layers[depth].blocks
    return [list(blocks.block_parameters(block)) for block in range(blocks.num_blocks)]


def same(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


# -- a ResNet ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("router", [table, lambda: RewardRouter(MLPPolicy(4), REINFORCE()), GumbelRouter])
def test_a_resnet_routes_through_its_last_stage_and_its_classes(router):
    net = route(resnet(), {"layer4": 2, "fc": 3}, router(), num_tasks=3, example=IMAGES)
    assert net.router.spec.num_blocks == [2, 3] and net.router.spec.state_sizes == [256, 512]
    # As many samples as it takes for the last stage, whose pictures are one pixel, to have statistics in each block.
    y, trace = net.train()(torch.randn(16, 3, 32, 32), torch.arange(16) % 3, generator=torch.Generator().manual_seed(0))
    assert y.shape == (16, 5) and trace.actions.shape == (16, 2)
    y.square().sum().backward()
    for depth, layer in enumerate(net.layers):
        used = set(trace.actions[:, depth].tolist())
        assert layer.blocks.active == used
        for block in range(layer.blocks.num_blocks):
            given = [parameter.grad is not None for parameter in layer.blocks.block_parameters(block)]
            assert given == [block in used] * len(given)
    assert net.body.conv1.weight.grad.any()


def test_copied_blocks_equal_the_resnets_parts_and_give_its_outputs():
    made = resnet()
    original = copy.deepcopy(made).eval()
    net = route(made, {"layer4": 2, "fc": 3}, table(), num_tasks=3, example=IMAGES, init="copy").eval()
    for block in parameters_of(net, 0):
        assert same(block, list(original.layer4.parameters()))
    for block in range(3):
        weight, bias = net.layers[1].blocks.linear(block)
        assert torch.equal(weight, original.fc.weight) and torch.equal(bias, original.fc.bias)
    x = torch.randn(5, 3, 32, 32)
    y, trace = net(x, torch.tensor([0, 1, 2, 0, 1]), explore=True)
    assert len(trace.actions.unique(dim=0)) > 1
    torch.testing.assert_close(y, original(x), rtol=1e-4, atol=1e-5)


def test_fresh_blocks_differ_and_the_rest_stays():
    made = resnet()
    original = copy.deepcopy(made)
    net = route(made, {"layer4": 3, "fc": 3}, table(), num_tasks=3, example=IMAGES)
    assert net.body is made
    blocks = [list(layer.blocks.block_parameters(k)) for layer in net.layers[:1] for k in range(3)]
    fresh = [list(original.layer4.parameters()), *blocks]
    for index, ours in enumerate(fresh):
        for theirs in fresh[:index]:
            different = [not torch.equal(one, other) for one, other in zip(ours, theirs, strict=True) if one.dim() > 1]
            assert all(different)
    weights = [original.fc.weight, *(net.layers[1].blocks.linear(k)[0] for k in range(3))]
    assert all(not torch.equal(weights[i], weights[j]) for i in range(4) for j in range(i))
    for name, parameter in original.named_parameters():
        if not name.startswith(("layer4", "fc")):
            assert torch.equal(parameter, made.get_parameter(name))


# -- a transformer -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("grad", [True, False])
def test_copied_feed_forward_parts_give_the_transformers_outputs(training, grad):
    """Also in evaluation without gradients, where an encoder would take its fast path."""
    made = transformer()
    original = copy.deepcopy(made).train(training)
    net = route(made, FEED_FORWARD, table(), num_tasks=3, example=torch.zeros(1, 7, 8), init="copy").train(training)
    assert net.router.spec.num_blocks == [3] * 4 and net.router.spec.state_sizes == [8, 12, 8, 12]
    x, tasks = torch.randn(6, 7, 8), torch.arange(6) % 3
    with torch.set_grad_enabled(grad):
        y, trace = net(x, tasks, explore=True)
        torch.testing.assert_close(y, original(x), rtol=1e-4, atol=1e-5)
    assert trace.actions.shape == (6, 4) and len(trace.actions.unique()) == 3


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_fresh_feed_forward_parts_follow_the_trace(activation):
    made = transformer(activation=activation, norm_first=True)
    net = route(made, FEED_FORWARD, table(), num_tasks=3, example=torch.zeros(1, 7, 8)).eval()
    x, tasks = torch.randn(6, 7, 8), torch.arange(6) % 3
    with torch.no_grad():
        y, trace = net(x, tasks, explore=True)
        for n in range(6):
            alone = transformer(activation=activation, norm_first=True).eval()
            for name, depth in (("0", 0), ("1", 2)):
                for part, offset in (("linear1", 0), ("linear2", 1)):
                    call = net.layers[depth + offset].blocks
                    own = getattr(alone.layers[int(name)], part)
                    weight, bias = call.linear(int(trace.actions[n, depth + offset]))
                    own.weight.copy_(weight)
                    own.bias.copy_(bias)
            torch.testing.assert_close(y[n : n + 1], alone(x[n : n + 1]), rtol=1e-4, atol=1e-5)


def test_a_transformer_may_be_masked():
    """A padding mask in evaluation is the other way to the fast path."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = transformer()

        def forward(self, x):
            mask = torch.zeros(x.shape[:2], dtype=torch.bool)
            mask[:, -2:] = True
            return self.encoder(x, src_key_padding_mask=mask)[:, :-2]

    made = Masked()
    original = copy.deepcopy(made).eval()
    names = {f"encoder.{name}": count for name, count in FEED_FORWARD.items()}
    net = route(made, names, table(), num_tasks=1, example=torch.zeros(1, 7, 8), init="copy").eval()
    x = torch.randn(4, 7, 8)
    with torch.no_grad():
        torch.testing.assert_close(net(x)[0], original(x)[:, :5], rtol=1e-4, atol=1e-5)


def test_one_task_of_a_routed_transformer():
    net = route(transformer(), FEED_FORWARD, FixedRoutes(seed=1), num_tasks=3, example=torch.zeros(1, 7, 8)).eval()
    x = torch.randn(4, 7, 8)
    with torch.no_grad():
        for task in range(3):
            one = net.specialise(task)
            assert torch.equal(one(x), net(x, torch.full((4,), task))[0])


# -- any module --------------------------------------------------------------------------------------------------------


def sequential() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4, bias=False), nn.Sequential(nn.Linear(4, 2)))


def test_parts_become_the_blocks_that_serve_them_best():
    net = route(sequential(), {"0": 2, "2": 3, "3": 2}, table(), num_tasks=2, example=torch.zeros(1, 6))
    kinds = [type(layer.blocks) for layer in net.layers]
    assert kinds == [LinearBlocks, ModuleBlocks, ModuleBlocks]  # without a bias, and a module of several
    assert not net.layers[0].blocks.relu and [layer.blocks.num_blocks for layer in net.layers] == [2, 3, 2]


def test_parts_inside_parts_have_names_with_dots():
    made = sequential()
    original = copy.deepcopy(made)
    net = route(made, {"3.0": 2}, table(), num_tasks=2, example=torch.zeros(1, 6), init="copy").eval()
    assert isinstance(made[3][0], RoutedLayer)
    x = torch.randn(8, 6)
    torch.testing.assert_close(net(x, torch.arange(8) % 2)[0], original(x))


def test_without_an_example_the_first_batch_is_it():
    net = route(sequential(), {"0": 2}, table(), num_tasks=2)
    assert net(torch.randn(8, 6), torch.arange(8) % 2)[0].shape == (8, 2)


def test_replacing_gives_the_network_itself():
    made = sequential()
    assert replace_by_routed(made, {"0": 2}) is made and isinstance(made[0], RoutedLayer)


@pytest.mark.parametrize("init", ["fresh", "copy"])
@pytest.mark.parametrize("kind", [torch.float64, torch.device("meta")])
def test_precision_and_device_of_the_parts_stay(kind, init):
    made = replace_by_routed(sequential().to(kind), {"0": 2, "2": 2}, init=init)
    assert len({(parameter.dtype, parameter.device) for parameter in made.parameters()}) == 1


# -- what it refuses ---------------------------------------------------------------------------------------------------


class Bare(nn.Module):
    """Has a parameter and does not say how it is drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x):
        return x * self.scale


@pytest.mark.parametrize(
    ("layers", "options", "message"),
    [
        ({"7": 2}, {}, "Sequential has no part '7' to route; give names such as 0, 1, 2, 3"),
        ({"": 2}, {}, "Sequential has no part ''"),
        ({"3": 2, "3.0": 2}, {}, r"layers names both 3 and 3\.0, which lies within it; give one of the two"),
        ({"3.0": 2, "3": 2}, {}, r"layers names both 3 and 3\.0"),
        ({"0": 0}, {}, "layers gives 0 0 blocks; give a whole number, at least 1"),
        ({"0": -1}, {}, "layers gives 0 -1 blocks; give a whole number, at least 1"),
        ({"0": 2}, {"init": "zeros"}, "init is 'zeros'; give 'fresh' or 'copy'"),
        ({}, {}, "Sequential holds no routed layer; give at least 1"),
    ],
)
def test_what_cannot_be_routed_is_refused(layers, options, message):
    with pytest.raises(UsageError, match=message) as error:
        route(sequential(), layers, table(), num_tasks=2, example=torch.zeros(1, 6), **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("layers", [{"0": 2, "7": 2}, {"0": 2, "2": 0}, {"3": 2, "3.0": 2}])
def test_what_is_refused_leaves_the_network_as_it_was(layers):
    made = sequential()
    with pytest.raises(UsageError):
        route(made, layers, table(), num_tasks=2)
    assert not any(isinstance(module, RoutedLayer) for module in made.modules())


def test_weights_that_cannot_be_drawn_anew_are_refused_unless_copied():
    with pytest.raises(UsageError, match="0 holds a Bare, which has no reset_parameters .* set init to 'copy'"):
        replace_by_routed(nn.Sequential(Bare()), {"0": 2})
    assert isinstance(replace_by_routed(nn.Sequential(Bare()), {"0": 2}, "copy")[0], RoutedLayer)
