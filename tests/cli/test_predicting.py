"""``predict`` on images without labels, from a checkpoint alone, and where its table goes."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from routing_lightning.cli import main
from routing_lightning.cli.predicting import data_config, in_two_modalities
from routing_lightning.datamodules.unlabelled import images_below
from routing_lightning.errors import UsageError
from routing_lightning.export import load_trained
from tests.test_cli import refused, short_fit

QUIET = ["--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    body = "--model.init_args.network.init_args"
    folder = tmp_path_factory.mktemp("run")
    short_fit(folder, f"{body}.hidden=16", f"{body}.features.init_args.filters=8", "--record=null")
    (path,) = folder.rglob("*.ckpt")
    return path


@pytest.fixture
def images(tmp_path) -> Path:
    """Nine pictures: of other sizes and kinds than the digits of the training, in folders of folders; two are none."""
    root = tmp_path / "images"
    generator = np.random.default_rng(0)
    for number, mode in enumerate(("L", "RGB", "RGBA", "P", "1", "CMYK")):
        folder = root / "ab"[number % 2] / "c"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 256, (8 + number, 12, 3)).astype(np.uint8)
        Image.fromarray(pixels).convert(mode).save(folder / f"{number}.{'jpg' if mode == 'CMYK' else 'PNG'}")
    Image.fromarray(pixels[:8, :8]).convert("L").save(root / "square.png")
    (root / "torn.png").write_bytes((root / "square.png").read_bytes()[:60])
    (root / "empty.jpg").write_bytes(b"")
    (root / "notes.txt").write_text("no image")
    (root / "a" / "up").symlink_to(root)  # a circle
    (root / "b" / "lost.png").symlink_to(root / "gone.png")  # leads nowhere
    return root


def predict(checkpoint: Path, tmp_path: Path, *options: str | Path) -> list[dict[str, str]]:
    out = tmp_path / "out.csv"
    main(
        [
            "predict",
            f"--ckpt_path={checkpoint}",
            f"--out={out}",
            f"--trainer.default_root_dir={tmp_path}",
            *QUIET,
            *options,
        ]
    )
    with out.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_each_image_is_predicted_once_for_the_task(checkpoint, images, tmp_path, recwarn, monkeypatch):
    def gone(*_):
        raise AssertionError("the data of the training are not needed")

    monkeypatch.setattr("routing_lightning.datamodules.DigitsMTLDataModule.load_data", gone)
    rows = predict(checkpoint, tmp_path, f"--images={images}", "--task=digit_3")
    assert [row["file"] for row in rows] == [
        "a/c/0.PNG",
        "a/c/2.PNG",
        "a/c/4.PNG",
        "b/c/1.PNG",
        "b/c/3.PNG",
        "b/c/5.jpg",
        "square.png",
    ]
    (note,) = [str(warning.message) for warning in recwarn if "left out" in str(warning.message)]
    assert "left out 3 images (b/lost.png: missing, empty.jpg: " in note and "torn.png: " in note
    # what the model itself gives for the picture that needs neither size nor colour changed
    trained = load_trained(checkpoint)
    grey = torch.from_numpy(np.array(Image.open(images / "square.png")))[None, None]
    logits = trained.model(grey, torch.tensor([3]))
    probability, best = logits.softmax(1).max(1)
    row = rows[-1]
    assert row["task"] == "digit_3" and row["prediction"] == trained.checkpoint["class_names"][3][int(best)]
    assert float(row["probability"]) == pytest.approx(float(probability), abs=1e-5)
    assert row["route"] == "-".join(map(str, trained.model.router.routes()[3].tolist()))


def test_two_processes_predict_what_one_does(checkpoint, images, tmp_path):
    words = [f"--images={images}", "--task=all"]
    one = predict(checkpoint, tmp_path, *words)
    two = predict(checkpoint, tmp_path, *words, "--trainer.devices=2", "--trainer.strategy=ddp_fork")
    assert len(two) == 7 * 10
    for ours, theirs in zip(two, one, strict=True):
        assert float(ours.pop("probability")) == pytest.approx(float(theirs.pop("probability")), abs=1e-5)
        assert ours == theirs


def test_a_table_may_say_the_task_of_each_image(checkpoint, images, tmp_path, recwarn):
    table = tmp_path / "images" / "table.csv"
    table.write_text(
        "path,task,camera\nsquare.png,digit_1,north\na/c/0.PNG,2,south\ngone.png,digit_1,\nsquare.png,digit_4,x\n"
    )
    rows = predict(checkpoint, tmp_path, f"--images={table}")
    assert [(row["file"], row["task"], row["camera"]) for row in rows] == [
        ("square.png", "digit_1", "north"), ("a/c/0.PNG", "digit_2", "south"), ("square.png", "digit_4", "x"),
    ]  # fmt: skip
    assert any("left out 1 image (gone.png: missing)" in str(warning.message) for warning in recwarn)
    assert len(predict(checkpoint, tmp_path, f"--images={table}", "--task=all")) == 3 * 10


def test_images_are_found_once_through_links_in_a_circle(images):
    assert len(images_below(images)) == 10


def test_a_table_of_the_test_part_goes_where_it_is_told(checkpoint, tmp_path):
    rows = predict(checkpoint, tmp_path)
    assert list(rows[0]) == ["index", "task", "label", "prediction", "probability", "route"]
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra parquet is not installed")
    predict_again = ["predict", f"--ckpt_path={checkpoint}", f"--out={tmp_path / 'out.parquet'}", *QUIET]
    main([*predict_again, f"--trainer.default_root_dir={tmp_path}"])
    found = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert [{name: str(value) for name, value in row.items()} for row in found] == rows


def test_mistakes_are_told_in_a_sentence(checkpoint, images, tmp_path, capsys):
    words = ["predict", f"--ckpt_path={checkpoint}", f"--trainer.default_root_dir={tmp_path}", *QUIET]
    (tmp_path / "table.csv").write_text("file\nx.png\n")
    (tmp_path / "none").mkdir()
    for options, sentence in (
        ([f"--images={images}", "--task=cat"], "task is 'cat': give one of digit_0"),
        (["--task=digit_3"], "task is digit_3 but there are no images"),
        ([f"--images={tmp_path / 'nowhere'}"], "nowhere is not there"),
        ([f"--images={images / 'square.png'}"], "square.png is neither a folder nor a table: give a folder, or a CSV"),
        ([f"--images={tmp_path / 'none'}"], "holds no image that can be read"),
        ([f"--images={tmp_path / 'table.csv'}"], "has the columns file, but needs path"),
        (
            [f"--images={images}", "--out=table.txt"],
            "out is table.txt; give a file whose name ends in .csv or .parquet",
        ),
    ):
        assert sentence in refused(capsys, *words, *options)
    config = f"--config={Path(__file__).parents[2] / 'configs' / 'digits_mtl.yaml'}"
    assert "images needs a trained network" in refused(capsys, "predict", config, f"--images={images}", *QUIET)


def test_pictures_are_not_predicted_for_tasks_that_see_them_changed():
    whole = {"class_path": "CIFARMTLDataModule", "init_args": {"two_modalities": True}}
    mix = {"class_path": "MixedMTLDataModule", "init_args": {"datamodules": ["DigitsMTLDataModule", whole]}}
    for data in (whole, mix):
        with pytest.raises(UsageError, match=r"last\.ckpt was trained with two_modalities.*; predict the test part"):
            data_config(Path("last.ckpt"), {"data": data}, "images", None)
    mix["init_args"]["datamodules"] = ["DigitsMTLDataModule", {"class_path": "CIFARMTLDataModule"}]
    assert not in_two_modalities(mix) and not in_two_modalities(None)
