"""Runs that are stopped by a signal or an error."""

import errno
import os
import resource
import signal

import pytest
import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.fabric.plugins.environments import SLURMEnvironment
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from lightning.pytorch.plugins.io.wrapper import _WrappingCheckpointIO

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


def test_an_error_before_training_begins_keeps_its_reason_and_saves_nothing(tmp_path):
    """The counters of a checkpoint are read before the loop refuses one that was trained for longer."""
    trainer, _ = fit(MODELS["routed"]())
    trainer.save_checkpoint(tmp_path / "longer.ckpt")
    with pytest.raises(UsageError, match="made 2 epochs, and trainer.max_epochs is 1"):
        fit(MODELS["routed"](), SaveOnStop(), ckpt_path=tmp_path / "longer.ckpt", max_epochs=1)
    assert [file.name for file in tmp_path.iterdir()] == ["longer.ckpt"]


class Wrapper(_WrappingCheckpointIO):
    """A plugin around what writes checkpoints, as users write them."""


@pytest.mark.parametrize("plugins", [[], [Wrapper()], [Wrapper(TorchCheckpointIO())], [Wrapper(Wrapper())]])
def test_a_full_disk_keeps_the_last_good_checkpoint_and_says_so(plugins, tmp_path, monkeypatch):
    full = iter([False, True, True])

    def fsync(file):
        if next(full):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    save = ModelCheckpoint(tmp_path, every_n_train_steps=2)
    with pytest.raises(UsageError, match=r"step=4.ckpt cannot be written \(No space left on device\); the last good"):
        fit(MODELS["routed"](), save, SaveOnStop(), plugins=plugins)
    (kept,) = tmp_path.iterdir()
    trainer, _ = fit(MODELS["routed"](), ckpt_path=kept)
    assert trainer.global_step == 10


@pytest.mark.parametrize("plugins", [[AsyncCheckpointIO()], [Wrapper(AsyncCheckpointIO())]])
def test_what_removes_a_checkpoint_before_the_next_one_is_written_is_refused(plugins):
    with pytest.raises(UsageError, match=r"trainer.plugins has AsyncCheckpointIO, .* may leave none; leave it out\.$"):
        fit(MODELS["routed"](), SaveOnStop(), plugins=plugins)


def test_a_disk_that_is_really_full_leaves_no_half_checkpoint(tmp_path):
    """The system itself refuses to write on, midway."""
    save = ModelCheckpoint(tmp_path, every_n_train_steps=2)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    class Fill(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if trainer.global_step == 3:
                (first,) = tmp_path.glob("*.ckpt")
                resource.setrlimit(resource.RLIMIT_FSIZE, (first.stat().st_size // 2, limits[1]))

    try:
        with pytest.raises(
            UsageError, match=r"step=4.ckpt cannot be written \(File too large\); the last good one is kept"
        ):
            fit(MODELS["routed"](), Fill(), save, SaveOnStop())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    (kept,) = tmp_path.iterdir()
    assert "step=2" in kept.name and torch.load(kept, weights_only=True)["global_step"] == 2


@pytest.mark.parametrize("hook", ["on_before_optimizer_step", "on_train_batch_end", "on_validation_batch_start"])
def test_slurm_queues_the_job_again_after_the_step(hook, tmp_path, monkeypatch):
    """Lightning saves within its signal handler, which may be in the midst of a step."""
    options = SCHEDULES["plateau"]
    whole, curves = fit(MODELS["baseline"](**options))
    folder = tmp_path / "bin"
    folder.mkdir()
    scontrol = folder / "scontrol"
    scontrol.write_text(f"#!/bin/sh\necho $@ >> {tmp_path}/asked\n")
    scontrol.chmod(0o755)
    names = {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "17", "SLURM_NTASKS": "1", "SLURM_JOB_NAME": "x"}
    for name, value in {**names, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}.items():
        monkeypatch.setenv(name, value)
    environment = SLURMEnvironment(auto_requeue=True)
    before = signal.getsignal(signal.SIGUSR1)
    slurm = {"plugins": [environment], "default_root_dir": tmp_path}
    with pytest.raises(SystemExit):
        stops = [Signal(hook, 3, signal.SIGUSR1), Signal("on_train_batch_start", 8, signal.SIGTERM)]
        fit(MODELS["baseline"](**options), *stops, ModelCheckpoint(tmp_path / "own"), SaveOnStop(), **slurm)
    assert (tmp_path / "asked").read_text() == "requeue 17\n"
    assert signal.getsignal(signal.SIGUSR1) == before
    (saved,) = tmp_path.glob("hpc_ckpt_*.ckpt")
    for path in (saved, tmp_path / "own" / "last.ckpt"):
        resumed, rest = fit(MODELS["baseline"](**options), ckpt_path=path)
        check(whole, resumed, hook)
        assert rest.rows == curves.rows[-len(rest.rows) :]
