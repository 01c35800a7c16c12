import torch

from routing_lightning.metrics import TaskMetrics


def test_accuracy_and_loss_by_hand():
    metric = TaskMetrics(3)
    metric.update(torch.tensor(1.5), torch.tensor([True, False]), torch.tensor([0, 0]))
    metric.update(torch.tensor(6.0), torch.tensor([True]), torch.tensor([2]))
    loss, accuracy = metric.compute()
    assert loss.item() == 3
    assert accuracy[0].item() == 0.5 and accuracy[1].isnan() and accuracy[2].item() == 1
