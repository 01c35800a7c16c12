"""A task with fewer labels than others learns and predicts as a network with its own logits alone would."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch import Trainer
from torch.nn.functional import cross_entropy

from routing_lightning.datamodules.base import MultiTaskData
from routing_lightning.modules import MultiTaskClassifier, RoutedClassifier
from routing_lightning.modules.masking import label_mask, mask_logits
from routing_lightning.networks import TaskSpecific
from tests.conftest import ToyDataModule, toy_features, toy_model

COUNTS = (2, 4, 3)


class UnevenDataModule(ToyDataModule):
    """Tasks of 2, 4 and 3 labels."""

    def __init__(self) -> None:
        super().__init__(num_classes=4)

    def load_data(self) -> MultiTaskData:
        names, _, train, _, test, _ = super().load_data()
        for part in (train, test):
            part.labels %= torch.tensor(COUNTS)[part.tasks]
        return MultiTaskData(names, [[str(i) for i in range(count)] for count in COUNTS], train, None, test)


def models() -> list[RoutedClassifier | MultiTaskClassifier]:
    return [
        toy_model(num_classes=4),
        toy_model(num_classes=4, final_reward="negative_loss"),
        MultiTaskClassifier(3, 4, (1, 8, 8), TaskSpecific, features=toy_features),
    ]


def trainer(tmp_path, **options) -> Trainer:
    quiet = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}
    return Trainer(default_root_dir=tmp_path, max_epochs=2, logger=False, **quiet, **options)


def test_no_mask_where_all_tasks_have_all_labels():
    assert label_mask([3, 3], 3) is None
    assert label_mask([], 3) is None
    assert label_mask([2, 3], 3).tolist() == [[True, True, False], [True, True, True]]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(0, 2), st.integers(0, 2**31))
def test_masked_logits_are_those_of_the_tasks_own_labels(counts, wider, seed):
    generator = torch.Generator().manual_seed(seed)
    tasks = torch.randint(len(counts), (9,), generator=generator)
    counts_of = torch.tensor(counts)[tasks]
    logits = torch.randn(9, max(counts) + wider, generator=generator, requires_grad=True)
    labels = (torch.rand(9, generator=generator) * counts_of).long()
    mask = torch.arange(max(counts)) < torch.tensor(counts)[:, None]
    masked = mask_logits(logits, tasks, mask)
    losses = cross_entropy(masked, labels, reduction="none")
    (gradient,) = torch.autograd.grad(losses.sum(), logits)
    for row, (count, label) in enumerate(zip(counts_of.tolist(), labels, strict=True)):
        own = logits[row, :count].detach().requires_grad_()
        loss = cross_entropy(own, label)
        loss.backward()
        torch.testing.assert_close(losses[row], loss)
        torch.testing.assert_close(gradient[row, :count], own.grad)
        assert (gradient[row, count:] == 0).all()
        assert masked[row].argmax() == own.argmax()


@pytest.mark.parametrize("model", models(), ids=["correct", "negative_loss", "task_specific"])
def test_training_predicts_own_labels_only_and_rewards_are_finite(model, tmp_path):
    rewards = []
    if isinstance(model, RoutedClassifier):
        learn = model.router.learn
        model.router.learn = lambda trace: rewards.append(trace.final_reward) or learn(trace)
    fit = trainer(tmp_path)
    fit.fit(model, UnevenDataModule())
    assert fit.callback_metrics["train/loss"].isfinite() and fit.callback_metrics["val/loss"].isfinite()
    assert all(reward.isfinite().all() for reward in rewards)
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    images, tasks = torch.randn(60, 1, 8, 8), torch.arange(60) % 3
    logits = model(images, tasks)
    assert (logits.isfinite() == label_mask(COUNTS, 4)[tasks]).all()
    fit.save_checkpoint(tmp_path / "a.ckpt")
    saved = torch.load(tmp_path / "a.ckpt", weights_only=True)
    model.label_mask = None
    model.on_load_checkpoint(saved)
    assert torch.equal(model(images, tasks), logits)


@pytest.mark.parametrize("model", models()[::2], ids=["routed", "task_specific"])
def test_equal_tasks_are_left_alone(model, tmp_path):
    trainer(tmp_path).fit(model, ToyDataModule(num_classes=4))
    logits = torch.randn(5, 4)
    assert model.label_mask is None
    assert model.masked(logits, torch.zeros(5, dtype=torch.long)) is logits
