"""Policies stay distributions after any finite sequence of updates."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import SGD, Adagrad, Adam, AdamW, RMSprop

from routing_lightning.errors import NonFiniteError
from routing_lightning.routers import (
    REINFORCE,
    WPL,
    ApproximateQLearning,
    ApproximateWPL,
    BranchingRouter,
    MLPPolicy,
    PairedDifference,
    QLearning,
    RewardRouter,
    RoutingSpec,
    TabularPolicy,
)

RATES = st.sampled_from([1e-30, 1e-3, 1.0]) | st.floats(1e-30, 1.0)
LARGE_RATES = RATES | st.sampled_from([1e10, 1e30])
LEARNERS = {
    "WPL": lambda rate, other: WPL(rate, other),
    "WPL original": lambda rate, other: WPL(rate, other, scaling="original", baseline="per_action"),
    "WPL euclidean": lambda rate, other: WPL(rate, other, projection="euclidean"),
    "WPL euclidean floor": lambda rate, other: WPL(rate, other, projection="euclidean", floor=0.1),
    "QLearning": lambda rate, other: QLearning(other, epsilon_samples=10),
    "ApproximateQLearning": lambda rate, other: ApproximateQLearning(other, epsilon_samples=10),
    "REINFORCE": lambda rate, other: REINFORCE(rate, baseline=True, baseline_lr=other),
    "ApproximateWPL": lambda rate, other: ApproximateWPL(rate, other),
}
REWARDS = st.lists(
    st.sampled_from([-1e30, -1.0, 0.0, 1e-30, 1.0, 1e30]) | st.floats(-(2.0**99), 2.0**99, width=32),
    min_size=4,
    max_size=4,
)


OF_NETWORKS = [name for name in LEARNERS if MLPPolicy in LEARNERS[name](1e-3, 0.5).policies]
TASKS = torch.tensor([0, 1, 0, 1])
SEQUENCES = {
    "rate": LARGE_RATES,
    "other": RATES,
    "gamma": st.sampled_from([0.0, 0.5, 1.0]),
    "rewards": st.lists(REWARDS, min_size=1, max_size=6),
}


def check(rows: torch.Tensor) -> None:
    assert rows.isfinite().all() and (rows >= 0).all()
    torch.testing.assert_close(rows.sum(-1), torch.ones(rows.shape[:-1]))


@pytest.mark.parametrize("agents", ["per_task", "dispatched"])
@pytest.mark.parametrize("name", LEARNERS)
@settings(max_examples=20, deadline=None)
@given(**SEQUENCES)
def test_rows_are_distributions_whatever_was_learned(name, agents, rate, other, gamma, rewards):
    router = RewardRouter(TabularPolicy(), LEARNERS[name](rate, other), agents, gamma=gamma, collaboration=0.3)
    router.build(RoutingSpec(2, [3, 2], [False, True]))
    generator = torch.Generator().manual_seed(0)
    for final in rewards:
        trace = router.start(TASKS, explore=True, generator=generator)
        trace.final_reward = torch.tensor(final)
        router.learn(trace)
        check(router.probabilities())


BRANCHING = {
    "PairedDifference": lambda rate, other: PairedDifference(lr=rate),
    "PairedDifference raw": lambda rate, other: PairedDifference(normalised=False, lr=rate),
    **{name: make for name, make in LEARNERS.items() if "Q" not in name},
}


@pytest.mark.parametrize("name", BRANCHING)
@settings(max_examples=20, deadline=None)
@given(
    rate=LARGE_RATES,
    other=RATES,
    most=st.sampled_from([1e-30, 2.0, 1e30, 1e38]),
    gains=st.lists(st.tuples(REWARDS, REWARDS), min_size=1, max_size=6),
    shape=st.tuples(st.integers(2, 3), st.integers(1, 2), st.integers(1, 4)),
)
def test_rows_of_branching_are_distributions_whatever_was_gained(name, rate, other, most, gains, shape):
    candidates, sweeps, stage = shape
    router = BranchingRouter(BRANCHING[name](rate, other), candidates, sweeps=sweeps, stage=stage, most=most, settle=0)
    router.build(RoutingSpec(2, [3, 3]))
    for final, otherwise in gains:
        trace = router.start(TASKS, explore=True, generator=torch.Generator().manual_seed(0))
        trace.final_reward = torch.tensor(final)
        if trace.alternatives is not None:
            trace.alternative_reward = torch.tensor(otherwise)
        router.learn(trace)
        check(router.probabilities())


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_a_paired_test_knows_no_scale(scale):
    """Beyond what the square of a reward may be in float32, too."""
    router = BranchingRouter(PairedDifference(), stage=9, settle=0, shortest=1, most=1e38)
    router.build(RoutingSpec(1, [2]))
    for step in range(6):
        trace = router.start(
            torch.zeros(4, dtype=torch.long), explore=True, generator=torch.Generator().manual_seed(step)
        )
        trace.final_reward = scale * torch.tensor([1.0, 2.0, -1.0, 3.0])
        trace.alternative_reward = torch.zeros(4)
        if trace.alternatives is not None:
            trace.final_reward *= 1.0 - 2 * (trace.actions[:, 0] == 0)  # block 1 is the better one
        router.learn(trace)
    # five batches after the one that opens the depth: t = 5 * 5 / sqrt(5 * 15)
    assert float(router.probabilities()[0, 0, 1]) == pytest.approx(
        1 / (1 + math.exp(-1.702 * 25 / math.sqrt(75))), 1e-5
    )


@pytest.mark.parametrize("depth_input", ["separate", "one_hot"])
@pytest.mark.parametrize("name", OF_NETWORKS)
@settings(max_examples=20, deadline=None)
@given(**SEQUENCES)
def test_rows_of_networks_are_distributions_whatever_was_learned(name, depth_input, rate, other, gamma, rewards):
    torch.manual_seed(0)
    router = RewardRouter(MLPPolicy(4, depth_input), LEARNERS[name](rate, other), gamma=gamma, collaboration=0.3)
    router.build(RoutingSpec(2, [3, 3], state_sizes=[5, 5]))
    for final in [*rewards, None]:
        trace = router.start(TASKS, explore=True, generator=torch.Generator().manual_seed(0))
        trace.actions = torch.stack([router.decide(trace, torch.randn(4, 5), depth).actions for depth in range(2)], 1)
        check(trace.probabilities)
        if final is not None:
            trace.final_reward = torch.tensor(final)
            router.learn(trace)


OPTIMIZERS = {
    "momentum": partial(SGD, momentum=0.9),
    "nesterov": partial(SGD, momentum=0.9, nesterov=True),
    "Adam": Adam,
    "AdamW amsgrad": partial(AdamW, amsgrad=True),
    "RMSprop": partial(RMSprop, momentum=0.9),
    "Adagrad": Adagrad,
}


@pytest.mark.parametrize("policy", [TabularPolicy, partial(MLPPolicy, 4)], ids=["table", "network"])
@pytest.mark.parametrize("name", OPTIMIZERS)
@settings(max_examples=15, deadline=None)
@given(rate=LARGE_RATES, learner=st.sampled_from([REINFORCE, ApproximateWPL]), rewards=SEQUENCES["rewards"])
def test_optimizers_with_a_memory_leave_distributions_or_say_why_not(name, policy, rate, learner, rewards):
    torch.manual_seed(0)
    router = RewardRouter(policy(), learner(optimizer=partial(OPTIMIZERS[name], lr=rate)))
    router.build(RoutingSpec(2, [3, 3], state_sizes=[5, 5]))
    largest = max(abs(reward) for final in rewards for reward in final)
    for final in [*rewards, None]:
        trace = router.start(TASKS, explore=True, generator=torch.Generator().manual_seed(0))
        if router.uses_state:
            decided = [router.decide(trace, torch.randn(4, 5), depth).actions for depth in range(2)]
            trace.actions = torch.stack(decided, 1)
            check(trace.probabilities)
        else:
            check(router.probabilities())
        if final is None:
            break
        trace.final_reward = torch.tensor(final)
        try:
            router.learn(trace)
        except NonFiniteError as error:
            assert "the router's optimizer" in str(error) and f"lr {rate}" in str(error)
            assert max(rate, largest) > 1e6
            break


def test_an_optimizer_whose_memory_overflows_is_told():
    """The steps are too small to make the policy certain; then a schedule ends at 0, and 0 times infinity is nan."""
    router = RewardRouter(TabularPolicy(), REINFORCE(optimizer=partial(SGD, lr=1e-40, momentum=0.99)))
    router.build(RoutingSpec(2, [3, 3]))
    for step in range(12):
        trace = router.start(TASKS, explore=True, generator=torch.Generator().manual_seed(0))
        trace.final_reward = torch.full((4,), 3e38)
        if step < 11:
            router.learn(trace)
            check(router.probabilities())
    assert router.learner.optimizer.state[router.policy.table]["momentum_buffer"].isinf().any()
    router.learner.optimizer.param_groups[0]["lr"] = 0.0
    with pytest.raises(NonFiniteError, match=r"optimizer SGD \(lr 0.0\) makes its policy nan"):
        router.learn(trace)


@pytest.mark.parametrize("name", LEARNERS)
def test_rows_of_zeros_become_distributions(name):
    """A table of nothing but zeros, as a broken checkpoint or a learner of one's own could leave it."""
    for final in (0.0, 1.0, -1e30):
        router = RewardRouter(TabularPolicy(), LEARNERS[name](1e-3, 0.5))
        router.build(RoutingSpec(2, [3, 2], [False, True]))
        router.policy.table.data.zero_()
        trace = router.start(TASKS, explore=True)
        assert (trace.actions < torch.tensor([3, 3])).all()
        trace.final_reward = torch.full((4,), final)
        router.learn(trace)
        check(router.probabilities())


def test_an_empty_row_becomes_even():
    router = RewardRouter(TabularPolicy(), WPL(1e-30))
    router.build(RoutingSpec(1, [4]))
    router.policy.table.zero_()
    trace = router.start(torch.tensor([0]), explore=False)
    trace.final_reward = torch.zeros(1)
    router.learn(trace)
    assert router.probabilities().tolist() == [[[0.25] * 4]]
