"""``fit --ckpt_path`` goes on with the whole config of its run, and says where it takes something else."""

from pathlib import Path

import pytest
import torch
import yaml

from routing_lightning.cli import main
from routing_lightning.cli.checkpoints import CONFIG_KEY

DIGITS = str(Path(__file__).parents[2] / "configs" / "digits_mtl.yaml")
CYCLE = "{class_path: OneCycleLR, init_args: {max_lr: 0.05, total_steps: null}}"
EARLY = "{class_path: EarlyStopping, init_args: {monitor: val/loss, patience: 7}}"
OWN = [
    "--trainer.max_epochs=2",
    "--trainer.limit_train_batches=2",
    "--trainer.limit_val_batches=1",
    "--trainer.enable_progress_bar=false",
    "--trainer.accelerator=cpu",
    f"--trainer.callbacks=[{EARLY}, {{class_path: ModelCheckpoint, init_args: {{every_n_train_steps: 3}}}}]",
    f"--model.init_args.lr_scheduler={CYCLE}",
    "--model.init_args.lr_interval=step",
    "--detect=false",
    "--record=null",
    "--name=mine",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A checkpoint within the second of two epochs."""
    folder = tmp_path_factory.mktemp("run")
    main(["fit", f"--config={DIGITS}", *OWN, f"--trainer.default_root_dir={folder}"])
    (path,) = folder.rglob("*.ckpt")
    return path


def go_on(run: Path, folder: Path, *words: str):
    return main(["fit", f"--ckpt_path={run}", f"--trainer.default_root_dir={folder}", *words])


def said(capsys) -> str:
    return "\n".join(
        line for line in capsys.readouterr().out.splitlines() if "no longer" in line or "other val" in line
    )


def config_in(path: Path) -> dict:
    return yaml.safe_load(torch.load(path, weights_only=True)[CONFIG_KEY])


def test_a_run_goes_on_with_its_own_config_and_says_nothing_of_it(run, tmp_path, capsys):
    cli = go_on(run, tmp_path)
    assert cli.trainer.global_step == 4 and cli.trainer.current_epoch == 2
    own, config = config_in(run), yaml.safe_load((Path(cli.trainer.log_dir) / "config.yaml").read_text())
    for key in ("ckpt_path", "trainer.default_root_dir"):
        part, _, name = key.rpartition(".")
        (own[part] if part else own).pop(name), (config[part] if part else config).pop(name)
    assert config == own
    assert cli.model.detector is None and Path(cli.trainer.log_dir).name == "mine"
    assert cli.trainer.max_epochs == 2 and cli.trainer.limit_train_batches == 2
    assert said(capsys) == ""


@pytest.mark.parametrize("source", ["words", "config"])
def test_what_is_given_wins_and_is_told(source, run, tmp_path, capsys, recwarn):
    more = tmp_path / "more.yaml"
    more.write_text(
        "record: [TaskAccuracy]\ntrainer: {check_val_every_n_epoch: 2, limit_val_batches: 2, callbacks: null}"
    )
    words = ["--trainer.check_val_every_n_epoch=2", "--trainer.limit_val_batches=2", "--trainer.callbacks=null"]
    words.append("--record=[TaskAccuracy]")
    cli = go_on(run, tmp_path, *(words if source == "words" else [f"--config={more}"]), "--seed_everything=5")
    assert cli.trainer.check_val_every_n_epoch == 2 and cli.trainer.max_epochs == 2
    assert said(capsys).splitlines() == [
        "seed_everything is 5, no longer 0",
        "record is [TaskAccuracy], no longer null",
        "trainer.callbacks is null, no longer [EarlyStopping, ModelCheckpoint]",
        "trainer.limit_val_batches is 2, no longer 1",
        "trainer.check_val_every_n_epoch is 2, no longer 1",
    ]
    assert not [one for one in recwarn if "callbacks used to create" in str(one.message)]  # Lightning's, in other words


def test_options_of_callbacks_and_callbacks_are_added_to_those_of_the_run(run, tmp_path, capsys):
    again = ["EarlyStopping", "LearningRateMonitor"]
    options = [f"--trainer.callbacks+={EARLY}", f"--trainer.callbacks+={again[1]}"]
    cli = go_on(run, tmp_path, *options)
    names = [type(one).__name__ for one in cli.trainer.callbacks]
    assert [names.count(name) for name in (*again, "ModelCheckpoint")] == [1, 1, 1]
    assert "[EarlyStopping, ModelCheckpoint, LearningRateMonitor], no longer [Early" in said(capsys)
    go_on(run, tmp_path, "--trainer.callbacks.every_n_train_steps=1")
    assert said(capsys) == "trainer.callbacks has other values, still [EarlyStopping, ModelCheckpoint]"


def test_a_new_run_from_weights_has_the_trainer_options_too_and_no_name(run, tmp_path, capsys):
    cli = main(["fit", f"--weights={run}", f"--trainer.default_root_dir={tmp_path}", "--trainer.max_epochs=1"])
    assert cli.trainer.global_step == 2 and said(capsys) == ""
    assert Path(cli.trainer.log_dir).name == "wpl-digits_mtl-seed0"


def test_other_commands_have_their_own_trainer_options(run, tmp_path):
    cli = main(["validate", f"--ckpt_path={run}", f"--trainer.default_root_dir={tmp_path}"])
    assert cli.trainer.limit_val_batches == 1.0 and not cli.trainer.early_stopping_callbacks


def test_a_run_that_is_over_says_so_and_leaves_nothing(run, tmp_path, capsys):
    go_on(run, tmp_path, "--trainer.max_epochs=1", "--trainer.limit_train_batches=3", "--trainer.max_steps=3")
    assert "nothing was trained: the run has made 3 steps, and trainer.max_steps is 3" in capsys.readouterr().out
    assert not list(tmp_path.rglob("*.*"))


def test_what_found_a_rate_or_batch_size_is_done_with(tmp_path, capsys):
    finder = "{class_path: BatchSizeFinder, init_args: {init_val: 8, max_trials: 1, steps_per_trial: 1}}"
    words = [*OWN[:5], "--record=null", f"--trainer.default_root_dir={tmp_path}"]
    first = main(["fit", f"--config={DIGITS}", *words, f"--trainer.callbacks=[{finder}]"])
    found = first.datamodule.batch_size
    assert found != 32
    (path,) = tmp_path.rglob("*.ckpt")
    cli = go_on(path, tmp_path, "--trainer.max_epochs=3")
    assert cli.trainer.current_epoch == 3 and cli.datamodule.batch_size == found
    with pytest.raises(SystemExit):
        go_on(path, tmp_path, "--trainer.max_epochs=3", "--trainer.callbacks+=LearningRateFinder")
    assert "error: LearningRateFinder looks for a value from the start of a run" in capsys.readouterr().err


def test_options_that_this_lightning_does_not_have_are_left_out(run, tmp_path):
    content = torch.load(run, weights_only=True)
    config = yaml.safe_load(content[CONFIG_KEY])
    config["trainer"]["once"] = 3
    content[CONFIG_KEY] = yaml.safe_dump(config)
    torch.save(content, tmp_path / "old.ckpt")
    assert go_on(tmp_path / "old.ckpt", tmp_path).trainer.global_step == 4
