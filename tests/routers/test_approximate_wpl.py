import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from routing_lightning.errors import UsageError
from routing_lightning.routers import ApproximateWPL, RewardRouter, RoutingSpec, TabularPolicy, Trace


def built(learner: ApproximateWPL, num_tasks=1, num_actions=(2,)) -> RewardRouter:
    router = RewardRouter(TabularPolicy(), learner)
    router.build(RoutingSpec(num_tasks, num_actions))
    return router


def trace_of(agents, actions, values) -> Trace:
    agents = torch.as_tensor(agents)
    return Trace(tasks=agents, agents=agents, actions=torch.as_tensor(actions), returns=torch.as_tensor(values))


@pytest.mark.parametrize(
    ("scaling", "value", "weight"),
    [("printed", 1.0, 0.8), ("printed", -1.0, 0.2), ("original", 1.0, 0.2), ("original", -1.0, 0.8)],
)
def test_one_step_of_two_blocks_by_hand(scaling, value, weight):
    """With pi = (0.8, 0.2) and block 0 taken: d pi_0 / d x = pi_0 (1 - pi_0) (1, -1) = 0.16 (1, -1)."""
    router = built(ApproximateWPL(lr=0.5, baseline_lr=0.1, scaling=scaling))
    router.policy.table.data = torch.tensor([[[math.log(0.8), math.log(0.2)]]])
    before = router.policy.table.clone()
    router.learner.learn(router.policy, trace_of([0], [[0]], [[value]]))
    delta = value - 0.1 * value  # the average return has moved first, as in Algorithm 3
    step = 0.5 * delta * weight * 0.16
    torch.testing.assert_close(router.policy.table - before, torch.tensor([[[step, -step]]]))
    assert router.learner.average_return.item() == pytest.approx(0.1 * value)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), scaling=st.sampled_from(["printed", "original"]), rate=st.floats(0.01, 1))
def test_gradient_equals_the_loop_over_samples(seed, scaling, rate):
    generator = torch.Generator().manual_seed(seed)
    sizes, count = [3, 2, 4], 12
    router = built(ApproximateWPL(baseline_lr=rate, scaling=scaling), 4, sizes)
    router.policy.table.data = torch.randn(4, 3, 4, generator=generator)
    agents = torch.randint(4, (count,), generator=generator)
    actions = torch.stack([torch.randint(-1, size, (count,), generator=generator) for size in sizes], 1)
    values = torch.randn(count, 3, generator=generator)
    average = torch.zeros(4, 3)
    total = torch.zeros(())
    for n in range(count):
        for d, size in enumerate(sizes):
            action, agent = int(actions[n, d]), int(agents[n])
            if action == -1:
                continue
            average[agent, d] = (1 - rate) * average[agent, d] + rate * values[n, d]
            delta = values[n, d] - average[agent, d]
            pi = router.policy.table[agent, d, :size].softmax(0)[action]
            share = pi.item()
            if scaling == "printed":
                weight = share if delta >= 0 else 1 - share
            else:
                weight = 1 - share if delta >= 0 else share
            total = total - delta * weight * pi / count
    (expected,) = torch.autograd.grad(total, router.policy.table, allow_unused=True)
    loss = router.learner.loss(router.policy, trace_of(agents, actions, values))
    (given_gradient,) = torch.autograd.grad(loss, router.policy.table)
    torch.testing.assert_close(loss.detach(), total.detach(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(given_gradient, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(router.learner.average_return, average, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("option", ["lr", "baseline_lr"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_impossible_values_name_the_option(option, value):
    with pytest.raises(UsageError, match=f"{option} .*is"):
        ApproximateWPL(**{option: value})
