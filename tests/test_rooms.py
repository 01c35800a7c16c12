"""The rooms of the package: imports point down, and what overrides a hook of Lightning takes what the hook takes."""

import ast
import importlib
import inspect
import pkgutil
from pathlib import Path

import lightning as L
import pytest

import routing_lightning

PACKAGE = Path(routing_lightning.__file__).parent
# What each room may import of the package, beside itself and `errors`.
BELOW = {
    "nn": {"integers"},
    "routers": {"nn"},
    "networks": {"nn", "routers", "paths"},
    "modules": {"nn", "routers", "networks", "integers", "metrics", "noise", "paths", "rows", "targets", "trust"},
    "datamodules": {"integers", "noise", "paths", "targets", "trust"},
    "record": set(),
    "plots": {"record"},
    "callbacks": {"record", "paths", "plots", "rows", "routers", "saving", "targets"},
    "report": {"record", "paths", "plots"},
}


def imported(path: Path) -> set[str]:
    """Rooms of the package that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        found |= {name.split(".")[1] for name in names if name.startswith("routing_lightning.")}
    return found


@pytest.mark.parametrize("room", BELOW)
def test_imports_point_down(room):
    files = sorted((PACKAGE / room).glob("*.py"))
    assert files
    for path in files:
        # a room may be used at type checking time only, as policies do with the learners of their own room
        assert imported(path) <= {room, "errors", *BELOW[room]}, path


def test_no_room_of_pure_torch_knows_lightning():
    for room in ("nn", "routers", "networks"):
        for path in (PACKAGE / room).glob("*.py"):
            assert "lightning as" not in path.read_text() and "from lightning" not in path.read_text(), path


def classes() -> list[type]:
    names = [name for _, name, _ in pkgutil.walk_packages([str(PACKAGE)], "routing_lightning.")]
    found = {
        value
        for name in names
        for value in vars(importlib.import_module(name)).values()
        if inspect.isclass(value) and value.__module__.startswith("routing_lightning")
    }
    return sorted(found, key=lambda kind: kind.__qualname__)


HOOKS = [L.LightningModule, L.LightningDataModule, L.Callback]


@pytest.mark.parametrize(
    "kind", [kind for kind in classes() if issubclass(kind, tuple(HOOKS))], ids=lambda k: k.__name__
)
def test_nothing_overrides_a_hook_with_another_signature(kind):
    (base,) = [hooks for hooks in HOOKS if issubclass(kind, hooks)]
    steps = {"forward", "training_step", "validation_step", "test_step", "predict_step"}  # Lightning leaves these open
    for name, method in vars(kind).items():
        theirs = getattr(base, name, None)
        if name.startswith("__") or name in steps or not (inspect.isfunction(method) and inspect.isfunction(theirs)):
            continue
        ours, given = inspect.signature(method).parameters, inspect.signature(theirs).parameters
        open_ended = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        if {parameter.kind for parameter in ours.values()} >= set(open_ended):
            continue  # takes all
        for parameter in given.values():
            assert parameter.name in ours or parameter.kind is parameter.VAR_KEYWORD, (kind, name, parameter)
        added = [parameter for parameter in ours.values() if parameter.name not in given]
        assert all(p.default is not p.empty or p.kind in open_ended for p in added), (kind, name)


def test_a_classifier_has_fifteen_arguments_at_most():
    from routing_lightning.modules import MultiTaskClassifier, RoutedClassifier

    for kind in (RoutedClassifier, MultiTaskClassifier):
        assert len(inspect.signature(kind).parameters) <= 15
