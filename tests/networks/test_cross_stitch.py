import pytest
import torch
from torch.nn.functional import relu

from routing_lightning.errors import UsageError
from routing_lightning.networks import CrossStitch

F, T, C, H, D, N = 7, 4, 3, 5, 3, 12


def batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(N, F, generator=generator), torch.randint(T, (N,), generator=generator)


def reference(network: CrossStitch, v: torch.Tensor, task: int) -> torch.Tensor:
    """One sample through all towers, one after the other."""
    towers = [v] * T
    for depth in range(D):
        mixing, layer = network.mixing[depth], network.towers[depth]
        inputs = [sum(mixing[i, j] * towers[j] for j in range(T)) for i in range(T)]
        towers = [inputs[i] @ layer.weight[i] + layer.bias[i, 0] for i in range(T)]
        towers = [relu(tower) for tower in towers] if depth < D - 1 else towers
    return towers[task]


def test_output_equals_towers_computed_one_by_one() -> None:
    torch.manual_seed(0)
    network = CrossStitch(F, T, C, hidden=H, depth=D)
    for mixing in network.mixing:
        torch.nn.init.normal_(mixing)
    x, tasks = batch()
    expected = torch.stack([reference(network, v, task) for v, task in zip(x, tasks.tolist(), strict=True)])
    torch.testing.assert_close(network(x, tasks), expected)


def test_mixing_starts_as_a_convex_combination_close_to_the_identity() -> None:
    for mixing in CrossStitch(F, T, C, own_share=0.7).mixing:
        torch.testing.assert_close(mixing.diagonal(), torch.full((T,), 0.7))
        torch.testing.assert_close(mixing.sum(1), torch.ones(T))
        assert float(mixing.detach().min()) == pytest.approx(0.1)
    assert CrossStitch(F, 1, C).mixing[0].tolist() == [[1.0]]


def test_with_the_identity_towers_do_not_touch_each_other() -> None:
    network = CrossStitch(F, T, C, hidden=H, own_share=1.0)
    x, _ = batch()
    network(x, torch.full((N,), 2)).square().sum().backward()
    for tower in network.towers:
        moved = tower.weight.grad.flatten(1).any(1)
        assert moved.tolist() == [False, False, True, False]


def test_the_gradient_reaches_all_towers_through_the_mixing() -> None:
    network = CrossStitch(F, T, C, hidden=H)
    x, _ = batch()
    network(x, torch.full((N,), 2)).square().sum().backward()
    for tower in network.towers[:-1]:
        assert tower.weight.grad.flatten(1).any(1).all()
    assert network.towers[-1].weight.grad.flatten(1).any(1).tolist() == [False, False, True, False]
    assert network.mixing[-1].grad.any(1).tolist() == [False, False, True, False]
    assert all(mixing.grad.any() for mixing in network.mixing)


def test_number_of_parameters() -> None:
    network = CrossStitch(F, T, C, hidden=H, depth=D)
    expected = T * (F * H + H + H * H + H + H * C + C) + D * T * T
    assert sum(parameter.numel() for parameter in network.parameters()) == expected


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_outside_0_to_1_is_refused(share: float) -> None:
    with pytest.raises(UsageError, match=r"own_share of CrossStitch is .* from 0 to 1"):
        CrossStitch(F, T, C, own_share=share)
