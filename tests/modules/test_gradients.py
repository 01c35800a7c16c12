from typing import Any

import pytest
import torch
from torch import Tensor, nn

from routing_lightning.modules.gradients import combine_gradients
from routing_lightning.networks import SimpleConvNet, TaskSpecific


class Sum(nn.Module):
    """Adds up the rows, and notes the matrices it got."""

    def __init__(self) -> None:
        super().__init__()
        self.matrices: list[Tensor] = []

    def forward(self, matrix: Tensor) -> Tensor:
        self.matrices.append(matrix)
        return matrix.sum(0)


def model() -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList([SimpleConvNet((1, 8, 8), filters=4), TaskSpecific(4, 4, 3, hidden=5, own_layers=2)])


def losses_of(parts: nn.ModuleList, tasks: Tensor) -> Tensor:
    images = torch.randn(len(tasks), 1, 8, 8, generator=torch.Generator().manual_seed(1))
    logits = parts[1](parts[0](images), tasks)
    labels = torch.arange(len(tasks)) % 3
    return nn.functional.cross_entropy(logits, labels, reduction="none") / len(tasks)


def test_with_the_sum_it_is_an_ordinary_backward_pass() -> None:
    tasks = torch.tensor([0, 3, 1, 0, 0, 3])
    parts = model()
    losses_of(parts, tasks).sum().backward()
    expected = [parameter.grad for parameter in parts.parameters()]
    parts.zero_grad()
    combine_gradients(losses_of(parts, tasks), tasks, parts.parameters(), Sum())
    for parameter, gradient in zip(parts.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)  # None where None: the blocks of task 2


def test_gradients_add_up_over_calls() -> None:
    tasks = torch.tensor([0, 1, 1, 2])
    parts = model().eval()
    combine_gradients(losses_of(parts, tasks), tasks, parts.parameters(), Sum())
    once = [parameter.grad for parameter in parts.parameters()]
    combine_gradients(losses_of(parts, tasks), tasks, parts.parameters(), Sum())
    for parameter, gradient in zip(parts.parameters(), once, strict=True):
        torch.testing.assert_close(parameter.grad, None if gradient is None else 2 * gradient)


def test_rows_are_the_gradients_of_tasks_in_the_batch_on_shared_parameters() -> None:
    tasks = torch.tensor([3, 1, 1, 3, 3])
    parts = model()
    shared = [*parts[0].parameters(), *parts[1].shared.parameters()]
    losses = losses_of(parts, tasks)
    rows = []
    for task in (1, 3):
        gradients = torch.autograd.grad(losses[tasks == task].sum(), shared, retain_graph=True)
        rows.append(torch.cat([gradient.flatten() for gradient in gradients]))
    aggregator = Sum()
    combine_gradients(losses, tasks, parts.parameters(), aggregator)
    torch.testing.assert_close(aggregator.matrices[0], torch.stack(rows))


def test_with_one_task_nothing_is_combined() -> None:
    tasks = torch.tensor([2, 2, 2])
    parts = model()
    aggregator = Sum()
    combine_gradients(losses_of(parts, tasks), tasks, parts.parameters(), aggregator)
    assert aggregator.matrices == []
    found = [parameter.grad for parameter in parts.parameters()]
    parts.zero_grad()
    losses_of(parts, tasks).sum().backward()
    for parameter, gradient in zip(parts.parameters(), found, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_frozen_parameters_are_left_alone() -> None:
    tasks = torch.tensor([0, 1])
    parts = model()
    parts[0].requires_grad_(False)
    combine_gradients(losses_of(parts, tasks), tasks, parts.parameters(), Sum())
    assert all(parameter.grad is None for parameter in parts[0].parameters())
    assert all(parameter.grad is not None for parameter in parts[1].shared.parameters())


def gradients_of_two_tasks(first: Tensor, second: Tensor, aggregator: Any) -> Tensor:
    weight = nn.Parameter(torch.zeros(len(first)))
    losses = torch.stack([first @ weight, second @ weight])
    combine_gradients(losses, torch.tensor([5, 2]), [weight], aggregator)
    assert weight.grad is not None
    return weight.grad


def test_pcgrad_projects_two_conflicting_tasks() -> None:
    aggregation = pytest.importorskip("torchjd.aggregation")
    a, b = torch.tensor([1.0, 2.0, 0.0]), torch.tensor([1.0, -1.0, 1.0])
    expected = (a - (a @ b) / (b @ b) * b) + (b - (a @ b) / (a @ a) * a)
    torch.testing.assert_close(gradients_of_two_tasks(a, b, aggregation.PCGrad()), expected)
    assert a @ b < 0


def test_pcgrad_adds_two_tasks_without_conflict() -> None:
    aggregation = pytest.importorskip("torchjd.aggregation")
    a, b = torch.tensor([1.0, 2.0, 0.0]), torch.tensor([1.0, 1.0, 1.0])
    torch.testing.assert_close(gradients_of_two_tasks(a, b, aggregation.PCGrad()), a + b)


@pytest.mark.parametrize("name", ["PCGrad", "MGDA", "Mean", "IMTLG", "AlignedMTL", "GradDrop"])
def test_aggregators_of_torchjd_fit(name: str) -> None:
    aggregator = getattr(pytest.importorskip("torchjd.aggregation"), name)()
    gradient = gradients_of_two_tasks(torch.tensor([1.0, 2.0]), torch.tensor([1.0, -1.0]), aggregator)
    assert gradient.isfinite().all()
