import pytest
import torch
from torch.nn.functional import linear, one_hot, relu

from routing_lightning.errors import UsageError
from routing_lightning.routers import REINFORCE, WPL, MLPPolicy, RewardRouter, RoutingSpec, TabularPolicy, Trace

AGENTS, TASKS, ACTIONS, SIZES = 3, 4, [5, 2, 4], [6, 7, 8]


def built(depth_input="separate", actions=ACTIONS, sizes=SIZES) -> MLPPolicy:
    torch.manual_seed(0)
    policy = MLPPolicy(16, depth_input)
    policy.build(AGENTS, RoutingSpec(TASKS, actions, state_sizes=sizes), REINFORCE())
    return policy


@pytest.mark.parametrize("depth_input", ["separate", "one_hot"])
def test_scores_equal_the_networks_one_by_one(depth_input):
    """Two layers with a ReLU between, on concat(v, one-hot(t)), and one-hot(d) if one network serves all depths."""
    shared = depth_input == "one_hot"
    policy = built(depth_input, [5, 5, 5] if shared else ACTIONS, [6, 6, 6] if shared else SIZES)
    tasks, agents = torch.randint(TASKS, (20,)), torch.randint(AGENTS, (20,))
    for depth in range(3):
        state = torch.randn(20, 6 if shared else SIZES[depth])
        scores = policy.scores(state, tasks, agents, depth)
        first, second = policy.first[0 if shared else depth], policy.second[0 if shared else depth]
        for n in range(20):
            agent = int(agents[n])
            x = torch.cat([state[n], one_hot(tasks[n], TASKS), one_hot(torch.tensor(depth), 3)[: 3 if shared else 0]])
            x = relu(linear(x, *first.linear(agent)))
            torch.testing.assert_close(scores[n], linear(x, *second.linear(agent)))


def test_there_is_one_network_per_agent_and_depth():
    assert [layer.num_blocks for layer in built().first] == [AGENTS] * 3
    assert [layer.num_blocks for layer in built("one_hot", [5] * 3, [6] * 3).first] == [AGENTS]


@pytest.mark.parametrize("changed", ["state", "task", "agent", "depth"])
def test_scores_depend_on_activation_task_agent_and_depth(changed):
    policy = built("one_hot", [5] * 3, [6] * 3)
    values = {"state": torch.zeros(1, 6), "task": torch.tensor([0]), "agent": torch.tensor([0]), "depth": 0}
    before = policy.scores(*values.values())
    values[changed] = values[changed] + 1
    assert not torch.allclose(policy.scores(*values.values()), before)


def test_scores_of_a_trace_are_those_of_its_decisions():
    router = RewardRouter(MLPPolicy(16), REINFORCE())
    router.build(RoutingSpec(TASKS, ACTIONS, state_sizes=SIZES))
    tasks, states = torch.randint(TASKS, (10,)), [torch.randn(10, size) for size in SIZES]
    trace = router.start(tasks, explore=True)
    actions = [router.decide(trace, state, depth).actions for depth, state in enumerate(states)]
    for depth, scores in enumerate(router.policy.scores_of(trace)):
        assert torch.equal(scores, router.policy.scores(states[depth], tasks, tasks, depth))
        given = trace.probabilities[:, depth]
        torch.testing.assert_close(scores.softmax(-1), given[:, : ACTIONS[depth]])
        assert (given[:, ACTIONS[depth] :] == 0).all()
    assert torch.stack(actions, 1).shape == (10, 3)


def test_a_network_stays_float32_to_the_bit_at_other_precisions():
    policy = built()
    before = [parameter.detach().clone() for parameter in policy.parameters()]
    policy.to(torch.bfloat16)
    for ours, theirs in zip(policy.parameters(), before, strict=True):
        assert torch.equal(ours, theirs) and ours.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        scores = policy.scores(torch.randn(4, 6, dtype=torch.bfloat16), torch.arange(4), torch.zeros(4).long(), 0)
    assert scores.dtype == torch.float32


def test_a_network_follows_the_model_to_its_device():
    assert {parameter.device.type for parameter in built().to("meta").parameters()} == {"meta"}


def test_scores_of_a_table_are_its_rows():
    router = RewardRouter(TabularPolicy(), REINFORCE())
    router.build(RoutingSpec(3, [4, 2]))
    router.policy.table.data = torch.randn(3, 2, 4)
    trace = Trace(tasks=torch.tensor([2, 0]), agents=torch.tensor([2, 0]))
    first, second = router.policy.scores_of(trace)
    assert torch.equal(first, router.policy.table[[2, 0], 0])
    assert torch.equal(second, router.policy.table[[2, 0], 1, :2])


@pytest.mark.parametrize(("actions", "sizes"), [([5, 5, 5], SIZES), (ACTIONS, [6, 6, 6])])
def test_one_network_for_depths_that_differ_is_refused(actions, sizes):
    with pytest.raises(UsageError, match="depth_input is 'one_hot' but .* use depth_input 'separate'"):
        built("one_hot", actions, sizes)


def test_no_hidden_unit_is_refused():
    with pytest.raises(UsageError, match="hidden of MLPPolicy is 0; give at least 1"):
        MLPPolicy(0)


def test_activations_of_unknown_size_are_refused():
    router = RewardRouter(MLPPolicy(), REINFORCE())
    with pytest.raises(
        UsageError, match="MLPPolicy looks at activations, whose sizes are not known; give .* an example"
    ):
        router.build(RoutingSpec(3, [2, 2], state_sizes=[4, None]))


def test_a_learner_refuses_policies_that_it_cannot_train():
    with pytest.raises(UsageError, match="learner WPL got policy MLPPolicy; it trains TabularPolicy only"):
        RewardRouter(MLPPolicy(), WPL())


@pytest.mark.parametrize(("policy", "learner"), [(TabularPolicy, REINFORCE), (TabularPolicy, WPL)])
def test_a_gradient_towards_the_input_of_a_table_is_refused(policy, learner):
    with pytest.raises(UsageError, match="detach_state is false but policy TabularPolicy .* use MLPPolicy"):
        RewardRouter(policy(), learner(), detach_state=False)


def test_unknown_agents_are_refused():
    with pytest.raises(UsageError, match="agents is 'both'; give 'per_task', 'single' or 'dispatched'"):
        RewardRouter(TabularPolicy(), WPL(), agents="both")


def test_a_policy_that_looks_at_activations_has_no_table():
    router = RewardRouter(MLPPolicy(), REINFORCE())
    router.build(RoutingSpec(TASKS, ACTIONS, state_sizes=SIZES))
    with pytest.raises(UsageError, match="RewardRouter looks at activations, so a task has no one route"):
        router.probabilities()
