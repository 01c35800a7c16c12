"""``~`` and ``file://`` are understood wherever a path is taken; what lies elsewhere is refused in a sentence."""

import argparse
from pathlib import Path

import pytest
from lightning.pytorch import Trainer

from routing_lightning.callbacks import RouteRecorder
from routing_lightning.cli import main
from routing_lightning.datamodules import CIFARMTLDataModule, FolderMTLDataModule
from routing_lightning.errors import UsageError
from routing_lightning.paths import argument, local_path
from tests.cli.test_values import DIGITS, SHORT, refused
from tests.conftest import ToyDataModule, toy_model


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    return tmp_path / "home"


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("~", "{home}"),
        ("~/a b", "{home}/a b"),
        ("file:///a/b", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("file:///a%20b%25/c", "/a b%/c"),
        ("/a%20b", "/a%20b"),  # no address: the name of a file
        ("a/~", "a/~"),
        ("./~/x", "./~/x"),
        ("a:b", "a:b"),
        ("c://x", "c://x"),  # a drive of Windows
        ("", ""),
        (Path("~/x"), "{home}/x"),
        ("$HOME/a b", "{home}/a b"),
        ("${HOME}x", "{home}x"),
        ("file://$HOME/x", "{home}/x"),
        ("a/$", "a/$"),
    ],
)
def test_paths_as_people_write_them(given, path, home):
    assert local_path(given) == path.format(home=home)


def test_a_variable_that_is_not_set_is_told_and_a_name_that_is_there_is_kept(home):
    with pytest.raises(UsageError, match="names the variable NOBODY_SETS_THIS, which is not set"):
        local_path("$NOBODY_SETS_THIS/x")
    Path("a$NOBODY_SETS_THIS").mkdir()
    assert local_path("a$NOBODY_SETS_THIS") == "a$NOBODY_SETS_THIS"


@pytest.mark.parametrize("given", ["memory://x", "s3://b/x", "gs://x", "https://h/x", Path("memory://x"), "MEMORY://x"])
def test_what_lies_elsewhere_is_refused(given, tmp_path):
    with pytest.raises(UsageError, match="lies on .*, not on this machine"):
        local_path(given)
    with pytest.raises(argparse.ArgumentTypeError, match="not on this machine"):
        argument(str(given))
    for make in (CIFARMTLDataModule, FolderMTLDataModule):
        with pytest.raises(UsageError, match="not on this machine"):
            make(str(given))
    with pytest.raises(UsageError, match="not on this machine"):
        CIFARMTLDataModule(str(tmp_path), cache_dir=str(given))


def test_every_path_of_the_command_line_may_begin_at_home(home):
    save = "{class_path: ModelCheckpoint, init_args: {dirpath: ~/kept, filename: one}}"
    csv = "{class_path: CSVLogger, init_args: {save_dir: ~/logs}}"
    board = f"{{class_path: TensorBoardLogger, init_args: {{save_dir: file://{home}/tb}}}}"
    words = [f"--trainer.callbacks=[{save}]", f"--trainer.logger=[{csv}, {board}]"]
    main(["fit", f"--config={DIGITS}", *SHORT, "--trainer.default_root_dir=~/root", *words, "--record=[RouteRecorder]"])
    main(["test", "--ckpt_path=~/kept/one.ckpt", *SHORT, "--trainer.default_root_dir=$HOME/runs"])
    main(["report", "~/logs", "--out=~/report"])
    main(["plot", "~/logs", "--out=~/plots"])
    main(["prune", "~/kept/one.ckpt", "--out=~/pruned.ckpt"])
    found = {path.name for path in home.iterdir()}
    assert found >= {"kept", "logs", "tb", "runs", "report", "plots", "pruned.ckpt"}
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ["--trainer.default_root_dir=memory://runs"],
        ["--trainer.logger=CSVLogger", "--trainer.logger.save_dir=s3://bucket/runs"],
        ["--trainer.callbacks=[{class_path: ModelCheckpoint, init_args: {dirpath: gs://x}}]"],
        ["--ckpt_path=s3://bucket/last.ckpt"],
    ],
    ids=lambda words: words[-1],
)
def test_folders_elsewhere_are_refused_at_the_start(words, home, capsys):
    sentence = refused(capsys, "fit", f"--config={DIGITS}", *SHORT, *words)
    assert "not on this machine" in sentence
    assert list(Path.cwd().iterdir()) == [] and list(home.iterdir()) == []


def test_readers_refuse_folders_elsewhere(home, capsys):
    for words in (["report", "memory://runs"], ["plot", "s3://runs"], ["export", "s3://a.ckpt", "--out=x"]):
        with pytest.raises(SystemExit):
            main(words)
        assert "not on this machine" in capsys.readouterr().err


def test_a_recorder_without_a_command_line_refuses_a_folder_elsewhere(home):
    trainer = Trainer(
        default_root_dir="memory://runs", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        accelerator="cpu", max_epochs=1, callbacks=[RouteRecorder()],
    )  # fmt: skip
    with pytest.raises(UsageError, match="not on this machine"):
        trainer.fit(toy_model(), ToyDataModule())
    assert list(Path.cwd().iterdir()) == []
