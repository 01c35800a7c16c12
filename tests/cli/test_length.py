"""How long a training will be is said before it starts, where the user has not."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from routing_lightning.cli import main
from routing_lightning.cli.progress import NarrowProgressBar

DIGITS = str(Path(__file__).parents[2] / "configs" / "digits_mtl.yaml")
QUICK = ["--trainer.limit_train_batches=1", "--trainer.limit_val_batches=1", "--trainer.num_sanity_val_steps=0",
         "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", "--trainer.logger=false", "--record=null",
         "--trainer.enable_checkpointing=false"]  # fmt: skip


@pytest.mark.parametrize(
    ("config", "options", "words"),
    [
        ("max_epochs: 2", [], "2 epochs, of the config or by default; --trainer.max_epochs sets another length"),
        (
            "max_epochs: -1, max_steps: 2",
            [],
            "2 steps, of the config or by default; --trainer.max_steps sets another length",
        ),
        (
            "max_epochs: 1, max_time: 00:00:00:30",
            [],
            "1 epochs or 00:00:00:30 of time (max_time), of the config or by default; "
            "--trainer.max_epochs or --trainer.max_time set another length",
        ),
        ("max_epochs: 2", ["--trainer.max_epochs=1"], None),
        ("max_epochs: 2", ["--trainer.max_steps=1"], None),
        ("max_epochs: 2", ["--trainer.max_time=00:00:00:30"], None),
        ("max_epochs: 2", ["--trainer.fast_dev_run=true"], None),
    ],
)
def test_the_length_is_said_unless_it_was_given(config, options, words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.yaml").write_text(f"trainer: {{{config}}}")
    main(["fit", f"--config={DIGITS}", "--config=short.yaml", *QUICK, *options])
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("the training has")]
    assert said == ([] if words is None else [f"the training has {words}"])


@pytest.mark.parametrize(("epochs", "shown"), [(-1, "Epoch 2"), (5, "Epoch 2/4"), (None, "Epoch 2")])
def test_the_bar_shows_the_last_epoch_where_there_is_one(epochs, shown):
    bar = NarrowProgressBar()
    bar._trainer = SimpleNamespace(max_epochs=epochs, state=None, sanity_checking=False)
    assert bar._get_train_description(2).strip() == shown
