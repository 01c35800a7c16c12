"""On success stderr is empty and what is shown fits; warnings that concern the user stay."""

import logging
import os
import pickle
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from routing_lightning.cli import main
from routing_lightning.cli.quiet import Teller, keep_quiet
from tests import forks

ROOT = Path(__file__).parents[2]
DIGITS = str(ROOT / "configs" / "digits_mtl.yaml")
SHORT = ["--trainer.max_epochs=1", "--trainer.limit_train_batches=3", "--trainer.limit_val_batches=2",
         "--trainer.accelerator=cpu"]  # fmt: skip


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return forks.run(folder, *words, COLUMNS="80")


@pytest.fixture(scope="module")
def fitted(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A run in a process of its own, in which imports have to be quiet, too."""
    folder = tmp_path_factory.mktemp("folder with space")
    environment = os.environ | {"COLUMNS": "80", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": ""}
    command = [sys.executable, str(ROOT / "train.py"), "fit", f"--config={DIGITS}", *SHORT]
    return folder, subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)


def test_fit_is_quiet_and_says_how_to_go_on(fitted):
    folder, done = fitted
    assert done.returncode == 0 and done.stderr == ""
    for noise in ("litlogger", "litmodels", "FLOPs", "v_num", "Modules in", "GPU available", "deprecated"):
        assert noise not in done.stdout
    assert "validation runs on the test set" in done.stdout  # concerns the user
    assert "Accuracy per task (test set)" in done.stdout
    sentences = [line for line in done.stdout.splitlines() if not line.startswith("To ")]  # commands may be long
    assert max(map(len, sentences)) <= 130
    (bar,) = [line for line in done.stdout.splitlines() if line.startswith("Epoch")]
    assert len(bar) <= 80 and "3/3" in bar and "loss" in bar and "acc" in bar
    checkpoint = re.search(r"^Checkpoint: (.*)$", done.stdout, re.MULTILINE)[1]
    assert (folder / checkpoint).is_file()


def test_the_commands_that_fit_prints_work_and_are_quiet(fitted):
    import shlex

    folder, done = fitted
    commands = re.findall(r"^To .*?: (.*)$", done.stdout, re.MULTILINE)
    assert [shlex.split(command)[2] for command in commands] == ["validate", "plot", "report"]
    for command in commands:
        again = run(folder, *shlex.split(command)[2:])
        assert again.returncode == 0 and again.stderr == "", command
    assert (folder / "report" / "report.html").is_file()


@pytest.mark.parametrize("command", ["test", "predict", "fit"])  # validate: one of the commands that fit prints
def test_every_command_is_quiet_from_a_checkpoint(command, fitted):
    folder, _ = fitted
    more = ["--trainer.max_epochs=2", *SHORT[1:]] if command == "fit" else []
    done = run(folder, command, "--ckpt_path=last", *more)
    assert done.returncode == 0 and done.stderr == ""
    if command in ("validate", "test"):
        assert "Accuracy per task (test set)" in done.stdout and "mean over tasks" in done.stdout
        assert not re.search(r"0\.\d{6,}", done.stdout)


def test_fit_is_quiet_with_another_logger(tmp_path):
    logger = ["--trainer.logger=CSVLogger", "--trainer.logger.save_dir=."]
    done = run(tmp_path, "fit", f"--config={DIGITS}", *SHORT, *logger)
    assert done.returncode == 0 and done.stderr == ""


def test_torchs_profiler_is_quiet(tmp_path):
    words = ["--trainer.profiler=pytorch", "--trainer.limit_train_batches=8", "--trainer.limit_val_batches=8"]
    done = run(tmp_path, "fit", f"--config={DIGITS}", *SHORT[:1], *words, *SHORT[3:], "--record=null")
    assert done.returncode == 0 and done.stderr == ""
    assert "Profiler Report" in done.stdout


def test_validation_on_a_part_of_its_own_is_called_so(tmp_path):
    done = run(tmp_path, "fit", f"--config={DIGITS}", *SHORT, "--data.init_args.val_fraction=0.2")
    assert "Accuracy per task (validation part)" in done.stdout and "test set" not in done.stdout


def test_warnings_of_others_stay():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        keep_quiet()
        warnings.warn("something that concerns the user", UserWarning, stacklevel=1)
    assert [str(warning.message) for warning in caught] == ["something that concerns the user"]


def test_notes_of_this_package_stand_without_their_place_in_the_code():
    keep_quiet()
    keep_quiet()  # does no more the second time
    ours = warnings.formatwarning("left out 2 images.", UserWarning, str(ROOT / "routing_lightning" / "x.py"), 3)
    assert ours == "note: left out 2 images.\n"
    theirs = warnings.formatwarning("mind this", UserWarning, "/elsewhere/theirs.py", 3)
    assert "theirs.py:3" in theirs and "mind this" in theirs


def test_processes_that_are_spawned_are_as_quiet(monkeypatch, tmp_path):
    """They come to the Trainer by pickling, before Lightning says that they have met."""
    monkeypatch.chdir(tmp_path)
    words = ["fit", f"--config={DIGITS}", "--trainer.fast_dev_run=true", "--trainer.accelerator=cpu", "--record=null"]
    held = pickle.dumps(main(words).trainer.quiet)
    names = ("lightning.pytorch", "lightning.fabric", "lightning", "lightning_utilities")
    for name in names:
        monkeypatch.setattr(logging.getLogger(name), "handlers", [logging.StreamHandler()])
    pickle.loads(held)
    assert all(type(handler) is Teller for name in names for handler in logging.getLogger(name).handlers)
