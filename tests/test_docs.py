"""The Python of the pages: what it imports is there, and what stands alone runs; other files run the rest."""

import ast
import importlib
import re
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer

from routing_lightning.callbacks import RouteRecorder
from tests.conftest import ToyDataModule, toy_model

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SNIPPETS = {
    f"{page.stem}-{number}": snippet
    for page in PAGES
    for number, snippet in enumerate(re.findall(r"```python[^\n]*\n(.*?)```", page.read_text(), re.DOTALL))
}


@pytest.mark.parametrize("name", SNIPPETS)
def test_what_a_snippet_imports_of_the_package_is_there(name):
    for line in ast.walk(ast.parse(SNIPPETS[name])):
        if isinstance(line, ast.ImportFrom) and (line.module or "").startswith("routing_lightning"):
            module = importlib.import_module(line.module)
            for found in line.names:
                assert hasattr(module, found.name), f"{line.module} has no {found.name}"
                assert found.name in getattr(module, "__all__", [found.name]), f"{found.name} is not public"
        if isinstance(line, ast.Import):
            for found in line.names:
                if found.name.startswith("routing_lightning"):
                    importlib.import_module(found.name)


def test_the_snippets_of_the_front_page_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    first, second = (SNIPPETS[name] for name in ("README-0", "README-1"))
    assert "max_epochs=5" in first
    short = 'max_epochs=1, limit_train_batches=5, limit_val_batches=2, accelerator="cpu"'
    exec(compile(first.replace("max_epochs=5", short), "README-0", "exec"), found := {})
    assert "accuracy" in capsys.readouterr().out
    images = found["model"].normalise(torch.zeros(2, *found["data"].image_shape, dtype=torch.uint8))
    assert found["one"](images).shape == (2, 2)
    exec(compile(second, "README-1", "exec"), found)
    assert found["logits"].shape == (8, 5)


def test_the_snippet_about_the_raw_numbers_draws(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    snippet = SNIPPETS["visualise-0"]
    (path,) = re.findall(r'Path\("(lightning_logs/.*?/)routes.npz"\)', snippet)
    trainer = Trainer(
        max_epochs=1, accelerator="cpu", default_root_dir=tmp_path / path, logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, callbacks=[RouteRecorder()],
    )  # fmt: skip
    trainer.fit(toy_model(), ToyDataModule())
    exec(compile(snippet, "visualise-0", "exec"), {})
    assert Path("depth_1.pdf").read_bytes().startswith(b"%PDF")
