import pytest
import torch
from torch import nn

from routing_lightning.errors import UsageError
from routing_lightning.networks import CrossStitch, RoutedLayer, RoutingAllFC, RoutingAllLayers, RoutingNetwork
from routing_lightning.nn import LinearBlocks
from routing_lightning.routers import BranchingRouter, FixedRoutes

F, T, C, H = 7, 4, 3, 5
IMAGES = torch.randn(12, 1, 8, 8, generator=torch.Generator().manual_seed(0))
TASKS = torch.arange(12) % T
BODIES = {
    "fc": lambda: RoutingAllFC((1, 8, 8), T, C, lambda _: flat(), hidden=H),
    "all layers": lambda: RoutingAllLayers((1, 8, 8), T, C, filters=4, conv_layers=2, hidden=H),
    "recurrent": lambda: RoutingAllFC(
        (1, 8, 8), T, C, lambda _: flat(), hidden=H, recurrent_steps=2, allow_pass=True, num_blocks=[4, 4, 4]
    ),
}
SOME_SHARE = [[0, 0, 1, 2], [0, 0, 1, 2], [1, 0, 4, 2], [2, 3, 1, 0]]  # two tasks with one route, one PASS
ROUTES = {"own": "own", "random": "random", "shared": "shared", "some share": SOME_SHARE}


def flat() -> nn.Module:
    features = nn.Flatten()
    features.out_features = 64
    return features


def network(body: str = "fc", routes: object = "own", stitch: bool = True) -> RoutingNetwork:
    torch.manual_seed(0)
    return RoutingNetwork(BODIES[body](), FixedRoutes(routes, seed=1, stitch=stitch), T, IMAGES).eval()


def mixed(made: RoutingNetwork) -> RoutingNetwork:
    for mixing in made.stitches.mixing:
        nn.init.normal_(mixing)
    return made


CASES = [*((body, "own") for body in BODIES), *(("fc", routes) for routes in ("random", "shared"))]
CASES.append(("recurrent", "some share"))


@pytest.mark.parametrize(("body", "routes"), CASES)
@torch.no_grad()
def test_a_network_begins_as_it_was_without(body, routes):
    plain, trace = network(body, ROUTES[routes], stitch=False)(IMAGES, TASKS)
    stitched, same = network(body, ROUTES[routes])(IMAGES, TASKS)
    torch.testing.assert_close(stitched, plain)
    assert torch.equal(trace.actions, same.actions)


def test_private_routes_are_a_cross_stitch_network():
    layers = [RoutedLayer(LinearBlocks(T, *sizes)) for sizes in ((F, H), (H, H), (H, C, False))]
    x = torch.randn(12, F)
    routed = mixed(RoutingNetwork(nn.Sequential(*layers), FixedRoutes("own", stitch=True), T, x))
    known = CrossStitch(F, T, C, hidden=H, own_share=1.0)
    for layer, tower in zip(layers, known.towers, strict=True):
        for task in range(T):
            weight, bias = layer.blocks.linear(task)
            tower.weight.data[task], tower.bias.data[task, 0] = weight.t(), bias
    for ours, theirs in zip(routed.stitches.mixing, known.mixing[1:], strict=True):
        theirs.data.copy_(ours)
    ours, theirs = routed(x, TASKS)[0], known(x, TASKS)
    torch.testing.assert_close(ours, theirs)
    ours.square().sum().backward()
    theirs.square().sum().backward()
    for mine, yours in zip(routed.stitches.mixing, known.mixing[1:], strict=True):
        torch.testing.assert_close(mine.grad, yours.grad)
    for layer, tower in zip(layers, known.towers, strict=True):
        for task in range(T):
            torch.testing.assert_close(layer.blocks.blocks[task].grad[:-1], tower.weight.grad[task])


@pytest.mark.parametrize(("body", "routes"), CASES)
@torch.no_grad()
def test_the_network_of_a_task_gives_what_the_whole_one_gives(body, routes):
    whole = mixed(network(body, ROUTES[routes]))
    output = whole(IMAGES, TASKS)[0]
    assert not torch.allclose(output, network(body, ROUTES[routes])(IMAGES, TASKS)[0])
    for task in range(T):
        own = task == TASKS
        torch.testing.assert_close(whole.specialise(task)(IMAGES[own]), output[own])


@torch.no_grad()
def test_tasks_with_one_route_have_one_tower():
    whole = mixed(network("recurrent", SOME_SHARE))
    firsts, own = whole.stitches.towers(whole.router.routes())
    assert sorted(firsts.tolist()) == [0, 2, 3] and own[0] == own[1] and len(own.unique()) == 3
    output = whole(IMAGES, torch.zeros(12, dtype=torch.long))[0]
    torch.testing.assert_close(whole(IMAGES, torch.ones(12, dtype=torch.long))[0], output)
    for mixing in whole.stitches.mixing:  # which row and column nobody reads
        mixing[1], mixing[:, 1] = torch.nan, torch.nan
    torch.testing.assert_close(whole(IMAGES, torch.zeros(12, dtype=torch.long))[0], output)


@torch.no_grad()
@pytest.mark.parametrize("body", BODIES)
def test_a_sample_gets_the_same_alone_and_in_any_batch(body):
    whole = mixed(network(body))
    output = whole(IMAGES, TASKS)[0]
    for number in (0, 7):
        one = slice(number, number + 1)
        torch.testing.assert_close(whole(IMAGES[one], TASKS[one])[0], output[one])
    assert whole(IMAGES[:0], TASKS[:0])[0].shape == (0, C)


def test_nothing_is_mixed_while_a_search_goes_on():
    torch.manual_seed(0)
    router = BranchingRouter(begin=0, stage=1, settle=0, shortest=0, stitch=True)
    whole = RoutingNetwork(BODIES["fc"](), router, T, IMAGES)
    mixing = list(whole.stitches.mixing)
    for _ in range(12):
        searching = not router.is_over
        output, trace = whole(IMAGES, TASKS)
        output.square().sum().backward()
        assert all((each.grad is None) == searching for each in mixing)
        trace.final_reward = torch.randn(12)
        if trace.alternatives is not None:
            trace.alternative_reward = torch.randn(12)
        router.learn(trace)
    assert router.is_over


def test_only_the_towers_cost_more():
    rows = []
    whole = mixed(network("all layers"))
    for layer in whole.calls:
        layer.blocks.register_forward_hook(lambda _, inputs, __: rows.append(len(inputs[0])))
    whole(IMAGES, TASKS)
    assert rows == [12, 12, 12 * T, 12 * T, 12]


@pytest.mark.parametrize(
    "body",
    [
        nn.Sequential(nn.Flatten(), RoutedLayer(LinearBlocks(T, 64, C))),
        nn.Sequential(*(RoutedLayer(LinearBlocks(T, 8, 8)) for _ in range(2)), nn.Flatten()),
    ],
    ids=["one layer", "pictures"],
)
def test_what_cannot_be_stitched_is_refused(body: nn.Module):
    with pytest.raises(UsageError, match="stitch .* does not end with two routed layers that take vectors"):
        RoutingNetwork(body, FixedRoutes(stitch=True), T, IMAGES)
