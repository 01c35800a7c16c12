"""Ordinary use with unusual sizes."""

from functools import partial

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger
from torch import nn

from routing_lightning.errors import UsageError
from routing_lightning.modules import MultiTaskClassifier
from routing_lightning.networks import SimpleConvNet, TaskSpecific
from routing_lightning.routers import REINFORCE, MLPPolicy, RewardRouter
from tests.conftest import ToyDataModule, toy_features, toy_model
from tests.modules.test_routed import fit

one_pixel = partial(SimpleConvNet, filters=4)  # 8x8 pictures end as one pixel


def baseline(num_tasks: int) -> MultiTaskClassifier:
    network = partial(TaskSpecific, hidden=8, own_layers=1)
    return MultiTaskClassifier(num_tasks, 2, (1, 8, 8), network, toy_features)


@pytest.mark.parametrize(
    "make",
    [
        lambda: toy_model(num_tasks=1),
        lambda: toy_model(num_tasks=1, router=RewardRouter(MLPPolicy(4), REINFORCE())),
        lambda: baseline(1),
    ],
)
def test_one_task(make):
    metrics = fit(make(), ToyDataModule(num_tasks=1)).callback_metrics
    assert metrics["val/acc"] == metrics["val/acc_micro"] == metrics["val/acc_task/task_0"]


@pytest.mark.parametrize(("count", "batch_size"), [(17, 16), (9, 1)])
@pytest.mark.parametrize("options", [{}, {"num_blocks": 1}, {"num_blocks": 40}], ids=str)
def test_batches_of_one_sample_with_features_of_one_pixel(count, batch_size, options):
    model = toy_model(features=one_pixel, **options)
    metrics = fit(model, ToyDataModule(count=count, batch_size=batch_size)).callback_metrics
    assert metrics["train/loss"].isfinite()
    assert all(value.isfinite().all() for value in model.state_dict().values())


def test_a_task_without_samples_counts_in_no_mean():
    data = ToyDataModule()
    data.setup()
    keep = torch.nonzero(data.train_dataset.tasks != 1).flatten()
    data.train_dataset = data.val_dataset = data.train_dataset.subset(keep)
    metrics = fit(toy_model(), data).callback_metrics
    assert "val/acc_task/task_1" not in metrics
    mean = (metrics["val/acc_task/task_0"] + metrics["val/acc_task/task_2"]) / 2
    assert metrics["val/acc"] == pytest.approx(mean.item())


def test_macro_is_over_tasks_and_micro_over_samples():
    data = ToyDataModule(num_tasks=2, count=1010)
    data.setup()
    many = torch.nonzero(data.train_dataset.tasks == 0).flatten()
    few = torch.nonzero(data.train_dataset.tasks == 1).flatten()[:5]
    data.train_dataset = data.val_dataset = data.train_dataset.subset(torch.cat([many, few]))
    metrics = fit(toy_model(num_tasks=2), data).callback_metrics
    each = metrics["val/acc_task/task_0"], metrics["val/acc_task/task_1"]
    assert metrics["val/acc"] == pytest.approx(((each[0] + each[1]) / 2).item())
    assert metrics["val/acc_micro"] == pytest.approx(((505 * each[0] + 5 * each[1]) / 510).item())


def test_a_model_for_more_tasks_than_the_data_has(tmp_path):
    trainer = Trainer(
        accelerator="cpu",
        max_steps=1,
        logger=CSVLogger(tmp_path),
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    trainer.fit(toy_model(num_tasks=4), ToyDataModule(num_tasks=3))
    assert trainer.global_step == 1


def pooled(image_shape):
    """Features of images of any size."""
    features = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten())
    features.out_features = 16
    return features


SIZED = {
    "routed": lambda shape, features: toy_model(image_shape=shape, features=features),
    "baseline": lambda shape, features: MultiTaskClassifier(3, 2, shape, partial(TaskSpecific, hidden=8), features),
}


@pytest.mark.parametrize("kind", SIZED)
def test_a_checkpoint_for_images_of_another_size_is_refused_where_its_weights_do_not_fit(kind):
    for features, refused in ((toy_features, True), (pooled, False)):
        saved, other = (SIZED[kind]((1, size, size), features) for size in (8, 16))
        checkpoint = {"state_dict": saved.state_dict(), "hyper_parameters": dict(saved.hparams)}
        if refused:
            with pytest.raises(UsageError, match=r"images of shape \[1, 8, 8\], but this one.* for \[1, 16, 16\]"):
                other.on_load_checkpoint(checkpoint)
        else:
            other.on_load_checkpoint(checkpoint)
            other.load_state_dict(checkpoint["state_dict"])
