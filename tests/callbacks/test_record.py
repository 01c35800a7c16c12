import numpy as np
import pytest

from routing_lightning.errors import UsageError
from routing_lightning.record import RouteRecord, in_use, least_use, shares, usage
from routing_lightning.record.route_record import AXES


def table_record() -> RouteRecord:
    """2 tasks, 2 depths, 3 and 2 actions; the last action of depth 2 is PASS."""
    rng = np.random.default_rng(0)
    return RouteRecord(
        task_names=["cats", "dogs & ünï"],
        num_actions=np.array([3, 2]),
        num_blocks=np.array([3, 1]),
        steps=np.array([0, 1, 5]),
        counts=rng.integers(0, 9, (3, 2, 2, 3)),
        probabilities=rng.dirichlet(np.ones(3), (3, 2, 2)).astype(np.float32),
    )


def counted_record() -> RouteRecord:
    record = table_record()
    record.probabilities = None
    record.counts = np.array([[[[4, 0, 0]], [[0, 1, 1]]], [[[0, 0, 0]], [[2, 0, 0]]]])  # (2, 2, 1, 3)
    record.steps = np.array([1, 2])
    record.num_actions, record.num_blocks = np.array([3]), np.array([3])
    record.routes, record.route_counts, record.route_step = np.array([[0, 0], [1, 2]]), np.array([7, 3]), 2
    return record


def searched_record() -> RouteRecord:
    """Depth 1 was asked in the middle and has parted, depth 2 never."""
    record = table_record()
    own = np.array([0.0, 0.9, 1.0])[:, None] * [1, 0.2 / 0.9]  # of each snapshot and task at depth 1
    own[2] = [1, 0]
    record.probabilities = np.zeros((3, 2, 2, 3), np.float32)
    record.probabilities[:, :, 0, 0], record.probabilities[:, :, 0, 2] = own, 1 - own
    record.probabilities[:, :, 1, 1] = 1
    record.depth_names = np.array(["conv 1", "fc 1"])
    record.gains = np.array([[4, 2, 1.5], [0, 0, 0]])
    return record


def test_trials_tell_what_a_search_found():
    asked, never = searched_record().trials()
    assert never is None and (asked.first, asked.last, asked.is_open) == (1, 1, False)
    np.testing.assert_allclose(asked.sure, [0.9, 0.8], rtol=1e-6)
    values = 0.5 + 0.125**0.5 * np.array([1, -1, 1, -1])  # four numbers of that sum and that sum of squares
    assert asked.gain == pytest.approx(values.mean()) and asked.error == pytest.approx(values.std(ddof=1) / 2)
    still = searched_record()
    still.probabilities[2] = still.probabilities[1]
    assert still.trials()[0].is_open and still.trials()[0].last == 5
    assert table_record().trials() == [] and table_record().layers() == ["depth 1", "depth 2"]


def test_who_is_undecided_in_a_search_goes_on_with_the_common_block():
    record = searched_record()
    record.probabilities[-1, 0, 0] = [0.5, 0, 0.5]
    assert record.map_routes()[0].tolist() == [[0, 2, 1], [1, 2, 1]]
    record.gains = None
    assert record.map_routes()[0].tolist() == [[0, 0, 1], [1, 2, 1]]


@pytest.mark.parametrize("record", [table_record(), counted_record(), searched_record()])
def test_file_keeps_everything(record, tmp_path):
    record.save(tmp_path / "deep" / "routes.npz")
    again = RouteRecord.load(tmp_path / "deep" / "routes.npz")
    for name in AXES:
        ours, theirs = getattr(record, name), getattr(again, name)
        assert (ours is None) == (theirs is None), name
        if ours is not None:
            np.testing.assert_array_equal(ours, theirs, err_msg=name)
    assert again.task_names == record.task_names and isinstance(again.route_step, int)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["routes.npz"]  # no part left


def test_file_names_the_axes_and_needs_no_pickle(tmp_path):
    table_record().save(tmp_path / "routes.npz")
    with np.load(tmp_path / "routes.npz", allow_pickle=False) as file:
        for name in set(file) - {name for name in file if name.endswith("_axes")}:
            assert len(file[f"{name}_axes"]) == file[name].ndim, name
        assert file["probabilities_axes"].tolist() == ["snapshot", "task", "depth", "action"]


@pytest.mark.parametrize("content", [b"", b"no archive", None])
def test_missing_or_broken_file_is_named(content, tmp_path):
    path = tmp_path / "routes.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=str(path)):
        RouteRecord.load(path)


def test_truncated_file_is_named(tmp_path):
    path = tmp_path / "routes.npz"
    path.write_bytes(table_record().to_bytes()[:-300])
    with pytest.raises(UsageError, match="routes.npz"):
        RouteRecord.load(path)


def test_shares_sum_to_one_or_nothing():
    np.testing.assert_array_equal(shares(np.array([[1, 3], [0, 0]])), [[0.25, 0.75], [0, 0]])


def test_shares_of_counted_routes_pool_enough_samples(monkeypatch):
    monkeypatch.setattr("routing_lightning.record.route_record.POOLED", 4)
    record = counted_record()
    record.counts = np.zeros((5, 2, 1, 3), np.int64)
    record.counts[:, 0, 0, 0] = [1, 1, 6, 0, 1]  # task 0: 1, 1, 6, 0 and 1 samples
    record.counts[:, 0, 0, 1] = [0, 1, 0, 0, 2]
    record.counts[:, 1, 0, 2] = [0, 0, 3, 0, 0]  # task 1: 3 in all, fewer than are pooled
    record.steps = np.arange(1, 6)
    policy = record.policy()
    # three times the first four or more; then the latest four or more, up to the snapshot
    expected = [[8 / 9, 1 / 9]] * 3 + [[1, 0], [7 / 9, 2 / 9]]
    np.testing.assert_allclose(policy[:, 0, 0, :2], expected, atol=1e-6)
    np.testing.assert_array_equal(policy[:, 1, 0], [[0, 0, 1]] * 5)
    assert record.measure == "share of samples" and table_record().measure == "probability"


def test_every_share_shown_is_of_enough_samples():
    rng = np.random.default_rng(0)
    record = counted_record()
    record.counts = rng.multinomial(2, [0.5, 0.3, 0.2], (300, 2, 1))  # two samples per snapshot
    record.steps = np.arange(1, 301)
    policy = record.policy()
    assert np.abs(policy - [0.5, 0.3, 0.2]).max() < 0.2  # five standard errors of 100 samples; two would give 0 or 1
    np.testing.assert_allclose(policy.sum(-1), 1, atol=1e-6)
    np.testing.assert_allclose(record.usage().sum(-1), 1, atol=1e-6)


def test_a_block_is_in_use_from_a_tenth_of_an_equal_share_on():
    assert least_use(20, 20) == 0.005 and least_use(4, 20) == 0.005 and least_use(20, 4) == 0.005
    assert in_use(np.array([0.9, 0.06, 0.04, 0.0]), 2).tolist() == [True, True, True, False]
    assert in_use(np.array([0.96, 0.02, 0.02, 0.0]), 2).tolist() == [True, False, False, False]
    # each task counts the same, so the block of a task with few samples is in use
    counts = np.array([[[1000, 0, 0]], [[0, 1, 0]]])
    assert in_use(usage(counts)[0], 2).tolist() == [True, True, False]
    np.testing.assert_array_equal(usage(counts), [[0.5, 0.5, 0]])


def test_map_of_a_table_is_its_most_probable_route():
    record = table_record()
    routes, counts, step = record.map_routes()
    assert step == 5 and counts.tolist() == [1, 1]
    for task, *actions in routes.tolist():
        assert actions == record.probabilities[-1, task].argmax(-1).tolist()


def test_map_of_counted_routes_is_the_last_validation():
    routes, counts, step = counted_record().map_routes()
    assert routes.tolist() == [[0, 0], [1, 2]] and counts.tolist() == [7, 3] and step == 2


def test_actions_after_the_last_block_are_called_pass():
    assert table_record().action_names() == [["0", "1", "2"], ["0", "PASS"]]


def test_recent_counts_hold_at_least_the_portion():
    record = table_record()
    record.counts = np.zeros((3, 2, 2, 3), np.int64)
    record.counts[:, 0, 0, 0] = [80, 15, 5]
    assert record.recent_counts(0.05).sum() == 5
    assert record.recent_counts(0.1).sum() == 20
    assert record.recent_counts(1.0).sum() == 100
