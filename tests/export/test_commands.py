"""``export`` from a checkpoint, and its files in a process that cannot import this package."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from routing_lightning.cli import main
from routing_lightning.errors import UsageError
from routing_lightning.export import load, load_trained
from routing_lightning.export.checkpoint import file_names, task_number
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
    assert "digit_9" in out and "->" in out
    manifest = json.loads((tmp_path / "exported" / "manifest.json").read_text())
    assert [network["task"]["name"] for network in manifest["networks"]] == [f"digit_{digit}" for digit in range(10)]
    assert all((tmp_path / "exported" / network["file"]).is_file() for network in manifest["networks"])
    trained = load_trained(checkpoint)
    trained.data.setup("test")
    images, tasks, _ = trained.data.test_dataset[trained.data.test_dataset.tasks == 3]
    normalised = trained.data.on_after_batch_transfer((images, tasks, tasks), 0)[0]
    run, metadata = load(tmp_path / "exported" / "digit_3.pt2")
    with torch.no_grad():
        assert torch.equal(run(images), trained.model(normalised, tasks))
    assert metadata["classes"] == trained.data.class_names[3]
    assert metadata["input"]["mean"] == list(trained.data.mean)
    assert metadata["route"] == trained.model.router.routes()[3].tolist()
    assert metadata["classes"][0] in elsewhere("torch", tmp_path) or metadata["classes"][1] in elsewhere(
        "torch", tmp_path
    )


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
    plain = tmp_path / "plain.ckpt"
    torch.save({"state_dict": {}}, plain)
    assert "holds no config" in refused(capsys, "export", str(plain), out)


def test_files_are_called_after_tasks():
    assert file_names(["a b", "A/b", "x", "..", "é"]) == ["a_b_0", "A_b_1", "x", "task", "é"]
    assert task_number("1", ["1", "0"]) == 0 and task_number("1", ["a", "b"]) == 1
