import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from routing_lightning.errors import UsageError
from routing_lightning.routers import WPL, RewardRouter, RoutingSpec, TabularPolicy, returns, wpl_update


def one_by_one(policy, baseline, agents, actions, values, policy_lr, baseline_lr, scaling, floor):
    """Algorithm 3, the obvious way: a Python loop over samples and depths."""
    for n in range(len(agents)):
        for d in range(actions.shape[1]):
            agent, action = int(agents[n]), int(actions[n, d])
            if action == -1:
                continue
            row = policy[agent, d]
            baseline[agent, d] = (1 - baseline_lr) * baseline[agent, d] + baseline_lr * values[n, d]
            delta = values[n, d] - baseline[agent, d]
            if scaling == "printed":
                delta = delta * (1 - row[action]) if delta < 0 else delta * row[action]
            else:
                delta = delta * row[action] if delta < 0 else delta * (1 - row[action])
            row[action] += policy_lr * delta
            row = row.clamp(floor, 1)
            policy[agent, d] = row / row.sum() if row.sum() > 0 else torch.full_like(row, 1 / len(row))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    scaling=st.sampled_from(["printed", "original"]),
    gamma=st.floats(0, 1),
    rate=st.floats(0.001, 0.9),
    baseline_lr=st.one_of(st.none(), st.floats(0.01, 1)),
    floor=st.sampled_from([0.0, 0.01]),
)
def test_batched_update_equals_the_loop_over_samples(seed, scaling, gamma, rate, baseline_lr, floor):
    generator = torch.Generator().manual_seed(seed)
    num_agents, depth, width, count = 4, 3, 5, 40
    policy = torch.rand(num_agents, depth, width, generator=generator, dtype=torch.float64)
    policy /= policy.sum(-1, keepdim=True)
    baseline = torch.randn(num_agents, depth, generator=generator, dtype=torch.float64)
    # squared: some agents get most of the samples
    agents = (torch.rand(count, generator=generator) ** 2 * num_agents).long()
    actions = torch.randint(-1, width, (count, depth), generator=generator)
    final = torch.randint(0, 2, (count,), generator=generator).double() * 2 - 1
    values = returns(final, torch.rand(count, depth, generator=generator, dtype=torch.float64), gamma)
    expected_policy, expected_baseline = policy.clone(), baseline.clone()
    one_by_one(expected_policy, expected_baseline, agents, actions, values, rate, baseline_lr or rate, scaling, floor)
    wpl_update(
        policy, baseline, agents, actions, values,
        policy_lr=rate, baseline_lr=baseline_lr, scaling=scaling, floor=floor,
    )  # fmt: skip
    torch.testing.assert_close(policy, expected_policy)
    torch.testing.assert_close(baseline, expected_baseline)


@pytest.mark.parametrize("scaling", ["printed", "original"])
def test_a_batch_equals_its_samples_bit_for_bit(scaling):
    torch.manual_seed(1)
    policy, baseline = torch.full((3, 2, 4), 0.25), torch.zeros(3, 2)
    agents, actions, values = torch.randint(3, (50,)), torch.randint(4, (50, 2)), torch.randn(50, 2)
    single = policy.clone(), baseline.clone()
    wpl_update(policy, baseline, agents, actions, values, policy_lr=0.1, scaling=scaling)
    for n in range(50):
        part = slice(n, n + 1)
        wpl_update(*single, agents[part], actions[part], values[part], policy_lr=0.1, scaling=scaling)
    assert torch.equal(policy, single[0]) and torch.equal(baseline, single[1])


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    projection=st.sampled_from(["normalise", "euclidean"]),
    scaling=st.sampled_from(["printed", "original"]),
    rate=st.floats(0.001, 5),
    floor=st.sampled_from([0.0, 0.05]),
)
def test_rows_stay_on_the_simplex(seed, projection, scaling, rate, floor):
    generator = torch.Generator().manual_seed(seed)
    policy, baseline = torch.full((2, 2, 4), 0.25), torch.zeros(2, 2)
    for _ in range(20):
        wpl_update(
            policy, baseline, torch.randint(2, (16,), generator=generator),
            torch.randint(4, (16, 2), generator=generator), 10 * torch.randn(16, 2, generator=generator),
            policy_lr=rate, baseline_lr=0.5, scaling=scaling, floor=floor, projection=projection,
        )  # fmt: skip
        assert torch.isfinite(policy).all() and (policy >= 0).all()
        torch.testing.assert_close(policy.sum(-1), torch.ones(2, 2))
        if projection == "euclidean":
            assert (policy >= floor - 1e-6).all()


def test_a_row_that_loses_everything_becomes_uniform():
    policy, baseline = torch.tensor([[[1.0, 0.0, 0.0, 0.0]]]), torch.zeros(1, 1)
    wpl_update(
        policy, baseline, torch.tensor([0]), torch.tensor([[0]]), torch.tensor([[-100.0]]),
        policy_lr=0.5, baseline_lr=0.1, scaling="original",
    )  # fmt: skip
    assert torch.equal(policy, torch.full((1, 1, 4), 0.25))


def test_known_values_of_one_update():
    # R = 1, average 0 -> 0.1, difference 0.9; printed scales a gain by pi = 0.5, original by 1 - 0.5
    for scaling, action, expected in (("printed", 0, 0.545), ("original", 1, 0.545)):
        policy, baseline = torch.tensor([[[0.5, 0.5]]]), torch.zeros(1, 1)
        wpl_update(
            policy, baseline, torch.tensor([0]), torch.tensor([[action]]), torch.tensor([[1.0]]),
            policy_lr=0.1, scaling=scaling,
        )  # fmt: skip
        assert policy[0, 0, action].item() == pytest.approx(expected / 1.045)
        assert baseline.item() == pytest.approx(0.1)
    # a gain and a loss away from one half tell the two scalings apart
    for scaling, value, step in (
        ("printed", 1.0, 0.1 * 0.9 * 0.8),
        ("original", 1.0, 0.1 * 0.9 * 0.2),
        ("printed", -1.0, -0.1 * 0.9 * 0.2),
        ("original", -1.0, -0.1 * 0.9 * 0.8),
    ):
        policy = torch.tensor([[[0.8, 0.2]]])
        wpl_update(
            policy, torch.zeros(1, 1), torch.tensor([0]), torch.tensor([[0]]), torch.tensor([[value]]),
            policy_lr=0.1, scaling=scaling,
        )  # fmt: skip
        chosen = min(0.8 + step, 1)
        assert policy[0, 0, 0].item() == pytest.approx(chosen / (chosen + 0.2), rel=1e-5), (scaling, value)


def test_euclidean_projection_is_the_nearest_point():
    policy = torch.tensor([[[0.7, 0.2, 0.1]]])
    wpl_update(
        policy, torch.zeros(1, 1), torch.tensor([0]), torch.tensor([[0]]), torch.tensor([[-1.0]]),
        policy_lr=1.0, baseline_lr=0.5, scaling="original", projection="euclidean",
    )  # fmt: skip
    # 0.7 - 1 * 0.5 * 0.7 = 0.35; (0.35, 0.2, 0.1) lacks 0.35, spread evenly over the three
    torch.testing.assert_close(policy[0, 0], torch.tensor([0.35, 0.2, 0.1]) + 0.35 / 3)


def test_only_the_deciding_agents_rows_move():
    policy, baseline = torch.full((3, 2, 4), 0.25), torch.zeros(3, 2)
    wpl_update(policy, baseline, torch.tensor([1]), torch.tensor([[2, -1]]), torch.tensor([[1.0, 1.0]]), policy_lr=0.1)
    still = torch.ones(3, 2, dtype=torch.bool)
    still[1, 0] = False
    assert (policy[still] == 0.25).all() and (baseline[still] == 0).all()
    assert policy[1, 0, 2] > 0.25


def test_layers_with_fewer_actions_keep_the_others_at_zero():
    router = RewardRouter(TabularPolicy(), WPL(0.5, floor=0.01))
    router.build(RoutingSpec(2, [2, 4]))
    torch.manual_seed(0)
    for _ in range(50):
        trace = router.start(torch.randint(2, (8,)), explore=True)
        trace.final_reward = torch.randn(8)
        router.learn(trace)
    assert (trace.actions[:, 0] < 2).all()
    assert (router.probabilities()[:, 0, 2:] == 0).all()
    torch.testing.assert_close(router.probabilities().sum(-1), torch.ones(2, 2))


def test_baseline_per_action_keeps_one_average_per_action():
    policy, baseline = torch.full((1, 1, 2), 0.5), torch.zeros(1, 1, 2)
    wpl_update(
        policy, baseline, torch.tensor([0, 0]), torch.tensor([[0], [1]]), torch.tensor([[1.0], [-1.0]]), policy_lr=0.1
    )
    torch.testing.assert_close(baseline, torch.tensor([[[0.1, -0.1]]]))


@pytest.mark.parametrize(
    ("agents", "actions", "message"),
    [([3], [[0, 0]], "agents outside 0..2"), ([-1], [[0, 0]], "agents"), ([0], [[4, 0]], "actions outside -1..3")],
)
def test_indices_out_of_range_are_refused(agents, actions, message):
    with pytest.raises(UsageError, match=message):
        wpl_update(
            torch.full((3, 2, 4), 0.25), torch.zeros(3, 2), torch.tensor(agents), torch.tensor(actions),
            torch.zeros(1, 2), policy_lr=0.1,
        )  # fmt: skip


@pytest.mark.parametrize("option", ["policy_lr", "baseline_lr", "floor"])
@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_impossible_values_name_the_option(option, value):
    with pytest.raises(UsageError, match=option):
        WPL(**{option: value})
