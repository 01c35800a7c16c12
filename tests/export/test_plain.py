"""The plain network of a task gives what the model gives for its samples."""

import copy
from functools import partial

import pytest
import torch
from torch import nn

from routing_lightning.errors import UsageError
from routing_lightning.export import TaskNetwork, load, plain_network, save
from routing_lightning.modules import MultiTaskClassifier
from routing_lightning.networks import CrossStitch, SoftMixture, TaskSpecific
from routing_lightning.routers import (
    REINFORCE,
    WPL,
    ApproximateQLearning,
    Decision,
    FixedRoutes,
    GumbelRouter,
    MLPPolicy,
    RewardRouter,
    Router,
    TabularPolicy,
    Top1Router,
)
from tests.conftest import layered, toy_features, toy_model
from tests.networks.test_specialise import random_table

TASKS = 3


def baseline(network, **options) -> MultiTaskClassifier:
    torch.manual_seed(0)
    return MultiTaskClassifier(TASKS, 2, (1, 8, 8), partial(network, hidden=8), toy_features, **options)


def routed(router: Router, **options):
    model = toy_model(router=router, **options)
    random_table(router) if not router.uses_state else None
    return model


BY_TASK = {
    "table": lambda: routed(RewardRouter(TabularPolicy(), WPL())),
    "single": lambda: routed(RewardRouter(TabularPolicy(), REINFORCE(), agents="single")),
    "dispatched": lambda: routed(RewardRouter(TabularPolicy(), WPL(), agents="dispatched")),
    "fixed": lambda: routed(FixedRoutes(seed=3)),
    "recurrent": lambda: routed(RewardRouter(TabularPolicy(), WPL()), recurrent_steps=3, allow_pass=True),
    "task specific 1": lambda: baseline(partial(TaskSpecific, own_layers=1)),
    "task specific all": lambda: baseline(TaskSpecific),
    "shared": lambda: baseline(partial(TaskSpecific, own_layers=0)),
    "separate": lambda: baseline(TaskSpecific, shared_features=False),
    "cross-stitch": lambda: baseline(CrossStitch),
    "soft mixture": lambda: baseline(SoftMixture),
    "soft mixture of the text": lambda: baseline(partial(SoftMixture, attention="vector")),
}

WPL_MLP = partial(MLPPolicy, hidden=8)
BY_STATE = {
    "mlp": lambda: routed(RewardRouter(WPL_MLP(), REINFORCE())),
    "q": lambda: routed(RewardRouter(WPL_MLP(), ApproximateQLearning())),
    "single": lambda: routed(RewardRouter(WPL_MLP(), REINFORCE(), agents="single")),
    "dispatched": lambda: routed(RewardRouter(WPL_MLP(), REINFORCE(), agents="dispatched")),
    "recurrent": lambda: routed(RewardRouter(WPL_MLP(), REINFORCE()), recurrent_steps=2, allow_pass=True),
    "gumbel": lambda: routed(GumbelRouter(hidden=8)),
    "top1": lambda: routed(Top1Router(hidden=8)),
    "top1 unit": lambda: routed(Top1Router(gate="unit", hidden=8)),
}


def trained_look(model: nn.Module) -> nn.Module:
    """Statistics and weights as after some training: no two of them equal."""
    generator = torch.Generator().manual_seed(1)
    for name, buffer in model.named_buffers():
        if "running" in name:
            buffer.copy_(torch.rand(buffer.shape, generator=generator) + 0.5)
    for name, parameter in model.named_parameters():
        if "policy.table" not in name:
            parameter.data.mul_(1 + torch.rand(parameter.shape, generator=generator))
    return model.eval()


@torch.no_grad()
def check(model, exact: bool, path, batches=(1, 2, 7, 33)) -> None:
    moments = torch.full((1, 1, 1), 1 / 64), torch.full((1, 1, 1), -2.0)
    for task in range(TASKS):
        network = TaskNetwork(plain_network(model, task), 2, moments).eval()
        runs = [network]
        if task == TASKS - 1:
            save(network, torch.zeros(2, 1, 8, 8, dtype=torch.uint8), path, {}, "torch")
            runs.append(load(path)[0])
        for count in batches:
            images = torch.randint(256, (count, 8, 8, 1), dtype=torch.uint8).permute(0, 3, 1, 2)
            # as the datamodules normalise
            theirs = model(images.to(torch.float32).mul_(moments[0]).add_(moments[1]), torch.full((count,), task))
            for run in runs:
                ours = run(images)
                assert torch.equal(ours, theirs) if exact else torch.allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", BY_TASK)
def test_networks_whose_routes_depend_on_the_task_are_equal_to_the_bit(kind, tmp_path):
    check(trained_look(BY_TASK[kind]()), True, tmp_path / "network.pt2")


@pytest.mark.parametrize("kind", BY_STATE)
def test_networks_whose_router_looks_at_activations_decide_alike(kind, tmp_path):
    check(trained_look(BY_STATE[kind]()), False, tmp_path / "network.pt2")


def test_the_routes_of_the_test_above_depend_on_the_sample():
    model = trained_look(BY_STATE["dispatched"]())
    images, tasks = 3 * torch.randn(64, 1, 8, 8), torch.zeros(64, dtype=torch.long)
    with torch.no_grad():
        _, trace = model.route(images, tasks, explore=False)
    assert len(trace.actions.unique(dim=0)) > 1
    assert len(trace.agents.unique()) > 1


def test_the_model_stays_as_it_is():
    for make in (*BY_TASK.values(), *BY_STATE.values()):
        model = make()
        before = copy.deepcopy(model.state_dict())
        plain_network(model, 0).to(torch.float64)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        assert all(parameter.requires_grad for parameter in model.parameters())


def test_only_what_a_task_uses_is_kept():
    model = BY_TASK["table"]()
    (front, *layers) = model.network.body
    one = sum(sum(p.numel() for p in layer.blocks.block_parameters(0)) for layer in layers)
    one += sum(parameter.numel() for parameter in front.parameters())
    assert sum(parameter.numel() for parameter in plain_network(model, 1).parameters()) == one


def test_classes_that_a_task_does_not_have_are_left_out():
    body = plain_network(BY_TASK["table"](), 0)
    images = torch.rand(3, 1, 8, 8)
    with torch.no_grad():
        assert torch.equal(TaskNetwork(body, 1, None)(images), body(images)[:, :1])


def test_images_between_0_and_1_give_the_same_as_bytes():
    body = plain_network(BY_TASK["table"](), 0)
    moments = torch.full((1, 1, 1), 1 / 64), torch.full((1, 1, 1), -2.0)
    images = torch.arange(256, dtype=torch.uint8).view(4, 1, 8, 8)
    with torch.no_grad():
        ours, theirs = (TaskNetwork(body, 2, moments, given).eval() for given in ("float", "uint8"))
        assert torch.equal(ours(images / 255), theirs(images))


class Coin(Router):
    """Looks at activations in a way of its own."""

    def decide(self, trace, x, depth):
        return Decision((x.sum(1) > 0).long())


class Odd(nn.Module):
    """A network whose way depends on values."""

    def __init__(self, in_features, num_tasks, num_classes, hidden):
        super().__init__()
        self.layer = nn.Linear(in_features, num_classes)

    def forward(self, x, tasks):
        return self.layer(x) if x.sum() > 0 else self.layer(-x)


def test_what_cannot_be_exported_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(UsageError, match=r"Coin looks at activations .* take a router whose routes depend on the task"):
        plain_network(routed(Coin(), network=layered(*[_blocks()])), 0)
    with pytest.raises(UsageError, match=r"task is 3; give 0\.\.2"):
        plain_network(BY_TASK["table"](), 3)
    path = tmp_path / "odd.pt2"
    with pytest.raises(UsageError, match="cannot be exported .* tensor operations only"):
        save(plain_network(baseline(Odd), 0), torch.rand(2, 1, 8, 8), path, {}, "torch")
    assert not path.exists()
    with pytest.raises(UsageError, match="int8 needs the format onnx"):
        save(nn.Identity(), torch.rand(2, 1), path, {}, "torch", int8=True)


def _blocks():
    from routing_lightning.nn import LinearBlocks

    return LinearBlocks(2, toy_features((1, 8, 8)).out_features, 2, relu=False)


def test_missing_packages_are_named_in_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr("routing_lightning.export.files.find_spec", lambda name: None if name == "onnx" else name)
    with pytest.raises(UsageError, match=r"need onnx \(writes ONNX files\); install .*routing-lightning\[export\]"):
        save(nn.Identity(), torch.rand(2, 1), tmp_path / "x.onnx", {}, "onnx")


@pytest.mark.parametrize("kind", ["torch", "onnx"])
def test_no_class_of_the_exporters_bears_one_of_our_names_afterwards(kind, tmp_path):
    """Short names in configs would mean it, too."""
    if kind == "onnx":
        pytest.importorskip("onnxruntime", reason="the extra export is not installed")

    def below(kind: type) -> set[type]:
        return {kind}.union(*(below(inner) for inner in kind.__subclasses__()))

    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    before = below(nn.Module)
    save(network, torch.rand(2, 1, 2, 2), tmp_path / f"network.{kind}", {}, kind)
    assert not {found for found in below(nn.Module) - before if found.__module__.startswith(("torch.nn", "routing"))}
