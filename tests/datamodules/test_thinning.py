"""Less data to train on, for every datamodule alike."""

from collections.abc import Callable

import hypothesis
import pytest
import torch
from hypothesis import strategies

from routing_lightning.datamodules import (
    CIFARMTLDataModule,
    DigitsMTLDataModule,
    FolderMTLDataModule,
    MINMTLDataModule,
    MixedMTLDataModule,
    MNISTMTLDataModule,
    MultiTaskDataModule,
)
from routing_lightning.datamodules.base import MultiTaskDataset
from routing_lightning.datamodules.folder import measured_moments
from routing_lightning.datamodules.thinning import shared_out, thin
from routing_lightning.errors import UsageError
from tests.fake_data import write_cifar_tree, write_mini_imagenet, write_mnist

Maker = Callable[..., MultiTaskDataModule]


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("data")
    write_cifar_tree(folder / "tree")
    return {
        "cifar": str(folder / "tree"),
        "folder": str(folder / "tree"),
        "mnist": str(write_mnist(folder / "mnist")),
        "mini": str(write_mini_imagenet(folder / "mini")),
    }


MAKERS: dict[str, Callable[[dict[str, str]], Maker]] = {
    "cifar": lambda roots: lambda **options: CIFARMTLDataModule(roots["cifar"], **options),
    "digits": lambda roots: DigitsMTLDataModule,
    "mnist": lambda roots: (
        lambda **options: MNISTMTLDataModule(roots["mnist"], train_per_class=12, test_per_class=2, **options)
    ),
    "mini": lambda roots: (
        lambda **options: MINMTLDataModule(roots["mini"], image_size=8, train_per_label=2, test_per_label=1, **options)
    ),
    # one task, cifar100, of 100 labels
    "folder": lambda roots: (
        lambda **options: FolderMTLDataModule(roots["folder"], image_size=8, val_fraction=0.0, **options)
    ),
}


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest, roots: dict[str, str]) -> Maker:
    return MAKERS[request.param](roots)


def ready(datamodule: MultiTaskDataModule) -> MultiTaskDataModule:
    datamodule.prepare_data()
    datamodule.setup("fit")
    return datamodule


def pairs(dataset: MultiTaskDataset) -> dict[tuple[int, int], int]:
    found, counts = torch.unique(torch.stack([dataset.tasks, dataset.labels]), dim=1, return_counts=True)
    return dict(zip(map(tuple, found.T.tolist()), counts.tolist(), strict=True))


def samples(dataset: MultiTaskDataset) -> list[tuple[int, int, int]]:
    return list(zip(dataset.index.tolist(), dataset.tasks.tolist(), dataset.labels.tolist(), strict=True))


def same(ours: MultiTaskDataset, theirs: MultiTaskDataset) -> bool:
    return samples(ours) == samples(theirs)


def test_a_share_of_each_label(make: Maker) -> None:
    whole, part = ready(make()), ready(make(train_fraction=0.4))
    expected = {pair: max(round(0.4 * count), 1) for pair, count in pairs(whole.train_dataset).items()}
    assert pairs(part.train_dataset) == expected
    assert set(samples(part.train_dataset)) < set(samples(whole.train_dataset))
    assert same(part.test_dataset, whole.test_dataset)
    assert same(ready(make(train_fraction=0.4)).train_dataset, part.train_dataset)  # as another process draws


def test_so_many_of_each_task(make: Maker) -> None:
    whole = ready(make())
    present = torch.bincount(whole.train_dataset.tasks).tolist()
    wanted = [max(count - 3 * task - 1, whole.classes_per_task[task]) for task, count in enumerate(present)]
    part = ready(make(train_per_task=wanted))
    assert torch.bincount(part.train_dataset.tasks).tolist() == wanted
    assert set(pairs(part.train_dataset)) == set(pairs(whole.train_dataset))
    assert same(part.test_dataset, whole.test_dataset)


def test_the_validation_part_is_that_of_the_whole(roots: dict[str, str]) -> None:
    make = MAKERS["digits"](roots)
    whole, part = ready(make(val_fraction=0.2)), ready(make(val_fraction=0.2, train_fraction=0.1))
    assert same(whole.val_dataset, part.val_dataset)
    assert len(part.train_dataset) < len(whole.train_dataset) / 9


def test_smaller_parts_lie_within_larger_ones_and_the_seed_draws_them() -> None:
    small, large = (ready(DigitsMTLDataModule(train_fraction=fraction)) for fraction in (0.02, 0.1))
    assert set(samples(small.train_dataset)) < set(samples(large.train_dataset))
    assert not same(ready(DigitsMTLDataModule(split_seed=1, train_fraction=0.1)).train_dataset, large.train_dataset)


def test_a_checkpoint_brings_its_part() -> None:
    saved = DigitsMTLDataModule(train_fraction=0.1).state_dict()
    other = ready(DigitsMTLDataModule())
    assert other.state_dict() == {"split_seed": 0, "val_fraction": 0.0}  # as before there were parts
    other.load_state_dict(saved)
    assert same(other.train_dataset, ready(DigitsMTLDataModule(train_fraction=0.1)).train_dataset)
    other.load_state_dict({"split_seed": 0, "val_fraction": 0.0})
    assert same(other.train_dataset, ready(DigitsMTLDataModule()).train_dataset)
    per_task = DigitsMTLDataModule(train_per_task=[20] * 10).state_dict()
    other.load_state_dict(per_task)
    assert len(other.train_dataset) == 200


@pytest.mark.parametrize(
    ("saved", "own", "told"),
    [
        ({"train_fraction": 0.1}, {}, "with train_fraction 0.1, not train_fraction 1.0 of the config"),
        ({}, {"train_fraction": 0.1}, "with train_fraction 1.0, not train_fraction 0.1 of the config"),
        ({"split_seed": 3}, {"val_fraction": 0.2}, "split_seed 3, val_fraction 0.0, not split_seed 0, val_fraction"),
        ({"train_per_task": [20] * 10}, {}, f"train_per_task {[20] * 10}, not train_per_task None of the config"),
    ],
)
@pytest.mark.parametrize("mixed", [False, True])
def test_what_a_checkpoint_says_otherwise_than_the_config_is_told(
    saved: dict, own: dict, told: str, mixed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def made(options: dict) -> MultiTaskDataModule:
        return MixedMTLDataModule([DigitsMTLDataModule()], **options) if mixed else DigitsMTLDataModule(**options)

    with caplog.at_level("INFO"):
        made(own).load_state_dict(made(own).state_dict())
        assert not caplog.records
        made(own).load_state_dict(made(saved).state_dict())
    (record,) = caplog.records
    assert told in record.getMessage()


def test_options_of_the_parts_of_a_mix_are_told_too(caplog: pytest.LogCaptureFixture) -> None:
    mixes = [MixedMTLDataModule([DigitsMTLDataModule(train_fraction=part)], ["a"]) for part in (0.5, 1.0)]
    with caplog.at_level("INFO"):
        mixes[0].load_state_dict(mixes[1].state_dict())
    assert "with a.train_fraction 1.0, not a.train_fraction 0.5 of the config" in caplog.text
    tasks = CIFARMTLDataModule(two_modalities=True), CIFARMTLDataModule()
    with caplog.at_level("INFO"):
        tasks[1].load_state_dict(tasks[0].state_dict())
    assert "with two_modalities True, not two_modalities False of the config" in caplog.text


def test_moments_are_those_of_what_is_trained_on(roots: dict[str, str]) -> None:
    part = ready(MAKERS["folder"](roots)(train_fraction=0.01))
    assert part.mean == tuple(measured_moments(part.train_dataset)[0])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"train_fraction": 0.0}, r"^train_fraction is 0\.0, but must be above 0 and at most 1"),
        ({"train_fraction": 1.5}, r"^train_fraction is 1\.5, but must be above 0"),
        ({"train_fraction": float("nan")}, r"^train_fraction is nan, but must be above 0"),
        ({"train_fraction": 0.5, "train_per_task": [20] * 10}, r"one of them says .*: leave the other out"),
        ({"train_per_task": []}, r"^train_per_task has 0 numbers, but there are 10 tasks: give one for each"),
        ({"train_per_task": [20, 0]}, r"^train_per_task is 0, but must be at least 1"),
        ({"train_per_task": [20] * 9}, r"^train_per_task has 9 numbers, but there are 10 tasks: give one for each"),
        (
            {"train_per_task": [20] * 9 + [1541]},
            r"1541 training images of the task digit_9, which has 1540: give a number from 2, one of each label, to",
        ),
        (
            {"train_per_task": [1] + [20] * 9},
            r"for 1 training images of the task digit_0.* from 2, one of each label, to 1540",
        ),
    ],
)
def test_wrong_values(options: dict, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        ready(DigitsMTLDataModule(**options))


@hypothesis.given(strategies.lists(strategies.integers(1, 40), min_size=1, max_size=8), strategies.data())
def test_any_number_from_one_of_each_label_to_all(sizes: list[int], data: strategies.DataObject) -> None:
    wanted = data.draw(strategies.integers(len(sizes), sum(sizes)))
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    kept = thin(torch.zeros_like(labels), labels, 1.0, [wanted], ["a"], 0)
    counts = torch.bincount(labels[kept], minlength=len(sizes)).tolist()
    assert len(set(kept.tolist())) == sum(counts) == wanted
    assert all(1 <= count <= size for count, size in zip(counts, sizes, strict=True))


@hypothesis.given(strategies.integers(0, 1000), strategies.lists(strategies.floats(0.1, 10), min_size=1, max_size=9))
def test_shares_are_whole_and_in_proportion(total: int, weights: list[float]) -> None:
    shares = shared_out(total, weights)
    assert sum(shares) == total
    assert all(abs(s - total * w / sum(weights)) < 1 + 1e-6 for s, w in zip(shares, weights, strict=True))
