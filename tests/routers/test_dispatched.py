import pytest
import torch

from routing_lightning.errors import UsageError
from routing_lightning.routers import REINFORCE, WPL, MLPPolicy, QLearning, RewardRouter, RoutingSpec, TabularPolicy

TASKS = 4


def built(policy=None, learner=None, **options) -> RewardRouter:
    torch.manual_seed(0)
    router = RewardRouter(policy or TabularPolicy(), learner or WPL(0.05), agents="dispatched", **options)
    router.build(RoutingSpec(TASKS, [TASKS, 3], state_sizes=[6, 8]))
    return router


def test_the_dispatcher_picks_the_agent_and_the_agent_the_blocks():
    router = built()
    router.dispatcher.policy.table.copy_(torch.eye(TASKS).roll(1, 1)[:, None])  # task t goes to agent t + 1
    router.policy.table.zero_()
    for agent in range(TASKS):
        router.policy.table[agent, 0, agent] = router.policy.table[agent, 1, agent % 3] = 1
    for explore in (True, False):
        trace = router.start(torch.arange(TASKS), explore=explore)
        assert trace.agents.tolist() == [1, 2, 3, 0]
        assert trace.actions.tolist() == [[1, 1], [2, 2], [3, 0], [0, 0]]


@pytest.mark.parametrize(
    "make",
    [lambda: WPL(0.05), lambda: REINFORCE(2.0), lambda: QLearning(epsilon_samples=500)],
    ids=["WPL", "REINFORCE", "QLearning"],
)
def test_the_dispatcher_finds_the_right_agent_of_each_task(make):
    """Agents that keep to block (agent) at depth 1: for each task one of them is right."""
    router, right = built(learner=make()), torch.tensor([2, 0, 3, 1])
    blocks = torch.zeros(TASKS, 2, TASKS)
    for agent in range(TASKS):
        blocks[agent, 0, agent] = blocks[agent, 1, 0] = 1
    certain = blocks if isinstance(router.learner, WPL) else 50 * blocks
    for _ in range(120):
        tasks = torch.randint(TASKS, (16,))
        router.policy.table.data.copy_(certain)
        trace = router.start(tasks, explore=True)
        trace.final_reward = (trace.agents == right[tasks]).float() * 2 - 1
        router.learn(trace)
    assert torch.equal(router.start(torch.arange(TASKS), explore=False).agents, right)


def test_the_policy_of_a_task_is_the_mean_over_agents_by_their_probability():
    router = built(learner=REINFORCE())
    router.policy.table.data = torch.randn(TASKS, 2, TASKS)
    router.dispatcher.policy.table.data = torch.randn(TASKS, 1, TASKS)
    for task in range(TASKS):
        share = router.dispatcher.policy.table[task, 0].softmax(0)
        for depth, size in enumerate((TASKS, 3)):
            expected = sum(share[a] * router.policy.table[a, depth, :size].softmax(0) for a in range(TASKS))
            torch.testing.assert_close(router.probabilities()[task, depth, :size], expected)
    assert (router.probabilities()[:, 1, 3:] == 0).all()


def test_the_dispatcher_learns_from_the_return_of_the_first_decision():
    router = built(gamma=0.5, collaboration=0.8)
    tasks = torch.arange(TASKS)
    trace = router.start(tasks, explore=True)
    trace.final_reward = torch.tensor([1.0, -1.0, 1.0, -1.0])
    router.learn(trace)
    part = router.dispatch_trace(trace)
    assert torch.equal(part.actions[:, 0], trace.agents) and torch.equal(part.agents, tasks)
    assert torch.equal(part.returns, trace.returns[:, :1]) and (trace.rewards > 0).all()
    # each row of the dispatcher saw one sample: its average is a twentieth of the return
    torch.testing.assert_close(router.dispatcher.learner.average_return, 0.05 * trace.returns[:, :1])


def test_a_dispatcher_that_looks_at_activations_sends_one_task_to_several_agents():
    router = built(MLPPolicy(16), REINFORCE())
    trace = router.start(torch.zeros(200, dtype=torch.long), explore=False)
    router.decide(trace, 10 * torch.randn(200, 6), 0)
    assert len(trace.agents.unique()) > 1
    assert router.dispatcher.policy.num_agents == 1 and router.policy.num_agents == TASKS


@pytest.mark.parametrize(("policy", "learner"), [(TabularPolicy, WPL), (MLPPolicy, REINFORCE)])
def test_both_parts_are_in_the_state_dict_and_start_apart(policy, learner):
    names = built(policy(), learner()).state_dict()
    assert any(name.startswith("decider.policy.") for name in names)
    assert any(name.startswith("dispatcher.policy.") for name in names)


def test_one_task_is_refused():
    with pytest.raises(UsageError, match="agents is 'dispatched' .* use 'single' or 'per_task'"):
        RewardRouter(TabularPolicy(), WPL(), agents="dispatched").build(RoutingSpec(1, [3]))
