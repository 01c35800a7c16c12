"""Every row of docs/export.md: each shipped method is written as files that give what it gives."""

import re
from pathlib import Path

import pytest
import torch

from routing_lightning.export import TaskNetwork, load, plain_network, save
from tests.export.test_plain import trained_look
from tests.test_methods import CONFIGS, ROOT, built, files_of

PAGE = (ROOT / "docs" / "export.md").read_text()
ROWS = {}
for line in PAGE.split("## What each method exports to")[1].splitlines():
    if line.startswith("| `"):
        config, exact, onnx, what = (cell.strip() for cell in line.strip("|").split("|"))
        ROWS[config.replace("`", "")] = {"config": config, "exact": exact, "onnx": onnx, "what": what}


def test_the_page_has_every_method_and_network():
    named = {path for row in ROWS.values() for path in files_of(row)}
    assert named == {*(CONFIGS / "methods").glob("*.yaml"), *(CONFIGS / "networks").glob("*.yaml")}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
@torch.no_grad()
def test_what_the_page_says_of_a_method_holds(row, tmp_path):
    if "pcgrad" in row["config"]:
        pytest.importorskip("torchjd", reason="the extra jd is not installed")
    model = trained_look(built(row, num_tasks=4))  # each more takes longer and shows no more
    task, classes = 3, 5
    moments = torch.full((3, 1, 1), 1 / 64), torch.full((3, 1, 1), -2.0)
    network = TaskNetwork(plain_network(model, task), classes, moments).eval()
    images = torch.randint(256, (5, 32, 32, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    theirs = model(images.float().mul_(moments[0]).add_(moments[1]), torch.full((5,), task))
    size = float(theirs.abs().max())
    ways = {"torch": tmp_path / "network.pt2"}
    if row["onnx"] == "yes" and not missing():
        ways["onnx"] = tmp_path / "network.onnx"
    for kind, path in ways.items():
        save(network, images[:2], path, {"task": 3}, kind)
        run, metadata = load(path)
        assert metadata == {"task": 3}
        ours = run(images)
        if kind == "torch" and row["exact"] == "exact":
            assert torch.equal(ours, theirs)
        else:
            assert float((ours - theirs).abs().max()) <= 1e-5 * max(1, size)
    smaller = Path(ways["torch"]).stat().st_size < 4 * sum(p.numel() for p in model.parameters())
    assert smaller or re.match("whole|the one network|shared layers", row["what"])


def missing() -> bool:
    from importlib.util import find_spec

    return any(find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime"))
