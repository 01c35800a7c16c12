"""What is fast equals what is slow and obvious, over whole trainings."""

import copy

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, Trainer
from torch import nn

from routing_lightning.modules.routed import paper_layers
from routing_lightning.nn import LinearBlocks, RoutingNetwork, SimpleConvNet
from routing_lightning.routers import WPL, Router, TabularPolicy
from tests.conftest import ToyDataModule, toy_model


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
    model, traces, lr = toy_model(router=Router(TabularPolicy(), WPL(0.05, scaling="original"))), Traces(), 0.05
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
        model, kept = toy_model(layers=layers, optimizer=make), Traces()
        fit(model, kept, max_epochs=2)
        models.append(model)
        traces.append(kept.kept)
    for fast, slow in zip(*traces, strict=True):
        assert torch.equal(fast.actions, slow.actions) and torch.equal(fast.final_reward, slow.final_reward)
    for fast, slow in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(fast, slow, rtol=1e-3, atol=1e-4)


def routed_parts(device: str):
    features = SimpleConvNet().to(device)
    router = Router(TabularPolicy(), WPL())
    network = RoutingNetwork(paper_layers(features.out_features, 4, 5, 16, 3, [4] * 3), router, 4)
    return features, network.to(device)


def test_the_forward_pass_needs_no_value_from_the_device():
    """On the meta device, which holds no values, whatever would wait for one fails."""
    features, network = routed_parts("meta")
    logits, trace = network(features(torch.empty(9, 3, 32, 32, device="meta")), torch.randint(4, (9,)), explore=True)
    logits.sum().backward()
    assert logits.shape == (9, 5) and trace.actions.device.type == "cpu"
    assert any(block.grad is not None for block in network.layers[0].blocks)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_no_synchronisation_in_the_forward_pass():
    features, network = routed_parts("cuda")
    images, tasks = torch.randn(32, 3, 32, 32, device="cuda"), torch.randint(4, (32,))
    network(features(images), tasks, explore=True)  # cuDNN and cuBLAS start
    torch.cuda.set_sync_debug_mode("error")
    try:
        network(features(images), tasks, explore=True)
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


def test_compiled_features_train_alike_and_keep_their_names(monkeypatch):
    # without a compiler: TorchDynamo captures the graph, PyTorch runs it
    compiled = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self: compiled(self, backend="eager"))
    plain, fast = toy_model(), toy_model(compile_features=True)
    assert plain.state_dict().keys() == fast.state_dict().keys()
    start = copy.deepcopy(fast.state_dict())
    for model in (plain, fast):
        fit(model, max_epochs=1)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(value, fast.state_dict()[name])
    assert not torch.equal(start["features.layers.0.weight"], fast.state_dict()["features.layers.0.weight"])
