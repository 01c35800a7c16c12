import pytest
import torch
from torch import nn
from torch.nn.functional import linear, relu

from routing_lightning.errors import UsageError
from routing_lightning.networks import RoutingNetwork
from routing_lightning.networks.paper import routed_fc
from routing_lightning.routers import GumbelRouter, RoutingSpec

F, T, C, H, D, N = 7, 4, 3, 5, 3, 12


def batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(N, F, generator=generator), torch.randint(T, (N,), generator=generator)


def routed(num_tasks: int = T, num_classes: int = C, temperature: float = 1.0, **options) -> RoutingNetwork:
    body = nn.Sequential(*routed_fc(F, num_tasks, num_classes, **options))
    return RoutingNetwork(body, GumbelRouter(temperature), num_tasks, torch.zeros(1, F))


def test_in_evaluation_a_sample_takes_the_block_of_the_highest_score() -> None:
    network = routed(hidden=H).eval()
    x, tasks = batch()
    found, trace = network(x, tasks)
    for v, task, actions, logits in zip(x, tasks, trace.actions, found, strict=True):
        for depth in range(D):
            a = int(network.router.scores[depth](v[None], task[None]).argmax())
            assert a == actions[depth]
            v = linear(v, *network.layers[depth].blocks.linear(a))
            v = relu(v) if depth < D - 1 else v
        torch.testing.assert_close(logits, v)


def test_in_training_the_output_is_exactly_that_of_hard_blocks() -> None:
    torch.manual_seed(0)
    network = routed(depth=1)
    x, tasks = batch()
    layer = network.layers[0].blocks
    every = torch.stack([layer(x, torch.full((N,), k)) for k in range(T)])  # (K, N, C)
    output, trace = network(x, tasks)
    assert ((every - output).abs().amax(2) < 1e-6).any(0).all()
    assert torch.equal(output, layer(x, trace.actions[:, 0]))


def test_a_block_is_drawn_with_the_softmax_probability_of_its_score() -> None:
    torch.manual_seed(0)
    network = routed(1, 2, depth=1, num_blocks=3)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        network.router.scores[0].out.bias.copy_(torch.tensor([0.5, 0.3, 0.2]).log())
        for k in range(3):
            network.layers[0].blocks.linear(k)[1].fill_(k)
        drawn = network(torch.zeros(40_000, F), torch.zeros(40_000, dtype=torch.long))[0][:, 0]
    shares = drawn.round().long().bincount(minlength=3) / 40_000
    torch.testing.assert_close(shares, torch.tensor([0.5, 0.3, 0.2]), atol=0.01, rtol=0)


def test_gradient_of_the_router_is_that_of_the_chosen_share() -> None:
    network = routed(depth=1, temperature=0.7)
    x, tasks = batch()
    direction = torch.randn(N, C)
    torch.manual_seed(4)
    (network(x, tasks)[0] * direction).sum().backward()
    bias = network.router.scores[0].out.bias
    found = bias.grad.clone()

    torch.manual_seed(4)
    scores = network.router.scores[0](x, tasks)
    noisy = (scores - torch.empty(N, T).exponential_().log()).detach()
    g = (noisy / 0.7).softmax(1)
    expected = torch.zeros(T)
    for n in range(N):
        a = int(noisy[n].argmax())
        inner = direction[n] @ linear(x[n], *network.layers[0].blocks.linear(a))
        for k in range(T):
            expected[k] += inner.detach() * g[n, a] * (float(a == k) - g[n, k]) / 0.7
    torch.testing.assert_close(found, expected)


def test_gradient_reaches_routers_and_used_blocks_alone() -> None:
    torch.manual_seed(0)
    network = routed(hidden=H, num_blocks=50)
    x, tasks = batch()
    network(x, tasks)[0].square().sum().backward()
    assert all(router.out.weight.grad.any() and router.hidden.weight.grad.any() for router in network.router.scores)
    for layer in (routed_layer.blocks for routed_layer in network.layers):
        moved = {k for k in range(50) if layer.blocks[k].grad is not None}
        assert moved == layer.active
        assert 0 < len(moved) <= N


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_a_temperature_that_is_not_positive_is_refused(temperature: float) -> None:
    with pytest.raises(UsageError, match=r"temperature of GumbelRouter is .* above 0"):
        GumbelRouter(temperature=temperature)


def test_the_noise_comes_from_the_generator_alone() -> None:
    network, (x, tasks) = routed(hidden=H), batch()
    before = torch.get_rng_state()
    one, other, third = (
        network(x, tasks, explore=True, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one[0], other[0]) and torch.equal(one[1].actions, other[1].actions)
    assert not torch.equal(one[1].actions, third[1].actions)


def test_its_parameters_belong_to_the_networks_optimizer() -> None:
    router = routed(hidden=H).router
    assert list(router.parameters()) and router.own_parameters() == [] and router.configure() == []


@pytest.mark.parametrize("call", ["routes", "probabilities"])
def test_a_task_has_no_route(call: str) -> None:
    with pytest.raises(UsageError, match="GumbelRouter looks at activations, so a task has no one route"):
        getattr(routed().router, call)()


def test_states_of_unknown_size_and_no_hidden_unit_are_refused() -> None:
    with pytest.raises(UsageError, match="GumbelRouter looks at activations, whose sizes are not known"):
        GumbelRouter().build(RoutingSpec(2, [3]))
    with pytest.raises(UsageError, match="hidden of .* is 0; give at least 1"):
        GumbelRouter(hidden=0).build(RoutingSpec(2, [3], state_sizes=[4]))
