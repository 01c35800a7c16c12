"""Each kind of router inside RoutedClassifier: what it moves, what reaches callbacks, and resuming."""

import copy

import pytest
import torch
from lightning.pytorch import Callback
from torch import nn

from routing_lightning.errors import UsageError
from routing_lightning.routers import (
    REINFORCE,
    WPL,
    ApproximateQLearning,
    BranchingRouter,
    FixedRoutes,
    GumbelRouter,
    MLPPolicy,
    PairedDifference,
    RewardRouter,
    Router,
    TabularPolicy,
    Top1Router,
    Trace,
)
from tests.conftest import toy_model
from tests.modules.test_routed import fit

KINDS = {
    "table": lambda: RewardRouter(TabularPolicy(), WPL(0.05), collaboration=0.3),
    "network": lambda: RewardRouter(MLPPolicy(8), REINFORCE(baseline=True)),
    "dispatched table": lambda: RewardRouter(TabularPolicy(), WPL(0.05), agents="dispatched"),
    "dispatched network": lambda: RewardRouter(MLPPolicy(8), ApproximateQLearning(), agents="dispatched"),
    "joint": lambda: RewardRouter(MLPPolicy(8), REINFORCE(), detach_state=False),
    "gumbel": lambda: GumbelRouter(hidden=8),
    "top1": lambda: Top1Router(hidden=8),
    "top1 of unit gate": lambda: Top1Router(gate="unit", hidden=8),
    "fixed": lambda: FixedRoutes(seed=1),
    "own": lambda: FixedRoutes("own"),
    "shared": lambda: FixedRoutes("shared"),
    "branching": lambda: BranchingRouter(begin=0, stage=2, learner=PairedDifference(lr=5.0)),
    "given": lambda: FixedRoutes([[0, 1, 2], [3, 3, 3], [0, 1, 3]]),
}
LEARNS_BY_THE_LOSS = ("gumbel", "top1", "top1 of unit gate")
FIXED = ("fixed", "own", "shared", "given")


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def made(kind: str, **options):
    return toy_model(router=KINDS[kind](), **{"num_blocks": 4, "optimizer": momentum, **options})


class Keep(Callback):
    """Keeps the traces of training and validation."""

    def __init__(self) -> None:
        self.train: list[Trace] = []
        self.val: list[Trace] = []
        self.batches: list[torch.Tensor] = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.train.append(outputs["trace"])
        self.batches.append(batch[1])

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0):
        self.val.append(outputs["trace"])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "branching"])  # which copies blocks, too
def test_it_moves_what_it_should(kind):
    model, keep = made(kind), Keep()
    before = copy.deepcopy(model.state_dict())
    fit(model, callbacks=[keep], max_epochs=2)
    after = model.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    router = {name for name in before if name.startswith("network.router.") and not name.endswith("seen")}
    weights = {name for name in router if "average_return" not in name and "collaboration" not in name}
    if kind in FIXED:
        assert not router & moved
    elif kind in LEARNS_BY_THE_LOSS or "network" not in kind:
        assert weights <= moved
    else:
        assert {name.split(".")[2] for name in weights & moved} == {name.split(".")[2] for name in weights}
    assert "network.body.0.layers.0.weight" in moved
    actions = torch.cat([trace.actions for trace in keep.train])
    for depth in range(3):
        used = set(actions[:, depth].tolist())
        for block in range(4):
            assert (f"network.body.{depth + 1}.blocks.blocks.{block}" in moved) == (block in used)


@pytest.mark.parametrize("kind", KINDS)
def test_its_trace_reaches_callbacks(kind):
    model, keep = made(kind), Keep()
    trainer = fit(model, callbacks=[keep])
    assert len(keep.train) == trainer.global_step == 6
    for trace, tasks in zip(keep.train, keep.batches, strict=True):
        assert torch.equal(trace.tasks, tasks) and trace.explore
        assert trace.actions.shape == (16, 3) and trace.actions.dtype == torch.long
        assert int(trace.actions.min()) >= 0 and int(trace.actions.max()) < 4
        assert trace.final_reward.abs().tolist() == [1.0] * 16
        assert trace.scores == [] and trace.generator is None
        learns = isinstance(model.router, RewardRouter) or trace.alternatives is not None
        assert (trace.returns is not None) == learns and trace.kept is None
    assert sum(len(trace.tasks) for trace in keep.val) >= 96
    assert all(trace.actions.shape == (len(trace.tasks), 3) and not trace.explore for trace in keep.val)
    auxiliary = "train/auxiliary_loss" in trainer.callback_metrics
    assert auxiliary == (kind == "joint" or kind.startswith("top1"))
    named = {name.split("/")[1] for name in trainer.callback_metrics if name.startswith("router/")}
    assert named == (set() if model.router.uses_state else {"entropy"})


@pytest.mark.parametrize("kind", KINDS)
def test_resumed_run_equals_the_unbroken_one_to_the_bit(kind, tmp_path):
    whole = made(kind)
    whole_trainer = fit(whole, max_epochs=2)
    fit(made(kind), max_epochs=1, default_root_dir=tmp_path, enable_checkpointing=True)
    (checkpoint,) = tmp_path.rglob("*.ckpt")
    torch.load(checkpoint, weights_only=True)
    resumed = made(kind)
    if kind not in FIXED:
        with torch.no_grad():  # all of it comes from the checkpoint
            for parameter in resumed.parameters():
                parameter.add_(1)
    resumed_trainer = fit(resumed, max_epochs=2, ckpt_path=checkpoint)
    assert whole.state_dict().keys() == resumed.state_dict().keys()
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    assert whole_trainer.global_step == resumed_trainer.global_step == 12
    for name, value in whole_trainer.callback_metrics.items():
        assert torch.equal(value, resumed_trainer.callback_metrics[name]), name


@pytest.mark.parametrize("kind", KINDS)
def test_the_networks_optimizer_holds_the_router_that_learns_by_the_loss_alone(kind):
    """And every parameter belongs to one optimizer."""
    model = made(kind)
    trainer = fit(model, max_steps=1)
    first = {id(parameter) for group in trainer.optimizers[0].param_groups for parameter in group["params"]}
    router = {id(parameter) for parameter in model.router.parameters()}
    assert (router <= first) if kind in LEARNS_BY_THE_LOSS else not router & first
    all_of_them = [
        id(p) for optimizer in trainer.optimizers for group in optimizer.param_groups for p in group["params"]
    ]
    assert len(all_of_them) == len(set(all_of_them))
    assert set(all_of_them) == {id(parameter) for parameter in model.parameters()}


@pytest.mark.parametrize("kind", LEARNS_BY_THE_LOSS)
def test_a_router_that_learns_by_the_loss_stays_without_a_learning_rate(kind):
    model = made(kind, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0))
    before = copy.deepcopy(model.router.state_dict())
    fit(model)
    assert all(torch.equal(value, before[name]) for name, value in model.router.state_dict().items())


class Sum(nn.Module):
    """Adds up the rows."""

    def forward(self, matrix: torch.Tensor) -> torch.Tensor:
        return matrix.sum(0)


@pytest.mark.parametrize("kind", [*LEARNS_BY_THE_LOSS, "table", "fixed"])
@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 2, "gradient_clip_val": 0.05}])
def test_training_with_the_sum_of_the_tasks_gradients_equals_training_without(kind, options):
    plain, combined = made(kind, **options), made(kind, aggregator=Sum(), **options)
    for model in (plain, combined):
        fit(model)
    for ours, theirs in zip(plain.parameters(), combined.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "64-true"])
def test_it_trains_in_other_precisions(kind, precision):
    model = made(kind)
    trainer = fit(model, precision=precision)
    assert trainer.callback_metrics["train/loss"].isfinite()
    assert all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("kind", ["table", "top1", "fixed"])
def test_it_trains_with_recurrence_and_pass(kind):
    router = FixedRoutes("own") if kind == "fixed" else KINDS[kind]()
    model, keep = toy_model(router=router, recurrent_steps=2, allow_pass=True), Keep()
    fit(model, callbacks=[keep])
    assert keep.train[0].actions.shape == (16, 4)
    assert router.spec.num_actions == [3, 4, 4, 3] and router.spec.may_pass == [False, True, True, False]


class Rotating(Router):
    """A router of one's own: the task's block moves on with each batch."""

    uses_state = False

    def __init__(self) -> None:
        super().__init__()
        self.learned: list[Trace] = []

    def build(self, spec):
        super().build(spec)
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def start(self, tasks, *, explore, generator=None):
        trace = super().start(tasks, explore=explore, generator=generator)
        sizes = torch.tensor(self.spec.num_blocks)
        trace.actions = (tasks[:, None] + self.step) % sizes
        return trace

    def learn(self, trace):
        self.learned.append(trace)
        self.step += 1


def test_a_router_of_ones_own_needs_few_lines():
    router = Rotating()
    model = toy_model(router=router, num_blocks=[2, 5, 3])
    trainer = fit(model)
    assert len(router.learned) == trainer.global_step == int(router.step) == 6
    expected = (router.learned[2].tasks[:, None] + 2) % torch.tensor([2, 5, 3])
    assert torch.equal(router.learned[2].actions, expected)


def test_routes_that_do_not_fit_are_refused_before_the_training():
    with pytest.raises(UsageError, match=r"give 3 lists \(tasks\) of 3 blocks"):
        toy_model(router=FixedRoutes([[0, 0, 0]]))
