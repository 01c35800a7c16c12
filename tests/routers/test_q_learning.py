from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import one_hot

from routing_lightning.errors import UsageError
from routing_lightning.routers import (
    ApproximateQLearning,
    MLPPolicy,
    QLearning,
    RewardRouter,
    RoutingSpec,
    TabularPolicy,
    Trace,
)

# A chain of 3 decisions between 2 blocks, with immediate rewards (depth x block) and a final reward of 1.
CHAIN = torch.tensor([[0.5, -1.0], [0.0, 2.0], [-0.5, 0.25]])
FINAL, GAMMA = 1.0, 0.8
# Backwards: Q(3, a) = r + 1; Q(2, a) = r + 0.8 * 1.25; Q(1, a) = r + 0.8 * 3.
FIXED_POINT = torch.tensor([[2.9, 1.4], [1.0, 3.0], [0.5, 1.25]])


def trace_of(agents, actions, rewards, final) -> Trace:
    agents = torch.as_tensor(agents)
    return Trace(
        tasks=agents,
        agents=agents,
        actions=torch.as_tensor(actions),
        rewards=torch.as_tensor(rewards),
        final_reward=torch.as_tensor(final),
    )


def built(policy, learner, num_tasks=1, num_actions=(2, 2, 2), gamma=GAMMA) -> RewardRouter:
    router = RewardRouter(policy, learner, gamma=gamma)
    router.build(RoutingSpec(num_tasks, num_actions, state_sizes=[2] * len(num_actions)))
    return router


def chain_batch(count: int, generator: torch.Generator) -> Trace:
    """Walks along the chain; the state before a decision is the 1-hot block of the one before, zeros at first."""
    actions = torch.randint(2, (count, 3), generator=generator)
    trace = trace_of(torch.zeros(count, dtype=torch.long), actions, CHAIN[torch.arange(3), actions], [FINAL] * count)
    trace.states = [torch.zeros(count, 2), *(one_hot(actions[:, depth], 2).float() for depth in range(2))]
    return trace


def test_table_reaches_the_fixed_point_of_a_chain():
    router = built(TabularPolicy(), QLearning(lr=0.2))
    router.learner.learn(router.policy, chain_batch(500, torch.Generator().manual_seed(0)))
    torch.testing.assert_close(router.policy.table[0], FIXED_POINT, atol=1e-4, rtol=0)


def test_gradient_learner_on_a_table_reaches_the_same_fixed_point():
    router = built(TabularPolicy(), ApproximateQLearning(lr=0.4))
    generator = torch.Generator().manual_seed(0)
    for _ in range(100):
        router.learner.learn(router.policy, chain_batch(32, generator))
    torch.testing.assert_close(router.policy.table[0].detach(), FIXED_POINT, atol=1e-3, rtol=0)


@pytest.mark.parametrize("depth_input", ["separate", "one_hot"])
def test_network_reaches_the_same_fixed_point(depth_input):
    torch.manual_seed(0)
    learner = ApproximateQLearning(optimizer=lambda p: torch.optim.Adam(p, lr=0.005))
    router = built(MLPPolicy(32, depth_input), learner)
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        router.learner.learn(router.policy, chain_batch(32, generator))
    trace = chain_batch(32, generator)
    with torch.no_grad():
        for depth, values in enumerate(router.policy.scores_of(trace)):
            torch.testing.assert_close(values, FIXED_POINT[depth].expand(32, 2), atol=0.02, rtol=0)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), gamma=st.floats(0, 1), rate=st.floats(0.01, 1))
def test_a_batch_equals_the_loop_over_samples(seed, gamma, rate):
    generator = torch.Generator().manual_seed(seed)
    sizes, count = [3, 2, 4], 20
    router = built(TabularPolicy(), QLearning(rate), 4, sizes, gamma)
    router.policy.table.copy_(torch.randn(4, 3, 4, generator=generator))
    q = router.policy.table.clone()
    agents = torch.randint(4, (count,), generator=generator)
    actions = torch.stack([torch.randint(-1, size, (count,), generator=generator) for size in sizes], 1)
    rewards, final = torch.randn(count, 3, generator=generator), torch.randn(count, generator=generator)
    for n in range(count):
        made = [d for d in range(3) if actions[n, d] != -1]
        for d, after in pairwise([*made, None]):
            follows = final[n] if after is None else gamma * q[agents[n], after, : sizes[after]].max()
            row = q[agents[n], d]
            row[actions[n, d]] += rate * (rewards[n, d] + follows - row[actions[n, d]])
    router.learner.learn(router.policy, trace_of(agents, actions, rewards, final))
    torch.testing.assert_close(router.policy.table, q)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), gamma=st.floats(0, 1))
def test_loss_and_gradient_equal_the_loop_over_samples(seed, gamma):
    generator = torch.Generator().manual_seed(seed)
    sizes, count = [3, 2, 4], 12
    router = built(TabularPolicy(), ApproximateQLearning(), 4, sizes, gamma)
    q = router.policy.table
    q.data = torch.randn(4, 3, 4, generator=generator)
    agents = torch.randint(4, (count,), generator=generator)
    actions = torch.stack([torch.randint(-1, size, (count,), generator=generator) for size in sizes], 1)
    rewards, final = torch.randn(count, 3, generator=generator), torch.randn(count, generator=generator)
    expected = 0 * q.sum()
    for n in range(count):
        made = [d for d in range(3) if actions[n, d] != -1]
        for d, after in pairwise([*made, None]):
            # a number, not a tensor: the target is held fixed
            follows = final[n] if after is None else gamma * q[agents[n], after, : sizes[after]].max().item()
            expected = expected + (rewards[n, d] + follows - q[agents[n], d, actions[n, d]]) ** 2 / count
    loss = router.learner.loss(router.policy, trace_of(agents, actions, rewards, final))
    torch.testing.assert_close(loss, expected, atol=1e-4, rtol=1e-4)
    for ours, theirs in zip(torch.autograd.grad(loss, q), torch.autograd.grad(expected, q), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("learner", [QLearning, ApproximateQLearning])
def test_epsilon_falls_linearly_with_the_samples_and_then_stays(learner):
    router = built(TabularPolicy(), learner(epsilon_start=0.9, epsilon_end=0.1, epsilon_samples=100))
    given_epsilon = []
    for _ in range(5):
        given_epsilon.append(router.learner.epsilon)
        router.learner.learn(router.policy, chain_batch(40, torch.Generator().manual_seed(0)))
    assert given_epsilon == pytest.approx([0.9, 0.58, 0.26, 0.1, 0.1])
    other = built(TabularPolicy(), learner(epsilon_start=0.9, epsilon_end=0.1, epsilon_samples=100))
    other.load_state_dict(router.state_dict())
    assert other.learner.epsilon == pytest.approx(0.1)  # part of the checkpoint


def test_actions_are_epsilon_greedy():
    learner = QLearning(epsilon_start=0.4, epsilon_end=0.4)
    scores = torch.tensor([[1.0, 3.0, 2.0, 0.0], [5.0, 5.0, 1.0, 9.0]])
    expected = torch.tensor([[0.1, 0.7, 0.1, 0.1], [0.3 + 0.4 / 3, 0.3 + 0.4 / 3, 0.4 / 3, 0.0]])
    torch.testing.assert_close(learner.probabilities(scores, torch.tensor([4, 3])), expected)


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0])
def test_evaluation_takes_the_best_action_at_every_epsilon(epsilon):
    router = built(TabularPolicy(), QLearning(epsilon_start=epsilon, epsilon_end=epsilon))
    router.policy.table[0, 0] = torch.tensor([0.0, 0.1])
    trace = router.start(torch.zeros(5, dtype=torch.long), explore=False)
    assert trace.actions[:, 0].tolist() == [1] * 5


def test_exploration_draws_the_other_actions_as_often_as_epsilon_says():
    router = built(TabularPolicy(), QLearning(epsilon_start=0.3, epsilon_end=0.3))
    router.policy.table[0, :, 1] = 1
    generator = torch.Generator().manual_seed(0)
    actions = router.start(torch.zeros(100_000, dtype=torch.long), explore=True, generator=generator).actions
    torch.testing.assert_close((actions == 0).float().mean(0), torch.full((3,), 0.15), atol=0.005, rtol=0)


@pytest.mark.parametrize("learner", [QLearning, ApproximateQLearning])
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("lr", 0.0),
        ("lr", float("nan")),
        ("epsilon_start", 1.1),
        ("epsilon_end", -0.1),
        ("epsilon_end", float("nan")),
        ("epsilon_samples", 0),
    ],
)
def test_impossible_values_name_the_option(learner, option, value):
    with pytest.raises(UsageError, match=f"{option} .*is"):
        learner(**{option: value})
