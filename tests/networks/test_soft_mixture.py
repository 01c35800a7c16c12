import pytest
import torch
from torch.nn.functional import relu

from routing_lightning.errors import UsageError
from routing_lightning.networks import SoftMixture

F, T, C, H, D, K, N = 7, 4, 3, 5, 3, 6, 12


def batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(N, F, generator=generator), torch.randint(T, (N,), generator=generator)


def reference(network: SoftMixture, v: torch.Tensor, task: int, attention: str) -> torch.Tensor:
    """One sample, one block at a time."""
    for depth in range(D):
        gate, blocks = network.attention[depth], network.blocks[depth]
        if attention == "vector":
            scores = gate.scores
        else:
            state = torch.cat([v, torch.eye(T)[task]])
            scores = gate.out.weight @ relu(gate.hidden.weight @ state + gate.hidden.bias) + gate.out.bias
        outputs = [v @ blocks.weight[k] + blocks.bias[k, 0] for k in range(K)]
        outputs = [relu(output) for output in outputs] if depth < D - 1 else outputs
        v = sum(weight * output for weight, output in zip(scores.exp() / scores.exp().sum(), outputs, strict=True))
    return v


@pytest.mark.parametrize("attention", ["mlp", "vector"])
def test_output_equals_blocks_weighted_one_by_one(attention: str) -> None:
    torch.manual_seed(0)
    network = SoftMixture(F, T, C, hidden=H, depth=D, num_blocks=K, attention=attention)
    for parameter in network.attention.parameters():
        torch.nn.init.normal_(parameter)
    x, tasks = batch()
    pairs = zip(x, tasks.tolist(), strict=True)
    expected = torch.stack([reference(network, v, task, attention) for v, task in pairs])
    torch.testing.assert_close(network(x, tasks), expected)


@pytest.mark.parametrize("attention", ["mlp", "vector"])
def test_the_gradient_reaches_every_parameter(attention: str) -> None:
    torch.manual_seed(0)
    network = SoftMixture(F, T, C, hidden=H, attention=attention)
    x, tasks = batch()
    network(x, tasks).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in network.parameters())


def test_with_the_vector_the_task_does_not_count() -> None:
    network = SoftMixture(F, T, C, attention="vector")
    x, tasks = batch()
    assert torch.equal(network(x, tasks), network(x, (tasks + 1) % T))


def test_number_of_parameters() -> None:
    blocks = T * (F * H + H + H * H + H + H * C + C)
    gates = sum((size + T) * 64 + 64 + 64 * T + T for size in (F, H, H))
    for attention, expected in (("mlp", blocks + gates), ("vector", blocks + D * T)):
        network = SoftMixture(F, T, C, hidden=H, attention=attention)
        assert sum(parameter.numel() for parameter in network.parameters()) == expected


@pytest.mark.parametrize(("option", "value"), [("attention", "table"), ("num_blocks", 0), ("router_hidden", 0)])
def test_impossible_values_are_refused(option: str, value: object) -> None:
    with pytest.raises(UsageError, match=option):
        SoftMixture(F, T, C, **{option: value})
