"""BranchingRouter: the stages, the gains, and a problem whose right sharing is known by construction."""

import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from routing_lightning.errors import UsageError
from routing_lightning.networks import Recurrent, RoutedLayer, RoutingNetwork
from routing_lightning.nn import LinearBlocks, ModuleBlocks
from routing_lightning.routers import (
    REINFORCE,
    WPL,
    ApproximateQLearning,
    BlockCopy,
    BranchingRouter,
    PairedDifference,
    QLearning,
    RewardRouter,
    RoutingSpec,
    TabularPolicy,
    Trace,
)

TASKS = torch.arange(24) % 3


def built(blocks=(4, 4, 4), layers=(), num_tasks=3, **options) -> BranchingRouter:
    router = BranchingRouter(
        **{"begin": 0.0, "stage": 5, "pace": math.inf, "settle": 0.0, "shortest": 0.15, "certainty": 0.975, **options}
    )
    router.build(RoutingSpec(num_tasks, list(blocks), layers=list(layers)))
    return router


def step(router: BranchingRouter, gain: float | Tensor = 0.0, tasks: Tensor = TASKS, seed: int = 0) -> Trace:
    """One batch in which the own block is better than the common one by ``gain``."""
    trace = router.start(tasks, explore=True, generator=torch.Generator().manual_seed(seed))
    if trace.alternatives is not None:
        depth = router.open_depth
        common = trace.actions[:, depth] == router.spec.num_blocks[depth] - 1
        trace.final_reward = torch.where(common, 0.0, torch.as_tensor(gain)).float()
        trace.alternative_reward = torch.where(common, torch.as_tensor(gain), 0.0).float()
    router.learn(trace)
    return trace


def search(router: BranchingRouter, gain=0.0) -> list[int | None]:
    """Open depth before each batch until the search is over."""
    seen = []
    while not router.is_over:
        seen.append(router.open_depth)
        step(router, gain, seed=len(seen))
    return seen


# -- PairedDifference --------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.floats(0.01, 10))
def test_paired_difference_equals_a_loop_whichever_action_was_taken(seed, lr):
    generator = torch.Generator().manual_seed(seed)
    policy, learner = TabularPolicy(), PairedDifference(normalised=False, lr=lr)
    policy.build(3, RoutingSpec(3, [2, 2]), learner)
    learner.build(policy)
    tasks = torch.randint(3, (7,), generator=generator)
    taken = torch.randint(2, (7,), generator=generator)
    gain = torch.randn(7, generator=generator)  # of action 1 over action 0
    actions, others, returns = (torch.full((7, 2), fill) for fill in (-1, -1, 0.0))
    actions[:, 1], others[:, 1], returns[:, 1] = taken, 1 - taken, torch.where(taken == 1, gain, -gain)
    learner.learn(policy, Trace(tasks, tasks, actions=actions, alternatives=others, returns=returns))
    expected = torch.zeros(3, dtype=torch.float64)
    for task, one in zip(tasks.tolist(), gain.tolist(), strict=True):
        expected[task] += lr * one
    difference = policy.table[:, 1, 1] - policy.table[:, 1, 0]
    torch.testing.assert_close(difference.double(), expected, rtol=1e-4, atol=1e-4)
    assert not policy.table[:, 0].any()
    rows = learner.probabilities(policy.table, policy.num_actions)
    torch.testing.assert_close(rows[:, 1, 1], torch.sigmoid(difference))


@given(st.integers(0, 2**32 - 1), st.integers(2, 200))
def test_a_normalised_difference_is_the_confidence_of_a_paired_test(seed, count):
    generator = torch.Generator().manual_seed(seed)
    policy, learner = TabularPolicy(), PairedDifference()
    policy.build(1, RoutingSpec(1, [2]), learner)
    learner.build(policy)
    gain = (10 ** float(torch.randn((), generator=generator))) * (torch.randn(count, generator=generator) + 0.1)
    taken = torch.randint(2, (count, 1), generator=generator)
    tasks = torch.zeros(count, dtype=torch.long)
    returns = torch.where(taken == 1, gain[:, None], -gain[:, None])
    learner.learn(policy, Trace(tasks, tasks, actions=taken, alternatives=1 - taken, returns=returns))
    found = learner.probabilities(policy.table, policy.num_actions)[0, 0, 1]
    statistic = gain.double().sum() / gain.double().square().sum().sqrt()
    assert abs(float(found) - float(torch.special.ndtr(statistic))) < 0.011


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=20), st.floats(1e-30, 1e30))
def test_policies_stay_distributions_whatever_the_gains(gains, lr):
    router = built(learner=PairedDifference(lr < 1, lr), stage=2)
    for gain in gains:
        step(router, gain)
        rows = router.probabilities()
        assert bool(rows.isfinite().all()) and bool((rows >= 0).all())
        torch.testing.assert_close(rows.sum(-1), torch.ones(3, 3))


def test_paired_difference_needs_alternatives():
    router = RewardRouter(TabularPolicy(), PairedDifference())
    router.build(RoutingSpec(2, [2, 2]))
    trace = router.start(torch.tensor([0, 1]), explore=True)
    trace.final_reward = torch.ones(2)
    with pytest.raises(UsageError, match="BranchingRouter"):
        router.learn(trace)
    for lr in (0, -1, math.inf, math.nan):
        with pytest.raises(UsageError, match="lr of PairedDifference"):
            PairedDifference(lr=lr)


# -- stages ------------------------------------------------------------------------------------------------------------


def test_all_share_the_common_block_at_first_and_where_nothing_was_opened():
    router = built(blocks=(4, 5, 6))
    assert router.routes().tolist() == [[3, 4, 5]] * 3
    trace = step(router)
    assert trace.alternatives is None and trace.actions.tolist() == [[3, 4, 5]] * 24
    trace = step(router)
    assert set(trace.actions[:, :2].unique(dim=0).tolist()[0]) == {3, 4} and len(trace.actions[:, 2].unique()) > 1
    assert router.routes()[:, :2].tolist() == [[3, 4]] * 3


@pytest.mark.parametrize(
    ("order", "expected"),
    [("last_first", [2, 1, 0]), ("first_last", [0, 1, 2]), ([2, 3], [1, 2])],
)
def test_depths_open_in_order_each_for_so_many_batches(order, expected):
    expected = [depth for depth in expected for _ in range(5)]
    assert search(built(order=order, quorum=1.0)) == [None, *expected]


def test_a_depth_closes_when_enough_tasks_are_certain_but_not_at_once():
    for shortest, batches in ((0.0, 1), (0.4, 2), (1.0, 5)):
        router = built(shortest=shortest, learner=PairedDifference(lr=100.0))
        assert search(router, gain=1.0) == [None] + [depth for depth in (2, 1, 0) for _ in range(batches)]
    only_two = torch.where(TASKS < 2, 1.0, 0.0)
    for quorum, batches in ((0.6, 1), (0.7, 5)):
        router = built(shortest=0.0, quorum=quorum, undecided="favourite", learner=PairedDifference(lr=100.0))
        assert search(router, gain=only_two) == [None] + [depth for depth in (2, 1, 0) for _ in range(batches)]


def test_copies_learn_before_they_are_compared():
    router = built(stage=10, settle=0.4, shortest=0.5, learner=PairedDifference(lr=100.0))
    assert search(router, gain=1.0) == [None] + [depth for depth in (2, 1, 0) for _ in range(7)]
    router = built(stage=10, settle=0.4, learner=PairedDifference(False, 0.01))
    moved = []
    for seed in range(9):
        before = router.decider.policy.table.clone()
        assert (step(router, 0.1, seed=seed).alternatives is not None) == (seed > 0)  # nothing is open at first
        moved.append(not torch.equal(before, router.decider.policy.table))
    assert moved == [False] * 5 + [True] * 4


def test_each_task_keeps_its_favourite():
    better = torch.tensor([1.0, -1.0, 1.0])[TASKS]
    router = built(learner=PairedDifference(lr=10.0))
    search(router, gain=better)
    assert router.routes().tolist() == [[0] * 3, [3] * 3, [2] * 3]
    assert router.open_depth is None
    trace = step(router)
    assert trace.alternatives is None and torch.equal(trace.actions, router.routes()[TASKS])
    expected = nn.functional.one_hot(router.routes(), 4).float()
    assert torch.equal(router.probabilities(), expected)


@pytest.mark.parametrize(("blocks", "own"), [(4, [0, 1, 2]), (9, [0, 1, 2]), (3, [0, 1, 0]), (2, [0, 0, 0])])
def test_candidates(blocks, own):
    router = built(blocks=(blocks,) * 2)
    step(router)
    for seed in range(5):
        trace = step(router, seed=seed)
        pairs = torch.stack([trace.actions[:, 1], trace.alternatives[:, 1]], 1)
        for task, pair in zip(TASKS.tolist(), pairs.tolist(), strict=True):
            assert sorted(pair) == sorted([own[task], blocks - 1])
        assert (trace.alternatives[:, 0] == -1).all()


def test_more_candidates_are_those_that_the_next_tasks_would_own():
    router = built(blocks=(8, 8), candidates=4, stage=100)
    step(router)
    seen = {task: set() for task in range(3)}
    for seed in range(20):
        trace = step(router, seed=seed)
        assert (trace.actions[:, 1] != trace.alternatives[:, 1]).all()
        for task, action in zip(TASKS.tolist(), trace.actions[:, 1].tolist(), strict=True):
            seen[task].add(action)
    assert seen == {0: {7, 0, 1, 2}, 1: {7, 1, 2, 3}, 2: {7, 2, 3, 4}}


@pytest.mark.parametrize("blocks", [3, 4, 5])
def test_candidates_differ_in_any_number_of_blocks(blocks):
    for candidates in range(2, blocks + 1):
        found = built(blocks=(blocks,), candidates=candidates, num_tasks=7).blocks
        assert all(len(set(row)) == candidates for row in found[:, 0].tolist())
    with pytest.raises(UsageError, match=f"candidates of BranchingRouter is {blocks + 1}, .*give at most {blocks}"):
        built(blocks=(9, blocks, 1), candidates=blocks + 1)


def test_the_common_block_is_copied_once_to_the_candidates_of_a_layer():
    router = built(blocks=(6, 4, 4, 5), layers=[0, 1, 1, 2], num_tasks=4, stage=1)
    copied = []
    while not router.is_over:
        step(router, tasks=torch.arange(8) % 4)
        copied += [(router.open_depth, copy) for copy in router.copies()]
        assert router.copies() == []
    assert copied == [
        (3, BlockCopy(3, 4, [0, 1, 2, 3])),
        (2, BlockCopy(2, 3, [0, 1, 2])),
        (0, BlockCopy(0, 5, [0, 1, 2, 3])),
    ]


def test_the_search_takes_its_share_of_the_training():
    for search_share, batches, expected in ((0.3, 1000, 100), (1.0, 30, 10), (0.1, 3, 1)):
        router = built(search=search_share, stage=None)
        router.plan(batches)
        assert int(router.longest) == expected
        router.plan(17)  # a resumed run goes on as it was planned
        assert int(router.longest) == expected
    given = built(stage=7)
    given.plan(math.inf)
    assert int(given.longest) == 7
    with pytest.raises(UsageError, match="max_epochs"):
        built(stage=None).plan(math.inf)
    with pytest.raises(UsageError, match="plan"):
        step(built(stage=None))


def test_later_sweeps_open_again_to_those_who_share():
    router = built(blocks=(4, 4), sweeps=2, stage=3, shortest=1.0, learner=PairedDifference(lr=10.0))
    copied, seen = [], []
    while not router.is_over:
        seen.append(router.open_depth)
        first = len(seen) <= 7
        trace = step(router, torch.tensor([1.0, -1.0 if first else 1.0, -1.0])[TASKS], seed=len(seen))
        if not first and seen[-1] is not None:
            assert (trace.actions[TASKS == 0] == 0).all()  # it has parted
            assert trace.alternatives is None or (trace.alternatives[TASKS == 0] == -1).all()
        copied += router.copies()
    assert seen == [None, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0]
    assert router.routes().tolist() == [[0, 0], [1, 1], [3, 3]]
    expected = ((1, [0, 1, 2]), (0, [0, 1, 2]), (1, [1, 2]), (0, [1, 2]))
    assert copied == [BlockCopy(depth, 3, targets) for depth, targets in expected]


def test_a_beginning_in_which_all_share():
    router = built(begin=0.1, stage=None, search=0.3)
    router.plan(100)
    assert search(router, 1.0).count(None) == 10


def test_the_first_layers_are_asked_later_however_early_the_others_close():
    router = built(blocks=(4,) * 4, stage=10, pace=2.0, shortest=0.0, learner=PairedDifference(lr=100.0))
    seen = search(router, gain=1.0)
    assert [seen.index(depth) for depth in (3, 2, 1, 0)] == [1, 3, 10, 23]  # 40 * (i / 4)**2 batches
    assert seen.count(None) == len(seen) - 4 and router.routes().tolist() == [[task] * 4 for task in range(3)]
    slow = built(blocks=(4,) * 4, stage=10, pace=2.0, shortest=1.0)
    assert search(slow, gain=1.0)[1:] == [depth for depth in (3, 2, 1, 0) for _ in range(10)]


@pytest.mark.parametrize("sure", [-1.8, 1.8])
@pytest.mark.parametrize("unsure", [-1.6, 0.0, 1.6])
def test_where_all_are_not_sure_together_they_go_on_as_at_the_depth_before(sure, unsure):
    router = built(learner=PairedDifference(normalised=False))
    while not router.is_over:  # 8 samples of each task in each of 5 batches
        step(router, (sure if router.open_depth == 1 else unsure) / 40)
    # Together the three have the logit times the root of 3, and 0.95 is at 2.94.
    own, common = [0, 1, 2], [3, 3, 3]
    assert router.routes().T.tolist() == [own if sure > 0 else common] * 2 + [own]


def test_what_a_task_keeps_that_is_not_certain():
    for undecided, gain, third in (
        ("favourite", 0.001, 2),
        ("common", 0.001, 3),
        ("majority", 0.001, 2),
        ("majority", -0.001, 2),
        ("favourite", -0.001, 3),
    ):
        router = built(undecided=undecided, learner=PairedDifference(normalised=False, lr=0.5))
        search(router, torch.tensor([1.0, 1.0, gain])[TASKS])
        assert router.routes().tolist() == [[0] * 3, [1] * 3, [third] * 3]


def test_who_is_certain_of_another_choice_than_the_majority_keeps_it():
    for together in (1.0, -1.0):
        router = built(learner=PairedDifference(normalised=False, lr=0.5), shortest=1.0)
        search(router, torch.tensor([together, together, -together])[TASKS])
        own = [[0] * 3, [1] * 3, [2] * 3]
        common = [[3] * 3] * 3
        expected = own[:2] + common[:1] if together > 0 else common[:2] + own[2:]
        assert router.routes().tolist() == expected


def test_a_depth_closes_when_the_tasks_are_certain_together_though_none_is_alone():
    router = built(stage=9, shortest=0.0, learner=PairedDifference(normalised=False, lr=0.2))
    for seed in range(3):
        step(router, 1.0, seed=seed)  # logits of 3.2 in the end; 3.7 is certain
    assert router.open_depth == 1
    alone = built(stage=9, shortest=0.0, undecided="favourite", learner=PairedDifference(normalised=False, lr=0.2))
    for seed in range(3):
        step(alone, 1.0, seed=seed)
    assert alone.open_depth == 2


def test_a_state_in_mid_search_goes_on_the_same():
    whole, part = built(), built()
    for seed in range(7):
        step(whole, 0.3, seed=seed)
        step(part, 0.3, seed=seed)
    resumed = built(stage=None)
    resumed.load_state_dict(part.state_dict())
    assert resumed.open_depth == whole.open_depth
    for seed in range(7, 20):
        ours, theirs = step(resumed, 0.3, seed=seed), step(whole, 0.3, seed=seed)
        assert torch.equal(ours.actions, theirs.actions)
        assert resumed.copies() == whole.copies() or seed == 7
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name])


@pytest.mark.parametrize("learner", [WPL(0.3), WPL(0.3, scaling="original"), REINFORCE(lr=3.0)])
def test_other_learners_see_the_gain_as_the_return(learner):
    router = built(stage=150, learner=learner, blocks=(4, 4))
    search(router, gain=torch.tensor([1.0, -1.0, 1.0])[TASKS])
    assert router.routes().tolist() == [[0, 0], [3, 3], [2, 2]]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("candidates", 1),
        ("search", 0),
        ("search", 1.5),
        ("search", math.nan),
        ("stage", 0),
        ("shortest", -0.1),
        ("certainty", 0.5),
        ("certainty", 1.0),
        ("quorum", 0.0),
        ("settle", 1.0),
        ("sweeps", 0),
        ("begin", 1.0),
        ("pace", 0.9),
        ("pace", math.nan),
        ("undecided", "own"),
        ("most", 0.0),
        ("most", math.inf),
        ("order", "sideways"),
        ("order", [1, 1]),
        ("order", [4]),
        ("order", [0]),
        ("order", []),
    ],
)
def test_wrong_options_are_named(option, value):
    with pytest.raises(UsageError, match=f"^{option} of BranchingRouter is .*give"):
        built(**{option: value})


LAYERS = ["conv 1", "conv 2", "fc 1"]


def test_blocks_among_which_nothing_is_to_decide_are_refused_at_the_start_of_a_training():
    router = built((1, 1, 1))  # as a pruned network may have: that is not wrong in itself
    with pytest.raises(UsageError, match="has nothing to decide, since num_blocks is 1 .* give at least 2"):
        router.plan(100)
    built((1, 4, 4)).plan(100)
    with pytest.raises(UsageError, match="has nothing to decide"):
        built((1, 4, 4), order=[1]).plan(100)


@pytest.mark.parametrize(
    ("options", "batches", "words"),
    [
        ({"stage": None, "search": 1e-9}, 10_000, "open for 1 batches and compares in 1 of them.*raise search"),
        ({"stage": 20, "settle": 0.9}, 10_000, "open for 20 batches and compares in 2 of them.*raise stage"),
        ({"stage": 100}, 44, r"takes 45 batches at least \(3 depths of up to 100\).*has 44: some.*lower stage"),
        ({"stage": 100}, 45, None),
        ({"stage": 100, "pace": 1.0}, 214, "takes 215 batches at least"),
        ({"stage": 100, "pace": 1.0}, 215, None),
        ({"stage": None, "search": 0.2, "settle": 0.3, "pace": 2.0}, 10_000, None),
        ({"stage": 100}, math.inf, None),
    ],
)
def test_a_search_that_cannot_tell_or_end_is_told_at_the_start(options, batches, words):
    router = built(**options)
    router.plan(batches)
    told = router.foresee(batches, LAYERS)
    assert len(told) == (words is not None)
    assert words is None or re.search(words, told[0])


@pytest.mark.parametrize(
    ("options", "length", "words"),
    [
        ({"stage": None}, 2000, "50 batches before the search and up to 67 for each of 3 depths, not 100 and 133 of a"),
        ({"stage": None}, 1000, None),
        (
            {"stage": None},
            math.inf,
            "50 batches before the search and up to 67 .* not shares of this one, whose length",
        ),
        ({"stage": None, "begin": 0.0}, 2000, "0 batches before the search and up to 67 .* not 0 and 133"),
        ({"stage": 67}, 2000, "50 batches before the search and up to 67 for each of 3 depths, not 100 and 67 of a"),
        ({"stage": 67}, 1000, None),
        ({"stage": 67, "begin": 0.0}, 2000, None),
        ({"stage": 67, "begin": 0.0}, math.inf, None),
    ],
)
def test_a_plan_for_a_run_of_another_length_is_told(options, length, words):
    router = built(**{"search": 0.2, "begin": 0.05, "settle": 0.3, "pace": 1.0, "shortest": 0.0} | options)
    router.plan(1000)
    assert not [line for line in router.foresee(1000, LAYERS) if "plan" in line]
    router.opened.fill_(1)
    router.plan(length)  # as in a run that goes on
    told = [line for line in router.foresee(length, LAYERS) if "plan" in line]
    assert len(told) == (words is not None)
    assert words is None or re.search(words, told[0])
    router.opened.fill_(3)
    router.closed.fill_(3)
    over = router.foresee(length, LAYERS)
    assert len(over) == (words is not None and "stage" in options and options["stage"] is None)
    assert all("search is over" in line for line in over)


def test_a_search_that_did_not_end_is_told_at_the_end():
    router = built(quorum=1.0)
    told = [router.left_open(LAYERS)]
    while not router.is_over:
        step(router)
        told.append(router.left_open(LAYERS))
    whole = "the search of BranchingRouter did not end: it {}; lower stage (5 batches for each depth), or train longer."
    assert told[0] == [whole.format("never asked conv 1, conv 2, fc 1")]
    assert told[1] == [whole.format("was still asking fc 1 and never asked conv 1, conv 2")]
    assert told[-2] == [whole.format("was still asking conv 1")] and told[-1] == []
    again = built(quorum=1.0, sweeps=2)
    while again.opened < 4:
        step(again)
    assert again.left_open(LAYERS) == [whole.format("was still asking fc 1")]  # once more


def test_a_beginning_and_a_search_longer_than_the_training_are_refused():
    with pytest.raises(UsageError, match=r"begin \+ search of BranchingRouter is 1.1; give"):
        built(begin=0.6, search=0.5, stage=None)


@pytest.mark.parametrize("learner", [QLearning, ApproximateQLearning])
def test_learners_of_values_are_refused(learner):
    with pytest.raises(UsageError, match=f"learner of BranchingRouter is {learner.__name__}, .* give PairedDifference"):
        built(learner=learner())


# -- a problem with a known answer -------------------------------------------------------------------------------------

NUM_TASKS, SIZE = 4, 8
PARTS = [False, True, True, False]  # at which depths the tasks want different things


class Offset(nn.Module):
    """Adds a vector that is learned to the part of the activation that belongs to one depth."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.zeros(SIZE))
        self.around = depth * SIZE, (len(PARTS) - 1 - depth) * SIZE

    def forward(self, x: Tensor) -> Tensor:
        return x + nn.functional.pad(self.vector, self.around)


def blocks_in_use(seed: int, sign: int = 1) -> list[int]:
    """How many blocks the tasks take at each depth after learning noisy vectors, some common and some their own."""
    generator = torch.Generator().manual_seed(seed)
    common, own = (3 * torch.randn(count, len(PARTS), SIZE, generator=generator) for count in (1, NUM_TASKS))
    truth = torch.where(torch.tensor(PARTS)[:, None], own - own.mean(0), common).flatten(1)
    layers = [RoutedLayer(ModuleBlocks([Offset(d) for _ in range(NUM_TASKS + 1)])) for d in range(len(PARTS))]
    router = BranchingRouter()
    network = RoutingNetwork(nn.Sequential(*layers), router, NUM_TASKS, torch.zeros(1, truth.shape[1]))
    router.plan(250)
    optimizer = torch.optim.SGD(network.body.parameters(), lr=0.03)
    for _ in range(100):
        tasks = torch.randint(NUM_TASKS, (32,), generator=generator)
        targets = truth[tasks] + 0.3 * torch.randn(32, truth.shape[1], generator=generator)
        output, trace = network(torch.zeros(32, truth.shape[1]), tasks, generator=generator)
        losses = (output - targets).square().sum(1)
        optimizer.zero_grad()
        losses.mean().backward()
        trace.final_reward = -losses.detach()
        if trace.alternatives is not None:
            other = (network.otherwise(trace) - targets).square().sum(1)
            other.mean().backward()
            trace.alternative_reward = trace.final_reward + sign * (losses - other).detach()
        optimizer.step()
        router.learn(trace)
        for copy in router.copies():
            layers[copy.depth].blocks.copy_block(copy.source, copy.targets)
        if router.is_over:
            break
    return [len(set(column)) for column in router.routes().T.tolist()]


@pytest.mark.parametrize("seed", range(10))
def test_it_finds_the_right_sharing_and_with_the_sign_turned_it_does_not(seed):
    right = [NUM_TASKS if parts else 1 for parts in PARTS]
    assert blocks_in_use(seed) == right
    assert blocks_in_use(seed, sign=-1) != right


def test_pass_is_never_taken_and_a_recurrent_layer_parts_once():
    torch.manual_seed(0)
    middle = RoutedLayer(LinearBlocks(4, 5, 5), allow_pass=True)
    body = nn.Sequential(RoutedLayer(LinearBlocks(4, 6, 5)), Recurrent(middle, 2), RoutedLayer(LinearBlocks(4, 5, 2)))
    router = BranchingRouter(stage=3, begin=0)
    network = RoutingNetwork(body, router, 3, torch.zeros(1, 6))
    x, copied = torch.randn(24, 6), []
    for _ in range(14):
        output, trace = network(x, TASKS)
        assert int(trace.actions.max()) <= 3
        trace.final_reward = -output[:, 0].detach()
        if trace.alternatives is not None:
            trace.alternative_reward = -network.otherwise(trace)[:, 0]
        router.learn(trace)
        copied += [copy.depth for copy in router.copies()]
    assert copied == [3, 2, 0]
    assert router.probabilities().shape == (3, 4, 5) and not router.probabilities()[:, :, 4].any()
    assert np.isfinite(router.decider.policy.table.numpy()).all()
