import hashlib
import io
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from urllib.error import URLError

import pytest
import torch
from torchvision.datasets import CIFAR100

from routing_lightning.datamodules import CIFARMTLDataModule
from routing_lightning.datamodules.cifar import SUPERCLASSES
from routing_lightning.errors import UsageError

FINE_CLASSES = sorted(name for names in SUPERCLASSES.values() for name in names)


def ready(root: Path, **options: object) -> CIFARMTLDataModule:
    datamodule = CIFARMTLDataModule(str(root), download=False, **options)  # type: ignore[arg-type]
    datamodule.prepare_data()
    datamodule.setup("fit")
    return datamodule


@pytest.fixture(params=["tree", "bare tree", "archive"])
def root(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    cifar_tree: Path,
    write_cifar_archive: Callable[..., Path],
) -> Path:
    if request.param == "archive":
        return write_cifar_archive(tmp_path / "archive", per_class=3).parent
    return cifar_tree if request.param == "tree" else cifar_tree / "cifar100"


def test_table_of_superclasses() -> None:
    assert len(SUPERCLASSES) == 20
    assert len(set(FINE_CLASSES)) == 100
    assert all(list(names) == sorted(names) for names in SUPERCLASSES.values())
    assert next(iter(SUPERCLASSES.items())) == (
        "aquatic_mammals",
        ("beaver", "dolphin", "otter", "seal", "whale"),
    )


def test_tasks_labels_and_pixels(root: Path) -> None:
    datamodule = ready(root)
    assert (datamodule.num_tasks, datamodule.num_classes, datamodule.image_shape) == (20, 5, (3, 32, 32))
    assert datamodule.task_names[0] == "aquatic_mammals"
    assert set(datamodule.class_names[0]) == {"beaver", "dolphin", "otter", "seal", "whale"}
    assert (len(datamodule.train_dataset), len(datamodule.test_dataset)) == (300, 100)
    for dataset in (datamodule.train_dataset, datamodule.test_dataset):
        assert dataset.images.is_contiguous(memory_format=torch.channels_last)
        pairs = set(zip(dataset.tasks.tolist(), dataset.labels.tolist(), strict=True))
        assert pairs == {(task, label) for task in range(20) for label in range(5)}
        images, tasks, labels = dataset[torch.arange(len(dataset))]
        # both layouts paint an image with the number of its fine class (green)
        greens = images[:, 1, 5, 5].tolist()
        for green, task, label in zip(greens, tasks.tolist(), labels.tolist(), strict=True):
            assert FINE_CLASSES[green] == datamodule.class_names[task][label]


@pytest.mark.parametrize(("num_tasks", "second"), [(10, "flowers_to_food_containers"), (2, ""), (4, ""), (1, None)])
def test_superclasses_that_follow_each_other_make_one_task(cifar_tree: Path, num_tasks: int, second: str) -> None:
    apart, together = (
        ready(cifar_tree, num_tasks=number, val_fraction=0.34, train_fraction=0.5) for number in (20, num_tasks)
    )
    of_each = 100 // num_tasks
    assert (together.num_tasks, together.num_classes) == (num_tasks, of_each)
    assert together.classes_per_task == [of_each] * num_tasks
    assert [name for names in together.class_names for name in names] == [n for ns in apart.class_names for n in ns]
    if second:
        assert together.task_names[1] == second
    assert together.task_names[0].startswith("aquatic_mammals_to_") and together.task_names[-1].endswith("_vehicles_2")
    for part in ("train_dataset", "val_dataset", "test_dataset"):
        ours, theirs = getattr(together, part), getattr(apart, part)
        assert torch.equal(ours.index, theirs.index)  # the same images, whatever the tasks
        assert torch.equal(of_each * ours.tasks + ours.labels, 5 * theirs.tasks + theirs.labels)


@pytest.mark.parametrize("number", [0, -4, 3, 40])
def test_superclasses_make_few_numbers_of_tasks(cifar_tree: Path, number: int) -> None:
    with pytest.raises(UsageError, match=rf"^num_tasks is {number}, but 20 superclasses make 1, 2, 4, 5, 10, 20 tasks"):
        ready(cifar_tree, num_tasks=number)


def test_every_second_task_sees_another_modality(tmp_path: Path, write_cifar_archive: Callable[..., Path]) -> None:
    root = write_cifar_archive(tmp_path).parent
    plain, two = (ready(root, two_modalities=given, val_fraction=0.5) for given in (False, True))
    for part in ("train_dataset", "val_dataset", "test_dataset"):
        everything = torch.arange(len(getattr(plain, part)))
        (before, tasks, labels), (after, *same) = getattr(plain, part)[everything], getattr(two, part)[everything]
        assert torch.equal(tasks, same[0]) and torch.equal(labels, same[1])
        assert after.is_contiguous(memory_format=torch.channels_last)
        odd = tasks % 2 == 1
        assert torch.equal(after[~odd], before[~odd])
        for image, seen in zip(before[odd], after[odd], strict=True):
            assert torch.equal(seen, 255 - torch.rot90(image, 1, (1, 2))[[2, 1, 0]])
    assert torch.equal(plain.train_dataset.images, two.train_dataset.images)  # nothing is changed in memory


def test_a_checkpoint_brings_its_modalities(cifar_tree: Path) -> None:
    two, plain = ready(cifar_tree, two_modalities=True), ready(cifar_tree)
    assert "two_modalities" not in plain.state_dict()
    before, everything = plain.test_dataset[torch.arange(100)][0], torch.arange(100)
    plain.load_state_dict(two.state_dict())
    assert torch.equal(plain.test_dataset[everything][0], two.test_dataset[everything][0])
    plain.load_state_dict({"split_seed": 0, "val_fraction": 0.0})
    assert torch.equal(plain.test_dataset[everything][0], before)


def test_two_modalities_need_two_tasks(cifar_tree: Path) -> None:
    with pytest.raises(UsageError, match="two_modalities is true with num_tasks=1, .*: raise it"):
        ready(cifar_tree, two_modalities=True, num_tasks=1)


def test_archive_keeps_channels_apart(tmp_path: Path, write_cifar_archive: Callable[..., Path]) -> None:
    images, _, _ = ready(write_cifar_archive(tmp_path).parent).test_dataset[torch.tensor([7])]
    assert images[0, :, 0, 0].tolist() == [255, 7, 7]
    assert (images[0, :, 0, 1].tolist(), images[0, :, 1, 0].tolist()) == ([107, 7, 7], [107, 7, 7])


def test_archive_goes_before_a_tree(cifar_tree: Path, write_cifar_archive: Callable[..., Path]) -> None:
    write_cifar_archive(cifar_tree, per_class=2)
    assert len(ready(cifar_tree).train_dataset) == 200


def test_validation_part(root: Path) -> None:
    datamodule = ready(root, val_fraction=0.34)
    pairs = datamodule.val_dataset.tasks * 5 + datamodule.val_dataset.labels
    assert torch.bincount(pairs).tolist() == [1] * 100
    assert len(datamodule.train_dataset) == 200
    assert not set(datamodule.train_dataset.index.tolist()) & set(datamodule.val_dataset.index.tolist())


def test_cache_folder(cifar_tree: Path, tmp_path: Path) -> None:
    ready(cifar_tree)
    assert len(list((cifar_tree / ".cache").iterdir())) == 1
    ready(cifar_tree, cache_dir=str(tmp_path / "elsewhere"))
    assert len(list((tmp_path / "elsewhere").iterdir())) == 1


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"no CIFAR-100 in {tmp_path}.*download: true"):
        ready(tmp_path)
    with pytest.raises(UsageError, match=r"no CIFAR-100 in .*absent.*download: true"):
        ready(tmp_path / "absent")


def test_download_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise URLError("no route\nto host")

    monkeypatch.setattr("torchvision.datasets.cifar.download_and_extract_archive", fail)
    with pytest.raises(UsageError, match=r"cifar-100-python and downloading.*no route to host.*download: false"):
        CIFARMTLDataModule(str(tmp_path)).prepare_data()


@pytest.mark.parametrize("name", ["train", "test", "meta"])
def test_half_written_archive(tmp_path: Path, write_cifar_archive: Callable[..., Path], name: str) -> None:
    path = write_cifar_archive(tmp_path) / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UsageError, match=rf"{path} is missing or incomplete.*download: true"):
        ready(tmp_path)
    path.unlink()
    with pytest.raises(UsageError, match=rf"{path} is missing or incomplete"):
        ready(tmp_path)


def test_archive_with_other_superclasses(tmp_path: Path, write_cifar_archive: Callable[..., Path]) -> None:
    write_cifar_archive(tmp_path, wrong_group=True)
    with pytest.raises(UsageError, match="'trout' into the superclass 'aquatic_mammals'"):
        ready(tmp_path)


def test_tree_with_other_classes(cifar_tree: Path) -> None:
    (cifar_tree / "cifar100" / "test" / "apple").rename(cifar_tree / "cifar100" / "test" / "apples")
    with pytest.raises(UsageError, match=r"test must hold .*1 unknown \(apples\) and 1 missing \(apple\)"):
        ready(cifar_tree)


def test_tree_without_a_part(cifar_tree: Path) -> None:
    (cifar_tree / "cifar100" / "test").rename(cifar_tree / "cifar100" / "tset")
    with pytest.raises(UsageError, match=r"100 missing \(apple, aquarium_fish, baby, bear, beaver and 95 more\)"):
        ready(cifar_tree)


def test_tree_with_an_empty_class(cifar_tree: Path) -> None:
    (cifar_tree / "cifar100" / "test" / "apple" / "apple_0.png").unlink()
    with pytest.raises(UsageError, match=r"test/apple holds 0 images"):
        ready(cifar_tree)


def test_tree_with_an_unreadable_image(cifar_tree: Path) -> None:
    path = cifar_tree / "cifar100" / "test" / "apple" / "apple_0.png"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(UsageError, match=r"cannot read the image .*apple_0\.png"):
        ready(cifar_tree)


def test_tree_that_was_not_decoded(cifar_tree: Path) -> None:
    with pytest.raises(UsageError, match=r"call prepare_data\(\) first"):
        CIFARMTLDataModule(str(cifar_tree)).setup()


def member(name: str, **values: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for key, value in values.items():
        setattr(info, key, value)
    return info


FILE = tarfile.REGTYPE
EVIL = {
    "above": [member("../outside/evil")],
    "above within": [member("cifar-100-python/../../outside/evil")],
    "absolute": [member("{outside}/evil")],
    "symbolic link": [member("link", type=tarfile.SYMTYPE, linkname="{outside}"), member("link/evil")],
    "absolute link": [member("link", type=tarfile.SYMTYPE, linkname="/etc/passwd")],
    "hard link": [member("link", type=tarfile.LNKTYPE, linkname="../outside/secret")],
    "pipe": [member("pipe", type=tarfile.FIFOTYPE)],
    "device": [member("device", type=tarfile.CHRTYPE, devmajor=1, devminor=3)],
}


@pytest.mark.parametrize("kind", EVIL)
def test_members_of_archives_stay_in_their_folder(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even of one whose checksum is right."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (outside / "secret").write_text("secret")
    path = root / CIFAR100.filename
    with tarfile.open(path, "w:gz") as archive:
        for info in EVIL[kind]:
            info.name, info.linkname = info.name.format(outside=outside), info.linkname.format(outside=outside)
            info.size = 4 if info.type == FILE else 0
            archive.addfile(info, io.BytesIO(b"evil") if info.type == FILE else None)
    monkeypatch.setattr(CIFAR100, "tgz_md5", hashlib.md5(path.read_bytes()).hexdigest())
    before = vars(tarfile.TarFile).get("extraction_filter")
    with pytest.raises(UsageError, match="downloading it failed"):
        CIFARMTLDataModule(str(root)).prepare_data()
    assert [entry.name for entry in outside.iterdir()] == ["secret"]
    written = [entry for entry in root.rglob("*") if entry != path and entry.exists()]
    assert all(entry.resolve().is_relative_to(root) and (entry.is_file() or entry.is_dir()) for entry in written)
    assert vars(tarfile.TarFile).get("extraction_filter") == before


def test_an_archive_with_another_checksum_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "other.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.addfile(member("cifar-100-python/train"), io.BytesIO())
    monkeypatch.setattr("torchvision.datasets.utils._urlretrieve", lambda url, to, *_: shutil.copy(path, to))
    with pytest.raises(UsageError, match="downloading it failed"):
        CIFARMTLDataModule(str(tmp_path)).prepare_data()
    assert not (tmp_path / "cifar-100-python").exists()
