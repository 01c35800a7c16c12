import pytest
import torch

from routing_lightning.errors import UsageError
from routing_lightning.routers import FixedRandomRoutes, Router, TabularPolicy


def built(seed=0, num_actions=(5, 2, 4)) -> Router:
    router = Router(TabularPolicy(), FixedRandomRoutes(seed))
    router.build(50, list(num_actions))
    return router


def test_each_task_has_one_path_in_exploration_and_in_evaluation():
    router, tasks = built(), torch.arange(50).repeat(4)
    assert ((router.probabilities() == 0) | (router.probabilities() == 1)).all()
    assert (router.probabilities().sum(-1) == 1).all()
    chosen = router.start(tasks, explore=False).actions
    assert torch.equal(router.start(tasks, explore=True).actions, chosen)
    for depth, size in enumerate((5, 2, 4)):
        assert set(chosen[:, depth].tolist()) == set(range(size))  # every block is some task's


def test_learning_leaves_the_paths():
    router = built()
    before = router.probabilities()
    trace = router.start(torch.arange(50), explore=True)
    trace.final_reward = -torch.ones(50)
    router.learn(trace)
    assert torch.equal(router.probabilities(), before)


def test_paths_depend_on_the_seed_of_the_draw_alone():
    torch.manual_seed(1)
    one = built(3).probabilities()
    torch.manual_seed(2)
    assert torch.equal(built(3).probabilities(), one)
    assert not torch.equal(built(4).probabilities(), one)


def test_a_negative_seed_is_refused():
    with pytest.raises(UsageError, match="seed of FixedRandomRoutes is -1"):
        FixedRandomRoutes(-1)
