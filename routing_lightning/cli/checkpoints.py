"""Checkpoints on the command line: which one is meant, and the config that it carries."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
import yaml

from routing_lightning.errors import UsageError
from routing_lightning.paths import local_path
from routing_lightning.trust import Trust, signature_of

CONFIG_KEY = "routing_lightning_config"
"""Key of a checkpoint below which the config of its run lies, as YAML text."""

SIZES = ("num_tasks", "num_classes", "image_shape")
"""What a model gets from its data, by the names that both have for it."""

PARTS = ("seed_everything", "threads", "model", "data")
"""What is taken from a checkpoint's config, whatever is done with it."""

OF_TRAINING = (*PARTS, "trainer", "detect", "record")
"""What a new training takes that begins with a checkpoint's weights."""

OF_RUN = (*OF_TRAINING, "name")
"""What a training takes that goes on from a checkpoint."""

PLACES = ("default_root_dir", "model_registry")
"""Options of the Trainer that say where a run writes: a checkpoint does not decide it for the run that takes it."""

_LONGEST_TEXT = 1_000_000


def load(path: Path) -> dict[str, Any]:
    """Content of a checkpoint: tensors and plain types.

    Raises:
        UsageError: if there is no such file or it is no checkpoint.
    """
    if not path.is_file():
        raise UsageError(f"checkpoint {path} is no file; give the path of one.")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        raise UsageError(f"ckpt_path {path} is no checkpoint that can be read; give an unbroken one.") from error
    if not isinstance(checkpoint, dict):
        raise UsageError(f"ckpt_path {path} holds a {type(checkpoint).__name__}; give a checkpoint of a run.")
    return checkpoint


def config_of(
    path: Path, trusted: Sequence[str], named: set[str], parts: Sequence[str] = PARTS
) -> dict[str, Any] | None:
    """Config of the run that wrote a checkpoint; None if it holds none.

    Args:
        path: the checkpoint.
        trusted: modules of the user's that it may name.
        named: classes that the user has named.
        parts: what of it is wanted, :data:`PARTS`, :data:`OF_TRAINING` or :data:`OF_RUN`.

    Raises:
        UsageError: if it cannot be read, or names what it may not name; see :mod:`routing_lightning.trust`.
    """
    from routing_lightning.datamodules import MultiTaskDataModule
    from routing_lightning.modules import TaskClassifier

    text = load(path).get(CONFIG_KEY)
    if text is None:
        return None
    wrong = f"checkpoint {path} holds a config that is no YAML of a run; give another, or a config and no checkpoint."
    if not isinstance(text, str) or len(text) > _LONGEST_TEXT:
        raise UsageError(wrong)
    try:
        config = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise UsageError(wrong) from error
    if not isinstance(config, dict):
        raise UsageError(wrong)
    trust = Trust(f"checkpoint {path}", trusted, named)
    hints: dict[str, Any] = {
        "seed_everything": bool | int,
        "threads": int | str,
        "model": TaskClassifier,
        "data": MultiTaskDataModule,
        "detect": bool,
        "name": str | None,
        "record": list[L.Callback],
    }
    try:
        found = {key: trust.check(config[key], hints[key], key) for key in parts if key in hints and key in config}
        if "trainer" in parts and isinstance(config.get("trainer"), dict):
            found["trainer"] = trainer_options(config["trainer"], trust)
        return found
    except RecursionError as error:
        raise UsageError(wrong) from error


def trainer_options(saved: dict[str, Any], trust: Trust) -> dict[str, Any]:
    """Options of a run's Trainer, those that this version of Lightning has, without those that name its place.

    Raises:
        UsageError: if one names what it may not name.
    """
    hints, _ = signature_of(L.Trainer)
    return {
        name: trust.check(saved[name], hint, f"trainer.{name}")
        for name, hint in hints.items()
        if name in saved and name not in PLACES
    }


def saved_names(checkpoint: dict[str, Any]) -> tuple[list[str], list[list[str]]] | None:
    """Names of the tasks and of each one's classes, as a checkpoint holds them; None in those from before."""
    tasks, classes = checkpoint.get("task_names"), checkpoint.get("class_names")
    if not isinstance(tasks, list) or not isinstance(classes, list):
        return None
    return [str(name) for name in tasks], [[str(name) for name in names] for names in classes]


def find(given: Any, root: Path, folder_hint: str = "trainer.default_root_dir", option: str = "ckpt_path") -> Path:
    """The checkpoint that a ``ckpt_path`` means.

    Args:
        given: a path, ``last`` (the newest below the folder) or ``best`` (the best that its run knows).
        root: where runs lie.
        folder_hint: the option that says where.
        option: the option that the checkpoint is given with.

    Raises:
        UsageError: if there is none.
    """
    if given not in ("last", "best"):
        path = Path(local_path(str(given)))
        if not path.is_file():
            raise UsageError(f"{option} {given} is no file; give the path of a checkpoint, or last for the newest.")
        return path
    newest = newest_checkpoint(root)
    if newest is None:
        raise UsageError(
            f"{option} is {given} but there is no checkpoint below {root}; give its path, or the {folder_hint} of its "
            f"run, or leave {option} out to start anew."
        )
    return newest if given == "last" else best_of(newest, option)


def newest_checkpoint(root: Path) -> Path | None:
    """The checkpoint below a folder that was written last; None if there is none."""
    runs = root / "lightning_logs"
    places = [*root.glob("*.ckpt"), *root.glob("checkpoints/*.ckpt"), *(runs.rglob("*.ckpt") if runs.is_dir() else ())]
    return max(places, key=lambda path: (path.stat().st_mtime_ns, path.name == "last.ckpt"), default=None)


def best_of(newest: Path, option: str = "ckpt_path") -> Path:
    """The best checkpoint of a run, as its newest one knows it.

    Raises:
        UsageError: if nothing was compared, or the best is gone.
    """
    callbacks = load(newest).get("callbacks") or {}
    for state in callbacks.values():
        if isinstance(state, dict) and state.get("best_model_score") is not None and state.get("best_model_path"):
            best = Path(str(state["best_model_path"]))
            # Its run may have been moved; a slash in a file name, as of val/acc, puts files into folders of their own.
            folder = Path(str(state.get("dirpath") or best.parent))
            if not best.is_relative_to(folder) and best.is_file():  # of the run that this one went on from
                return best
            inner = best.relative_to(folder) if best.is_relative_to(folder) else Path(best.name)
            for place in newest.parents[:3]:
                if (place / inner).is_file():
                    return place / inner
            best = newest.parent / inner
            raise UsageError(f"{option} is best but {best} is gone; give the path of a checkpoint, or last.")
    raise UsageError(
        f"{option} is best but the run of {newest} compared no checkpoints; give last or a path (for the next run: "
        "--config configs/trainer/best.yaml)."
    )
