"""Each learner on a routing problem with a known answer: every task has one right block per depth.

The reward is +1 for a route that is right at all depths, -1 for any other: 1 route in 9 is right by chance. A policy
that looks at activations sees the block that the sample comes from, as in a network whose blocks differ.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from routing_lightning.routers import (
    REINFORCE,
    WPL,
    ApproximateQLearning,
    ApproximateWPL,
    MLPPolicy,
    QLearning,
    RewardRouter,
    RoutingSpec,
    TabularPolicy,
    Trace,
)

TASKS, BLOCKS, BATCH = 4, 3, 32


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.02)


def routed(router: RewardRouter, right: Tensor, count: int, *, explore: bool) -> Trace:
    """A batch of `count` samples with its final reward; right: (T, D), the right blocks."""
    tasks, state = torch.randint(TASKS, (count,)), torch.zeros(count, BLOCKS)
    trace = router.start(tasks, explore=explore)
    if router.uses_state:
        actions = []
        for depth in range(right.shape[1]):
            actions.append(router.decide(trace, state, depth).actions)
            state = one_hot(actions[-1], BLOCKS).float()
        trace.actions = torch.stack(actions, 1)
    trace.final_reward = (trace.actions == right[tasks]).all(1).float() * 2 - 1
    return trace


def share_of_right_routes(router: RewardRouter, samples: int, depth: int = 2) -> float:
    torch.manual_seed(0)
    router.build(RoutingSpec(TASKS, [BLOCKS] * depth, state_sizes=[BLOCKS] * depth))
    right = torch.randint(BLOCKS, (TASKS, depth))
    for _ in range(samples // BATCH):
        router.learn(routed(router, right, BATCH, explore=True))
    return (routed(router, right, 1000, explore=False).final_reward > 0).float().mean().item()


TABLE_LEARNERS = {
    "WPL printed": lambda: WPL(0.05, scaling="printed"),
    "WPL original": lambda: WPL(0.05, scaling="original"),
    "ApproximateWPL printed": lambda: ApproximateWPL(10.0, scaling="printed"),
    "ApproximateWPL original": lambda: ApproximateWPL(10.0, scaling="original"),
    "REINFORCE": lambda: REINFORCE(2.0),
    "REINFORCE with baseline": lambda: REINFORCE(2.0, baseline=True),
    "QLearning": lambda: QLearning(0.1, epsilon_samples=1500),
}


@pytest.mark.parametrize("make", TABLE_LEARNERS.values(), ids=TABLE_LEARNERS)
def test_table_per_task_within_4000_samples(make: Callable):
    assert share_of_right_routes(RewardRouter(TabularPolicy(), make()), 4000) >= 0.95


def test_approximate_q_learning_on_a_table_within_4000_samples():
    """With depth 1: a table does not see what was chosen before, so later values say nothing of a route."""
    router = RewardRouter(TabularPolicy(), ApproximateQLearning(1.0, epsilon_samples=1500))
    assert share_of_right_routes(router, 4000, depth=1) >= 0.95


MLP_LEARNERS = {
    "ApproximateWPL printed": lambda: ApproximateWPL(scaling="printed", optimizer=adam),
    "ApproximateWPL original": lambda: ApproximateWPL(scaling="original", optimizer=adam),
    "REINFORCE": lambda: REINFORCE(optimizer=adam),
    "REINFORCE with baseline": lambda: REINFORCE(baseline=True, optimizer=adam),
    "ApproximateQLearning": lambda: ApproximateQLearning(epsilon_samples=1500, optimizer=adam),
}


@pytest.mark.parametrize("agents", ["per_task", "single", "dispatched"])
@pytest.mark.parametrize("make", MLP_LEARNERS.values(), ids=MLP_LEARNERS)
def test_network_within_4000_samples(make: Callable, agents):
    assert share_of_right_routes(RewardRouter(MLPPolicy(16), make(), agents=agents), 4000) >= 0.95


def test_one_network_for_all_depths_within_4000_samples():
    router = RewardRouter(MLPPolicy(16, depth_input="one_hot"), REINFORCE(optimizer=adam))
    assert share_of_right_routes(router, 4000) >= 0.95


def test_dispatched_tables_within_4000_samples():
    assert share_of_right_routes(RewardRouter(TabularPolicy(), REINFORCE(2.0), agents="dispatched"), 4000) >= 0.95


@pytest.mark.parametrize("make", MLP_LEARNERS.values(), ids=MLP_LEARNERS)
def test_a_network_routes_by_the_activation_within_4000_samples(make: Callable):
    """One task, and the sign of the activation says which of two blocks is right."""
    torch.manual_seed(0)
    router = RewardRouter(MLPPolicy(16), make(), agents="single")
    router.build(RoutingSpec(1, [2], state_sizes=[1]))
    for step in range(4000 // BATCH + 1):
        count, explore = (BATCH, True) if step < 4000 // BATCH else (1000, False)
        state = torch.randn(count, 1)
        trace = router.start(torch.zeros(count, dtype=torch.long), explore=explore)
        trace.actions = router.decide(trace, state, 0).actions[:, None]
        trace.final_reward = (trace.actions[:, 0] == (state[:, 0] > 0)).float() * 2 - 1
        if explore:
            router.learn(trace)
    assert (trace.final_reward > 0).float().mean() >= 0.95
