"""Follows docs/own-network.md word by word, on a made-up CIFAR-100."""

import glob
import re
import shlex
from pathlib import Path

import pytest
import torch
from torchvision.models import resnet18

from routing_lightning.cli import main
from routing_lightning.export import load
from tests.test_cli import refused

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "own-network.md").read_text()
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
FILES = dict(re.findall(r"```yaml\n# (\S+)\n(.*?)```", PAGE, re.DOTALL))
FIT, TEST, EXPORT, REPORT, PRETRAINED = COMMANDS
SHORT = ["--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]
FEW = ["--trainer.max_epochs=1", "--trainer.limit_train_batches=2", "--trainer.limit_val_batches=1"]


@pytest.fixture
def here(cifar_tree, monkeypatch) -> Path:
    """The page's files, the data and the shipped configs in the working directory."""
    folder = cifar_tree.parent
    (folder / "data").symlink_to(cifar_tree)
    (folder / "configs").symlink_to(ROOT / "configs")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    monkeypatch.chdir(folder)
    return folder


def words_of(command: str, *options: str) -> list[str]:
    words = shlex.split(command)
    assert words[:2] == ["python", "train.py"]
    return [*(found for word in words[2:] for found in (glob.glob(word) if "*" in word else [word])), *options]


def test_the_pages_commands(here):
    fitted = main(words_of(FIT, *FEW, *SHORT))
    assert [layer.blocks.num_blocks for layer in fitted.model.network.layers] == [4, 20]
    tested = main(words_of(TEST, "--trainer.limit_test_batches=1", *SHORT))
    assert 0 <= tested.trainer.callback_metrics["test/acc"] <= 1
    main(words_of(EXPORT))
    images = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
    logits = load(Path("exported/fish.pt2"))[0](images)
    with torch.no_grad():
        fish = torch.full((2,), fitted.datamodule.task_names.index("fish"))
        torch.testing.assert_close(logits, fitted.model.eval()(images, fish))
    main(words_of(REPORT))
    assert "fish" in Path("report/report.html").read_text()


def test_the_pages_pretrained_network(here, capsys):
    torch.save(resnet18().state_dict(), "resnet18.pth")
    saved = torch.load("resnet18.pth", weights_only=True)
    cli = main(words_of(PRETRAINED, "--trainer.fast_dev_run=1", *SHORT))
    groups = cli.trainer.optimizers[0].param_groups
    assert [group["lr"] for group in groups] == pytest.approx([0.01, 0.001])
    backbone = cli.model.network.body.body
    slow = {id(parameter) for parameter in groups[1]["params"]}
    assert id(backbone.conv1.weight) in slow and id(backbone.layer3[0].conv1.weight) in slow
    fast = {id(parameter) for parameter in groups[0]["params"]}
    assert fast == {id(p) for part in (backbone.layer4, backbone.fc) for p in part.parameters()}
    moved = float((backbone.conv1.weight.detach() - saved["conv1.weight"]).abs().max())
    assert 0 < moved < 0.01
    Path("resnet18.pth").unlink()
    assert "weights resnet18.pth of resnet18 cannot be had" in refused(capsys, *words_of(PRETRAINED, *SHORT))
