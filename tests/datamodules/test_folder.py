"""Own data: layouts, tables, odd pictures, splits, and what a checkpoint keeps."""

import itertools
import os
import struct
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from routing_lightning.datamodules import FolderMTLDataModule
from routing_lightning.datamodules.listing import DRAWN, PARTS
from routing_lightning.datamodules.parts import draw_parts
from routing_lightning.errors import UsageError

TASKS = {"animals": ("cat", "dog"), "colours": ("blue", "green", "red"), "shapes": ("a", "b", "c", "d", "e")}


def save(path: Path, colour: tuple[int, int, int] = (10, 20, 30), size: tuple[int, int] = (8, 8)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    return path


def make_tree(root: Path, split: bool = False, count: int = 10) -> Path:
    """Three tasks of 2, 3 and 5 labels; red is the task, green the label, blue the image."""
    for task, (name, labels) in enumerate(TASKS.items()):
        for label, text in enumerate(labels):
            for i in range(count):
                part = "train" if i < count - 4 else "val" if i < count - 2 else "test"
                folder = root / name / part / text if split else root / name / text
                save(folder / f"{i}.png", (task, label, i))
    return root


def made(root: Path | None = None, **options: object) -> FolderMTLDataModule:
    return FolderMTLDataModule(None if root is None else str(root), **{"image_size": 8, **options})  # type: ignore[arg-type]


def ready(root: Path | None = None, **options: object) -> FolderMTLDataModule:
    datamodule = made(root, **options)
    datamodule.prepare_data()
    datamodule.setup("fit")
    return datamodule


def notes(*arguments: object, **options: object) -> tuple[FolderMTLDataModule, str]:
    """A datamodule that is set up, and all that it warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        datamodule = ready(*arguments, **options)  # type: ignore[arg-type]
    return datamodule, " ".join(str(warning.message) for warning in caught)


def contents(datamodule: FolderMTLDataModule, part: str) -> list[tuple[int, ...]]:
    """(task, label, image) of each sample, from the pixels; checked against what the data set says."""
    images, tasks, labels = getattr(datamodule, f"{part}_dataset")[:]
    pixels = images[:, :, 0, 0]
    assert torch.equal(pixels[:, 0].long(), tasks) and torch.equal(pixels[:, 1].long(), labels)
    return sorted(tuple(row) for row in pixels.tolist())


EVERYTHING = sorted((t, c, i) for t, labels in enumerate(TASKS.values()) for c in range(len(labels)) for i in range(10))


# -- layouts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", [False, True])
def test_sizes_are_known_at_once_and_each_image_is_in_one_part(tmp_path, split):
    root = make_tree(tmp_path, split)
    datamodule = made(root)
    assert (datamodule.num_tasks, datamodule.num_classes, datamodule.image_shape) == (3, 5, (3, 8, 8))
    assert not (root / ".cache").exists()
    datamodule = ready(root)
    assert datamodule.task_names == list(TASKS)
    assert datamodule.class_names == [list(labels) for labels in TASKS.values()]
    assert datamodule.classes_per_task == [2, 3, 5]
    parts = {part: contents(datamodule, part) for part in PARTS}
    assert sorted(itertools.chain(*parts.values())) == EVERYTHING
    assert {part: len(samples) for part, samples in parts.items()} == (
        {"train": 60, "val": 20, "test": 20} if split else {"train": 80, "val": 10, "test": 10}
    )
    if split:
        assert {i for *_, i in parts["val"]} == {6, 7} and {i for *_, i in parts["test"]} == {8, 9}
    else:  # the same share of each label
        assert len({sample[:2] for sample in parts["val"]}) == len({sample[:2] for sample in parts["test"]}) == 10
    assert not datamodule.validates_on_test


def test_each_task_may_have_its_own_layout(tmp_path):
    for i in range(6):
        save(tmp_path / "one" / "a" / f"{i}.png", (0, 0, i))
        save(tmp_path / "one" / "b" / f"{i}.png", (0, 1, i))
        # labels may be called like a split
        save(tmp_path / "two" / "car" / f"{i}.png", (1, 0, i))
        save(tmp_path / "two" / "train" / f"{i}.png", (1, 1, i))
    for part, label in itertools.product(PARTS, range(2)):
        save(tmp_path / "zoo" / part / "xy"[label] / "0.png", (2, label, PARTS.index(part)))
    datamodule = ready(tmp_path, val_fraction=0.2, test_fraction=0.2)
    assert datamodule.class_names == [["a", "b"], ["car", "train"], ["x", "y"]]
    assert [len(contents(datamodule, part)) for part in PARTS] == [18, 6, 6]
    assert [sample for sample in contents(datamodule, "val") if sample[0] == 2] == [(2, 0, 1), (2, 1, 1)]


@pytest.mark.parametrize(
    ("paths", "sentence"),
    [
        (["t/0.png"], r"t holds 1 image \(0\.png\) that stand in no folder of a label"),
        (["t/train/0.png", "t/test/0.png"], r"t/test holds images, but a folder of a split must hold one folder per"),
        (["train/a/0.png", "test/a/0.png"], r"holds the folders test, train, but splits stand below the tasks"),
        (["t/train/a/0.png", "t/valid/a/0.png"], r"1 folder \(t/valid\) that fit neither.*called train, val or test"),
        (["t/train/a/0.png", "t/b/0.png"], r"1 folder \(t/b\) that fit neither"),
        (["t/a/deep/0.png", "t/b/0.png"], r"1 folder \(t/a\) that fit neither"),
        (["t/a/0.png", "u/a/0.png", "u/b/0.png"], r"1 task \(t\) with a single label, but a task needs at least 2"),
        (["t/a/notes.txt", "t/b/notes.txt"], r"names no labelled image"),
        (["0.png"], r"holds no folders, but must hold one folder per task"),
    ],
)
def test_other_layouts_are_told(tmp_path, paths, sentence):
    for path in paths:
        if path.endswith("png"):
            save(tmp_path / path)
        else:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text("")
    with pytest.raises(UsageError, match=sentence):
        _ = made(tmp_path).num_tasks


def test_no_folder_and_no_root(tmp_path):
    with pytest.raises(UsageError, match=r"root .*nowhere is no folder"):
        _ = made(tmp_path / "nowhere").num_tasks
    with pytest.raises(UsageError, match="neither root nor manifest is set"):
        _ = made().num_tasks


def test_hidden_files_other_files_upper_case_and_non_ascii(tmp_path):
    root = tmp_path / "Übung"
    for label in ("ä", "ß"):
        for i in range(4):
            save(root / "größe" / label / f"{i} é.PNG")
    save(root / "größe" / "ä" / ".hidden.png")
    save(root / "größe" / ".thumbs" / "a.png")
    save(root / ".cache" / "x" / "a.png")
    for i in range(7):
        (root / "größe" / "ä" / f"{i}.txt").write_text("")
    (root / "größe" / "empty").mkdir()
    (root / "nothing").mkdir()
    save(root / "größe" / "ß" / "more" / "a.png")
    save(root / "a.png")
    datamodule, told = notes(root)
    assert datamodule.task_names == ["größe"] and datamodule.class_names == [["ß", "ä"]]
    assert sum(len(getattr(datamodule, f"{part}_dataset")) for part in PARTS) == 8
    assert "2 folders (größe/empty, nothing) of" in told and "without images" in told
    assert "7 files (größe/ä/0.txt, größe/ä/1.txt, größe/ä/2.txt, größe/ä/3.txt, größe/ä/4.txt, ...)" in told
    assert "1 folder (größe/ß/more) of" in told and "inside those of labels" in told
    assert "1 image (a.png) of" in told and "beside the tasks" in told


def test_names_composed_or_apart_are_one(tmp_path):
    for part, label in (("train", "caf\u00e9"), ("val", "cafe\u0301"), ("train", "tea"), ("val", "tea")):
        save(tmp_path / "drinks" / part / label / "0.png")
    assert ready(tmp_path).class_names == [["caf\u00e9", "tea"]]


def test_names_that_are_no_text(tmp_path):
    for label, i in itertools.product("ab", range(3)):
        save(tmp_path / "t" / label / f"{i}.png")
    os.rename(tmp_path / "t" / "a" / "0.png", os.fsencode(tmp_path / "t" / "a") + b"/\xff.png")
    assert len(ready(tmp_path).train_dataset) == 2


# -- links -----------------------------------------------------------------------------------------------------------


def test_links_inside_and_outside_the_root_are_followed_and_kept_once(tmp_path):
    outside = [save(tmp_path / "photos" / f"{i}.png", (i, i, i)) for i in range(8)]
    root = tmp_path / "root"
    for i, path in enumerate(outside):
        for task, label in (("a", "xy"[i % 2]), ("b", "uv"[i // 4])):
            (root / task / label).mkdir(parents=True, exist_ok=True)
            (root / task / label / path.name).symlink_to(path)
    datamodule = ready(root, val_fraction=0.25, test_fraction=0.25)
    assert len(datamodule.train_dataset.images) == 8
    parts = [set(getattr(datamodule, f"{part}_dataset").index.tolist()) for part in PARTS]
    assert sum(map(len, parts)) == 8 == len(set().union(*parts))  # an image is in one part for both tasks
    assert sum(len(getattr(datamodule, f"{part}_dataset")) for part in PARTS) == 16
    (root / "c").symlink_to(root / "a")
    assert ready(root).num_tasks == 3


def test_link_that_leads_nowhere_and_one_that_leads_to_itself(tmp_path):
    root = make_tree(tmp_path / "root", count=4)
    (root / "animals" / "cat" / "gone.png").symlink_to(tmp_path / "gone.png")
    (root / "animals" / "cat" / "loop.png").symlink_to("loop.png")
    (root / "animals" / "again").symlink_to(root / "animals")
    with pytest.raises(UsageError, match=r"animals/again\) that fit neither"):
        ready(root)
    (root / "animals" / "again").unlink()
    with pytest.raises(UsageError, match=r"2 images \(animals/cat/gone\.png, animals/cat/loop\.png\).*are missing"):
        ready(root)
    datamodule, told = notes(root, skip_unreadable=True)
    assert "left out 2 images (animals/cat/gone.png" in told
    assert len(datamodule.train_dataset.images) == 40


def test_one_file_with_two_labels_in_a_task_is_told(tmp_path):
    root = make_tree(tmp_path)
    (root / "animals" / "cat" / "x.png").symlink_to(root / "animals" / "dog" / "0.png")
    with pytest.raises(UsageError, match=r"1 image \(animals/dog/0\.png in animals\) two labels or splits in one task"):
        ready(root)


# -- pictures --------------------------------------------------------------------------------------------------------


def odd_pictures(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Writes readable pictures of odd kinds; the colour that each must have in the middle."""
    folder.mkdir(parents=True)
    expected = {}

    def add(name: str, picture: Image.Image, colour: tuple[int, int, int], **options: object) -> None:
        picture.save(folder / name, **options)
        expected[name] = colour

    add("grey.png", Image.new("L", (20, 12), 100), (100, 100, 100))
    add("grey_alpha.png", Image.new("LA", (20, 12), (100, 0)), (255, 255, 255))
    add("one_bit.png", Image.new("1", (20, 12), 1), (255, 255, 255))
    add("cmyk.jpg", Image.new("CMYK", (20, 12), (0, 255, 255, 0)), (255, 0, 0), quality=100)
    palette = Image.new("P", (20, 12), 1)
    palette.putpalette([0, 0, 255, 0, 255, 0])
    add("palette.png", palette, (0, 255, 0))
    add("palette_clear.png", palette, (255, 255, 255), transparency=1)
    add("palette_clear.gif", palette, (255, 255, 255), transparency=1)
    add("rgba.png", Image.new("RGBA", (20, 12), (200, 0, 0, 0)), (255, 255, 255))
    key = Image.new("RGB", (20, 12), (1, 2, 3))
    add("rgb_clear.png", key, (255, 255, 255), transparency=(1, 2, 3))
    add("sixteen.png", Image.fromarray(np.full((12, 20), 100 * 256 + 17, np.uint16)), (100, 100, 100))
    add("sixteen.tif", Image.fromarray(np.full((12, 20), 100 * 256 + 17, np.uint16)), (100, 100, 100))
    add("large.webp", Image.new("RGB", (900, 300), (200, 100, 50)), (200, 100, 50), lossless=True)
    add("one.bmp", Image.new("RGB", (1, 1), (9, 8, 7)), (9, 8, 7))
    add("UPPER.JPEG", Image.new("RGB", (64, 64), (50, 60, 70)), (50, 60, 70), quality=100)
    frames = [Image.new("RGB", (20, 12), colour) for colour in ((255, 0, 0), (0, 0, 255))]
    add("moving.gif", frames[0], (255, 0, 0), save_all=True, append_images=frames[1:])
    return expected


def test_pictures_of_every_kind(tmp_path):
    expected = odd_pictures(tmp_path / "t" / "a")
    save(tmp_path / "t" / "b" / "x.png")
    save(tmp_path / "t" / "b" / "y.png")
    datamodule = ready(tmp_path, val_fraction=0.4, test_fraction=0)
    listing = datamodule.listing
    images = datamodule.train_dataset.images
    assert images.shape == (len(expected) + 2, 3, 8, 8)
    for path, image in zip(listing.paths, images, strict=True):
        if path.startswith("t/a"):
            wanted = torch.tensor(expected[Path(path).name])
            assert (image[:, 4, 4].int() - wanted).abs().max() <= 3, path
            assert (image.int() - wanted.view(3, 1, 1)).abs().max() <= 3, path


def test_rotation_resize_and_crop(tmp_path):
    stripes = np.zeros((40, 80, 3), np.uint8)
    stripes[:, :20, 0] = stripes[:, 60:, 2] = 255  # red left, black in the middle, blue right
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise by 90 degrees: red is on top
    for label in "ab":
        for name, options in (("0.png", {}), ("turned.png", {"exif": exif})):
            save(tmp_path / "t" / label / name)
            Image.fromarray(stripes).save(tmp_path / "t" / label / name, **options)
    whole = ready(tmp_path, crop=False, image_size=16, test_fraction=0).train_dataset.images
    assert whole[0, 0, :, 0].min() > 250 and whole[0, 2, :, -1].min() > 250 and whole[0, :, :, 8].max() < 5
    assert whole[1, 0, 0].min() > 250 and whole[1, 2, -1].min() > 250
    middle = ready(tmp_path, image_size=40, test_fraction=0).train_dataset.images
    assert middle.max() == 0 and middle.shape[2:] == (40, 40)  # the middle 40 of 80 columns
    part = ready(tmp_path, image_size=10, resize=20, test_fraction=0).train_dataset.images
    assert part.shape[2:] == (10, 10) and part.max() < 5


def png_of_claimed_size(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 99)) + chunk(b"IEND", b"")
    )


def add_unreadable(folder: Path) -> list[str]:
    noise = np.random.default_rng(0).integers(0, 255, (60, 60, 3), np.uint8)
    Image.fromarray(noise).save(folder / "truncated.png")
    (folder / "truncated.png").write_bytes((folder / "truncated.png").read_bytes()[:2000])
    Image.fromarray(noise).save(folder / "truncated.jpg")
    (folder / "truncated.jpg").write_bytes((folder / "truncated.jpg").read_bytes()[:900])
    (folder / "zero.png").write_bytes(b"")
    (folder / "text.jpg").write_text("no image")
    (folder / "bomb.png").write_bytes(png_of_claimed_size(60000, 60000))
    Image.fromarray(np.zeros((8, 8), np.float32)).save(folder / "float.tif")
    return sorted(["truncated.png", "truncated.jpg", "zero.png", "text.jpg", "bomb.png", "float.tif"])


def test_unreadable_pictures_are_counted_and_named_or_left_out(tmp_path, monkeypatch):
    root = make_tree(tmp_path)
    names = add_unreadable(root / "animals" / "cat")
    with pytest.raises(UsageError) as told:
        ready(root)
    sentence = str(told.value)
    assert sentence.startswith("6 images (") and "skip_unreadable: true" in sentence and "\n" not in sentence
    assert all(f"animals/cat/{name}: " in sentence for name in names[:5]) and names[5] not in sentence
    assert "decompression bomb" in sentence and "floating point" in sentence
    # all were decoded: to leave them out needs no second time
    monkeypatch.setattr("routing_lightning.datamodules.decoding.as_rgb", lambda _: pytest.fail("decoded again"))
    datamodule, warned = notes(root, skip_unreadable=True)
    assert "left out 6 images (" in warned
    assert sorted(itertools.chain(*(contents(datamodule, part) for part in PARTS))) == EVERYTHING
    with pytest.raises(UsageError, match="6 images"):
        ready(root)


def test_large_pictures_give_no_warning(tmp_path, monkeypatch):
    root = make_tree(tmp_path, count=4)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40)  # 64 pixels: more than that, less than twice as many
    assert notes(root)[1] == ""


# -- cache -----------------------------------------------------------------------------------------------------------


def test_how_pictures_are_made_decides_on_the_cache(tmp_path):
    root = make_tree(tmp_path, count=4)
    for options in ({}, {"resize": 10}, {"crop": False}, {}, {"image_size": 9}, {"split_seed": 3}):
        ready(root, **options)
    assert len(list((root / ".cache").iterdir())) == 4
    ready(root, cache_dir=str(tmp_path / "other"))
    assert len(list((tmp_path / "other").iterdir())) == 1


def test_several_runs_at_once(tmp_path):
    root = make_tree(tmp_path / "root", count=4)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: ready(root), range(4)))
    assert len(list((root / ".cache").iterdir())) == 1


@pytest.mark.parametrize("cut", [1, 5, 4000])
def test_a_cut_cache_is_made_anew(tmp_path, cut):
    root = make_tree(tmp_path / "root", count=4)
    add_unreadable(root / "animals" / "cat")
    ready(root, skip_unreadable=True)
    (path,) = (root / ".cache").iterdir()
    good = path.read_bytes()
    path.write_bytes(good[:-cut])
    ready(root, skip_unreadable=True)
    assert path.read_bytes() == good


# -- tables ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """12 images, 0.png to 11.png."""
    for i in range(12):
        save(tmp_path / "photos" / f"{i}.png", (i, i, i))
    return tmp_path / "photos"


def lines(split: bool = True) -> list[list[str]]:
    """All 12 images labelled for parity, the first 8 for size, too."""
    rows = [[f"{i}.png", "parity", ("even", "odd")[i % 2], PARTS[i // 2 % 3]] for i in range(12)]
    rows += [[f"{i}.png", "size", ("small", "large", "huge")[i % 3], PARTS[i // 2 % 3]] for i in range(8)]
    return [row if split else row[:3] for row in rows]


def write_csv(path: Path, rows: list[list[str]], header: str = "path,task,label,split", sign: str = ",") -> Path:
    path.write_text("\n".join([header.replace(",", sign), *(sign.join(row) for row in rows)]) + "\n", "utf-8")
    return path


def check_lines(datamodule: FolderMTLDataModule) -> None:
    assert datamodule.task_names == ["parity", "size"]
    assert datamodule.class_names == [["even", "odd"], ["huge", "large", "small"]]
    assert len(datamodule.train_dataset.images) == 12  # each kept once
    for part in PARTS:
        images, tasks, labels = getattr(datamodule, f"{part}_dataset")[:]
        found = {
            (f"{image}.png", datamodule.task_names[task], datamodule.class_names[task][label], part)
            for image, task, label in zip(images[:, 0, 0, 0].tolist(), tasks.tolist(), labels.tolist(), strict=True)
        }
        assert found == {tuple(row) for row in lines() if row[3] == part}


def test_table_beside_its_images_or_elsewhere(photos, tmp_path):
    table = write_csv(photos / "labels.csv", lines())
    datamodule = made(manifest=str(table))
    assert (datamodule.num_tasks, datamodule.num_classes) == (2, 3)
    check_lines(ready(manifest=str(table)))
    check_lines(ready(photos, manifest=str(write_csv(tmp_path / "labels.csv", lines()))))
    absolute = [[str(photos / path), *rest] for path, *rest in lines()]
    check_lines(ready(manifest=str(write_csv(tmp_path / "absolute.csv", absolute))))


@pytest.mark.parametrize("kind", ["bom", "crlf", "semicolons", "tabs", "spaces", "empty lines", "order"])
def test_tables_as_programs_write_them(photos, kind):
    path = photos / "labels.csv"
    write_csv(path, lines(), sign={"semicolons": ";", "tabs": "\t", "spaces": " , "}.get(kind, ","))
    text = path.read_text()
    if kind == "bom":
        path.write_text(text, "utf-8-sig")
    elif kind == "crlf":
        path.write_bytes(text.replace("\n", "\r\n").encode())
    elif kind == "empty lines":
        path.write_text(text.replace("\n", "\n\n").rstrip("\n") + "\n\n\n")
    elif kind == "order":
        write_csv(path, [[row[3].upper(), *row[2::-1]] for row in lines()], "Split,label,task,PATH")
    check_lines(notes(manifest=str(path))[0])


def test_parquet(photos):
    pyarrow = pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    from pyarrow import parquet

    names = ("path", "task", "label", "split", "weight")
    rows = [[*row, number / 4] for number, row in enumerate(lines())]
    table = pyarrow.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
    parquet.write_table(table, photos / "labels.parquet")
    datamodule = ready(manifest=str(photos / "labels.parquet"))
    check_lines(datamodule)
    assert list(datamodule.test_columns) == ["path", "weight"]
    (photos / "labels.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(UsageError, match=r"is no Parquet file"):
        ready(manifest=str(photos / "labels.parquet"))


def test_parquet_without_pyarrow(photos, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (photos / "labels.parquet").write_bytes(b"")
    with pytest.raises(UsageError, match=r"needs pyarrow: pip install 'routing-lightning\[parquet\]'"):
        ready(manifest=str(photos / "labels.parquet"))


def test_further_columns_stay_with_the_samples(photos):
    rows = [[*row, f"camera {row[0]}"] for row in lines()]
    datamodule = ready(manifest=str(write_csv(photos / "labels.csv", rows, "path,task,label,split,camera")))
    columns = datamodule.test_columns
    images = datamodule.test_dataset[:][0][:, 0, 0, 0].tolist()
    assert columns["path"] == [f"{i}.png" for i in images]
    assert columns["camera"] == [f"camera {i}.png" for i in images]


@pytest.mark.parametrize(
    ("rows", "header", "sentence"),
    [
        (lines(), "file,task,label,split", r"has the columns file, task, label, split, but needs.*add path"),
        ([], "", r"has the columns none, but needs"),
        ([], "path,task,label", r"names no labelled image"),
        (lines(), "path,task,label,label", r"more than one column label"),
        ([*lines(), ["0.png", "size"]], "path,task,label,split", r"1 line \(22\) with another number of values"),
        (
            [*lines()[1:], ["0.png", "t", "a", "dev"]],
            "path,task,label,split",
            r"1 split \('dev' in line 21\) other than",
        ),
        ([*lines(), ["0.png", "size", "large", "train"]], "path,task,label,split", r"0\.png in size\) two labels"),
        ([*lines(), ["0.png", "size", "small", "val"]], "path,task,label,split", r"0\.png in size\) two labels"),
        ([*lines(), ["x.png", "size", "small", "val"]], "path,task,label,split", r"1 image \(x\.png\).* is missing"),
    ],
)
def test_wrong_tables_are_told(photos, rows, header, sentence):
    with pytest.raises(UsageError, match=sentence):
        ready(manifest=str(write_csv(photos / "labels.csv", rows, header)))


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.csv", b"path,task,label\n\xff\xfe", "is no UTF-8 text"),
        ("a.csv", b'path,task,label\n"a,b,c', "is no table"),
        ("a.xlsx", b"", "ends in .xlsx, but must be .csv or .parquet"),
    ],
)
def test_files_that_are_no_tables(photos, name, content, sentence):
    (photos / name).write_bytes(content)
    with pytest.raises(UsageError, match=sentence):
        ready(manifest=str(photos / name))
    with pytest.raises(UsageError, match="is no file"):
        ready(manifest=str(photos / "none.csv"))


def test_double_lines_and_lines_without_label_are_counted(photos):
    rows = [*lines(), *lines()[:6], *([f"{i}.png", "size", "", ""] for i in range(8, 12)), ["", "", "", ""]]
    datamodule, told = notes(manifest=str(write_csv(photos / "labels.csv", rows)))
    check_lines(datamodule)
    assert "counted 6 images (0.png, 1.png, 2.png, 3.png, 4.png, ...) once" in told
    assert "left out 4 lines (28, 29, 30, 31) of" in told


def test_labels_unseen_in_training_and_images_of_two_parts_are_told(photos):
    rows = [row for row in lines() if row[2] != "huge" or row[3] != "train"]
    rows[0][3] = "test"  # 0.png stays in training for the other task
    told = notes(manifest=str(write_csv(photos / "labels.csv", rows)))[1]
    assert "1 label (size/huge) has no image for training" in told
    assert "1 image (0.png) is for training in one task" in told


def test_task_without_training_images_is_told(photos):
    rows = [row for row in lines() if row[1] != "size" or row[3] != "train"]
    with pytest.raises(UsageError, match=r"1 task \(size\) without images for training"):
        ready(manifest=str(write_csv(photos / "labels.csv", rows)))


def test_parts_that_are_not_given(photos):
    """Without validation part some training images are held out; without test part the validation part serves."""
    rows = [[*row[:3], "test" if row[3] == "test" else "train"] for row in lines()]
    datamodule = ready(manifest=str(write_csv(photos / "labels.csv", rows)), val_fraction=0.2)
    assert [len(getattr(datamodule, f"{part}_dataset")) for part in PARTS][2] == 6
    held_out = set(datamodule.val_dataset.index.tolist())
    assert held_out and not held_out & set(datamodule.train_dataset.index.tolist())
    assert ready(manifest=str(photos / "labels.csv"), val_fraction=0).validates_on_test
    rows = [[*row[:3], "val" if row[3] == "test" else "train"] for row in lines()]
    datamodule, told = notes(manifest=str(write_csv(photos / "labels.csv", rows)))
    assert "the validation part serves for testing" in told
    assert torch.equal(datamodule.test_dataset.index, datamodule.val_dataset.index)
    rows = [[*row[:3], "train"] for row in lines()]
    with pytest.raises(UsageError, match="no images for validation or testing"):
        ready(manifest=str(write_csv(photos / "labels.csv", rows)), val_fraction=0)


# -- drawn splits ----------------------------------------------------------------------------------------------------


def drawn(rows, groups, names, val=0.1, test=0.2, seed=0):
    rows, groups = np.array(rows), np.array(groups)
    return draw_parts(rows, groups, np.full(len(rows), DRAWN), names, val, test, seed)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 10, 1000])
def test_each_group_is_split_alike(count):
    names = [f"{i}.png" for i in range(3 * count)]
    parts = drawn(np.arange(3 * count), np.arange(3 * count) % 3, names)
    for group in range(3):
        train, val, test = np.bincount(parts[group::3], minlength=3)
        assert train + val + test == count and train >= 1
        assert val == (max(round(0.1 * count), 1) if count > 1 else 0)
        assert test == (max(round(0.2 * count), 1) if count > 2 else 0)


def test_shared_images_are_in_one_part_and_groups_still_alike():
    generator = np.random.default_rng(0)
    names = [f"{i}.png" for i in range(2000)]
    rows = np.concatenate([generator.permutation(2000)[:count] for count in (2000, 1000, 300)])
    groups = np.repeat([0, 1, 2], [2000, 1000, 300]) * 4 + rows % 4
    parts = drawn(rows, groups, names)
    part_of = {}
    for row, part in zip(rows.tolist(), parts.tolist(), strict=True):
        assert part_of.setdefault(row, part) == part
    for group in range(12):
        shares = np.bincount(parts[groups == group], minlength=3) / (groups == group).sum()
        np.testing.assert_allclose(shares, [0.7, 0.1, 0.2], atol=0.02)


def test_the_seed_decides_and_a_few_more_images_move_few_others():
    names = [f"{i}.png" for i in range(1000)]
    rows = np.arange(1000)
    parts = drawn(rows, rows % 2, names)
    assert (parts == drawn(rows, rows % 2, names)).all()
    assert (parts != drawn(rows, rows % 2, names, seed=1)).mean() > 0.2
    fewer = drawn(np.arange(980), rows[:980] % 2, names[:980])
    assert (fewer != parts[:980]).mean() < 0.02
    without_val = drawn(rows, rows % 2, names, val=0)
    assert ((without_val == 2) == (parts == 2)).all()


def test_one_image_per_class(tmp_path):
    for label in "abc":
        save(tmp_path / "t" / label / "0.png")
    with pytest.raises(UsageError, match="no images for validation or testing"):
        ready(tmp_path)


# -- normalisation, options, checkpoints -----------------------------------------------------------------------------


def test_mean_and_std_are_measured_on_the_training_part_or_given(tmp_path):
    generator = np.random.default_rng(0)
    for label, part, i in itertools.product("ab", ("train", "val"), range(5)):
        path = save(tmp_path / "t" / part / label / f"{i}.png")
        Image.fromarray(generator.integers(0, 100 if part == "train" else 255, (8, 8, 3), np.uint8)).save(path)
    datamodule = ready(tmp_path)
    pixels = datamodule.train_dataset[:][0].double() / 255
    torch.testing.assert_close(datamodule.mean, tuple(pixels.mean((0, 2, 3)).tolist()))
    torch.testing.assert_close(datamodule.std, tuple(pixels.std((0, 2, 3), correction=0).tolist()))
    given = ready(tmp_path, mean=[0.1, 0.2, 0.3], std=[0.4, 0.5, 0.6])
    assert (given.mean, given.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"image_size": 0}, "image_size is 0"),
        ({"resize": 4}, "resize is 4, but must be at least 8"),
        ({"test_fraction": 1.0}, "test_fraction is 1.0"),
        ({"val_fraction": 0.6, "test_fraction": 0.5}, "together below 1"),
        ({"sampling": 0.5}, "sampling is 0.5, but must be size, balanced or a temperature"),
        ({"mean": [0.5]}, "give both, or neither"),
        ({"mean": [0.5] * 3, "std": [0.5, 0, 1]}, "those of std above 0"),
        ({"mean": [124] * 3, "std": [58] * 3}, "from 0 to 1, as of images divided by 255"),
    ],
)
def test_options_are_checked(tmp_path, options, sentence):
    with pytest.raises(UsageError, match=sentence):
        ready(make_tree(tmp_path, count=3), **options)


@pytest.mark.parametrize("set_up_before", [True, False])
def test_a_checkpoints_split_and_normalisation_are_taken_over(tmp_path, set_up_before):
    root = make_tree(tmp_path)
    saved = ready(root, split_seed=3, val_fraction=0.2, resize=10)
    state = saved.state_dict()
    datamodule = ready(root) if set_up_before else made(root)
    datamodule.load_state_dict(state)
    datamodule.prepare_data()
    datamodule.setup("validate")
    for part in PARTS:
        assert contents(datamodule, part) == contents(saved, part)
    assert (datamodule.mean, datamodule.std) == (saved.mean, saved.std)
    assert datamodule.state_dict() == state


def test_a_changed_folder_is_told(tmp_path):
    root = make_tree(tmp_path / "root")
    state = ready(root).state_dict()
    save(root / "animals" / "cat" / "new.png", (0, 0, 99))
    datamodule = made(root)
    datamodule.load_state_dict(state)
    datamodule.prepare_data()
    with pytest.warns(UserWarning, match=r"the images for train of root .* are not those of the checkpoint's run"):
        datamodule.setup("validate")
    save(root / "animals" / "cow" / "0.png")
    (root / "colours" / "red").rename(root / "colours" / "pink")
    with pytest.raises(
        UsageError,
        match=r"has 2 new tasks or labels \(animals/cow, colours/pink\) and 1 missing task or label \(colours/red\)",
    ):
        made(root).load_state_dict(state)
    with pytest.raises(UsageError, match="images of size 8, but image_size is 9"):
        made(make_tree(tmp_path / "again"), image_size=9).load_state_dict(state)
    with pytest.raises(UsageError, match="trained on other data"):
        made(root).load_state_dict({"split_seed": 0, "val_fraction": 0.0})
