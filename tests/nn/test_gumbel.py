import pytest
import torch
from torch.nn.functional import linear, relu

from routing_lightning.errors import UsageError
from routing_lightning.nn import GumbelRouting

F, T, C, H, D, N = 7, 4, 3, 5, 3, 12


def batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(N, F, generator=generator), torch.randint(T, (N,), generator=generator)


def test_in_evaluation_a_sample_takes_the_block_of_the_highest_score() -> None:
    network = GumbelRouting(F, T, C, hidden=H).eval()
    x, tasks = batch()
    for v, task, logits in zip(x, tasks, network(x, tasks), strict=True):
        for depth in range(D):
            a = int(network.routers[depth](v[None], task[None]).argmax())
            v = linear(v, *network.blocks[depth].linear(a))
            v = relu(v) if depth < D - 1 else v
        torch.testing.assert_close(logits, v)


def test_in_training_the_output_is_exactly_that_of_hard_blocks() -> None:
    torch.manual_seed(0)
    network = GumbelRouting(F, T, C, depth=1)
    x, tasks = batch()
    layer = network.blocks[0]
    every = torch.stack([layer(x, torch.full((N,), k)) for k in range(T)])  # (K, N, C)
    output = network(x, tasks)
    assert ((every - output).abs().amax(2) < 1e-6).any(0).all()


def test_a_block_is_drawn_with_the_softmax_probability_of_its_score() -> None:
    torch.manual_seed(0)
    network = GumbelRouting(F, 1, 2, depth=1, num_blocks=3)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        network.routers[0].out.bias.copy_(torch.tensor([0.5, 0.3, 0.2]).log())
        for k in range(3):
            network.blocks[0].linear(k)[1].fill_(k)
        drawn = network(torch.zeros(40_000, F), torch.zeros(40_000, dtype=torch.long))[:, 0]
    shares = drawn.round().long().bincount(minlength=3) / 40_000
    torch.testing.assert_close(shares, torch.tensor([0.5, 0.3, 0.2]), atol=0.01, rtol=0)


def test_gradient_of_the_router_is_that_of_the_chosen_share() -> None:
    network = GumbelRouting(F, T, C, depth=1, temperature=0.7)
    x, tasks = batch()
    direction = torch.randn(N, C)
    torch.manual_seed(4)
    (network(x, tasks) * direction).sum().backward()
    bias = network.routers[0].out.bias
    found = bias.grad.clone()

    torch.manual_seed(4)
    scores = network.routers[0](x, tasks)
    noisy = (scores - torch.empty(N, T).exponential_().log()).detach()
    g = (noisy / 0.7).softmax(1)
    expected = torch.zeros(T)
    for n in range(N):
        a = int(noisy[n].argmax())
        inner = direction[n] @ linear(x[n], *network.blocks[0].linear(a))
        for k in range(T):
            expected[k] += inner.detach() * g[n, a] * (float(a == k) - g[n, k]) / 0.7
    torch.testing.assert_close(found, expected)


def test_gradient_reaches_routers_and_used_blocks_alone() -> None:
    torch.manual_seed(0)
    network = GumbelRouting(F, T, C, hidden=H, num_blocks=50)
    x, tasks = batch()
    network(x, tasks).square().sum().backward()
    assert all(router.out.weight.grad.any() and router.hidden.weight.grad.any() for router in network.routers)
    for layer in network.blocks:
        moved = {k for k in range(50) if layer.blocks[k].grad is not None}
        assert moved == layer.active
        assert 0 < len(moved) <= N


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_a_temperature_that_is_not_positive_is_refused(temperature: float) -> None:
    with pytest.raises(UsageError, match=r"temperature of GumbelRouting is .* above 0"):
        GumbelRouting(F, T, C, temperature=temperature)
