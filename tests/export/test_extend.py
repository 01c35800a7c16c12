"""New tasks join: what the old ones get stays as it was."""

from functools import partial

import pytest
import torch

from routing_lightning.errors import UsageError
from routing_lightning.export import extend_network, plain_network
from routing_lightning.networks import RoutingAllLayers
from routing_lightning.routers import REINFORCE, WPL, FixedRoutes, QLearning, RewardRouter, TabularPolicy
from tests.conftest import layered, toy_model
from tests.export.test_plain import trained_look
from tests.export.test_prune import modules
from tests.networks.test_specialise import random_table

LEARNERS = {"wpl": partial(WPL, baseline="per_action"), "q": QLearning, "logits": REINFORCE}
BODIES = {
    "fc": {},
    "pass": {"recurrent_steps": 2, "allow_pass": True},
    "convolutions": {"network": partial(RoutingAllLayers, filters=8, conv_layers=2, hidden=8)},
    "group": {"network": partial(RoutingAllLayers, filters=8, conv_layers=2, hidden=8, norm="group")},
    "modules": {"network": layered(*modules())},
}


def made(learner="wpl", body="fc", **options):
    model = toy_model(router=RewardRouter(TabularPolicy(), LEARNERS[learner](), collaboration=0.3), **BODIES[body])
    random_table(model.router)
    return trained_look(model)


def train(network, parts, tasks) -> set[int]:
    """Some steps of training on noise; the blocks of the first layer that were taken."""
    optimizer = torch.optim.SGD([{"params": parts.new, "lr": 0.1}, {"params": parts.old, "lr": 0.01}], momentum=0.9)
    network.train()
    taken: set[int] = set()
    for _ in range(8):
        logits, trace = network(torch.randn(len(tasks), 1, 8, 8), tasks)
        optimizer.zero_grad()
        loss = logits.square().sum()
        if loss.requires_grad:
            loss.backward()
        optimizer.step()
        trace.final_reward = torch.randn(len(tasks))
        network.router.learn(trace)
        taken |= set(trace.actions[:, 0].tolist())
    network.eval()
    return taken


CASES = [*((learner, "fc") for learner in LEARNERS), *(("wpl", body) for body in BODIES), ("logits", "pass")]


@pytest.mark.parametrize(("learner", "body"), CASES)
def test_old_tasks_get_what_they_got_to_the_bit_while_new_ones_learn(learner, body):
    model = made(learner, body)
    images, tasks = torch.randn(24, 1, 8, 8), torch.arange(24) % 3
    count = model.network.layers[0].blocks.num_blocks
    with torch.no_grad():
        before, _ = model.network(images, tasks, explore=False)
        parts = extend_network(model.network, 2, 2)
        assert torch.equal(model.network(images, tasks, explore=False)[0], before)
        fresh, _ = model.network(images, tasks % 2 + 3, explore=False)
    taken = train(model.network, parts, torch.arange(24) % 2 + 3)
    assert {count, count + 1} & taken and taken & set(range(count))  # new agents take old and new blocks
    with torch.no_grad():
        assert torch.equal(model.network(images, tasks, explore=False)[0], before)
        assert not torch.equal(model.network(images, tasks % 2 + 3, explore=False)[0], fresh)
        model.num_tasks = 5
        own = model.network.specialise(4)(images)
        assert torch.allclose(own, model.network(images, torch.full((24,), 4), explore=False)[0], atol=1e-5)
        assert torch.allclose(plain_network(model, 4)(images), own)


@pytest.mark.parametrize("learner", LEARNERS)
def test_old_agents_stay_with_old_blocks(learner):
    model = made(learner)
    before = model.router.probabilities()
    extend_network(model.network, 1, [3, 0, 1])
    after = model.router.probabilities()
    assert after.shape == (4, 3, 6)
    assert torch.allclose(after.sum(-1), torch.ones(()))
    assert torch.equal(after[:3, 1, :3], before[:, 1])
    if learner != "q":  # which explores
        assert torch.allclose(after[:3, 0, :3], before[:, 0]) and not after[:3, 0, 3:].any()
    assert (after[3, 0] > 0).all()


def test_without_freezing_old_parts_move_at_their_own_rate():
    model = made()
    images, tasks = torch.randn(24, 1, 8, 8), torch.arange(24) % 3
    before = model(images, tasks)
    parts = extend_network(model.network, 1, 1, old_lr=0.1)
    assert all(parameter.requires_grad for parameter in parts.old + parts.new)
    assert len({id(parameter) for parameter in parts.old + parts.new}) == len(parts.old) + len(parts.new)
    train(model.network, parts, torch.full((24,), 3))
    assert not torch.equal(model(images, tasks), before)


def test_what_cannot_be_extended_is_refused_and_left_as_it_is():
    with pytest.raises(UsageError, match="FixedRoutes has no agent per task"):
        extend_network(toy_model(router=FixedRoutes()).network, 1)
    with pytest.raises(UsageError, match="has no agent per task"):
        extend_network(toy_model(router=RewardRouter(TabularPolicy(), WPL(), agents="single")).network, 1)
    for options in ({"new_tasks": 0}, {"new_tasks": 1, "new_blocks": [1]}, {"new_tasks": 1, "new_blocks": -1}):
        with pytest.raises(UsageError, match="give at least 1 task"):
            extend_network(made().network, **options)
    body = partial(RoutingAllLayers, filters=8, conv_layers=2, hidden=8, norm="block")
    network = toy_model(network=body).network
    with pytest.raises(UsageError, match="norm 'block'"):
        extend_network(network, 1, 1)
    assert all(parameter.requires_grad for parameter in network.body.parameters())
