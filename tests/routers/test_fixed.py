import pytest
import torch

from routing_lightning.errors import UsageError
from routing_lightning.routers import FixedRoutes, RoutingSpec


def built(seed=0, num_blocks=(5, 2, 4), routes="random", num_tasks=50, may_pass=(), shared_depths=0) -> FixedRoutes:
    router = FixedRoutes(routes, seed, shared_depths)
    router.build(RoutingSpec(num_tasks, num_blocks, may_pass))
    return router


def test_each_task_has_one_path_in_exploration_and_in_evaluation():
    router, tasks = built(), torch.arange(50).repeat(4)
    assert ((router.probabilities() == 0) | (router.probabilities() == 1)).all()
    assert (router.probabilities().sum(-1) == 1).all()
    chosen = router.start(tasks, explore=False).actions
    assert torch.equal(router.start(tasks, explore=True).actions, chosen)
    for depth, size in enumerate((5, 2, 4)):
        assert set(chosen[:, depth].tolist()) == set(range(size))  # every block is some task's
    assert torch.equal(router.routes(), chosen[:50])
    assert torch.equal(router.decide(router.start(tasks, explore=True), torch.empty(200, 0), 1).actions, chosen[:, 1])


def test_learning_leaves_the_paths():
    router = built()
    before = router.probabilities()
    trace = router.start(torch.arange(50), explore=True)
    trace.final_reward = -torch.ones(50)
    assert router.auxiliary_loss(trace) is None
    router.learn(trace)
    assert torch.equal(router.probabilities(), before)
    assert router.own_parameters() == [] and router.configure() == [] and not list(router.parameters())


def test_paths_depend_on_the_seed_of_the_draw_alone():
    torch.manual_seed(1)
    one = built(3).probabilities()
    torch.manual_seed(2)
    assert torch.equal(built(3).probabilities(), one)
    assert not torch.equal(built(4).probabilities(), one)


def test_drawn_paths_may_pass_where_there_is_pass():
    routes = built(num_blocks=(2, 2), may_pass=(False, True)).routes()
    assert [set(routes[:, depth].tolist()) for depth in (0, 1)] == [{0, 1}, {0, 1, 2}]


def test_own_routes_share_nothing_where_there_are_enough_blocks():
    assert built(routes="own", num_tasks=3, num_blocks=(3, 5)).routes().tolist() == [[0, 0], [1, 1], [2, 2]]
    # and go round where there are not; PASS is nobody's own
    routes = built(routes="own", num_tasks=4, num_blocks=(3, 2), may_pass=(True, False)).routes()
    assert routes.tolist() == [[0, 0], [1, 1], [2, 0], [0, 1]]


def test_shared_routes_are_one_block_per_depth():
    assert built(routes="shared", num_tasks=4, num_blocks=(3, 2)).routes().tolist() == [[0, 0]] * 4


@pytest.mark.parametrize("routes", ["random", "own", "shared", [[2, 1, 3]] * 50])
@pytest.mark.parametrize("depths", [0, 1, 3])
def test_the_first_depths_may_be_shared_whatever_the_routes(routes, depths):
    rest = built(routes=routes).routes()
    found = built(routes=routes, shared_depths=depths).routes()
    assert (found[:, :depths] == 0).all() and torch.equal(found[:, depths:], rest[:, depths:])


def test_more_shared_depths_than_there_are_are_refused():
    with pytest.raises(UsageError, match=r"shared_depths of FixedRoutes is 4, but the network has 3 .*; give 0\.\.3"):
        built(shared_depths=4)
    with pytest.raises(UsageError, match="shared_depths of FixedRoutes is -1; give a number of depths, at least 0"):
        FixedRoutes(shared_depths=-1)


def test_given_routes_are_taken_and_may_pass():
    given = [[0, 1], [2, 2]]
    router = built(routes=given, num_tasks=2, num_blocks=(3, 2), may_pass=(False, True))
    assert router.routes().tolist() == given
    assert router.start(torch.tensor([1, 0, 1]), explore=True).actions.tolist() == [[2, 2], [0, 1], [2, 2]]


def test_the_table_stays_on_the_host_and_is_in_the_state_dict():
    router = built(1).to("meta").to(torch.bfloat16)
    assert router.table.device.type == "cpu" and router.table.dtype == torch.int64
    other = built(2)
    other.load_state_dict(router.state_dict())
    assert torch.equal(other.routes(), router.routes())


def test_a_negative_seed_is_refused():
    with pytest.raises(UsageError, match="seed of FixedRoutes is -1"):
        FixedRoutes(seed=-1)


def test_an_unknown_kind_of_routes_is_refused():
    with pytest.raises(UsageError, match="routes of FixedRoutes is 'even'; give 'random', 'own', 'shared' or a list"):
        FixedRoutes("even")


@pytest.mark.parametrize(
    "routes",
    [
        [],
        [[0, 0]],  # a task too few
        [[0, 0]] * 3,  # and one too many
        [[0, 0], [0]],  # a depth too few
        [[0, 0], [0, 0, 0]],
        [[0, 0], [3, 0]],  # no such block
        [[0, 0], [-1, 0]],
        [[0, 0], [0, 2]],  # no PASS at this depth
    ],
)
def test_given_routes_that_do_not_fit_are_refused(routes):
    with pytest.raises(UsageError, match=r"routes of FixedRoutes is .* give 2 lists \(tasks\) of 2 blocks"):
        built(routes=routes, num_tasks=2, num_blocks=(3, 2))
