"""The matrix of regimes and methods: each is a config that parses, runs once, and is told rightly."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonargparse import ArgumentParser
from lightning.pytorch import Trainer

from benchmarks.regimes import matrix, runner, summary
from benchmarks.regimes.__main__ import main
from benchmarks.regimes.measure import Measured
from routing_lightning.datamodules import MultiTaskDataModule
from routing_lightning.modules import TaskClassifier
from routing_lightning.routers import FixedRoutes
from tests.conftest import toy_model

MATRIX = matrix.read()
PLACES = {"root": "nowhere", "mini": "nowhere", "cache": None}


def test_each_run_is_another_one_wherever_the_data_lie() -> None:
    runs = matrix.runs(MATRIX, [0, 1])
    assert len(runs) == 2 * len(MATRIX["regimes"]) * len(MATRIX["methods"])
    assert len({run.key for run in runs}) == len(runs)
    assert [run.key for run in matrix.runs(matrix.read(), [0, 1])] == [run.key for run in runs]
    assert not {run.key for run in matrix.runs(MATRIX, [0], epochs=1)} & {run.key for run in runs}
    some = matrix.runs(MATRIX, [1], ["Digits-MTL"], ["random", "learned"])
    assert [run.title for run in some] == ["Digits-MTL: random, seed 1", "Digits-MTL: learned, seed 1"]
    with pytest.raises(ValueError, match="there are no methods best; give any of all shared, all-fc"):
        matrix.runs(MATRIX, [0], methods=["best"])


@pytest.mark.parametrize("regime", MATRIX["regimes"])
def test_the_data_of_each_regime_have_right_options(regime: str) -> None:
    (run,) = matrix.runs(MATRIX, [0], [regime], ["random"])
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(MultiTaskDataModule, "data")
    data = parser.instantiate(parser.parse_object({"data": matrix.filled(run.config["data"], PLACES)})).data
    data.check_options()
    assert data.batch_size == 64
    assert (data.augment is not None) == (data.image_shape[0] == 3)  # flips are for natural pictures
    assert data.train_per_task is None or len(data.train_per_task) == data.num_tasks


@pytest.mark.parametrize("method", MATRIX["methods"])
def test_the_model_of_each_method_parses(method: str) -> None:
    (run,) = matrix.runs(MATRIX, [3], ["CIFAR-MTL, 8 filters"], [method])
    values = {"seed": run.seed, "filters": run.filters, "blocks": 21, "steps": 70}
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(TaskClassifier, "model")
    sizes = {"num_tasks": 20, "num_classes": 5, "image_shape": [3, 32, 32]}
    filled = matrix.merged(matrix.filled(run.config["model"], values), {"init_args": sizes})
    model = parser.instantiate(parser.parse_object({"model": filled})).model
    assert {tuple(weight.shape[-4:]) for name, weight in model.named_parameters() if weight.dim() > 3} >= {(8, 8, 3, 3)}


def test_what_is_done_is_not_done_again_and_what_failed_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried: list[str] = []

    def train(run: matrix.Run, values: dict[str, Any]) -> dict[str, Any]:
        tried.append(run.method)
        assert values == {**PLACES, "epoch": 7, "blocks": 11}
        if run.method == "all private" and len(tried) <= len(MATRIX["methods"]):
            raise RuntimeError("error: no room")
        return {"accuracy": 50.0, "seconds": 1.0, "images": [9] * 10, "private": None}

    monkeypatch.setattr(runner, "train", train)
    monkeypatch.setattr(runner, "sizes_of", lambda run, places: {"epoch": 7, "blocks": 11})
    wanted, file = matrix.runs(MATRIX, [0], ["Digits-MTL"]), tmp_path / "new" / "regimes.jsonl"
    assert runner.run_all(wanted, file, PLACES) == ["Digits-MTL: all private, seed 0"]
    assert "all private, seed 0 failed: error: no room" in capsys.readouterr().out
    assert tried == list(MATRIX["methods"])
    assert runner.run_all(wanted, file, PLACES) == []
    assert tried[len(MATRIX["methods"]) :] == ["all private"]
    assert len(runner.rows(file)) == len(MATRIX["methods"])
    assert {row["key"] for row in runner.rows(file)} == {run.key for run in wanted}
    assert runner.rows(file)[0] | {"commit": "", "key": ""} == {
        "regime": "Digits-MTL", "method": "all shared", "seed": 0, "epochs": 10, "accuracy": 50.0, "seconds": 1.0,
        "images": [9] * 10, "private": None, "commit": "", "key": "",
    }  # fmt: skip
    assert main(["--no-runs", "--regimes", "Digits-MTL", "--seeds", "0", f"--out={file}"]) == 0
    assert "| Digits-MTL | 50.0 | 50.0 |" in capsys.readouterr().out


def test_a_run_is_the_command_with_its_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []

    def run(line: list[str], **options: Any) -> Any:
        file = Path(line[-1].removeprefix("--config="))
        given.append(matrix.read(file))
        assert options["env"]["PYTHONPATH"] == str(runner.ROOT)
        return type("Done", (), {"returncode": 1, "stderr": "told\nerror: what was wrong\n"})

    monkeypatch.setattr(runner.subprocess, "run", run)
    (one,) = matrix.runs(MATRIX, [4], ["CIFAR-MTL, 8 filters"], ["random"])
    with pytest.raises(RuntimeError, match="^error: what was wrong$"):
        runner.train(one, {**PLACES, "epoch": 100, "blocks": 21})
    (config,) = given
    assert "$" not in json.dumps(config)
    model = config["model"]["init_args"]
    assert model["lr_scheduler"]["init_args"]["total_steps"] == 100 * one.epochs
    assert model["router"]["init_args"] == {"routes": "random", "seed": 4}
    assert model["network"]["init_args"] == {"filters": 8}
    assert (config["seed_everything"], config["trainer"]["max_epochs"]) == (4, one.epochs)


def test_what_a_run_leaves(tmp_path: Path, toy_data: Any) -> None:
    model = toy_model(router=FixedRoutes([[0, 0, 0], [0, 1, 1], [1, 1, 2]]), depth=3)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    callback = Measured(str(tmp_path / "measured.json"))
    trainer = Trainer(
        max_epochs=1, accelerator="cpu", callbacks=callback, enable_checkpointing=False, num_sanity_val_steps=0, **quiet
    )
    trainer.fit(model, toy_data)
    found = json.loads((tmp_path / "measured.json").read_text())
    assert found["accuracy"] == round(100 * float(trainer.callback_metrics["val/acc"]), 2)
    assert found["images"] == [32, 32, 32]
    assert found["private"] == [[0, 1, 1], [0, 0, 1], [1, 0, 1]]
    assert found["seconds"] > 0


def row(regime: str, method: str, accuracy: float, **more: Any) -> dict[str, Any]:
    return {"regime": regime, "method": method, "accuracy": accuracy, "private": None, "images": [10], **more}


def test_regret_is_what_a_method_loses_to_the_best_of_its_regime() -> None:
    rows = [row("a", "x", 60.0), row("a", "x", 62.0), row("a", "y", 61.5), row("a", "y", 61.5), row("b", "x", 70.0)]
    accuracy, regret = summary.tables(rows, ["x", "y", "z"])
    assert accuracy.rows == [
        {"regime": "a", "x": "61.0 ± 1.0", "y": "61.5 ± 0.0", "z": "-", "seeds": "2"},
        {"regime": "b", "x": "70.0", "y": "-", "z": "-", "seeds": "1"},
    ]
    assert regret.rows == [
        {"regime": "a", "x": "0.5", "y": "0.0", "z": "-"},
        {"regime": "b", "x": "0.0", "y": "-", "z": "-"},
        {"regime": "**largest**", "x": "0.5", "y": "≥ 0.0", "z": "-"},
    ]


def test_private_shares_by_depth_and_size_of_task() -> None:
    equal = [row("a", "learned", 1.0, images=[10, 12], private=given) for given in ([[0, 1], [1, 1]], [[0, 1], [0, 1]])]
    ((regime, images, shares),) = summary.private_shares(equal)
    assert (regime, images, shares.tolist()) == ("a", 11, [0.25, 1.0])
    private = [[task // 4 % 2, 1] for task in range(8)]
    unequal = row("b", "learned", 1.0, images=[800, 700, 600, 500, 400, 300, 200, 100], private=private)
    groups = summary.private_shares([unequal, row("b", "cross-stitch", 1.0)])
    assert [images for _, images, _ in groups] == [150, 350, 550, 750]
    assert np.array([shares for _, _, shares in groups]).tolist() == [[1, 1], [1, 1], [0, 1], [0, 1]]
    axes = summary.picture([*equal, unequal], "where").axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a: 11", "b: 150", "b: 350", "b: 550", "b: 750"]
    shares = axes.images[0].get_array()
    assert shares[:, 0].tolist() == [0.25, 1, 1, 0, 0] and shares[:, 1].tolist() == [1] * 5


def test_a_stopped_matrix_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(run: matrix.Run, values: dict[str, Any]) -> dict[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "train", stopped)
    monkeypatch.setattr(runner, "sizes_of", lambda run, places: {})
    words = ["--regimes", "Digits-MTL", f"--out={tmp_path / 'none.jsonl'}"]
    assert main(words) == 130
    assert capsys.readouterr().out == "stopped; the same command goes on with the run that was under way\n"
    assert main([*words, "--no-runs"]) == 0
    assert "none.jsonl has none of these runs" in capsys.readouterr().out


def test_a_run_that_is_asked_for_twice_runs_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    monkeypatch.setattr(
        runner, "train", lambda run, values: tried.append(run.title) or {"accuracy": 50.0, "seconds": 1.0}
    )
    monkeypatch.setattr(runner, "sizes_of", lambda run, places: {})
    runner.run_all(matrix.runs(MATRIX, [0, 0], ["Digits-MTL"], ["random"]), tmp_path / "rows.jsonl", PLACES)
    assert tried == ["Digits-MTL: random, seed 0"]


def test_wrong_words_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"key": 1}\n{"key": \n')
    for words, sentence in (
        (["--regimes", "MNIST"], "there are no regimes MNIST; give any of"),
        (["--epochs", "0"], "--epochs is 0; give at least 1"),
        (["--seeds", "0", "-1"], "--seeds is 0 -1; give integers from 0 to 4294967295"),
        (["--out", str(tmp_path)], "a folder; give a file"),
        (["--out", str(broken)], f"line 2 of {broken} is '{{\"key\": ', no JSON; remove it"),
        (["--picture", "routes.xyz"], "--picture is routes.xyz; give a file whose name ends with .svg"),
    ):
        with pytest.raises(SystemExit):
            main(words)
        assert sentence in capsys.readouterr().err
