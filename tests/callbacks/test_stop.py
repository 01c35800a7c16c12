"""Runs that are stopped by a signal or an error."""

import errno
import os
import signal

import pytest
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint

from routing_lightning.callbacks.stop import SaveOnStop
from routing_lightning.errors import UsageError
from tests.modules.test_resume import MODELS, SCHEDULES, check, fit


class Signal(Callback):
    """Sends a signal at the n-th call of a hook."""

    def __init__(self, hook: str, count: int, number: int) -> None:
        self.left, self.number = count, number
        setattr(self, hook, self.send)

    def send(self, trainer, *args):
        self.left -= not trainer.sanity_checking
        if self.left == 0:
            os.kill(os.getpid(), self.number)


PLACES = [
    ("on_train_batch_start", 3),
    ("on_train_batch_end", 5),
    ("on_validation_batch_start", 2),
    ("on_before_zero_grad", 7),
    ("on_validation_end", 1),
    ("on_train_epoch_end", 1),
    ("on_train_epoch_start", 2),
]


@pytest.fixture(autouse=True)
def handlers():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("model", ["routed", "baseline"])
def test_a_stopped_run_goes_on_to_the_bit(model, number, tmp_path):
    options = SCHEDULES["plateau"]
    whole, curves = fit(MODELS[model](**options))
    for place, count in PLACES:
        if place == "on_before_zero_grad" and model == "routed":
            continue
        folder = tmp_path / f"{place}_{count}"
        save = ModelCheckpoint(folder, every_n_epochs=10)
        with pytest.raises(SystemExit) as stop:
            fit(MODELS[model](**options), Signal(place, count, number), save, SaveOnStop())
        assert stop.value.code == (1 if number == signal.SIGINT else 143)
        resumed, rest = fit(MODELS[model](**options), ckpt_path=folder / "last.ckpt")
        check(whole, resumed, place)
        assert rest.rows == curves.rows[-len(rest.rows) :], place
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_an_error_within_a_step_saves_nothing_and_one_outside_does(tmp_path):
    class Breaking(Callback):
        def __init__(self, hook):
            setattr(self, hook, self.fail)

        def fail(self, trainer, *args):
            if trainer.global_step == 3:
                raise RuntimeError("mine")

    for hook, saved in (("on_before_zero_grad", False), ("on_train_batch_end", True)):
        folder = tmp_path / hook
        with pytest.raises(RuntimeError, match="mine"):
            fit(MODELS["baseline"](), Breaking(hook), ModelCheckpoint(folder, every_n_epochs=10), SaveOnStop())
        assert (folder / "last.ckpt").exists() == saved


def test_a_full_disk_keeps_the_last_good_checkpoint_and_says_so(tmp_path, monkeypatch):
    full = iter([False, True, True])

    def fsync(file):
        if next(full):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    save = ModelCheckpoint(tmp_path, every_n_train_steps=2)
    with pytest.raises(UsageError, match=r"step=4.ckpt cannot be written \(No space left on device\); the last good"):
        fit(MODELS["routed"](), save, SaveOnStop())
    (kept,) = tmp_path.iterdir()
    trainer, _ = fit(MODELS["routed"](), ckpt_path=kept)
    assert trainer.global_step == 10
