"""Two processes that are stopped, or whose numbers go wrong: they stop together and go on to the bit."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from routing_lightning.callbacks import BlockUsage, PolicyDynamics, RouteRecorder, SaveOnStop, stop
from routing_lightning.errors import NonFiniteError
from routing_lightning.modules import detect
from routing_lightning.routers import REINFORCE, MLPPolicy, RewardRouter
from tests import forks
from tests.conftest import ToyDataModule
from tests.modules.test_resume import MODELS, equal
from tests.soak.__main__ import curves

EPOCHS = 2
STEPS = 5  # of an epoch


class Leave(Callback):
    """Leaves what each process ended with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_end(self, trainer, pl_module):
        state = {
            "weights": {name: value.clone() for name, value in pl_module.state_dict().items()},
            "optimizers": [optimizer.state_dict() for optimizer in trainer.optimizers],
            "metrics": dict(trainer.callback_metrics),
            "step": trainer.global_step,
        }
        torch.save(state, self.folder / f"rank_{trainer.global_rank}.pt")


class Signal(Callback):
    """Sends a signal to one of the processes before the batch of a step."""

    def __init__(self, hook: str, number: int, rank: int, step: int) -> None:
        self.number, self.rank, self.step = number, rank, step
        setattr(self, hook, self.send)

    def send(self, trainer, *args):
        if trainer.global_step == self.step and trainer.global_rank == self.rank and not trainer.sanity_checking:
            os.kill(os.getpid(), self.number)


def fit(model, folder: Path, *callbacks: Callback, count: int = 77, ckpt_path=None, **options) -> None:
    folder.mkdir(exist_ok=True)
    parts = len(list(folder.glob("part_*")))
    record = [RouteRecorder(), BlockUsage(every_n_steps=3), PolicyDynamics(every_n_steps=3)]
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        **{"strategy": "ddp_fork", **options},
        max_epochs=EPOCHS,
        log_every_n_steps=1,
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=CSVLogger(folder, name=f"part_{parts}", flush_logs_every_n_steps=1),
        callbacks=[*record, *callbacks, Leave(folder), ModelCheckpoint(folder, every_n_epochs=1), SaveOnStop()],
    )
    trainer.fit(model, ToyDataModule(count=count, batch_size=8), ckpt_path=ckpt_path)


@pytest.fixture(autouse=True)
def handlers(monkeypatch):
    monkeypatch.setattr(stop, "TOGETHER", 2)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module", params=["routed", "baseline"])
def whole(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    fit(MODELS[request.param](), folder)
    return request.param, folder


def state(folder: Path, rank: int) -> dict:
    return torch.load(folder / f"rank_{rank}.pt", weights_only=True)


STOPS = [
    (signal.SIGTERM, "on_train_batch_start", 0, 2),
    (signal.SIGINT, "on_train_batch_end", 1, 3),
    (signal.SIGTERM, "on_validation_start", 1, 5),
    (signal.SIGKILL, "on_train_batch_start", 1, 7),
]


@pytest.mark.parametrize(("number", "hook", "rank", "step"), STOPS)
def test_a_stopped_run_goes_on_to_the_bit(whole, number, hook, rank, step, tmp_path):
    model, first = whole
    if model == "baseline" and hook != "on_validation_start":
        pytest.skip("as for the other model")
    with pytest.raises((SystemExit, Exception)) as error:
        fit(MODELS[model](), tmp_path, Signal(hook, number, rank, step))
    assert not isinstance(error.value, AssertionError)
    assert (tmp_path / "last.ckpt").exists() == (number != signal.SIGKILL)
    (found,) = [path for path in tmp_path.glob("*.ckpt") if number == signal.SIGKILL or path.name == "last.ckpt"]
    saved = torch.load(found, weights_only=True)["global_step"]
    assert saved == STEPS if number == signal.SIGKILL else step <= saved <= step + 2
    fit(MODELS[model](), tmp_path, ckpt_path=found)
    for process in range(2):
        ours, theirs = state(first, process), state(tmp_path, process)
        assert equal(ours, theirs), [key for key in ours if not equal(ours[key], theirs[key])]
    ours, theirs = curves(first), curves(tmp_path)
    assert ours == theirs


def test_both_processes_validate_the_model_that_is_saved(whole):
    """77 samples on two processes: each counts once, by the weights and batch statistics of the checkpoint."""
    model, folder = whole
    (path,) = folder.glob("epoch=1*.ckpt")
    made = MODELS[model]()
    made.load_state_dict(torch.load(path, weights_only=True)["state_dict"])
    alone = Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False)
    (one,) = alone.validate(made, ToyDataModule(count=77), verbose=False)
    assert int(made.metric("val").total.sum()) == 77
    for rank in range(2):
        together = state(folder, rank)["metrics"]
        for name, value in one.items():
            assert together[name].item() == pytest.approx(value, abs=1e-6), name


IN_SLURM = """
import sys
from pathlib import Path
from tests.test_two_processes import in_slurm
in_slurm(sys.argv[1], Path(sys.argv[2]), sys.argv[3:] == ["stop"])
"""


def in_slurm(model: str, folder: Path, stopped: bool) -> None:
    """What each process of a job does: the second one is told that time is nearly up, then the first to end."""
    stop.TOGETHER = 2
    signals = [
        Signal("on_train_batch_start", signal.SIGUSR1, 1, 2),
        Signal("on_train_batch_start", signal.SIGTERM, 0, 6),
    ]
    fit(MODELS[model](), folder, *(signals if stopped else []), strategy="ddp", default_root_dir=folder)


def test_slurm_queues_a_job_of_two_processes_again_once(whole, tmp_path):
    model, first = whole
    if model == "baseline":
        pytest.skip("as for the other model")
    (tmp_path / "bin").mkdir()
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.write_text(f"#!/bin/sh\necho $@ >> {tmp_path}/asked\n")
    scontrol.chmod(0o755)
    job = {"JOB_ID": "17", "JOB_NAME": "x", "NTASKS": "2", "NTASKS_PER_NODE": "2", "NNODES": "1", "NODEID": "0"}
    shared = {
        "PATH": f"{scontrol.parent}:{os.environ['PATH']}",
        **{f"SLURM_{key}": value for key, value in job.items()},
    }
    folder = tmp_path / "runs"
    for words in ([model, str(folder), "stop"], [model, str(folder)]):  # the job, and the same job once more
        place = {**shared, **forks.meeting_place()}
        ranks = [{**place, "SLURM_PROCID": rank, "SLURM_LOCALID": rank} for rank in "01"]
        done = forks.run_together(tmp_path, [(words, environment) for environment in ranks], IN_SLURM)
        assert all((process.returncode == 0) == (len(words) == 2) for process in done), done[0].stderr[-3000:]
        assert (tmp_path / "asked").read_text() == "requeue 17\n"
        (saved,) = folder.glob("hpc_ckpt_*.ckpt")
    assert 2 <= torch.load(saved, weights_only=True)["global_step"] <= 4
    for process in range(2):
        assert equal(state(first, process), state(folder, process))


# -- numbers -----------------------------------------------------------------------------------------------------------


def nan_gradient(module, batch):
    parameter = next(parameter for parameter in module.parameters() if parameter.dim() == 4)
    parameter.register_hook(lambda gradient: gradient * torch.nan)


class Spoil(Callback):
    """Does something to the model of the second process before its sixth batch."""

    def __init__(self, what) -> None:
        self.what = what

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.fit_loop.total_batch_idx + 1 == 6 and trainer.global_rank == 1:
            self.what(pl_module, batch)


def huge_loss(module, batch):
    module.masked = partial(lambda masked, logits, tasks: masked(logits, tasks) * torch.inf, module.masked)


def note_what_is_told(folder, monkeypatch):
    """Writes the sentence of each process to a file of its own."""
    told = detect.Detector._tell

    def noted(self, module, sentence):
        (folder / f"told_{module.global_rank}").write_text(sentence)
        told(self, module, sentence)

    monkeypatch.setattr(detect.Detector, "_tell", noted)


@pytest.mark.parametrize(
    ("model", "what", "precision"),
    [
        ("routed", huge_loss, "32-true"),
        ("routed", nan_gradient, "bf16-mixed"),
        ("baseline", huge_loss, "bf16-mixed"),
        ("baseline", nan_gradient, "32-true"),
    ],
)
def test_what_one_finds_stops_both_with_the_same_sentence(model, what, precision, tmp_path, monkeypatch):
    monkeypatch.setattr(detect, "LOOK", 2)
    monkeypatch.setattr("routing_lightning.modules.classifier.LOOK", 2)
    note_what_is_told(tmp_path, monkeypatch)
    with pytest.raises(Exception, match=NonFiniteError.__name__):
        fit(MODELS[model](), tmp_path, Spoil(what), precision=precision)
    first, second = ((tmp_path / f"told_{rank}").read_text() for rank in range(2))
    assert first == second and "in batch 0 of epoch 1" in first
    (kept,) = tmp_path.glob("*.ckpt")
    for value in torch.load(kept, weights_only=True)["state_dict"].values():
        assert value.isfinite().all()


def test_a_policy_that_is_broken_on_one_process_stops_both(tmp_path, monkeypatch):
    router = RewardRouter(MLPPolicy(4), REINFORCE())

    def broken(module, batch):
        for parameter in module.router.parameters():
            parameter.data.fill_(torch.nan)

    note_what_is_told(tmp_path, monkeypatch)
    with pytest.raises(Exception, match=NonFiniteError.__name__):
        fit(MODELS["routed"](router=router), tmp_path, Spoil(broken))
    first, second = ((tmp_path / f"told_{rank}").read_text() for rank in range(2))
    assert first == second and "the policy's row is nan" in first and "depth 1" in first


@pytest.mark.parametrize("model", ["routed", "baseline"])
def test_an_image_of_nan_on_one_process_stops_both(model, tmp_path, monkeypatch):
    made, told = MODELS[model](), detect.Detector._tell
    original, count = type(made).on_before_batch_transfer, iter(range(100))

    def spoiled(self, batch, dataloader_idx):
        images, tasks, labels = batch
        if self.trainer.training:
            images = images.float() / 255
            if next(count) == 5 and self.trainer.global_rank == 1:
                images[0, 0, 2, 2] = torch.nan
        return original(self, (images, tasks, labels), dataloader_idx)

    def noted(self, module, sentence):
        (tmp_path / f"told_{module.global_rank}").write_text(sentence)
        told(self, module, sentence)

    monkeypatch.setattr(type(made), "on_before_batch_transfer", spoiled)
    monkeypatch.setattr(detect.Detector, "_tell", noted)
    with pytest.raises(Exception, match=NonFiniteError.__name__):
        fit(made, tmp_path)
    first, second = ((tmp_path / f"told_{rank}").read_text() for rank in range(2))
    assert first == second and first.startswith("an image holds nan or infinity in batch 0 of epoch 1, task ")
    (kept,) = tmp_path.glob("*.ckpt")
    for value in torch.load(kept, weights_only=True)["state_dict"].values():
        assert value.isfinite().all()
