"""Callbacks that average weights leave counts, sums and indices alone."""

import copy
from functools import partial

import pytest
import torch
from lightning.pytorch.callbacks import (
    Callback,
    EMAWeightAveraging,
    ModelCheckpoint,
    StochasticWeightAveraging,
    WeightAveraging,
)
from torch import nn

from routing_lightning.callbacks import SaveOnStop
from routing_lightning.networks import SimpleConvNet
from routing_lightning.routers import BranchingRouter, PairedDifference, QLearning, RewardRouter, TabularPolicy
from tests.conftest import toy_model
from tests.modules.test_resume import MODELS, check
from tests.modules.test_resume import fit as resumable
from tests.modules.test_routed import fit
from tests.modules.test_router_kinds import KINDS

ROUTERS = KINDS | {
    "counting": lambda: RewardRouter(TabularPolicy(), QLearning(epsilon_samples=300), collaboration=0.3),
}
AVERAGES = {
    "EMA": partial(EMAWeightAveraging, decay=0.9),
    "EMA by epochs": partial(EMAWeightAveraging, decay=0.9, update_every_n_steps=0, update_starting_at_epoch=0),
    "SWA": WeightAveraging,
}


class Watch(Callback):
    """Compares the average with the model after each batch."""

    batches = 0

    def __init__(self, average) -> None:
        self.average = average

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if self.average._latest_update_step != trainer.global_step:
            return
        self.batches += 1
        for name, buffer in self.average._average_model.module.named_buffers():
            own = pl_module.get_buffer(name)
            counts = not buffer.is_floating_point() or "collaboration" in name
            assert torch.equal(buffer, own) or not counts, name


@pytest.mark.parametrize("name", [*AVERAGES, "SWA of the last epoch"])
def test_blocks_that_are_copied_are_copied_in_the_average(name):
    """Of weights that nothing but copies moves, the average are the weights."""
    averages = AVERAGES | {"SWA of the last epoch": partial(StochasticWeightAveraging, 1e-12, swa_epoch_start=1)}
    router = BranchingRouter(PairedDifference(lr=50.0), begin=0, stage=5, settle=0.0, shortest=1.0)
    model = toy_model(router=router, num_blocks=4, optimizer=partial(torch.optim.SGD, lr=0.0))
    first = {name: value.clone() for name, value in model.network.named_parameters()}
    last: dict[str, torch.Tensor] = {}

    class Last(Callback):
        def on_train_batch_end(self, trainer, pl_module, *_):
            last.update((name, value.detach().clone()) for name, value in pl_module.network.named_parameters())

    fit(model, callbacks=[Last(), averages[name]()], max_epochs=3)
    assert any(not torch.equal(value, first[name]) for name, value in last.items())  # blocks were copied
    for parameter, value in model.network.named_parameters():
        assert torch.allclose(value, last[parameter], atol=1e-6), parameter


@pytest.mark.parametrize("router", ROUTERS)
def test_counts_and_indices_are_copied(router):
    model, average = toy_model(router=ROUTERS[router](), num_blocks=11), EMAWeightAveraging(decay=0.999)
    fixed = {name: copy.deepcopy(value) for name, value in model.named_buffers() if name.endswith("router.table")}
    watch = Watch(average)
    fit(model, callbacks=[average, watch], max_epochs=2)
    assert watch.batches == 12
    for name, value in fixed.items():
        assert torch.equal(model.get_buffer(name), value)
    if router == "counting":
        assert int(model.router.learner.seen) == 192 and model.router.collaboration.count.tolist() == [192] * 3
    batches = [part.num_batches_tracked for part in model.modules() if isinstance(part, nn.BatchNorm2d)]
    assert batches and {int(number) for number in batches} == {12}


@pytest.mark.parametrize("kind", AVERAGES)
def test_every_kind_of_average_leaves_them(kind):
    model, average = (
        toy_model(router=ROUTERS["counting"](), features=partial(SimpleConvNet, filters=4)),
        AVERAGES[kind](),
    )
    fit(model, callbacks=[average, Watch(average)], max_epochs=3)
    assert int(model.router.learner.seen) == 288


def test_policies_stay_distributions():
    model = toy_model(router=KINDS["table"]())
    fit(model, callbacks=[EMAWeightAveraging(decay=0.7)], max_epochs=3)
    rows = model.router.probabilities()
    torch.testing.assert_close(rows.sum(-1), torch.ones(rows.shape[:2]))


@pytest.mark.parametrize("hook", ["on_train_batch_start", "on_validation_batch_start", "on_validation_end"])
@pytest.mark.parametrize("model", ["routed", "baseline"])
def test_a_stopped_run_with_averages_goes_on_to_the_bit(model, hook, tmp_path):
    """Within a validation the averages stand in the place of the weights."""

    class Stop(Callback):
        pass

    averaged = partial(EMAWeightAveraging, decay=0.7)
    save = partial(ModelCheckpoint, tmp_path / "whole", every_n_epochs=10)
    whole, _ = resumable(MODELS[model](), averaged(), save())
    stop, saves = Stop(), SaveOnStop()

    def ask(trainer, *_):
        if trainer.global_step == 5:
            saves.asked = 15

    setattr(stop, hook, ask)
    with pytest.raises(SystemExit):
        resumable(MODELS[model](), averaged(), stop, ModelCheckpoint(tmp_path, every_n_epochs=10), saves)
    resumed, _ = resumable(MODELS[model](), averaged(), save(), ckpt_path=tmp_path / "last.ckpt")
    check(whole, resumed, hook)


def test_an_error_while_averages_are_validated_saves_nothing(tmp_path):
    class Breaking(Callback):
        def on_validation_batch_end(self, trainer, *_):
            raise RuntimeError("mine")

    save = ModelCheckpoint(tmp_path, every_n_epochs=10)
    with pytest.raises(RuntimeError, match="mine"):
        resumable(MODELS["routed"](), EMAWeightAveraging(decay=0.7), Breaking(), save, SaveOnStop())
    assert not list(tmp_path.iterdir())
