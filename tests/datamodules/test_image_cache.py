import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from routing_lightning.datamodules import image_cache
from routing_lightning.datamodules.image_cache import ImageCache, class_folders, decode, image_names
from routing_lightning.errors import UsageError

NAMES = [f"{i}.png" for i in range(5)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "images"
    root.mkdir()
    for i, name in enumerate(NAMES):
        Image.fromarray(np.full((6, 6, 3), 10 * i, np.uint8)).save(root / name)
    return root


def colours(images: torch.Tensor) -> list[int]:
    return images[:, 0, 0, 0].tolist()


def test_images_come_in_order_as_uint8_channels_last(folder: Path) -> None:
    cache = ImageCache(folder, NAMES[::-1], 6)
    cache.prepare()
    images = cache.load()
    assert images.shape == (5, 3, 6, 6)
    assert images.dtype == torch.uint8
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert colours(images) == [40, 30, 20, 10, 0]
    assert cache.path.parent == folder / ".cache"


def test_second_prepare_decodes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ImageCache(folder, NAMES, 6).prepare()
    monkeypatch.setattr(image_cache, "decode", lambda path, size: pytest.fail("decoded again"))
    ImageCache(folder, NAMES, 6).prepare()


def test_changed_images_sizes_and_names_have_a_cache_of_their_own(folder: Path) -> None:
    before = ImageCache(folder, NAMES, 6).path
    assert ImageCache(folder, NAMES, 5).path != before
    assert ImageCache(folder, NAMES[1:], 6).path != before
    os.utime(folder / NAMES[0], ns=(0, 0))
    assert ImageCache(folder, NAMES, 6).path != before


def test_writing_to_the_images_does_not_change_the_cache(folder: Path) -> None:
    cache = ImageCache(folder, NAMES, 6)
    cache.prepare()
    cache.load().zero_()
    assert colours(cache.load()) == [0, 10, 20, 30, 40]


def test_a_run_that_breaks_off_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_off(path: Path, size: int) -> np.ndarray:
        if path.name == "3.png":
            raise KeyboardInterrupt
        return decode(path, size)

    cache = ImageCache(folder, NAMES, 6)
    with monkeypatch.context() as patch:
        patch.setattr(image_cache, "decode", break_off)
        with pytest.raises(KeyboardInterrupt):
            cache.prepare()
    assert list(cache.folder.iterdir()) == []
    with pytest.raises(UsageError, match=r"not decoded.*call prepare_data\(\) first"):
        cache.load()
    cache.prepare()
    assert colours(cache.load()) == [0, 10, 20, 30, 40]


def test_leftover_of_a_killed_run_does_no_harm(folder: Path) -> None:
    cache = ImageCache(folder, NAMES, 6)
    cache.folder.mkdir()
    (cache.folder / f"{cache.path.name}.0123.tmp").write_bytes(b"\x93NUMPY half")
    cache.prepare()
    assert colours(cache.load()) == [0, 10, 20, 30, 40]


@pytest.mark.parametrize("damage", ["truncated", "empty", "other shape", "no array"])
def test_damaged_cache_is_refused_and_made_anew(folder: Path, damage: str) -> None:
    cache = ImageCache(folder, NAMES, 6)
    cache.prepare()
    good = cache.path.read_bytes()
    if damage == "other shape":
        np.save(cache.path, np.zeros((1, 6, 6, 3), np.uint8))
    else:
        cache.path.write_bytes({"truncated": good[:-10], "empty": b"", "no array": b"x" * len(good)}[damage])
    with pytest.raises(UsageError, match="missing or damaged"):
        cache.load()
    cache.prepare()
    assert cache.path.read_bytes() == good


def test_two_runs_at_once(folder: Path) -> None:
    caches = [ImageCache(folder, NAMES, 6) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ImageCache.prepare, caches))
    assert colours(caches[0].load()) == [0, 10, 20, 30, 40]
    assert list(caches[0].folder.iterdir()) == [caches[0].path]


def test_more_images_than_are_decoded_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_cache, "CHUNK", 2)
    cache = ImageCache(folder, NAMES, 6)
    cache.prepare()
    assert colours(cache.load()) == [0, 10, 20, 30, 40]


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "1"])
def test_decode_gives_rgb_of_the_asked_size(tmp_path: Path, mode: str) -> None:
    Image.new("RGB", (20, 10), (255, 255, 255)).convert(mode).save(tmp_path / "a.png")
    assert (decode(tmp_path / "a.png", 4) == np.full((4, 4, 3), 255)).all()


def test_decode_large_jpeg(tmp_path: Path) -> None:
    Image.new("RGB", (400, 300), (200, 100, 50)).save(tmp_path / "a.jpg", quality=95)
    pixels = decode(tmp_path / "a.jpg", 20)
    assert pixels.shape == (20, 20, 3)
    assert np.abs(pixels.astype(int) - [200, 100, 50]).max() <= 3


@pytest.mark.parametrize("content", [b"", b"no image", "truncated"])
def test_unreadable_image_is_named(folder: Path, content: bytes | str) -> None:
    path = folder / "2.png"
    noise = np.random.default_rng(0).integers(0, 255, (60, 60, 3), np.uint8)
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[:2000] if isinstance(content, str) else content)
    with pytest.raises(UsageError, match=r"cannot read the image .*2\.png .*replace or remove it"):
        ImageCache(folder, NAMES, 6).prepare()


def test_missing_image_is_named(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"image .*gone\.png is missing"):
        ImageCache(folder, ["gone.png"], 6)


def test_folder_that_cannot_be_written(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot write the decoded images to .*file.*set cache_dir"):
        ImageCache(folder, NAMES, 6, str(tmp_path / "file" / "cache")).prepare()


def test_full_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: ImageCache, path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ImageCache, "_write", full)
    with pytest.raises(UsageError, match=r"No space left on device.*set cache_dir"):
        ImageCache(folder, NAMES, 6).prepare()


def test_listing_passes_over_what_is_no_image(folder: Path) -> None:
    (folder / "notes.txt").write_text("")
    (folder / ".hidden.png").write_text("")
    (folder / "B.JPEG").write_text("")
    (folder / "sub").mkdir()
    (folder / ".cache").mkdir()
    assert image_names(folder) == [*NAMES, "B.JPEG"]
    assert class_folders(folder) == ["sub"]
    assert class_folders(folder / "none") == []
