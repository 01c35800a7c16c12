import pytest
import torch
from torchmetrics.functional import mean_absolute_error, r2_score
from torchmetrics.functional.classification import multilabel_f1_score

from routing_lightning.metrics import TargetMetrics, TaskMetrics
from routing_lightning.targets import Targets


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


def test_scores_of_each_kind_are_those_of_torchmetrics():
    generator = torch.Generator().manual_seed(0)
    targets = Targets(["classes", "labels", "value", "value"], [3, 2, 1, 1], [0, 0, 1e4, 5.0], [1, 1, 50.0, 2.0])
    metric, batches = TargetMetrics(targets, 3), []
    for _ in range(4):
        tasks = torch.randint(3, (20,), generator=generator)  # no sample of the last one
        rows = torch.zeros(2, 20, 3)
        for kind, values in (
            (0, torch.randint(3, (2, 20, 1), generator=generator).float()),
            (1, torch.randint(2, (2, 20, 2), generator=generator).float()),
            (2, 1e4 + 50 * torch.randn(2, 20, 1, generator=generator)),
        ):
            rows[:, tasks == kind, : values.shape[2]] = values[:, tasks == kind]
        given, wanted = rows
        hits = (given[:, 0] == wanted[:, 0]) & (tasks == 0)
        metric.update(torch.tensor(1.0), hits, tasks, given, wanted)
        batches.append((tasks, given, wanted))
    tasks, given, wanted = (torch.cat(parts) for parts in zip(*batches, strict=True))
    scores = metric.compute()
    assert scores.loss == 1
    accuracy = (given[tasks == 0, 0] == wanted[tasks == 0, 0]).float().mean()
    torch.testing.assert_close(scores.accuracy[0], accuracy)
    torch.testing.assert_close(scores.accuracy_micro, accuracy)
    labels = given[tasks == 1, :2], wanted[tasks == 1, :2].long()
    torch.testing.assert_close(scores.f1[1], multilabel_f1_score(*labels, num_labels=2, average="macro"))
    values = given[tasks == 2, 0].double(), wanted[tasks == 2, 0].double()
    torch.testing.assert_close(scores.mae[2].double(), mean_absolute_error(*values), rtol=1e-4, atol=0)
    torch.testing.assert_close(scores.r2[2].double(), r2_score(*values), rtol=1e-4, atol=0)
    for values, own in ((scores.accuracy, 0), (scores.f1, 1), (scores.mae, 2), (scores.r2, 2)):
        assert values.isnan().tolist() == [task != own for task in range(4)]
    # counted on from where a checkpoint was
    again = TargetMetrics(targets, 3)
    again.restore(metric.counts())
    for before, after in zip(scores, again.compute(), strict=True):
        torch.testing.assert_close(before, after, equal_nan=True)


def test_no_r2_of_one_value_or_of_equal_ones_and_no_f1_of_absent_labels():
    metric = TargetMetrics(Targets(["labels", "value", "value"], [2, 1, 1], [0, 5.0, 5.0], [1, 2.0, 2.0]), 2)
    rows = torch.tensor([[1.0, 0], [7.0, 0], [6.0, 0], [6.0, 0]])
    metric.update(torch.tensor(1.0), torch.zeros(4).bool(), torch.tensor([0, 1, 2, 2]), rows, rows)
    scores = metric.compute()
    assert scores.r2.isnan().all() and scores.mae[1:].tolist() == [0, 0]
    assert scores.f1[0] == 1  # the second label is neither wanted nor predicted
    assert scores.accuracy.isnan().all() and scores.accuracy_micro.isnan()
