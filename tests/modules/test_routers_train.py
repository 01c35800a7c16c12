"""Routers of every kind inside the training step of RoutedClassifier."""

import copy

import pytest
import torch
from torch import nn

from routing_lightning.errors import UsageError
from routing_lightning.routers import (
    REINFORCE,
    WPL,
    ApproximateQLearning,
    ApproximateWPL,
    FixedRoutes,
    MLPPolicy,
    QLearning,
    RewardRouter,
    TabularPolicy,
)
from tests.conftest import ToyDataModule, toy_model
from tests.modules.test_routed import fit


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


def router_parameters(model) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.router.state_dict().items() if ".policy." in name}


KINDS = {
    "WPL": (TabularPolicy, WPL),
    "QLearning": (TabularPolicy, QLearning),
    "REINFORCE, table": (TabularPolicy, lambda: REINFORCE(1.0, baseline=True)),
    "ApproximateWPL, table": (TabularPolicy, ApproximateWPL),
    "REINFORCE, network": (MLPPolicy, lambda: REINFORCE(baseline=True)),
    "ApproximateQLearning, network": (MLPPolicy, ApproximateQLearning),
    "ApproximateWPL, network": (MLPPolicy, ApproximateWPL),
}


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true"])
@pytest.mark.parametrize("kind", KINDS)
def test_policies_learn_in_float32_at_every_precision(kind, precision):
    policy, learner = KINDS[kind]
    agents = "dispatched" if precision == "bf16-true" else "per_task"
    model = toy_model(router=RewardRouter(policy(), learner(), agents=agents, collaboration=0.3))
    before = router_parameters(model)
    fit(model, precision=precision)
    after = router_parameters(model)
    assert all(value.dtype == torch.float32 for value in after.values())
    for part in ["decider", "dispatcher"][: 1 + (agents == "dispatched")]:
        assert any(not torch.equal(after[name], before[name]) for name in after if name.startswith(part))
    # float32 also in substance: a detour over bfloat16 would leave 8 bits
    assert any(not torch.equal(value, value.bfloat16().float()) for value in after.values())


def test_actions_are_drawn_as_finely_at_bf16_true():
    """A default type of 8 bits would never draw some actions of 1,000."""
    model = toy_model(num_blocks=1000, router=RewardRouter(TabularPolicy(), REINFORCE(1e-6)))
    drawn = []
    model.router.learner.learn = lambda policy, trace: drawn.append(trace.actions)
    fit(model, ToyDataModule(count=480, batch_size=96), precision="bf16-true", max_epochs=2)
    assert len(torch.cat(drawn).unique()) > 900  # 2,880 draws: 944 of 1,000 on average


@pytest.mark.parametrize("agents", ["per_task", "single", "dispatched"])
@pytest.mark.parametrize("detach_state", [True, False])
def test_the_routers_gradient_reaches_features_and_blocks_only_if_it_may(agents, detach_state):
    """Blocks of output zero get no gradient from the cross-entropy: what moves below them moves by the router's."""
    router = RewardRouter(MLPPolicy(8), REINFORCE(lr=0.1), agents=agents, detach_state=detach_state)
    model = toy_model(router=router, optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    with torch.no_grad():
        for parameter in model.network.layers[2].parameters():
            parameter.zero_()
    images, tasks, labels = torch.randn(16, 1, 8, 8), torch.arange(16) % 3, torch.arange(16) % 2
    model.train()
    logits, trace = model.route(images, tasks, explore=True)
    trace.final_reward = torch.randn(16)
    assert all(state.requires_grad != detach_state for state in trace.states)
    loss, auxiliary = nn.functional.cross_entropy(logits, labels), model.router.auxiliary_loss(trace)
    assert (auxiliary is None) == detach_state
    if auxiliary is None:
        loss.backward()
        model.router.learn(trace)
    else:
        (loss + auxiliary).backward()
    below = [*model.network.body[0].parameters(), *model.network.layers[0].blocks.active_parameters()]
    for parameter in below:
        assert (parameter.grad is not None and bool(parameter.grad.any())) != detach_state


@pytest.mark.parametrize("kind", [name for name in KINDS if "network" in name])
def test_training_with_the_routers_gradient_changes_features_otherwise(kind):
    """Same routes and rewards in the first step: without the router's gradient the features end elsewhere."""
    models = []
    for detach_state in (True, False):
        router = RewardRouter(MLPPolicy(8), KINDS[kind][1](), detach_state=detach_state)
        model = toy_model(router=router, optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
        before = router_parameters(model)
        fit(model, max_steps=1)
        after = router_parameters(model)
        assert any(not torch.equal(after[name], before[name]) for name in after)
        models.append(model)
    detached, joint = models
    for name, value in router_parameters(detached).items():
        torch.testing.assert_close(value, router_parameters(joint)[name])  # the router's own step is the same
    assert not torch.equal(detached.network.body[0].layers[0].weight, joint.network.body[0].layers[0].weight)


def test_the_routers_gradient_may_not_cross_processes_or_aggregators():
    aggregation = pytest.importorskip("torchjd.aggregation", reason="the extra jd is not installed")
    router = RewardRouter(MLPPolicy(8), REINFORCE(), detach_state=False)
    with pytest.raises(UsageError, match="detach_state is false, which works in one process, without aggregator"):
        fit(toy_model(router=router, aggregator=aggregation.PCGrad()))


@pytest.mark.parametrize("optimizer", [momentum, adam])
@pytest.mark.parametrize(
    ("policy", "learner", "agents"),
    [
        (MLPPolicy, lambda o: REINFORCE(baseline=True, optimizer=o), "per_task"),
        (MLPPolicy, lambda o: ApproximateQLearning(optimizer=o, epsilon_samples=300), "dispatched"),
        (TabularPolicy, lambda o: ApproximateWPL(optimizer=o), "single"),
    ],
    ids=["REINFORCE", "ApproximateQLearning", "ApproximateWPL"],
)
def test_resumed_run_equals_the_unbroken_one_to_the_bit(policy, learner, agents, optimizer, tmp_path):
    def model():
        return toy_model(router=RewardRouter(policy(), learner(optimizer), agents=agents, collaboration=0.2))

    whole = model()
    whole_trainer = fit(whole, max_epochs=3)
    fit(model(), max_epochs=1, default_root_dir=tmp_path, enable_checkpointing=True)
    (checkpoint,) = tmp_path.rglob("*.ckpt")
    saved = torch.load(checkpoint, weights_only=True)["optimizer_states"]
    assert len(saved) == (3 if agents == "dispatched" else 2) and all(entry["state"] for entry in saved[1:])
    resumed = model()
    resumed_trainer = fit(resumed, max_epochs=3, ckpt_path=checkpoint)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    assert whole_trainer.global_step == resumed_trainer.global_step == 18


@pytest.mark.parametrize("agents", ["per_task", "dispatched"])
@pytest.mark.parametrize("detach_state", [True, False])
def test_global_step_counts_batches_once(agents, detach_state):
    router = RewardRouter(MLPPolicy(8), REINFORCE(), agents=agents, detach_state=detach_state)
    assert fit(toy_model(router=router), max_epochs=2).global_step == 12


def test_the_routers_schedule_steps_once_per_epoch_whatever_the_models():
    def halving(optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    router = RewardRouter(MLPPolicy(8), REINFORCE(lr=0.8, lr_scheduler=halving), agents="dispatched")
    model = toy_model(
        router=router,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
        lr_scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 3, 0.1),
        lr_interval="step",
    )
    trainer = fit(model, max_epochs=2)  # 2 epochs of 6 batches
    rates = [optimizer.param_groups[0]["lr"] for optimizer in trainer.optimizers]
    assert rates == pytest.approx([1e-5, 0.2, 0.2])
    assert router.learner.optimizer.param_groups[0]["lr"] == pytest.approx(0.2)


def test_the_model_optimizer_does_not_move_the_router():
    model = toy_model(
        router=RewardRouter(MLPPolicy(8), REINFORCE(lr=1e-12)),
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.5),
    )
    before = router_parameters(model)
    fit(model)
    for name, value in router_parameters(model).items():
        torch.testing.assert_close(value, before[name], atol=1e-9, rtol=0)


@pytest.mark.parametrize("policy", [TabularPolicy, MLPPolicy])
def test_evaluation_leaves_router_and_generator_alone(policy):
    learner = REINFORCE(baseline=True)
    model = toy_model(router=RewardRouter(policy(), learner, agents="dispatched", collaboration=0.5)).eval()
    images = torch.randn(12, 1, 8, 8)
    before, noise = copy.deepcopy(model.router.state_dict()), torch.get_rng_state()
    model(images, torch.arange(12) % 3)
    assert torch.equal(torch.get_rng_state(), noise)
    for name, value in model.router.state_dict().items():
        assert torch.equal(value, before[name])


def test_fixed_routes_stay_and_only_their_blocks_learn():
    model = toy_model(router=FixedRoutes(seed=1), num_blocks=5)
    before = copy.deepcopy(model.state_dict())
    fit(model, max_epochs=2)
    after, routes = model.state_dict(), model.router.probabilities().argmax(-1)
    assert torch.equal(after["network.router.table"], before["network.router.table"])
    for name in before:
        if ".blocks." in name:
            place, *_, block = name.removeprefix("network.body.").split(".")
            used = int(block) in routes[:, int(place) - 1].tolist()
            assert torch.equal(before[name], after[name]) != used, name


def test_recurrent_blocks_that_everyone_passes_stay():
    model = toy_model(router=RewardRouter(TabularPolicy(), WPL(0.05)), recurrent_steps=2, allow_pass=True)
    model.router.policy.table[:, 1:3] = torch.eye(4)[3]  # PASS, certainly: WPL as printed keeps it
    before = copy.deepcopy(model.state_dict())
    fit(model)
    after = model.state_dict()
    for name in before:
        if name.startswith("network.body.2."):
            assert torch.equal(before[name], after[name])
    assert any(not torch.equal(before[name], after[name]) for name in before if name.startswith("network.body.1."))


def test_minus_the_loss_as_final_reward():
    model = toy_model(router=RewardRouter(TabularPolicy(), WPL(0.05)), final_reward="negative_loss")
    rewards = []
    learn = model.router.learn
    model.router.learn = lambda trace: (rewards.append(trace.final_reward), learn(trace))
    trainer = fit(model)
    assert torch.cat(rewards).max() < 0
    assert -torch.cat(rewards).mean().item() == pytest.approx(trainer.callback_metrics["train/loss"].item(), rel=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recurrent_steps": 2, "depth": 2}, "recurrent_steps is 2 with 2 layers; give 0, or more with depth 3"),
        ({"recurrent_steps": -1}, "recurrent_steps is -1 with 3 layers; give 0, or more with depth 3"),
        ({"allow_pass": True}, "allow_pass is true but nothing is recurrent; set recurrent_steps to at least 1"),
    ],
)
def test_recurrence_that_does_not_fit_is_refused(options, message):
    with pytest.raises(UsageError, match=message):
        toy_model(**options)


def test_one_network_for_depths_of_different_sizes_is_refused():
    with pytest.raises(UsageError, match="use depth_input 'separate'"):
        toy_model(router=RewardRouter(MLPPolicy(depth_input="one_hot"), REINFORCE()))


def test_a_routers_optimizer_that_refuses_its_values_is_told():
    router = RewardRouter(MLPPolicy(), REINFORCE(optimizer=lambda p: torch.optim.SGD(p, lr=-1)))
    with pytest.raises(UsageError, match="router's optimizer refuses its values: .*-1"):
        fit(toy_model(router=router))
