"""Follows docs/own-data.md word by word, on a small made-up folder."""

import csv
import glob
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from routing_lightning.cli import main
from routing_lightning.export import load_trained
from tests.photos import write_photos

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "own-data.md").read_text()
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
PLAIN, TABLE, AUGMENTED = [command for command in COMMANDS if " fit --config" in command]
AFTER = [command for command in COMMANDS if command.endswith("--ckpt_path last")]
UNLABELLED = [command for command in COMMANDS if "--images" in command]
EXPORTS = [command for command in COMMANDS if " export " in command]
EXTEND = COMMANDS[COMMANDS.index(next(command for command in COMMANDS if " extend " in command)) :]
SNIPPETS = dict(re.findall(r'```python title="(\w+)"\n(.*?)```', PAGE, re.DOTALL))


def labels_of(tree: str) -> dict[str, list[str]]:
    return {task: re.findall(r"(\w+)/\*", rest) for task, rest in re.findall(r"^  (\w+)/ (.*)$", tree, re.MULTILINE)}


LABELS = labels_of(re.findall(r"```\n(photos/.*?)```", PAGE, re.DOTALL)[0])
ANIMALS = labels_of(re.findall(r"```\n(animals/.*?)```", PAGE, re.DOTALL)[0])


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """The page's folder, its files and the shipped configs in the working directory."""
    write_photos(tmp_path / "photos", LABELS)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "augment.yaml").write_text(*re.findall(r"```yaml\n# augment.yaml\n(.*?)```", PAGE, re.DOTALL))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(command: str, *options: str):
    words = shlex.split(command)
    assert words[:2] == ["python", "train.py"]
    words = [found for word in words[2:] for found in (glob.glob(word) if "*" in word else [word])]  # as the shell does
    of_trainer = ["--trainer.accelerator=cpu"] if words[0] in ("fit", "validate", "test", "predict") else []
    return main([*words, *of_trainer, *options])


def fit(command: str, *options: str):
    return run(command, "--trainer.max_epochs=2", "--record=null", *options)


def test_the_page_names_three_tasks():
    assert [len(labels) for labels in LABELS.values()] == [2, 3, 5]
    assert [shlex.split(command)[2] for command in AFTER] == ["validate", "test", "predict"]


def test_the_pages_commands(here, capsys):
    fitted = fit(PLAIN)
    model, data = fitted.model, fitted.datamodule
    assert (model.num_tasks, model.num_classes, model.image_shape) == (3, 5, (3, 64, 64))
    assert data.task_names == sorted(LABELS)
    assert [len(part) for part in (data.train_dataset, data.val_dataset, data.test_dataset)] == [80, 10, 10]
    printed = " ".join(capsys.readouterr().out.split())
    assert all(task in printed for task in LABELS)
    (checkpoint,) = glob.glob("lightning_logs/*/checkpoints/*.ckpt")
    state = torch.load(checkpoint, weights_only=True)["FolderMTLDataModule"]
    assert (state["task_names"], state["class_names"]) == (sorted(LABELS), [sorted(LABELS[t]) for t in sorted(LABELS)])
    validated, tested, predicted = (run(command) for command in AFTER)
    for name in ("val/acc", "val/loss"):
        before, after = (cli.trainer.callback_metrics[name] for cli in (fitted, validated))
        torch.testing.assert_close(after, before)
    assert predicted.datamodule.mean == data.mean
    (path,) = Path().rglob("predictions.csv")
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 10
    for row in rows:
        task, label, _ = row["path"].split("/")
        assert (row["task"], row["label"]) == (task, label) and row["prediction"] in LABELS[task]
    hits = {task: [row["label"] == row["prediction"] for row in rows if row["task"] == task] for task in LABELS}
    for task, values in hits.items():
        shown = tested.trainer.callback_metrics[f"test/acc_task/{task}"]
        assert float(shown) == pytest.approx(np.mean(values))


def read(path: str) -> list[dict[str, str]]:
    with open(path, encoding="utf-8") as file:
        return list(csv.DictReader(file))


def elsewhere(snippet: str) -> str:
    """What a snippet of the page prints in a process that cannot import this package."""
    blocked = """
import sys
sys.modules["routing_lightning"] = None
try:
    import routing_lightning
except ImportError:
    pass
else:
    raise SystemExit("the package can be imported")
"""
    words = [sys.executable, "-I", "-c", blocked + SNIPPETS[snippet]]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_pages_way_out(here, recwarn):
    fit(PLAIN)
    (checkpoint,) = glob.glob("lightning_logs/*/checkpoints/*.ckpt")
    trained = load_trained(checkpoint)
    (here / "photos").rename(here / "new_photos")  # the images of the training are gone
    (here / "new_photos" / "broken.jpg").write_bytes(b"no picture")
    run(UNLABELLED[0])
    rows = read("new.csv")
    assert list(rows[0]) == ["file", "task", "prediction", "probability", "route"]
    assert len({(row["file"], row["task"]) for row in rows}) == len(rows) == 300  # 100 images, 3 tasks
    assert all(row["prediction"] in LABELS[row["task"]] and 0 < float(row["probability"]) <= 1 for row in rows)
    routes = dict(zip(sorted(LABELS), trained.model.router.routes().tolist(), strict=True))
    assert all(row["route"] == "-".join(map(str, routes[row["task"]])) for row in rows)
    assert any("left out 1 image (broken.jpg: " in str(warning.message) for warning in recwarn)
    if find_spec("pyarrow") is not None:
        from pyarrow import parquet

        run(UNLABELLED[1])
        found = parquet.read_table("new.parquet").to_pylist()
        kept = [row for row in rows if row["task"] == "weather"]
        assert [{**row, "probability": str(row["probability"])} for row in found] == kept

    black = torch.zeros(1, 3, 64, 64, dtype=torch.uint8)
    best = int(trained.model(black, torch.tensor([2]))[:, :3].argmax())
    for number, (kind, command) in enumerate(zip(("torch", "onnxruntime"), EXPORTS, strict=True)):
        if kind == "torch" or all(find_spec(name) for name in ("onnx", "onnxscript", "onnxruntime")):
            one = ["--task=weather"] if number else []  # the others take as long and show no more
            run(command.replace("CKPT", checkpoint), *one)
            assert elsewhere(kind) == LABELS["weather"][best]
        assert 3 <= len([line for line in SNIPPETS[kind].splitlines() if line]) <= 5

    write_photos(here / "animals", ANIMALS)
    run(EXTEND[0].replace("CKPT", checkpoint))
    run(EXTEND[1], "--trainer.max_epochs=1", "--record=null")
    run(EXTEND[2])
    after = read("all.csv")
    assert [row for row in after if row["task"] in LABELS] == rows
    assert {row["prediction"] for row in after if row["task"] == "pet"} <= set(ANIMALS["pet"])


def test_the_pages_table(here, capsys):
    (table,) = re.findall(r"```csv\n(.*?)```", PAGE, re.DOTALL)
    further = [
        f"{task}/{label}/{i}.jpg,{task},{label},," for task in LABELS for label in LABELS[task] for i in range(1, 9)
    ]
    (here / "table.csv").write_text(table + "\n".join(further) + "\n")
    data = fit(TABLE).datamodule
    assert len(data.train_dataset.images) == 82
    assert sum(len(part) for part in (data.train_dataset, data.val_dataset, data.test_dataset)) == 83
    run(AFTER[2])
    (path,) = Path().rglob("predictions.csv")
    with path.open(encoding="utf-8") as file:
        assert csv.DictReader(file).fieldnames == [
            *("index", "task", "label", "prediction", "probability", "route", "path", "camera")
        ]


def test_the_pages_augmentation(here, caplog):
    caplog.set_level("INFO")
    cli = fit(AUGMENTED)
    assert len(cli.datamodule.augment.transforms) == 2
    assert "an epoch has 80 samples, of the tasks: place 27 (0.675 times each), season 27 (1.69" in caplog.text
    # the run that goes on from its first epoch draws the same changes
    (checkpoint,) = glob.glob("lightning_logs/*/checkpoints/*.ckpt")
    saved = torch.load(checkpoint, weights_only=True)
    half = fit(AUGMENTED, "--trainer.max_epochs=1")
    (first,) = glob.glob(f"{half.trainer.log_dir}/checkpoints/*.ckpt")
    again = fit(AUGMENTED, f"--ckpt_path={first}")
    for name, value in again.model.state_dict().items():
        assert torch.equal(value, saved["state_dict"][name]), name


def test_a_changed_folder_is_told_in_a_sentence(here, capsys):
    fit(PLAIN)
    (here / "photos" / "season" / "summer").rename(here / "photos" / "season" / "spring")
    with pytest.raises(SystemExit):
        run(AFTER[0])
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: root photos has 1 new task or label (season/spring) and 1 missing task or label")


def test_a_mistake_in_a_transform_is_told_in_a_sentence(here, capsys):
    text = (here / "augment.yaml").read_text()
    for wrong, sentence in (
        (text.replace("size: 64, padding: 8", "size: 60"), "but must keep both"),
        (text.replace("size: 64, padding: 8", "size: 99"), "augment cannot be applied: RandomCrop takes 99 x 99"),
    ):
        (here / "augment.yaml").write_text(wrong)
        with pytest.raises(SystemExit):
            fit(AUGMENTED)
        assert sentence in capsys.readouterr().err.strip().splitlines()[-1]
