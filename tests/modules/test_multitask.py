from functools import partial
from pathlib import Path

import lightning as L
import pytest
import torch
import yaml
from lightning.pytorch import seed_everything
from torch import nn

from routing_lightning.cli import main
from routing_lightning.errors import UsageError
from routing_lightning.modules import MultiTaskClassifier
from routing_lightning.modules.gradients import check_aggregator
from routing_lightning.networks import CrossStitch, SoftMixture, TaskSpecific
from tests.conftest import toy_features

NETWORKS = {
    "shared": partial(TaskSpecific, hidden=8, own_layers=0),
    "task_specific_1_fc": partial(TaskSpecific, hidden=8, own_layers=1),
    "task_specific_all_fc": partial(TaskSpecific, hidden=8),
    "cross_stitch": partial(CrossStitch, hidden=8),
    "soft_mixture": partial(SoftMixture, hidden=8),
}


class Sum(nn.Module):
    """Adds up the rows."""

    def forward(self, matrix: torch.Tensor) -> torch.Tensor:
        return matrix.sum(0)


def make(network=NETWORKS["task_specific_1_fc"], **options) -> MultiTaskClassifier:
    seed_everything(0, verbose=False)
    return MultiTaskClassifier(3, 2, (1, 8, 8), network, toy_features, **options)


def fit(model: L.LightningModule, data: L.LightningDataModule, tmp_path: Path, **options) -> L.Trainer:
    seed_everything(0, verbose=False)
    trainer = L.Trainer(
        **{"max_epochs": 1, "accelerator": "cpu", "logger": False, "enable_checkpointing": False, **options},
        default_root_dir=tmp_path,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, datamodule=data)
    return trainer


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("shared_features", [True, False])
def test_every_parameter_moves_and_metrics_are_logged(name: str, shared_features: bool, toy_data, tmp_path) -> None:
    model = make(NETWORKS[name], shared_features=shared_features)
    before = {key: value.clone() for key, value in model.named_parameters()}
    trainer = fit(model, toy_data, tmp_path, max_epochs=2)
    same = [key for key, value in model.named_parameters() if torch.equal(value, before[key])]
    assert same == []
    for key in ("train/loss", "train/acc", "train/loss_step", "val/loss", "val/acc", "val/acc_task/task_2"):
        assert trainer.callback_metrics[key].isfinite()
    assert "train/auxiliary_loss" not in trainer.callback_metrics


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true"])
@pytest.mark.parametrize("aggregator", [None, Sum()])
def test_it_trains_in_other_precisions(name, precision, aggregator, toy_data, tmp_path) -> None:
    model = make(NETWORKS[name], aggregator=aggregator)
    trainer = fit(model, toy_data, tmp_path, precision=precision)
    assert trainer.callback_metrics["train/loss"].isfinite()
    assert all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("name", ["shared", "task_specific_all_fc", "cross_stitch"])
def test_it_learns(name: str, toy_data, tmp_path) -> None:
    model = make(NETWORKS[name], optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9))
    assert float(fit(model, toy_data, tmp_path, max_epochs=15).callback_metrics["val/acc"]) > 0.8


def test_separate_networks_share_nothing(toy_data, tmp_path) -> None:
    model = make(NETWORKS["task_specific_all_fc"], shared_features=False)
    alone = make(NETWORKS["task_specific_all_fc"])
    features = sum(parameter.numel() for parameter in alone.features.parameters())
    assert sum(p.numel() for p in model.features.parameters()) == 3 * features
    images, tasks = torch.randn(6, 1, 8, 8), torch.ones(6, dtype=torch.long)
    model(images, tasks).sum().backward()
    moved = {name.split(".")[1] for name, p in model.features.named_parameters() if p.grad is not None}
    assert moved == {"1"}
    assert torch.equal(model.features.blocks[0].layers[0].weight, model.features.blocks[2].layers[0].weight)


def test_separate_networks_compute_what_each_would_alone() -> None:
    model = make(NETWORKS["task_specific_all_fc"], shared_features=False)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    images, tasks = torch.randn(9, 1, 8, 8), torch.tensor([2, 0, 1, 1, 2, 0, 0, 2, 1])
    together = model(images, tasks)  # in training mode: each normalises over its own samples
    for task in range(3):
        own = tasks == task
        vectors = model.features.blocks[task](images[own])
        torch.testing.assert_close(together[own], model.network(vectors, tasks[own]), rtol=1e-4, atol=1e-4)


class WithAuxiliaryLoss(TaskSpecific):
    """Gives an auxiliary loss: 100 times the mean square of the logits, plus 100."""

    def forward(self, x, tasks):
        logits = super().forward(x, tasks)
        return logits, 100 + 100 * logits.square().mean()


def test_the_auxiliary_loss_is_added_to_the_cross_entropy() -> None:
    model = make(partial(WithAuxiliaryLoss, hidden=8)).eval()
    model.log = lambda *args, **kwargs: None
    images, tasks, labels = torch.randn(6, 1, 8, 8), torch.arange(6) % 3, torch.arange(6) % 2
    logits, auxiliary = model.run(images, tasks)
    expected = nn.functional.cross_entropy(logits, labels) + auxiliary
    torch.testing.assert_close(model.training_step((images, tasks, labels), 0), expected)
    assert auxiliary > 100


def test_the_auxiliary_loss_is_logged_apart(toy_data, tmp_path) -> None:
    metrics = fit(make(partial(WithAuxiliaryLoss, hidden=8)), toy_data, tmp_path).callback_metrics
    assert metrics["train/auxiliary_loss"] > 100 > metrics["train/loss_step"]


SUMMED = {name: NETWORKS[name] for name in ("task_specific_1_fc", "cross_stitch")}
SUMMED["auxiliary loss"] = partial(WithAuxiliaryLoss, hidden=8)


@pytest.mark.parametrize("name", SUMMED)
@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 2, "gradient_clip_val": 0.05}])
def test_training_with_the_sum_of_the_rows_equals_training_without(name, options, toy_data, tmp_path) -> None:
    plain, combined = make(SUMMED[name]), make(SUMMED[name], aggregator=Sum())
    for model in (plain, combined):
        fit(model, toy_data, tmp_path, **options)
    for a, b in zip(plain.parameters(), combined.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_it_trains_with_pcgrad(toy_data, tmp_path) -> None:
    aggregation = pytest.importorskip("torchjd.aggregation")
    fast = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    model = make(aggregator=aggregation.PCGrad(), optimizer=fast)
    assert float(fit(model, toy_data, tmp_path, max_epochs=15).callback_metrics["val/acc"]) > 0.9


def test_an_aggregator_refuses_scaled_gradients_and_several_processes() -> None:
    model = make(aggregator=Sum())

    class Precision:
        scaler = object()

    class FakeTrainer:
        world_size = 1
        precision = "16-mixed"
        precision_plugin = Precision()

    trainer = FakeTrainer()
    check_aggregator(None, trainer)
    with pytest.raises(UsageError, match=r"trainer\.precision is 16-mixed.*bf16-mixed"):
        check_aggregator(model.aggregator, trainer)
    trainer.world_size = 2
    with pytest.raises(UsageError, match=r"the run has 2.*trainer\.devices"):
        check_aggregator(model.aggregator, trainer)


def test_features_without_a_size_are_refused() -> None:
    with pytest.raises(UsageError, match="features Flatten has no integer attribute out_features"):
        MultiTaskClassifier(3, 2, (1, 8, 8), TaskSpecific, lambda image_shape: nn.Flatten())


def test_config_and_checkpoint_are_enough_to_go_on(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "seed_everything": 1,
                "model": {
                    "class_path": "routing_lightning.modules.MultiTaskClassifier",
                    "init_args": {
                        "features": {
                            "class_path": "routing_lightning.networks.SimpleConvNet",
                            "init_args": {"filters": 4, "num_layers": 2},
                        },
                        "network": {
                            "class_path": "routing_lightning.networks.SoftMixture",
                            "init_args": {"hidden": 8, "attention": "vector"},
                        },
                    },
                },
                "data": {"class_path": "routing_lightning.datamodules.DigitsMTLDataModule"},
                "trainer": {
                    "max_steps": 3,
                    "accelerator": "cpu",
                    "limit_val_batches": 2,
                    "enable_progress_bar": False,
                    "enable_model_summary": False,
                    "default_root_dir": str(tmp_path),
                },
            }
        )
    )
    first = main(["fit", "--config", str(config)])
    folder = Path(first.trainer.log_dir)
    (checkpoint,) = folder.rglob("*.ckpt")
    torch.load(checkpoint, weights_only=True)
    again = main(["fit", "--config", str(folder / "config.yaml")])
    for a, b in zip(first.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)
    options = ["--trainer.accelerator", "cpu", "--trainer.default_root_dir", str(tmp_path / "validate")]
    validated = main(["validate", "--ckpt_path", str(checkpoint), *options])
    assert isinstance(validated.model.network, SoftMixture)
    assert validated.model.network.blocks[0].weight.shape == (10, 16, 8)
    loaded = MultiTaskClassifier.load_from_checkpoint(checkpoint, weights_only=True)
    for a, b in zip(first.model.parameters(), loaded.parameters(), strict=True):
        assert torch.equal(a, b)
