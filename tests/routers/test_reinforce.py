import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from routing_lightning.errors import UsageError
from routing_lightning.routers import REINFORCE, RewardRouter, RoutingSpec, TabularPolicy, Trace


def built(learner: REINFORCE, num_tasks=1, num_actions=(2,)) -> RewardRouter:
    router = RewardRouter(TabularPolicy(), learner)
    router.build(RoutingSpec(num_tasks, num_actions))
    return router


def trace_of(agents, actions, values) -> Trace:
    agents = torch.as_tensor(agents)
    return Trace(tasks=agents, agents=agents, actions=torch.as_tensor(actions), returns=torch.as_tensor(values))


def test_gradient_equals_the_analytic_one_for_two_blocks():
    """d/dx of -R log softmax(x)_a is -R (1[a = j] - pi_j)."""
    router = built(REINFORCE())
    router.policy.table.data = torch.tensor([[[0.3, -0.5]]])
    pi = torch.tensor([0.3, -0.5]).softmax(0)
    for action, value in ((0, 1.0), (0, -1.0), (1, 1.0), (1, 0.25)):
        router.policy.table.grad = None
        router.learner.loss(router.policy, trace_of([0], [[action]], [[value]])).backward()
        expected = -value * (torch.eye(2)[action] - pi)
        torch.testing.assert_close(router.policy.table.grad[0, 0], expected)


def test_one_step_moves_the_logits_against_the_mean_gradient():
    router = built(REINFORCE(lr=0.5))
    router.learner.learn(router.policy, trace_of([0, 0], [[0], [1]], [[1.0], [-1.0]]))
    # even policy: the gradients are (-0.5, 0.5) for the gain of block 0 and (-0.5, 0.5) for the loss of block 1
    torch.testing.assert_close(router.policy.table.data, torch.tensor([[[0.25, -0.25]]]))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), baseline=st.booleans())
def test_loss_equals_the_loop_over_samples(seed, baseline):
    generator = torch.Generator().manual_seed(seed)
    sizes, count = [3, 2, 4], 12
    router = built(REINFORCE(baseline=baseline), 4, sizes)
    router.policy.table.data = torch.randn(4, 3, 4, generator=generator)
    router.learner.average_return.copy_(torch.randn(4, 3, generator=generator))
    agents = torch.randint(4, (count,), generator=generator)
    actions = torch.stack([torch.randint(-1, size, (count,), generator=generator) for size in sizes], 1)
    values = torch.randn(count, 3, generator=generator)
    expected = 0.0
    for n in range(count):
        for d, size in enumerate(sizes):
            if actions[n, d] == -1:
                continue
            pi = router.policy.table[agents[n], d, :size].softmax(0)
            b = router.learner.average_return[agents[n], d] if baseline else 0.0
            expected = expected - (values[n, d] - b) * pi[actions[n, d]].log() / count
    loss = router.learner.loss(router.policy, trace_of(agents, actions, values))
    torch.testing.assert_close(loss, torch.as_tensor(expected), atol=1e-5, rtol=1e-5)


def test_baseline_moves_to_the_mean_of_the_batch_where_there_were_decisions():
    router = built(REINFORCE(baseline=True, baseline_lr=0.5), 3, [2, 2])
    router.learner.average_return.fill_(2.0)
    trace = trace_of([0, 0, 2], [[0, 1], [1, -1], [-1, 0]], [[1.0, 4.0], [3.0, 9.0], [9.0, -2.0]])
    router.learner.learn(router.policy, trace)
    assert router.learner.average_return.tolist() == [[2.0, 3.0], [2.0, 2.0], [2.0, 0.0]]


def test_the_baseline_of_before_the_batch_counts():
    """A first batch is judged against 0: with a return of 1 the chosen block gains as without a baseline."""
    with_baseline, without = (built(REINFORCE(lr=1.0, baseline=use, baseline_lr=1.0)) for use in (True, False))
    for router in (with_baseline, without):
        router.learner.learn(router.policy, trace_of([0], [[1]], [[1.0]]))
    assert torch.equal(with_baseline.policy.table, without.policy.table)
    before = with_baseline.policy.table.clone()
    with_baseline.learner.learn(with_baseline.policy, trace_of([0], [[1]], [[1.0]]))
    assert torch.equal(with_baseline.policy.table, before)  # nothing better than the average


def test_agents_without_samples_and_depths_without_decisions_stay():
    router = built(REINFORCE(lr=1.0), 3, [2, 2])
    router.learner.learn(router.policy, trace_of([1], [[0, -1]], [[1.0, 1.0]]))
    moved = (router.policy.table != 0).any(-1)
    assert moved.tolist() == [[False, False], [True, False], [False, False]]


@pytest.mark.parametrize("option", ["lr", "baseline_lr"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_impossible_values_name_the_option(option, value):
    with pytest.raises(UsageError, match=f"{option} .*is"):
        REINFORCE(**{option: value})
