import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from routing_lightning.errors import UsageError
from routing_lightning.routers import (
    WPL,
    CollaborationReward,
    RewardRouter,
    RoutingSpec,
    TabularPolicy,
    correctness_reward,
    returns,
)


@given(seed=st.integers(0, 10**6), gamma=st.floats(0, 1), depth=st.integers(1, 5))
def test_returns_equal_the_sum_as_printed(seed, gamma, depth):
    generator = torch.Generator().manual_seed(seed)
    final = torch.randn(7, generator=generator, dtype=torch.float64)
    rewards = torch.randn(7, depth, generator=generator, dtype=torch.float64)
    for n in range(7):
        for i in range(depth):
            expected = final[n] + sum(gamma ** (j - i) * rewards[n, j] for j in range(i, depth))
            torch.testing.assert_close(returns(final, rewards, gamma)[n, i], expected)


def test_correctness_reward_is_plus_and_minus_one():
    reward = correctness_reward(torch.tensor([True, False, True]))
    assert reward.tolist() == [1.0, -1.0, 1.0] and reward.dtype == torch.float32


@pytest.mark.parametrize("depth", [1, 3])
def test_a_learner_may_write_to_the_returns(depth):
    router = RewardRouter(TabularPolicy(), WPL())
    router.build(RoutingSpec(2, [4] * depth))
    trace = router.start(torch.tensor([0, 1, 1]), explore=True)
    trace.final_reward = torch.tensor([1.0, -1.0, 1.0])
    router.reward(trace)
    assert trace.returns.tolist() == [[1.0] * depth, [-1.0] * depth, [1.0] * depth]
    trace.returns.sub_(0.5)
    assert trace.returns[:, -1].tolist() == [0.5, -1.5, 0.5] and trace.final_reward.tolist() == [1, -1, 1]


def collaboration(rho=0.3, by="probability", num_actions=(4, 2, 3)) -> CollaborationReward:
    reward = CollaborationReward(rho, by)
    reward.build(list(num_actions))
    return reward


def decisions(seed: int, count: int = 25, num_actions=(4, 2, 3)):
    """Random actions, some of them none (-1), and the probabilities that they were drawn from."""
    generator = torch.Generator().manual_seed(seed)
    actions = torch.stack([torch.randint(-1, size, (count,), generator=generator) for size in num_actions], 1)
    probabilities = torch.zeros(count, len(num_actions), max(num_actions))
    for depth, size in enumerate(num_actions):
        probabilities[:, depth, :size] = torch.randn(count, size, generator=generator).softmax(-1)
    return actions, probabilities


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), by=st.sampled_from(["probability", "frequency"]), rho=st.floats(0, 1))
def test_collaboration_equals_the_loop_over_samples(seed, by, rho):
    actions, probabilities = decisions(seed)
    history = [[] for _ in range(3)]  # of each depth: what the router gave each block, decision after decision
    expected = torch.zeros(len(actions), 3)
    for n in range(len(actions)):
        for depth in range(3):
            action = int(actions[n, depth])
            if action == -1:
                continue
            chosen = [float(block == action) for block in range(4)]
            history[depth].append(probabilities[n, depth].tolist() if by == "probability" else chosen)
            average = sum(row[action] for row in history[depth]) / len(history[depth])
            expected[n, depth] = rho * average
    torch.testing.assert_close(collaboration(rho, by)(actions, probabilities), expected)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    by=st.sampled_from(["probability", "frequency"]),
    cuts=st.lists(st.integers(0, 25), max_size=4),
)
def test_collaboration_of_split_batches_is_that_of_one(seed, by, cuts):
    actions, probabilities = decisions(seed)
    whole, parts = collaboration(by=by), collaboration(by=by)
    borders = [0, *sorted(cuts), 25]
    pieces = [
        parts(actions[start:end], probabilities[start:end])
        for start, end in zip(borders[:-1], borders[1:], strict=True)
    ]
    torch.testing.assert_close(torch.cat(pieces), whole(actions, probabilities))
    torch.testing.assert_close(parts.totals, whole.totals)
    assert torch.equal(parts.count, whole.count)


def test_known_collaboration_rewards():
    actions = torch.tensor([[0], [1], [0]])
    probabilities = torch.tensor([[[0.5, 0.5]], [[0.8, 0.2]], [[0.2, 0.8]]])
    by_probability = collaboration(0.5, "probability", (2,))(actions, probabilities)
    torch.testing.assert_close(by_probability[:, 0], 0.5 * torch.tensor([0.5, 0.7 / 2, 1.5 / 3]))
    by_frequency = collaboration(0.5, "frequency", (2,))(actions, probabilities)
    torch.testing.assert_close(by_frequency[:, 0], 0.5 * torch.tensor([1.0, 1 / 2, 2 / 3]))


def test_rho_counts_once_in_the_return():
    router = RewardRouter(TabularPolicy(), WPL(), gamma=0.5, collaboration=0.4)
    router.build(RoutingSpec(2, [2, 2, 2]))
    trace = router.start(torch.tensor([0]), explore=True)
    trace.final_reward = torch.tensor([-1.0])
    router.reward(trace)
    # even policies: each immediate reward is 0.4 / 2
    torch.testing.assert_close(trace.rewards, torch.full((1, 3), 0.2))
    torch.testing.assert_close(trace.returns, -1 + 0.2 * torch.tensor([[1.75, 1.5, 1.0]]))


def test_no_sample_leaves_the_averages():
    reward = collaboration()
    reward(*decisions(0))
    before = reward.totals.clone()
    assert reward(torch.empty(0, 3, dtype=torch.long), torch.empty(0, 3, 4)).shape == (0, 3)
    assert torch.equal(reward.totals, before)


def test_averages_are_in_the_state_dict():
    reward, other = collaboration(), collaboration()
    reward(*decisions(0))
    other.load_state_dict(reward.state_dict())
    for ours, theirs in zip(reward(*decisions(1)), other(*decisions(1)), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("rho", [-0.1, 1.1, float("nan")])
def test_a_weight_out_of_range_is_refused(rho):
    with pytest.raises(UsageError, match=r"collaboration is .* in \[0, 1\]"):
        CollaborationReward(rho, "probability")
