"""What is fast equals what is slow and obvious, over whole trainings."""

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, Trainer
from torch import nn

from routing_lightning.networks import RoutingAllFC, RoutingNetwork
from routing_lightning.nn import LinearBlocks
from routing_lightning.routers import WPL, RewardRouter, TabularPolicy
from tests.conftest import ToyDataModule, layered, toy_model


class Traces(Callback):
    """Keeps what each batch left behind."""

    def __init__(self) -> None:
        self.kept: list = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.kept.append(outputs["trace"])


def fit(model, *callbacks, **options) -> Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(accelerator="cpu", callbacks=list(callbacks), enable_checkpointing=False, **quiet, **options)
    trainer.fit(model, ToyDataModule())
    return trainer


def test_the_policy_after_many_batches_is_that_of_the_loop_over_samples():
    """Algorithm 3 line by line, in Python, over the samples of five epochs in their order."""
    model, traces, lr = toy_model(router=RewardRouter(TabularPolicy(), WPL(0.05, scaling="original"))), Traces(), 0.05
    fit(model, traces, max_epochs=5)
    policy = np.full((3, 3, 3), 1 / 3, np.float32)
    average = np.zeros((3, 3), np.float32)
    one, rate = np.float32(1), np.float32(lr)
    for trace in traces.kept:
        for task, actions, final in zip(trace.tasks, trace.actions.tolist(), trace.final_reward.numpy(), strict=True):
            for depth, action in enumerate(actions):
                row = policy[task, depth]
                average[task, depth] = (one - rate) * average[task, depth] + rate * final
                delta = final - average[task, depth]
                delta *= row[action] if delta < 0 else one - row[action]
                row[action] += rate * delta
                row[:] = row.clip(0, 1)
                row /= row.sum()
    assert len(traces.kept) == 30
    torch.testing.assert_close(model.router.policy.table, torch.from_numpy(policy), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(model.router.learner.average_return, torch.from_numpy(average), rtol=1e-4, atol=1e-6)


class SlowBlocks(LinearBlocks):
    """Each sample alone through its block."""

    def forward(self, x, actions):
        self.active.update(actions.tolist())
        rows = [
            nn.functional.linear(row, *self.linear(action)) for row, action in zip(x, actions.tolist(), strict=True)
        ]
        return torch.stack(rows).relu() if self.relu else torch.stack(rows)


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_training_equals_training_sample_by_sample(optimizer):
    def make(parameters):
        if optimizer == "SGD":
            return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01)
        return torch.optim.Adam(parameters, lr=0.01, eps=1e-3, weight_decay=0.01)  # a small eps blows up rounding

    models, traces = [], []
    for kind in (LinearBlocks, SlowBlocks):
        torch.manual_seed(0)
        layers = [kind(7, 16, 8), kind(7, 8, 8), kind(7, 8, 2, relu=False)]
        model, kept = toy_model(network=layered(*layers), optimizer=make), Traces()
        fit(model, kept, max_epochs=2)
        models.append(model)
        traces.append(kept.kept)
    for fast, slow in zip(*traces, strict=True):
        assert torch.equal(fast.actions, slow.actions) and torch.equal(fast.final_reward, slow.final_reward)
    for fast, slow in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(fast, slow, rtol=1e-3, atol=1e-4)


def routed(device: str) -> RoutingNetwork:
    body = RoutingAllFC((3, 32, 32), 4, 5, hidden=16)
    return RoutingNetwork(body, RewardRouter(TabularPolicy(), WPL()), 4, torch.zeros(1, 3, 32, 32)).to(device)


def test_the_forward_pass_needs_no_value_from_the_device():
    """On the meta device, which holds no values, whatever would wait for one fails."""
    network = routed("meta")
    logits, trace = network(torch.empty(9, 3, 32, 32, device="meta"), torch.randint(4, (9,)), explore=True)
    logits.sum().backward()
    assert logits.shape == (9, 5) and trace.actions.device.type == "cpu"
    assert any(block.grad is not None for block in network.layers[0].blocks.blocks)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_no_synchronisation_in_the_forward_pass():
    network = routed("cuda")
    images, tasks = torch.randn(32, 3, 32, 32, device="cuda"), torch.randint(4, (32,))
    network(images, tasks, explore=True)  # cuDNN and cuBLAS start
    torch.cuda.set_sync_debug_mode("error")
    try:
        network(images, tasks, explore=True)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true", "16-mixed"])
def test_trains_on_a_gpu_at_every_precision(precision):
    model, traces = toy_model(), Traces()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False, "max_epochs": 2}
    trainer = Trainer(accelerator="gpu", devices=1, precision=precision, callbacks=[traces], **quiet)
    trainer.fit(model, ToyDataModule())
    assert torch.isfinite(trainer.callback_metrics["train/loss"])
    assert model.router.policy.table.dtype == torch.float32 and model.router.policy.table.device.type == "cpu"
    assert all(trace.final_reward.dtype == torch.float32 for trace in traces.kept)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true"])
def test_rewards_and_policies_are_float32_and_drawing_is_the_same_at_every_precision(precision):
    model, traces = toy_model(), Traces()
    fit(model, traces, max_epochs=1, precision=precision)
    reference, kept = toy_model(), Traces()
    fit(reference, kept, max_epochs=1)
    trace = traces.kept[0]
    assert {trace.final_reward.dtype, trace.returns.dtype, trace.probabilities.dtype} == {torch.float32}
    assert model.router.policy.table.dtype == torch.float32
    assert torch.equal(trace.actions, kept.kept[0].actions)  # before the first update
