"""How many threads a run takes."""

import os
import time
from pathlib import Path

import pytest
import yaml

from routing_lightning.cli import threads
from routing_lightning.errors import UsageError
from tests import forks

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("batch", "shape", "cores", "processes", "count"),
    [
        (32, (1, 8, 8), 16, 1, 1),  # the digits
        (16, (3, 32, 32), 2, 1, 1),  # CIFAR
        (64, (3, 32, 32), 2, 1, 2),
        (16, (3, 32, 32), 1, 1, 1),
        (256, (3, 32, 32), 8, 1, 8),
        (256, (3, 32, 32), 8, 4, 2),
        (256, (3, 32, 32), 2, 4, 1),
    ],
)
def test_small_steps_take_one_thread_and_large_ones_the_free_cores(batch, shape, cores, processes, count):
    assert threads.best_number(batch, shape, cores, processes) == count


def test_cores_that_others_keep_busy_are_not_counted(monkeypatch):
    monkeypatch.setattr(threads, "available_cores", lambda: 8)
    start = threads.Moment(100.0, 1_000.0, 0.5)
    monkeypatch.setattr(threads, "_START", start)
    for others, free in ((0.0, 8), (2.2, 6), (40.0, 1)):
        # ten seconds later, of which this process worked nine
        monkeypatch.setattr(threads, "moment", lambda o=others: threads.Moment(110.0, 1_009.0 + 10 * o, 9.5))
        assert threads.free_cores() == free


@pytest.mark.parametrize("later", [0.5, 3_600.0])
@pytest.mark.parametrize("machine", [None, 1_000.0])
def test_the_load_of_the_last_minute_serves_where_the_time_since_the_start_does_not(later, machine, monkeypatch):
    monkeypatch.setattr(threads, "available_cores", lambda: 8)
    monkeypatch.setattr(threads, "_START", threads.Moment(0.0, machine, 0.0))
    monkeypatch.setattr(threads, "moment", lambda: threads.Moment(later, machine, 0.0))
    monkeypatch.setattr(os, "getloadavg", lambda: (2.2, 0, 0))
    assert threads.free_cores() == 6


def test_the_machine_has_worked_at_least_as_long_as_this_process():
    begun = threads.moment()
    while time.process_time() < begun.own + 0.3:
        sum(range(10_000))
    now = threads.moment()
    assert begun.machine is None or now.machine - begun.machine >= 0.2


@pytest.mark.parametrize("value", [0, -1, "x", "1.5", True])
def test_other_values_are_refused(value):
    with pytest.raises(UsageError, match="threads is"):
        threads.checked(value)


def test_threads_sleep_while_they_wait_unless_the_user_says_otherwise():
    for given, expected in (({}, {"OMP_WAIT_POLICY": "PASSIVE"}), ({"OMP_WAIT_POLICY": "ACTIVE"},) * 2):
        environment = dict(given)
        threads.wait_passively(environment)
        assert environment == expected


def test_the_number_is_set_and_recorded(tmp_path):
    config = f"--config={ROOT}/configs/digits_mtl.yaml"
    words = ["fit", config, "--trainer.max_steps=1", "--trainer.limit_val_batches=1",
             f"--trainer.default_root_dir={tmp_path}", "--record=null", "--name=a", "--threads=2"]  # fmt: skip
    script = (
        "import sys; from routing_lightning.cli import main; main(sys.argv[1:]); "
        "import os, torch; assert torch.get_num_threads() == 2; assert os.environ['OMP_WAIT_POLICY'] == 'PASSIVE'"
    )
    done = forks.run(tmp_path, *words, code=script)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "lightning_logs" / "a"
    assert yaml.safe_load((run / "config.yaml").read_text())["threads"] == 2


def test_what_the_user_has_set_in_the_environment_stays(monkeypatch):
    import torch

    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", str(before))
    assert threads.set_threads("auto", None) == before
