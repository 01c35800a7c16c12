import copy
import csv
import math
from functools import partial
from typing import ClassVar

import pytest
import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.callbacks import BaseFinetuning, GradientAccumulationScheduler
from lightning.pytorch.cli import ReduceLROnPlateau
from lightning.pytorch.loggers import CSVLogger
from torch import nn

from routing_lightning.errors import UsageError
from routing_lightning.modules import RoutedClassifier
from routing_lightning.networks import RoutedBackbone, RoutedLayer
from routing_lightning.nn import LinearBlocks, ModuleBlocks
from routing_lightning.noise import NoiseKeys
from routing_lightning.routers import WPL, RewardRouter, TabularPolicy
from tests.conftest import ToyDataModule, layered, toy_model


def fit(model, data=None, ckpt_path=None, **options) -> Trainer:
    options = {"max_epochs": 1, "logger": False, "enable_progress_bar": False, "enable_model_summary": False} | options
    options.setdefault("enable_checkpointing", False)
    trainer = Trainer(accelerator="cpu", **options)
    trainer.fit(model, data or ToyDataModule(), ckpt_path=ckpt_path)
    return trainer


def momentum_sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.1)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01, weight_decay=0.1)


def test_learns_and_moves_features_blocks_and_policies():
    model = toy_model(optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), hidden=16)
    before = copy.deepcopy(model.state_dict())
    trainer = fit(model, max_epochs=10)
    assert trainer.callback_metrics["val/acc"] > 0.9
    after = model.state_dict()
    for part in (
        "network.body.0.layers.0.weight",
        "network.router.decider.policy.table",
        "network.router.decider.learner.average_return",
    ):
        assert not torch.equal(before[part], after[part])
    assert {f"val/acc_task/task_{task}" for task in range(3)} <= set(trainer.callback_metrics)


def test_global_step_counts_batches():
    assert fit(toy_model(), max_epochs=2).global_step == 12


def test_accumulation_makes_one_step_per_several_batches():
    # 6 batches of 16: after the 4th, and after the last, which closes the epoch
    assert fit(toy_model(accumulate_grad_batches=4)).global_step == 2


def test_accumulated_batches_equal_one_large_batch():
    """With the features' statistics frozen and the same routes, k batches of b equal one batch of k * b."""
    models = []
    for batch_size, batches in ((16, 1), (4, 4)):
        model = toy_model(accumulate_grad_batches=batches, features=Flat)
        model.router.policy.table.copy_(torch.eye(3)[:, None].expand(3, 3, 3))  # certain, and WPL keeps it so
        fit(model, ToyDataModule(batch_size=batch_size, count=16))
        models.append(model)
    for one, several in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, several)


class Flat(nn.Module):
    out_features = 64

    def __init__(self, image_shape):
        super().__init__()

    def forward(self, images):
        return images.flatten(1)


@pytest.mark.parametrize("optimizer", [momentum_sgd, adam])
def test_blocks_without_samples_do_not_move(optimizer):
    model = toy_model(optimizer=optimizer, num_blocks=6)
    fit(model, max_epochs=2)  # momentum and averages have built up
    # from now on every task keeps to block 1
    model.router.policy.table.zero_()[:, :, 1] = 1
    before = copy.deepcopy(model.state_dict())
    fit(model, max_epochs=1)
    after = model.state_dict()
    for name in before:
        if ".blocks." in name:
            block = int(name.rsplit(".", 1)[1])
            assert torch.equal(before[name], after[name]) == (block != 1), name


@pytest.mark.parametrize("optimizer", [momentum_sgd, adam])
def test_skipping_idle_blocks_equals_an_optimizer_that_skips_missing_gradients(optimizer, monkeypatch):
    fast = toy_model(optimizer=optimizer, num_blocks=6)
    fit(fast, max_epochs=2)
    slow = toy_model(optimizer=optimizer, num_blocks=6)
    monkeypatch.setattr(slow, "parameters_in_use", slow.trained_parameters)
    fit(slow, max_epochs=2)
    for ours, theirs in zip(fast.parameters(), slow.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_gradient_clipping_bounds_the_step():
    model = toy_model(gradient_clip_val=1e-3, optimizer=lambda p: torch.optim.SGD(p, lr=1.0))
    before = [p.detach().clone() for p in model.parameters()]
    fit(model, max_epochs=1, max_steps=1)
    moved = torch.cat([(p - q).flatten() for p, q in zip(model.parameters(), before, strict=True)]).norm()
    assert moved.item() == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize(("interval", "period", "expected"), [("epoch", 1, 1e-3), ("step", 3, 1e-5)])
def test_scheduler_steps_per_epoch_or_step(interval, period, expected):
    model = toy_model(
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
        lr_scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, period, 0.1),
        lr_interval=interval,
    )
    trainer = fit(model, max_epochs=2)  # 2 epochs of 6 batches
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(expected)


def test_resumed_run_equals_the_unbroken_one_to_the_bit(tmp_path):
    options = {
        "optimizer": momentum_sgd,
        "lr_scheduler": lambda o: torch.optim.lr_scheduler.StepLR(o, 1, 0.5),
        "num_blocks": 4,
    }
    whole = toy_model(**options)
    whole_trainer = fit(whole, max_epochs=4)

    fit(toy_model(**options), max_epochs=2, default_root_dir=tmp_path, enable_checkpointing=True)
    (checkpoint,) = tmp_path.rglob("*.ckpt")
    resumed = toy_model(**options)
    resumed_trainer = fit(resumed, max_epochs=4, ckpt_path=checkpoint)

    assert whole.state_dict().keys() == resumed.state_dict().keys()
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    assert whole_trainer.global_step == resumed_trainer.global_step
    assert whole_trainer.callback_metrics.keys() == resumed_trainer.callback_metrics.keys()
    for name, value in whole_trainer.callback_metrics.items():
        assert torch.equal(value, resumed_trainer.callback_metrics[name]), name


def test_same_seed_same_run_and_another_seed_another():
    models = []
    for seed in (0, 0, 1):
        model = toy_model()
        seed_everything(seed, verbose=False)
        fit(model)
        models.append(torch.cat([p.flatten() for p in model.parameters()]))
    assert torch.equal(models[0], models[1]) and not torch.equal(models[0], models[2])


def test_ranks_draw_different_noise(monkeypatch):
    model = toy_model()
    fit(model, max_steps=1)
    draws = []
    for rank in (0, 1, 0):
        monkeypatch.setattr(RoutedClassifier, "global_rank", rank)
        draws.append(torch.rand(4, generator=model.noise(0)))
    assert torch.equal(draws[0], draws[2]) and not torch.equal(draws[0], draws[1])


def test_batches_and_epochs_draw_different_noise(monkeypatch):
    model = toy_model()
    fit(model, max_steps=1)
    keys = set()
    for epoch in range(3):
        monkeypatch.setattr(RoutedClassifier, "current_epoch", epoch)
        keys |= {model.noise_key(batch) % 2**32 for batch in range(100)}  # torch's source looks at so many bits
    assert len(keys) == 300
    keys = NoiseKeys(7)
    keys._source, keys._base = (7, 2, 0), 0
    assert keys.key(2, 0, 0) == 0xE220A8397B1DCDAF >> 1  # SplitMix64's first number from 0


def test_checkpoint_is_plain_and_loads_alone(tmp_path):
    model = toy_model()
    fit(model, default_root_dir=tmp_path, enable_checkpointing=True)
    (path,) = tmp_path.rglob("*.ckpt")
    checkpoint = torch.load(path, weights_only=True)
    assert torch.equal(checkpoint["state_dict"]["network.router.decider.policy.table"], model.router.policy.table)
    loaded = RoutedClassifier.load_from_checkpoint(
        path, network=toy_model().network.body, router=RewardRouter(TabularPolicy(), WPL())
    )
    assert loaded.hparams["image_shape"] == (1, 8, 8)
    assert torch.equal(loaded.router.policy.table, model.router.policy.table)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true"])
def test_trains_at_every_precision_with_float32_policies(precision):
    model = toy_model()
    trainer = fit(model, precision=precision, max_epochs=2)
    assert torch.isfinite(trainer.callback_metrics["train/loss"])
    assert model.router.policy.table.dtype == torch.float32
    assert (model.router.policy.table != 1 / 3).any()


def test_any_modules_can_be_blocks():
    layers = [
        ModuleBlocks([nn.Sequential(nn.Linear(64, 8), nn.Tanh()) for _ in range(3)]),
        LinearBlocks(2, 8, 2, relu=False),
    ]
    model = toy_model(network=layered(*layers, features=Flat))
    before = copy.deepcopy(model.state_dict())
    fit(model)
    moved = [name for name, value in model.state_dict().items() if not torch.equal(value, before[name])]
    assert any("body.1.blocks" in name for name in moved) and any("body.2.blocks" in name for name in moved)


class Scaled(LinearBlocks):
    """Blocks whose layer has a parameter of its own, which belongs to no block."""

    def __init__(self, num_blocks, in_features, out_features):
        super().__init__(num_blocks, in_features, out_features)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x, actions):
        return super().forward(x, actions) * self.scale


def test_what_a_layers_blocks_share_is_trained_too():
    body = nn.Sequential(Flat(()), RoutedLayer(Scaled(3, 64, 4)), RoutedLayer(LinearBlocks(3, 4, 4, relu=False)))
    model = RoutedClassifier(3, 4, (1, 8, 8), RewardRouter(TabularPolicy(), WPL()), body)
    fit(model)
    assert body[1].blocks.scale.item() != 1


def test_layers_may_have_different_numbers_of_blocks():
    model = toy_model(num_blocks=[2, 5, 3])
    fit(model)
    assert (model.router.probabilities()[:, 0, 2:] == 0).all()


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [(1, -1, "task -1, allowed is 0..2"), (1, 3, "task 3"), (2, -1, "label -1, allowed is 0..1"), (2, 2, "label 2")],
)
def test_task_or_label_out_of_range_is_told(position, value, message):
    data = ToyDataModule()
    data.setup()
    (data.train_dataset.tasks, data.train_dataset.labels)[position - 1][5] = value
    with pytest.raises(UsageError, match=message):
        fit(toy_model(), data, num_sanity_val_steps=0)


def test_a_batch_without_one_label_per_image_is_told():
    batch = (torch.zeros(4, 1, 8, 8), torch.zeros(4, dtype=torch.long), torch.zeros(3, dtype=torch.long))
    with pytest.raises(UsageError, match=r"shapes \(4, 1, 8, 8\), \(4,\) and \(3,\)"):
        toy_model().on_before_batch_transfer(batch, 0)


@pytest.mark.parametrize("lr", [float("nan"), float("inf")])
def test_a_learning_rate_that_is_no_number_is_told(lr):
    with pytest.raises(UsageError, match=f"lr is {lr}"):
        fit(toy_model(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=lr)))


def test_more_tasks_in_the_data_than_in_the_model_is_told():
    with pytest.raises(UsageError, match="num_tasks of the model is 3 but the data has 5"):
        fit(toy_model(), ToyDataModule(num_tasks=5))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("num_tasks", 0),
        ("num_classes", 0),
        ("depth", 0),
        ("hidden", 0),
        ("num_blocks", 0),
        ("num_blocks", [2, 2]),
        ("lr_interval", "hour"),
        ("gradient_clip_val", 0),
        ("gradient_clip_val", -1.0),
        ("accumulate_grad_batches", 0),
        ("features", lambda image_shape: nn.Identity()),
        ("image_shape", (8, 8)),
        ("image_shape", (1, 0, 8)),
        ("network", nn.Flatten()),
    ],
)
def test_impossible_options_are_refused(option, value):
    with pytest.raises(UsageError):
        toy_model(**{option: value})


def test_a_negative_learning_rate_is_told_before_the_first_batch():
    with pytest.raises(UsageError, match="learning rate: -1"):
        fit(toy_model(optimizer=lambda p: torch.optim.SGD(p, lr=-1)))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_loss_shown_at_a_step_is_that_of_its_batch(accumulate, tmp_path):
    class Keep(Callback):
        losses: ClassVar[list[float]] = []

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            self.losses.append(outputs["loss"].item())

    Keep.losses = []
    logger = CSVLogger(tmp_path)
    fit(
        toy_model(accumulate_grad_batches=accumulate),
        logger=logger,
        callbacks=[Keep()],
        max_epochs=3,
        log_every_n_steps=4,
    )
    with open(f"{logger.log_dir}/metrics.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["train/loss_step"]]
    shown = {int(row["step"]): float(row["train/loss_step"]) for row in rows}
    assert shown == {step: pytest.approx(Keep.losses[step]) for step in (3, 7, 11, 15)}


def test_plateau_scheduler_follows_its_metric():
    model = toy_model(
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
        lr_scheduler=lambda o: ReduceLROnPlateau(o, monitor="val/acc", mode="min", patience=0, threshold=10.0),
    )
    trainer = fit(model, max_epochs=3)  # an accuracy never falls by 10, so each epoch after the first counts as stuck
    assert trainer.optimizers[0].param_groups[0]["lr"] < 0.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"lr_scheduler": lambda o: ReduceLROnPlateau(o, monitor="nope")},
            "monitor of lr_scheduler ReduceLROnPlateau is 'nope'.*val/loss",
        ),
        ({"lr_scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau}, "lightning.pytorch.cli.ReduceLROnPlateau"),
        (
            {
                "lr_scheduler": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=3),
                "lr_interval": "step",
            },
            r"OneCycleLR ends after 3 steps but the run makes \d+; set trainer.max_steps to at most 3, or its",
        ),
        ({"optimizer": torch.optim.LBFGS}, "LBFGS"),
        (  # whose state cannot be saved
            {"lr_scheduler": lambda o: torch.optim.lr_scheduler.MultiplicativeLR(o, math.sqrt)},
            "lr_scheduler refuses its values: .*; mend its init_args",
        ),
    ],
)
def test_schedulers_and_optimizers_that_cannot_work_are_told(options, message):
    with pytest.raises(UsageError, match=message):
        fit(toy_model(**options), max_epochs=2)


@pytest.mark.parametrize(
    ("schedule", "keeps"),
    [
        (lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=9), False),
        (lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.01, 0.1), False),
        (lambda o: torch.optim.lr_scheduler.StepLR(o, 1), True),
        (lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 9), True),
    ],
    ids=["OneCycleLR", "CyclicLR", "StepLR", "CosineAnnealingLR"],
)
def test_a_schedule_that_would_bring_slower_parts_to_the_rate_of_the_others_is_refused(schedule, keeps):
    network = partial(RoutedBackbone, layers={"layer4": 2, "fc": None}, trainable=0.1)
    model = toy_model(
        network=network,
        image_shape=(3, 32, 32),
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lr_scheduler=schedule,
    )
    if keeps:
        model.configure_optimizers()
        return
    with pytest.raises(UsageError, match="take a schedule that multiplies the rate, such as StepLR"):
        model.configure_optimizers()


def test_a_resumed_run_says_which_optimizer_values_it_keeps(tmp_path):
    fit(toy_model(), max_epochs=1, default_root_dir=tmp_path, enable_checkpointing=True)
    (checkpoint,) = tmp_path.rglob("*.ckpt")
    with pytest.warns(UserWarning, match="goes on with lr 0.01 of the checkpoint, not 0.5"):
        fit(toy_model(optimizer=lambda p: torch.optim.SGD(p, lr=0.5)), max_epochs=2, ckpt_path=checkpoint)


def test_lightnings_own_accumulation_is_refused():
    with pytest.raises(UsageError, match="set accumulate_grad_batches of the model"):
        fit(toy_model(), callbacks=[GradientAccumulationScheduler({0: 2})])


class FreezeFeatures(BaseFinetuning):
    """Trains the features from the second epoch on."""

    def freeze_before_training(self, pl_module):
        self.freeze(pl_module.network.body[0], train_bn=False)

    def finetune_function(self, pl_module, epoch, optimizer):
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.network.body[0], optimizer, lr=0.01)


@pytest.mark.parametrize("epochs", [1, 2])
def test_frozen_weights_stay_until_they_are_unfrozen(epochs):
    model = toy_model(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05, weight_decay=0.1))
    before = model.network.body[0].layers[0].weight.clone()
    trainer = fit(model, callbacks=[FreezeFeatures()], max_epochs=epochs)
    assert len(trainer.optimizers[0].param_groups) == epochs
    assert torch.equal(before, model.network.body[0].layers[0].weight) == (epochs == 1)
