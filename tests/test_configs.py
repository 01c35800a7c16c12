"""Each shipped config runs through the real command line, on small data of the right layout."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from routing_lightning.cli import main

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.yaml"))


@pytest.fixture
def mini_imagenet_root(tmp_path: Path) -> Path:
    root = tmp_path / "mini"
    for label in range(50):
        folder = root / f"n{label:04d}"
        folder.mkdir(parents=True)
        for image in range(3):
            noise = np.random.default_rng(10 * label + image).integers(0, 255, (20, 20, 3), np.uint8)
            Image.fromarray(noise).save(folder / f"{image}.png")
    return root


@pytest.fixture
def small_data(request: pytest.FixtureRequest, config: Path) -> list[str]:
    """Options that point a config to small data."""
    text = config.read_text()
    if "CIFARMTL" in text:
        return [f"--data.init_args.root={request.getfixturevalue('cifar_tree')}"]
    if "MNISTMTL" in text:
        root = request.getfixturevalue("mnist_root")
        counts = ["--data.init_args.train_per_class=10", "--data.init_args.test_per_class=4"]
        return [f"--data.init_args.root={root}", *counts]
    if "MINMTL" in text:
        root = request.getfixturevalue("mini_imagenet_root")
        counts = ["--data.init_args.train_per_label=2", "--data.init_args.test_per_label=1"]
        return [f"--data.init_args.root={root}", *counts]
    return []


ONE_PROCESS = ["--trainer.accelerator=cpu", "--trainer.devices=1", "--trainer.strategy=auto"]


# One of each kind of model: what a saved config must carry does not differ between the others.
SAVED_AGAIN = {"digits_mtl", "mnist_mtl", "min_mtl", "cifar_cross_stitch", "cifar_reinforce_mlp", "cifar_top1"}


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_config_runs_and_its_saved_config_runs_again(config, small_data, tmp_path):
    if "pcgrad" in config.stem:
        pytest.importorskip("torchjd", reason="the extra jd is not installed")
    batches = [f"--trainer.limit_{part}_batches=1" for part in ("train", "val")]
    short = ["--trainer.max_epochs=1", "--trainer.num_sanity_val_steps=0", *batches]
    folder = [f"--trainer.default_root_dir={tmp_path}", "--trainer.enable_progress_bar=false"]
    cli = main(["fit", f"--config={config}", *small_data, *ONE_PROCESS, *short, *folder])
    assert cli.trainer.global_step == 1
    if config.stem not in SAVED_AGAIN:
        return
    again = main(["fit", f"--config={Path(cli.trainer.log_dir) / 'config.yaml'}"])
    assert again.trainer.log_dir != cli.trainer.log_dir
    for name, value in cli.trainer.callback_metrics.items():
        assert value == again.trainer.callback_metrics[name], name
