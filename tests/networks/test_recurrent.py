"""Recurrent routing and PASS (paper, appendix; docs/paper.md, reading 20)."""

import pytest
import torch
from torch import nn

from routing_lightning.errors import UsageError
from routing_lightning.networks import Recurrent, RoutedLayer, RoutingNetwork
from routing_lightning.nn import LinearBlocks, ModuleBlocks
from routing_lightning.routers import (
    REINFORCE,
    WPL,
    ApproximateQLearning,
    ApproximateWPL,
    CollaborationReward,
    MLPPolicy,
    QLearning,
    RewardRouter,
    RoutingSpec,
    TabularPolicy,
    Trace,
)

BLOCKS, PASS = 3, 3


def network(router=None, steps=2, num_tasks=4) -> RoutingNetwork:
    """A first layer, `steps` times the middle one or PASS, a last layer."""
    torch.manual_seed(0)
    body = nn.Sequential(
        RoutedLayer(LinearBlocks(4, 6, 5)),
        Recurrent(RoutedLayer(LinearBlocks(BLOCKS, 5, 5), allow_pass=True), steps),
        RoutedLayer(LinearBlocks(2, 5, 2, relu=False)),
    )
    return RoutingNetwork(body, router or RewardRouter(TabularPolicy(), WPL()), num_tasks, torch.zeros(1, 6))


ROUTERS = {
    "table": lambda: RewardRouter(TabularPolicy(), WPL()),
    "network": lambda: RewardRouter(MLPPolicy(8), REINFORCE()),
    "dispatched": lambda: RewardRouter(MLPPolicy(8), ApproximateQLearning(), agents="dispatched"),
}


@pytest.mark.parametrize("make", ROUTERS.values(), ids=ROUTERS)
def test_the_output_follows_the_trace_block_by_block(make):
    net, x, tasks = network(make(), steps=3), torch.randn(60, 6), torch.randint(4, (60,))
    y, trace = net(x, tasks, explore=True)
    assert trace.actions.shape == (60, 5)
    assert (trace.actions[:, 1:4] == PASS).any() and (trace.actions[:, [0, 4]] < torch.tensor([4, 2])).all()
    for n in range(60):
        row = x[n]
        for depth, layer in enumerate([0, 1, 1, 1, 2]):
            action = int(trace.actions[n, depth])
            if layer == 1 and action == PASS:
                continue
            row = nn.functional.linear(row, *net.layers[layer].blocks.linear(action))
            row = row if layer == 2 else row.relu()
        torch.testing.assert_close(y[n], row)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [LinearBlocks, ModuleBlocks])
def test_pass_leaves_the_activation_bit_equal(kind, dtype):
    torch.manual_seed(0)
    modules = [nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5)]
    layer = LinearBlocks(BLOCKS, 5, 5) if kind is LinearBlocks else ModuleBlocks(modules)
    x, actions = torch.randn(50, 5, dtype=dtype), torch.randint(BLOCKS + 1, (50,))
    y = layer.to(dtype)(x, actions)
    passed = actions == PASS
    assert passed.any() and torch.equal(y[passed], x[passed])
    assert not torch.isclose(y[~passed], x[~passed]).all(1).any()
    assert torch.equal(layer(x, torch.full((50,), PASS)), x)


def test_pass_hands_the_gradient_on_unchanged():
    layer, x = LinearBlocks(BLOCKS, 5, 5), torch.randn(8, 5, requires_grad=True)
    actions = torch.tensor([PASS, 0] * 4)
    upstream = torch.randn(8, 5)
    layer(x, actions).backward(upstream)
    assert torch.equal(x.grad[actions == PASS], upstream[actions == PASS])
    for block in range(BLOCKS):
        assert all((parameter.grad is None) == (block > 0) for parameter in layer.block_parameters(block))


def test_blocks_that_everyone_passes_are_not_active():
    net = network().train()
    net.router.policy.table.zero_()
    net.router.policy.table[:, [0, 3], 0] = 1
    net.router.policy.table[:, [1, 2], PASS] = 1
    x = torch.randn(10, 6)
    y, _ = net(x, torch.randint(4, (10,)))
    assert [layer.blocks.active for layer in net.layers] == [{0}, set(), {0}]
    first, last = net.layers[0].blocks, net.layers[2].blocks
    torch.testing.assert_close(y, last(first(x, torch.zeros(10).long()), torch.zeros(10).long()))


def test_a_layer_may_serve_all_depths_in_any_order():
    layers = [RoutedLayer(LinearBlocks(2, 5, 5)), RoutedLayer(LinearBlocks(3, 5, 5))]
    body = nn.Sequential(layers[1], layers[0], layers[1])
    net = RoutingNetwork(body, RewardRouter(MLPPolicy(8, "separate"), REINFORCE()), 4, torch.zeros(1, 5))
    x = torch.randn(10, 5)
    y, trace = net(x, torch.randint(4, (10,)), explore=True)
    for depth, layer in enumerate((1, 0, 1)):
        x = layers[layer].blocks(x, trace.actions[:, depth])
    assert torch.equal(x, y) and net.router.policy.num_actions.tolist() == [3, 2, 3]


def test_one_network_for_all_depths_gets_pass_too():
    body = Recurrent(RoutedLayer(LinearBlocks(3, 5, 5), allow_pass=True), 3)
    net = RoutingNetwork(body, RewardRouter(MLPPolicy(8, "one_hot"), REINFORCE()), 4, torch.zeros(1, 5))
    _, trace = net(torch.randn(200, 5), torch.randint(4, (200,)), explore=True)
    assert trace.actions.unique().tolist() == [0, 1, 2, PASS]


@pytest.mark.parametrize(
    "learner", [WPL, QLearning, REINFORCE, lambda: REINFORCE(baseline=True), ApproximateWPL, ApproximateQLearning]
)
def test_no_decision_moves_nothing(learner):
    """-1: as if the depth were not there."""
    router = RewardRouter(TabularPolicy(), learner(), collaboration=0.5)
    router.build(RoutingSpec(2, [3, 3, 3]))
    trace = router.start(torch.tensor([0, 1, 1]), explore=True)
    trace.actions[:, 1] = -1
    trace.actions[:2] = -1
    trace.final_reward = torch.ones(3)
    router.learn(trace)
    table = router.policy.table.detach()
    first = router.learner.initial_table(2, [3, 3, 3])
    assert torch.equal(table[0], first[0]) and torch.equal(table[:, 1], first[:, 1])
    assert not torch.equal(table[1, 0], first[1, 0])
    if hasattr(router.learner, "average_return"):
        average = router.learner.average_return
        assert (average[0] == 0).all() and (average[:, 1] == 0).all()


def test_no_decision_gets_no_collaboration_reward():
    reward = CollaborationReward(1.0, "frequency")
    reward.build([2])
    given = reward(torch.tensor([[0], [-1], [0]]), torch.full((3, 1, 2), 0.5))
    assert given[:, 0].tolist() == [1.0, 0.0, 1.0] and reward.count.item() == 2


def test_no_decision_skips_a_depth_in_the_bootstrapped_target():
    router = RewardRouter(TabularPolicy(), QLearning(lr=1.0), gamma=0.5)
    router.build(RoutingSpec(1, [2, 2, 2]))
    router.policy.table[0] = torch.tensor([[0.0, 0.0], [9.0, 9.0], [4.0, 2.0]])
    tasks = torch.tensor([0])
    trace = Trace(
        tasks, tasks, actions=torch.tensor([[1, -1, -1]]), rewards=torch.zeros(1, 3), final_reward=torch.tensor([3.0])
    )
    router.learner.learn(router.policy, trace)
    assert router.policy.table[0, 0].tolist() == [0.0, 3.0]  # the last decision gets the final reward
    trace.actions = torch.tensor([[0, -1, 0]])
    router.learner.learn(router.policy, trace)
    assert router.policy.table[0].tolist() == [[2.0, 3.0], [9.0, 9.0], [3.0, 2.0]]


@pytest.mark.parametrize("layer", [LinearBlocks(2, 6, 5), ModuleBlocks([nn.Linear(6, 5), nn.Linear(6, 5)])])
def test_pass_where_sizes_differ_is_refused(layer):
    with pytest.raises(UsageError, match="depth 1 has PASS .* allowed only where input and output have the same size"):
        RoutingNetwork(RoutedLayer(layer, allow_pass=True), RewardRouter(TabularPolicy(), WPL()), 2, torch.zeros(1, 6))


def test_no_step_is_refused():
    with pytest.raises(UsageError, match="steps of Recurrent is 0; give at least 1"):
        Recurrent(RoutedLayer(LinearBlocks(2, 5, 5)), 0)


def test_a_recurrent_layer_that_changes_sizes_is_refused():
    body = Recurrent(RoutedLayer(LinearBlocks(2, 6, 5)), 2)
    with pytest.raises(UsageError, match=r"block 0 of the routed layer at depth 2 cannot take activations \('N', 5\)"):
        RoutingNetwork(body, RewardRouter(TabularPolicy(), WPL()), 2, torch.zeros(1, 6))


def test_without_tasks_there_is_a_dummy_task():
    net = network(num_tasks=1)
    _, trace = net(torch.randn(5, 6))
    assert trace.tasks.tolist() == [0] * 5
