import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from routing_lightning.errors import UsageError
from routing_lightning.routers import WPL, RewardRouter, RoutingSpec, TabularPolicy
from routing_lightning.routers.draw import draw


def built(agents="per_task", num_tasks=4, num_actions=(5, 5)) -> RewardRouter:
    router = RewardRouter(TabularPolicy(), WPL(), agents=agents)
    router.build(RoutingSpec(num_tasks, num_actions))
    return router


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), width=st.integers(1, 6))
def test_draw_never_picks_an_action_of_probability_zero(seed, width):
    generator = torch.Generator().manual_seed(seed)
    probabilities = torch.rand(200, width, generator=generator)
    probabilities[torch.rand(200, width, generator=generator) < 0.5] = 0
    probabilities = probabilities[probabilities.sum(-1) > 0]
    actions = draw(probabilities, generator)
    assert (probabilities.gather(1, actions[:, None]) > 0).all()


def test_draw_follows_the_probabilities():
    probabilities = torch.tensor([0.1, 0.0, 0.6, 0.3])
    actions = draw(probabilities.expand(200_000, 4), torch.Generator().manual_seed(0))
    torch.testing.assert_close(actions.bincount(minlength=4) / 200_000, probabilities, atol=0.005, rtol=0)


def test_policies_start_uniform_one_per_task():
    assert torch.equal(built().probabilities(), torch.full((4, 2, 5), 0.2))


def test_single_agent_shares_one_policy():
    router = built("single")
    trace = router.start(torch.tensor([0, 3]), explore=True)
    assert trace.agents.tolist() == [0, 0] and router.policy.table.shape == (1, 2, 5)
    trace.final_reward = torch.ones(2)
    router.learn(trace)
    assert (router.probabilities() == router.probabilities()[0]).all() and (router.probabilities() != 0.2).any()


def test_evaluation_takes_the_most_probable_action():
    router = built()
    router.policy.table[2, 1] = torch.tensor([0.1, 0.1, 0.1, 0.6, 0.1])
    trace = router.start(torch.tensor([2, 2]), explore=False)
    assert trace.actions[:, 1].tolist() == [3, 3]


def test_the_same_generator_gives_the_same_route():
    router = built()
    tasks = torch.arange(4).repeat(10)
    first, again, other = (
        router.start(tasks, explore=True, generator=torch.Generator().manual_seed(seed)).actions for seed in (1, 1, 2)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_policies_stay_on_the_host_in_float32():
    router = built().to(torch.bfloat16).to("meta")
    assert router.policy.table.dtype == torch.float32 and router.policy.table.device.type == "cpu"
    assert router.learner.average_return.dtype == torch.float32


def test_policy_and_averages_are_in_the_state_dict():
    router = built()
    trace = router.start(torch.tensor([0, 1, 2]), explore=True)
    trace.final_reward = torch.ones(3)
    router.learn(trace)
    other = built()
    other.load_state_dict(router.state_dict())
    assert torch.equal(other.policy.table, router.policy.table)
    assert torch.equal(other.learner.average_return, router.learner.average_return)
    assert (other.learner.average_return != 0).any()


@pytest.mark.parametrize("gamma", [-0.1, 2, float("nan")])
def test_impossible_gamma_is_refused(gamma):
    with pytest.raises(UsageError, match="gamma is"):
        RewardRouter(TabularPolicy(), WPL(), gamma=gamma)


class Careless(WPL):
    """Writes to the trace that it learned from."""

    def learn(self, policy, trace):
        super().learn(policy, trace)
        trace.returns.zero_()


def test_what_a_learner_does_to_its_trace_does_not_reach_the_dispatcher():
    tables = []
    for learner in (WPL(), Careless()):
        router = RewardRouter(TabularPolicy(), learner, agents="dispatched")
        router.build(RoutingSpec(3, [4, 4]))
        trace = router.start(torch.tensor([0, 1, 2, 0]), explore=True, generator=torch.Generator().manual_seed(0))
        trace.final_reward = torch.tensor([1.0, -1.0, 1.0, 1.0])
        router.learn(trace)
        tables.append(router.dispatcher.policy.table)
    assert torch.equal(*tables) and not torch.equal(tables[0], torch.full((3, 1, 3), 1 / 3))
