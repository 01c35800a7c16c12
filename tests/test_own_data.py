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
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from routing_lightning.cli import main
from routing_lightning.export import load, load_trained
from routing_lightning.record import load_test
from tests.photos import write_photos

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "own-data.md").read_text()
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
PLAIN, BEST, TABLE, KINDS, AUGMENTED = [command for command in COMMANDS if " fit --config" in command]
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
    for name in ("augment", "kinds"):
        (tmp_path / f"{name}.yaml").write_text(*re.findall(rf"```yaml\n# {name}.yaml\n(.*?)```", PAGE, re.DOTALL))
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


def test_the_best_checkpoint_is_kept_and_a_run_stops_early(here, capsys):
    # nothing is learned, so that the first epoch is the best one
    cli = run(
        BEST,
        "--trainer.max_epochs=9",
        "--record=null",
        "--model.init_args.optimizer=SGD",
        "--model.init_args.optimizer.init_args.lr=0.3",
    )
    best = Path(cli.trainer.checkpoint_callback.best_model_path)
    assert (best.name, best.with_name("last.ckpt").is_file()) == ("best.ckpt", True)
    scores = torch.load(best, weights_only=True)["routing_lightning_progress"]["metrics"]
    assert cli.trainer.checkpoint_callback.best_model_score == scores["val/loss"]
    assert cli.trainer.callback_metrics["val/loss"] >= scores["val/loss"]
    (stop,) = cli.trainer.early_stopping_callbacks
    assert (stop.monitor, stop.mode, stop.patience) == ("val/loss", "min", 5)
    assert cli.trainer.current_epoch == min(9, torch.load(best, weights_only=True)["epoch"] + 1 + 5)
    validated = main(["validate", "--ckpt_path=best", "--trainer.accelerator=cpu"])
    torch.testing.assert_close(validated.trainer.callback_metrics["val/loss"], scores["val/loss"])
    # or by accuracy, as the page says
    options = ["--trainer.callbacks.monitor=val/acc", "--trainer.callbacks.mode=max", "--trainer.max_epochs=1"]
    cli = run(PLAIN, "--config=configs/trainer/best.yaml", *options, "--record=null")
    assert cli.trainer.checkpoint_callback.best_model_score == cli.trainer.callback_metrics["val/acc"]
    capsys.readouterr()


def kinds_table(here: Path) -> dict[tuple[str, str], str]:
    """The page's table and more lines like its own: what is seen depends on the season, and so does the temperature."""
    (text,) = re.findall(r'```csv title="kinds.csv"\n(.*?)```', PAGE, re.DOTALL)
    rows = list(csv.reader(text.splitlines()))
    for i in range(10):
        for season, tags, degrees in (("summer", ("sun|tree", "sun"), 25), ("winter", ("", "snow; tree"), -5)):
            path = f"season/{season}/{i}.jpg"
            more = [("season", season), ("seen", tags[i % 2])] + (
                [("temperature", str(degrees + i / 10))] if i % 3 else []
            )
            named = {tuple(row[:2]) for row in rows}
            rows += [[path, task, label] for task, label in more if (path, task) not in named]
    with (here / "kinds.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return {(path, task): label for path, task, label in rows[1:]}


def test_the_pages_kinds_from_training_to_an_exported_file(here, capsys):
    said = kinds_table(here)
    fitted = run(KINDS, "--trainer.max_epochs=6", "--data.init_args.batch_size=4", "--data.init_args.val_fraction=0.2",
                 "--data.init_args.test_fraction=0.2", "--config=configs/trainer/best.yaml")  # fmt: skip
    printed = " ".join(capsys.readouterr().out.split())
    assert all(word in printed for word in ("Figures per task", "accuracy", "F1", "MAE", "R²", "temperature"))
    data, logged = fitted.datamodule, fitted.trainer.callback_metrics
    assert data.class_names == [["summer", "winter"], ["snow", "sun", "tree"], ["value"]]
    assert len(data.train_dataset.images) == 20
    assert logged["val/acc"] == logged["val/acc_task/season"] and logged["val/f1"] == logged["val/f1_task/seen"]
    assert 0 <= logged["val/mae_task/temperature"] < 15  # standard deviation: 15
    validated, tested, predicted = (run(command.replace("last", "best")) for command in AFTER)
    best = torch.load(fitted.trainer.checkpoint_callback.best_model_path, weights_only=True)
    assert best["targets"]["kinds"] == ["classes", "labels", "value"]
    torch.testing.assert_close(
        validated.trainer.callback_metrics["val/loss"], best["routing_lightning_progress"]["metrics"]["val/loss"]
    )
    # predictions are names and numbers, and what the test measures
    (path,) = Path().rglob("predictions.csv")
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    by_task = {task: [row for row in rows if row["task"] == task] for task in data.task_names}
    for row in rows:
        label, wanted = row["label"], said[row["path"], row["task"]]
        assert (
            label == wanted
            or set(label.split("|")) == set(re.split("; ?|[|]", wanted))
            or float(label) == float(wanted)
        )
    hits = [row["label"] == row["prediction"] for row in by_task["season"]]
    measured = tested.trainer.callback_metrics
    assert float(measured["test/acc"]) == pytest.approx(np.mean(hits))
    errors = [abs(float(row["label"]) - float(row["prediction"])) for row in by_task["temperature"]]
    assert float(measured["test/mae_task/temperature"]) == pytest.approx(np.mean(errors), rel=1e-4)
    sets = [(set(row["label"].split("|")), set(row["prediction"].split("|"))) for row in by_task["seen"]]
    f1 = []
    for name in ("snow", "sun", "tree"):
        hit, any_of = sum(name in a and name in b for a, b in sets), sum((name in a) + (name in b) for a, b in sets)
        f1 += [2 * hit / any_of] if any_of else []
    assert float(measured["test/f1_task/seen"]) == pytest.approx(np.mean(f1))
    # the file of the test, its pictures and the page
    folder = Path(tested.trainer.log_dir)
    season, seen, temperature = load_test(folder)
    assert season.f1_macro() == pytest.approx(float(measured["test/f1_macro_task/season"]))
    assert season.matrix().sum() == season.samples == len(hits)
    assert seen.f1_macro() == pytest.approx(np.mean(f1))
    assert temperature.mae == pytest.approx(np.mean(errors), rel=1e-4) and len(temperature.pairs) == len(errors)
    pictures = EventAccumulator(str(folder), size_guidance={"images": 0})
    pictures.Reload()
    assert set(pictures.Tags()["images"]) == {"test/season", "test/seen", "test/temperature"}
    main(["report", "lightning_logs", "--out=report"])
    page = Path("report/report.html").read_text()
    assert "Tests, task by task" in page and "Tasks of labels and of values" in page and "test of temperature" in page
    # exported files say the same, in the user's units
    main(["export", fitted.trainer.checkpoint_callback.best_model_path, "--out=exported"])
    images, tasks, _ = predicted.datamodule.test_dataset[:]
    for number, (task, kind) in enumerate((("season", "classes"), ("seen", "labels"), ("temperature", "value"))):
        network, metadata = load(Path(f"exported/{task}.pt2"))
        assert metadata["task"] == {"name": task, "number": number, "kind": kind}
        output = network(images[tasks == number])
        if kind == "value":
            assert metadata["output"]["mean"] == data.targets.means[2]
            np.testing.assert_allclose(output[:, 0], [float(row["prediction"]) for row in by_task[task]], rtol=1e-5)
        else:
            chosen = [[int(row.argmax())] if kind == "classes" else np.flatnonzero(row > 0) for row in output.numpy()]
            found = ["|".join(metadata["classes"][label] for label in labels) for labels in chosen]
            assert found == [row["prediction"] for row in by_task[task]]


def test_values_alone_and_a_task_of_one_sample(here, capsys):
    """Without tasks of classes there is no accuracy; a task may have one sample, in training alone."""
    lines = [
        f"season/summer/{i}.jpg,brightness,{i},{part}"
        for i, part in enumerate(["train"] * 6 + ["val"] * 2 + ["test"] * 2)
    ]
    one = ["season/winter/0.jpg,once,3.5,train"]
    (here / "values.csv").write_text("\n".join(["path,task,label,split", *lines, *one]) + "\n")
    options = ["--data.init_args.manifest=values.csv", "--data.init_args.kinds={brightness: value, once: value}"]
    cli = fit(PLAIN, *options, "--config=configs/trainer/best.yaml", "--data.init_args.sampling=balanced")
    assert cli.model.num_classes == 1
    names = {name for name in cli.trainer.callback_metrics if name.startswith("val/")}
    assert names == {"val/loss", "val/r2", "val/mae_task/brightness", "val/r2_task/brightness"}
    tested = run(AFTER[1])
    assert "test/acc" not in tested.trainer.callback_metrics
    assert "MAE" in capsys.readouterr().out
    main(["report", "lightning_logs", "--out=report"])
    assert "No accuracy" not in Path("report/report.html").read_text()
