import numpy as np
import pytest

from routing_lightning.errors import UsageError
from routing_lightning.record import RouteRecord, shares
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


@pytest.mark.parametrize("record", [table_record(), counted_record()])
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


def test_policy_of_counted_routes_goes_on_where_a_task_had_no_sample():
    policy = counted_record().policy()
    np.testing.assert_array_equal(policy[:, 0, 0], [[1, 0, 0], [1, 0, 0]])
    np.testing.assert_array_equal(policy[:, 1, 0], [[0, 0.5, 0.5], [1, 0, 0]])


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
