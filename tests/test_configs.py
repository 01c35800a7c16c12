"""Each shipped config runs through the real command line, on small data of the right layout."""

import inspect
from itertools import combinations
from pathlib import Path

import pytest
import torch
import yaml
from lightning.pytorch import Trainer

from routing_lightning.cli import main
from tests.fake_data import small_options, write_cifar_tree, write_mini_imagenet, write_mnist

CONFIGS = Path(__file__).parents[1] / "configs"
JOBS = [path.stem for path in sorted(CONFIGS.glob("*.yaml"))]
DATA, METHODS, NETWORKS, PROTOCOLS, TRAINERS = (
    [f"{folder}/{path.stem}" for path in sorted((CONFIGS / folder).glob("*.yaml"))]
    for folder in ("data", "methods", "networks", "protocols", "trainer")
)
AFTER = "methods/pcgrad"  # goes after another method
ROUTED = "methods/wpl"
COMBINATIONS = [
    *((job,) for job in JOBS),
    *(("data/cifar_mtl", method) for method in METHODS if method != AFTER),
    *(("data/cifar_mtl", method, AFTER) for method in (ROUTED, "methods/task_specific_all_fc")),
    *(("data/cifar_mtl", method, network) for method in (ROUTED, "methods/gumbel") for network in NETWORKS),
    *(("data/cifar_mtl", "methods/branching", "networks/all_layers", protocol) for protocol in PROTOCOLS),
    *((data, ROUTED) for data in DATA if data != "data/cifar_mtl"),
]


# The same data for all, decoded once.
@pytest.fixture(scope="module")
def cifar_tree(tmp_path_factory) -> Path:
    return write_cifar_tree(tmp_path_factory.mktemp("cifar"))


@pytest.fixture(scope="module")
def mnist_root(tmp_path_factory) -> Path:
    return write_mnist(tmp_path_factory.mktemp("mnist"))


@pytest.fixture(scope="module")
def mini_imagenet_root(tmp_path_factory) -> Path:
    return write_mini_imagenet(tmp_path_factory.mktemp("mini_imagenet"))


@pytest.fixture
def small_data(request: pytest.FixtureRequest, parts: tuple[str, ...]) -> list[str]:
    """Options that point configs to small data."""
    text = "".join((CONFIGS / f"{part}.yaml").read_text() for part in parts)
    return small_options(text, request.getfixturevalue)


# One of each kind of model runs again with all that records, which takes longest; the others without.
SAVED_AGAIN = {
    *((job,) for job in ("digits_mtl", "mnist_mtl", "min_mtl")),
    *(("data/cifar_mtl", f"methods/{name}") for name in ("cross_stitch", "reinforce_mlp", "top1")),
    ("data/cifar_mtl", ROUTED, "networks/resnet18"),
}


def words_of(parts: tuple[str, ...]) -> list[str]:
    return [word for part in parts for word in ("--config", str(CONFIGS / f"{part}.yaml"))]


@pytest.mark.parametrize("parts", COMBINATIONS, ids="+".join)
def test_configs_run_and_their_saved_config_runs_again(parts, small_data, tmp_path):
    if AFTER in parts:
        pytest.importorskip("torchjd", reason="the extra jd is not installed")
    batches = [f"--trainer.limit_{part}_batches=1" for part in ("train", "val")]
    short = ["--trainer.max_epochs=1", "--trainer.num_sanity_val_steps=0", *batches]
    folder = [f"--trainer.default_root_dir={tmp_path}", "--trainer.enable_progress_bar=false"]
    cli = main(["fit", *words_of(parts), *small_data, "--trainer.accelerator=cpu", *short, *folder])
    assert cli.trainer.global_step == 1
    faster = [] if parts in SAVED_AGAIN else ["--record=null"]
    again = main(["fit", f"--config={Path(cli.trainer.log_dir) / 'config.yaml'}", *faster])
    assert again.trainer.log_dir != cli.trainer.log_dir
    metrics, expected = again.trainer.callback_metrics, cli.trainer.callback_metrics
    assert "val/loss" in metrics and (faster or set(metrics) == set(expected))
    for name, value in metrics.items():
        assert torch.equal(value, expected[name]) or value.isnan(), name
    for ours, theirs in zip(again.model.parameters(), cli.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_trainer_configs_name_options_of_the_trainer():
    for part in TRAINERS:
        options = yaml.safe_load((CONFIGS / f"{part}.yaml").read_text())["trainer"]
        assert {name.removesuffix("+") for name in options} <= set(inspect.signature(Trainer).parameters)


def blocks_of(path: Path, size: int = 6) -> set[tuple[str, ...]]:
    lines = [line.rstrip() for line in path.read_text().splitlines() if line.strip()]
    return {tuple(lines[i : i + size]) for i in range(len(lines) - size + 1)}


def test_each_config_says_what_it_is_about_and_no_more():
    """The four complete jobs apart, no two files share a block of lines, and all of them are short."""
    paths = sorted(CONFIGS.rglob("*.yaml"))
    assert sum(len(path.read_text().splitlines()) for path in paths) <= 400
    for ours, theirs in combinations(paths, 2):
        if not ours.parent == theirs.parent == CONFIGS:
            assert not blocks_of(ours) & blocks_of(theirs), (ours, theirs)
