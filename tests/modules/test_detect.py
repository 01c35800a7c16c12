"""NaN and infinity stop a run in one sentence, and nothing that holds them is saved."""

import signal
from functools import partial

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint

from routing_lightning.callbacks import SaveOnStop
from routing_lightning.errors import NonFiniteError, UsageError
from routing_lightning.modules import MultiTaskClassifier, detect
from routing_lightning.networks import TaskSpecific
from routing_lightning.routers import REINFORCE, WPL, MLPPolicy, RewardRouter, TabularPolicy
from tests.conftest import toy_features, toy_model
from tests.modules.test_routed import fit

AFTER = 9  # steps; 6 are an epoch


def sgd(lr):
    return lambda parameters: torch.optim.SGD(parameters, lr=lr)


def routed(**options):
    return toy_model(**{"optimizer": sgd(0.05), "num_blocks": 4} | options)


def baseline(**options):
    torch.manual_seed(0)
    network = partial(TaskSpecific, hidden=8, own_layers=1)
    return MultiTaskClassifier(3, 2, (1, 8, 8), network, toy_features, **{"optimizer": sgd(0.05)} | options)


MODELS = {"routed": routed, "baseline": baseline}


class Spoil(Callback):
    """Does something to the model before the batch of a step."""

    def __init__(self, what, step: int = AFTER) -> None:
        self.what, self.step = what, step

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step == self.step:
            self.what(pl_module, batch)


class WithRewards(RewardRouter):
    """A router of one's own whose immediate rewards go wrong."""

    value, wrong_from = float("nan"), AFTER

    def reward(self, trace):
        super().reward(trace)
        self.wrong_from -= 1
        if self.wrong_from < 0:
            trace.returns[5, 1] = self.value


class WrongTable(WPL):
    """A learner whose policy is broken after some batches."""

    row, wrong_from = (-0.5, 0.5, 0.5, 0.5), AFTER

    def learn(self, policy, trace):
        super().learn(policy, trace)
        self.wrong_from -= 1
        if self.wrong_from == 0:
            policy.table[1, 2] = torch.tensor(self.row)


def stopped(model, tmp_path, *callbacks, every=1, **options) -> str:
    """The sentence of a run that is stopped; what it has saved is finite and can be trained on."""
    saves = ModelCheckpoint(tmp_path, every_n_train_steps=every, save_last=True, save_on_exception=True)
    options = {"max_epochs": 20, "num_sanity_val_steps": 0, "enable_checkpointing": True} | options
    with pytest.raises(NonFiniteError) as error:
        fit(model, callbacks=[*callbacks, saves, SaveOnStop()], **options)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL  # SaveOnStop gave it back
    kept = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert kept["global_step"] <= AFTER + 1
    for value in kept["state_dict"].values():
        assert value.isfinite().all()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("exception")]
    sentence = str(error.value)
    assert sentence.count(";") == 1 and sentence.endswith("to go on all the same.")
    return sentence.partition(";")[0]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("model", MODELS)
def test_images(model, value, tmp_path, monkeypatch):
    made, count = MODELS[model](), iter(range(100))
    original = type(made).on_before_batch_transfer

    def spoiled(self, batch, dataloader_idx):
        if self.trainer.training:
            images, tasks, labels = batch
            batch = images.float() / 255, tasks, labels
            if next(count) == AFTER:
                batch[0][3, 0, 2, 2] = value
                spoiled.task = int(tasks[3])
        return original(self, batch, dataloader_idx)

    monkeypatch.setattr(type(made), "on_before_batch_transfer", spoiled)
    said = stopped(made, tmp_path)
    assert said == f"an image holds nan or infinity in batch 3 of epoch 1, task task_{spoiled.task}"


@pytest.mark.parametrize("model", MODELS)
def test_images_of_an_evaluation(model, tmp_path, monkeypatch):
    made = MODELS[model]()
    original = type(made).on_before_batch_transfer

    def spoiled(self, batch, dataloader_idx):
        images, tasks, labels = batch
        images = images.float()
        if self.trainer.validating:
            images[:, 0, 0, 0] = torch.nan
        return original(self, (images, tasks, labels), dataloader_idx)

    monkeypatch.setattr(type(made), "on_before_batch_transfer", spoiled)
    said = stopped(made, tmp_path)
    assert said == "an image holds nan or infinity in batch 0 of epoch 0, tasks task_0, task_1, task_2"


@pytest.mark.parametrize("model", MODELS)
def test_a_learning_rate_that_is_too_large(model, tmp_path):
    assert " in batch 1 of epoch 0, task" in stopped(MODELS[model](optimizer=sgd(1e38)), tmp_path)


@pytest.mark.parametrize("options", [{}, {"final_reward": "negative_loss"}], ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_a_loss_of_its_own(model, options, tmp_path, monkeypatch):
    """Weights and images are finite, the loss is not."""
    if model == "baseline" and options:
        pytest.skip("has no reward")
    made = MODELS[model](**options)
    masked = made.masked

    def infinite(logits, tasks):
        logits = masked(logits, tasks)
        if made.trainer.training and made.trainer.global_step == AFTER:
            logits = torch.where((tasks == 2)[:, None], torch.inf, 1) * logits
        return logits

    monkeypatch.setattr(made, "masked", infinite)
    assert stopped(made, tmp_path) == "the loss is nan in batch 3 of epoch 1, " + (
        "task task_2" if model == "baseline" or options else "tasks task_0, task_1, task_2"
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_rewards(value, tmp_path):
    router = WithRewards(TabularPolicy(), WPL(0.05))
    router.value = value
    said = stopped(routed(router=router), tmp_path)
    assert said.startswith(f"the return is {value} in batch 3 of epoch 1, task task_") and said.endswith(", depth 2")


@pytest.mark.parametrize("look", [2, 32])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("model", MODELS)
def test_gradients(model, value, look, tmp_path, monkeypatch):
    monkeypatch.setattr(detect, "LOOK", look)

    def plant(module, batch):
        name, parameter = next(item for item in module.named_parameters() if item[1].dim() == 4)
        plant.name = name
        parameter.register_hook(lambda gradient: gradient.index_fill(0, torch.tensor(0), value))

    said = stopped(MODELS[model](), tmp_path, Spoil(plant))
    assert said.startswith(f"the gradient or step of {plant.name} is ") and " in batch 3 of epoch 1, task" in said


def test_a_gradient_of_a_block_names_its_depth_and_those_who_used_it(tmp_path):
    def plant(module, batch):
        layer = module.network.calls[1]
        for block in range(4):
            for parameter in layer.blocks.block_parameters(block):
                if block == 2:
                    parameter.register_hook(lambda gradient: gradient * torch.nan)

    said = stopped(routed(), tmp_path, Spoil(plant))
    assert "(block 2) is nan in batch 3 of epoch 1, task" in said and said.endswith(", depth 2")


@pytest.mark.parametrize("row", [(-0.5, 0.5, 0.5, 0.5), (float("nan"), 1.0, 0.0, 0.0), (1.0, 1.0, 0.0, 0.0)])
@pytest.mark.parametrize("every", [1, 4])
def test_policies(row, every, tmp_path):
    """Before the next batch uses them, or before they are saved."""
    learner = WrongTable(0.05)
    learner.row = row
    said = stopped(routed(router=RewardRouter(TabularPolicy(), learner)), tmp_path, every=every)
    place = f"batch {2 if every == 1 else 3} of epoch 1, task task_1, depth 3"
    assert said == f"the policy's row is {', '.join(map(str, row))}, which is no distribution, in {place}"


def test_a_network_as_policy(tmp_path):
    """Its rows are nan in the batch that its weights are."""

    def plant(module, batch):
        for parameter in module.router.policy.parameters():
            parameter.data.fill_(torch.nan)

    router = RewardRouter(MLPPolicy(4), REINFORCE())
    said = stopped(routed(router=router), tmp_path, Spoil(plant))
    assert said.startswith("the policy's row is nan, nan, nan, nan, which is no distribution, in batch 3 of epoch 1")


def test_what_is_not_finite_is_never_saved(tmp_path):
    """Before anybody has looked: a block that no batch uses."""
    model = routed()
    fit(model)
    name, parameter = next((name, value) for name, value in model.named_parameters() if ".blocks." in name)
    parameter.data.flatten()[0] = torch.nan
    with pytest.raises(UsageError, match=f"{name}.* is nan .* its last good checkpoint is kept"):
        model.trainer.save_checkpoint(tmp_path / "x.ckpt")
    assert not list(tmp_path.iterdir())
    model.detector = None
    model.trainer.save_checkpoint(tmp_path / "x.ckpt")


@pytest.mark.parametrize("model", MODELS)
def test_it_can_be_switched_off(model):
    made = MODELS[model](optimizer=sgd(1e38))
    made.detector = None
    assert not fit(made).callback_metrics["train/loss"].isfinite()


@pytest.mark.parametrize("model", MODELS)
def test_it_changes_nothing(model):
    trained = []
    for on in (True, False):
        torch.manual_seed(3)
        made = MODELS[model]()
        made.detector = made.detector if on else None
        trained.append(fit(made, max_epochs=2).lightning_module.state_dict())
    for name, value in trained[0].items():
        assert torch.equal(value, trained[1][name]), name
