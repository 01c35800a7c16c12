"""``export`` from a checkpoint, and its files in a process that cannot import this package."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

from routing_lightning.cli import main
from routing_lightning.cli.exporting import table_of
from routing_lightning.errors import UsageError
from routing_lightning.export import load, load_trained
from routing_lightning.export.checkpoint import Exported, file_names, task_number
from routing_lightning.export.load import names_of
from tests.test_cli import refused, short_fit
from tests.test_methods import ROOT

PAGE = (ROOT / "docs" / "export.md").read_text()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    body = "--model.init_args.network.init_args"
    folder = tmp_path_factory.mktemp("run")
    short_fit(folder, f"{body}.hidden=16", f"{body}.features.init_args.filters=8")
    (path,) = folder.rglob("*.ckpt")
    return path


@pytest.fixture(scope="module")
def needs_onnx() -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name, reason="the extra export is not installed")


def elsewhere(snippet: str, folder: Path) -> str:
    """What a snippet of the page prints, run where importing the package fails."""
    code = re.search(rf'```python title="{snippet}"\n(.*?)```', PAGE, re.DOTALL)
    assert code is not None
    blocked = "import sys\nsys.modules['routing_lightning'] = None\n"
    done = subprocess.run(
        [sys.executable, "-c", blocked + code[1]], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_tasks_are_written_and_used_elsewhere(checkpoint, tmp_path, capsys):
    main(["export", str(checkpoint), f"--out={tmp_path / 'exported'}"])
    out = capsys.readouterr().out
    assert "whole model" in out and all(f"digit_{digit}.pt2" in out for digit in range(10))  # none cut off
    assert "10 networks and manifest.json" in out
    manifest = json.loads((tmp_path / "exported" / "manifest.json").read_text())
    assert [network["task"]["name"] for network in manifest["networks"]] == [f"digit_{digit}" for digit in range(10)]
    assert all((tmp_path / "exported" / network["file"]).is_file() for network in manifest["networks"])
    trained = load_trained(checkpoint)
    trained.data.setup("test")
    images, tasks, _ = trained.data.test_dataset[trained.data.test_dataset.tasks == 3]
    run, metadata = load(tmp_path / "exported" / "digit_3.pt2")
    with torch.no_grad():
        assert torch.equal(run(images), trained.model(images, tasks))
    assert metadata["classes"] == trained.data.class_names[3]
    assert metadata["input"]["mean"] == list(trained.data.mean)
    assert metadata["route"] == trained.model.router.routes()[3].tolist()
    told = elsewhere("torch", tmp_path)
    assert any(name in told for name in metadata["classes"])


def test_onnx_is_used_elsewhere(checkpoint, tmp_path, needs_onnx):
    main(["export", str(checkpoint), f"--out={tmp_path / 'exported'}", "--format=onnx", "--task=digit_3"])
    _, metadata = load(tmp_path / "exported" / "digit_3.onnx")
    assert metadata["task"] == {"name": "digit_3", "number": 3, "kind": "classes"}
    assert elsewhere("onnxruntime", tmp_path).count("'") == 8  # four names


def test_integers_make_the_file_smaller_and_predict_alike(checkpoint, tmp_path, needs_onnx):
    for folder, options in (("float", []), ("int8", ["--int8"])):
        where = f"--out={tmp_path / folder}"
        main(["export", str(checkpoint), where, "--format=onnx", "--task=0", "--input=float", *options])
    paths = [tmp_path / folder / "digit_0.onnx" for folder in ("float", "int8")]
    assert paths[1].stat().st_size < paths[0].stat().st_size
    images = torch.rand(5, 1, 8, 8)
    ours, theirs = (load(path)[0](images) for path in paths)
    assert not torch.equal(ours, theirs) and torch.allclose(ours, theirs, atol=0.2)


def test_names_are_in_the_checkpoint_and_those_of_before_have_numbers(checkpoint, tmp_path, monkeypatch):
    def gone(*_):
        raise UsageError("no data")

    monkeypatch.setattr("routing_lightning.datamodules.DigitsMTLDataModule.setup", gone)
    main(["export", str(checkpoint), f"--out={tmp_path}", "--task=digit_4"])
    metadata = load(tmp_path / "digit_4.pt2")[1]
    assert metadata["classes"] == ["not_4", "4"] and metadata["input"]["mean"] == [0.3053]
    saved = torch.load(checkpoint, weights_only=True)
    names = [saved.pop(name) for name in ("task_names", "class_names")]
    assert [len(name) for name in names] == [10, 10]
    torch.save(saved, tmp_path / "before.ckpt")
    assert names_of(load_trained(tmp_path / "before.ckpt"))[1][4] == ["0", "1"]


def test_mistakes_are_told_in_a_sentence(checkpoint, tmp_path, capsys):
    out = f"--out={tmp_path}"
    assert "is no file" in refused(capsys, "export", str(tmp_path / "none.ckpt"), out)
    assert "task is 'digit_x'; give one of digit_0" in refused(capsys, "export", str(checkpoint), out, "--task=digit_x")
    assert "int8 needs the format onnx" in refused(capsys, "export", str(checkpoint), out, "--int8")
    for command, more in (("prune", []), ("extend", ["--data=nowhere"])):
        for place, sentence in ((tmp_path, "is a folder"), (checkpoint, "is the checkpoint that is read")):
            assert sentence in refused(capsys, command, str(checkpoint), f"--out={place}", *more)
    assert load_trained(checkpoint)  # unharmed
    plain = tmp_path / "plain.ckpt"
    torch.save({"state_dict": {}}, plain)
    assert "holds no config" in refused(capsys, "export", str(plain), out)


def test_last_and_best_mean_what_they_mean_elsewhere(checkpoint, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(next(parent.parent for parent in checkpoint.parents if parent.name == "lightning_logs"))
    main(["export", "last", f"--out={tmp_path / 'exported'}", "--task=digit_1"])
    out = capsys.readouterr().out
    assert f"ckpt_path last: {checkpoint.relative_to(Path.cwd())}" in out and "1 network and manifest.json" in out
    assert "compared no checkpoints" in refused(capsys, "export", "best", f"--out={tmp_path}")
    main(["prune", "last", f"--out={tmp_path / 'pruned.ckpt'}"])
    hint = re.search(r"Train on with: (.*)", capsys.readouterr().out)[1]
    # beyond the epochs that it was trained for, else there would be nothing to do
    assert hint.endswith(f"fit --ckpt_path {tmp_path / 'pruned.ckpt'} --trainer.max_epochs 21")
    monkeypatch.chdir(tmp_path / "exported")
    assert "there is no checkpoint below" in refused(capsys, "export", "last", f"--out={tmp_path}")


def test_names_are_whole_in_a_narrow_terminal():
    names = ["a task of a rather long name, with comma", "b"]
    files = [
        Exported(name, Path(f"{name}.pt2"), (36365312, 11179077), (145.56, 45.06), (65.2, 39.48), 5e-7, 1.0)
        for name in names
    ]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(table_of(files))
    lines = [line.split("│") for line in console.export_text().splitlines() if line.startswith("│")]
    for column, whole in ((1, names[0]), (2, f"{names[0]}.pt2")):
        assert whole.replace(" ", "") in "".join(line[column] for line in lines).replace(" ", "")
    assert any("11,179,077" in line[3] for line in lines)


def test_files_are_called_after_tasks():
    assert file_names(["a b", "A/b", "x", "..", "é"]) == ["a_b_0", "A_b_1", "x", "task", "é"]
    assert task_number("1", ["1", "0"]) == 0 and task_number("1", ["a", "b"]) == 1
