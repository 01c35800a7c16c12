import pytest
import torch

from routing_lightning.metrics import TaskMetrics


def test_accuracy_and_loss_by_hand():
    metric = TaskMetrics(3)
    metric.update(torch.tensor(1.5), torch.tensor([True, False]), torch.tensor([0, 0]))
    metric.update(torch.tensor(6.0), torch.tensor([True]), torch.tensor([2]))
    loss, accuracy, micro = metric.compute()
    assert loss.item() == 3
    assert accuracy[0].item() == 0.5 and accuracy[1].isnan() and accuracy[2].item() == 1
    assert micro.item() == pytest.approx(2 / 3)


def test_an_empty_batch_counts_nothing():
    metric = TaskMetrics(2)
    metric.update(torch.tensor(2.0), torch.tensor([True]), torch.tensor([1]))
    metric.update(torch.tensor(torch.nan), torch.zeros(0, dtype=torch.bool), torch.zeros(0, dtype=torch.long))
    assert metric.compute()[0].item() == 2


def test_a_metric_reset_in_inference_mode_counts_on_outside_of_it():
    metric = TaskMetrics(2)
    with torch.inference_mode():
        metric.update(torch.tensor(2.0), torch.tensor([True]), torch.tensor([1]))
        metric.reset()
    metric.update(torch.tensor(3.0), torch.tensor([True]), torch.tensor([1]))
    assert metric.compute()[0].item() == 3
