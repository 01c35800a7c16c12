import pytest
import torch
from torch.nn.functional import linear, relu

from routing_lightning.errors import UsageError
from routing_lightning.networks import TaskSpecific

F, T, C, H, D, N = 7, 4, 3, 5, 3, 12


def batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(N, F, generator=generator), torch.randint(T, (N,), generator=generator)


@pytest.mark.parametrize("own", [0, 1, 2, 3])
def test_each_sample_goes_through_the_shared_layers_and_those_of_its_task(own: int) -> None:
    network = TaskSpecific(F, T, C, hidden=H, depth=D, own_layers=own)
    x, tasks = batch()
    shared = [module for module in network.shared if isinstance(module, torch.nn.Linear)]
    assert len(shared) == D - own
    for v, task, logits in zip(x, tasks.tolist(), network(x, tasks), strict=True):
        maps = [(layer.weight, layer.bias) for layer in shared]
        maps += [layer.linear(task) for layer in network.own]
        for depth, (weight, bias) in enumerate(maps):
            v = linear(v, weight, bias)
            v = relu(v) if depth < D - 1 else v
        torch.testing.assert_close(logits, v)


@pytest.mark.parametrize("own", [0, 1, 3])
def test_number_of_parameters(own: int) -> None:
    sizes = [F * H + H, H * H + H, H * C + C]
    expected = sum(size * (T if depth >= D - own else 1) for depth, size in enumerate(sizes))
    network = TaskSpecific(F, T, C, hidden=H, depth=D, own_layers=own)
    assert sum(parameter.numel() for parameter in network.parameters()) == expected


def test_all_layers_are_per_task_by_default() -> None:
    assert len(TaskSpecific(F, T, C).shared) == 0
    assert len(TaskSpecific(F, T, C).own) == 3


def test_without_own_layers_the_task_does_not_count() -> None:
    network = TaskSpecific(F, T, C, own_layers=0)
    x, tasks = batch()
    assert torch.equal(network(x, tasks), network(x, (tasks + 1) % T))


def test_only_tasks_in_the_batch_get_a_gradient() -> None:
    network = TaskSpecific(F, T, C, hidden=H, own_layers=2)
    x, _ = batch()
    network(x, torch.tensor([1, 3] * 6)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in network.shared.parameters())
    for layer in network.own:
        assert [block.grad is not None for block in layer.blocks] == [False, True, False, True]


@pytest.mark.parametrize("own", [-1, 4])
def test_a_wrong_number_of_own_layers_is_refused(own: int) -> None:
    with pytest.raises(UsageError, match=f"own_layers is {own} .* give 0 to 3"):
        TaskSpecific(F, T, C, own_layers=own)


@pytest.mark.parametrize("name", ["in_features", "num_tasks", "num_classes", "hidden", "depth"])
def test_a_size_below_1_is_refused(name: str) -> None:
    sizes = {"in_features": F, "num_tasks": T, "num_classes": C, "hidden": H, "depth": D}
    with pytest.raises(UsageError, match=f"{name} of the network is 0"):
        TaskSpecific(**{**sizes, name: 0})
