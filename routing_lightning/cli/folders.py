"""The folder of a run: claimed before anything slow, by this run alone."""

import contextlib
import itertools
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from routing_lightning.errors import UsageError
from routing_lightning.paths import run_folder

RUNS = "lightning_logs"
"""Folder below ``trainer.default_root_dir`` in which runs lie."""

# Tells the processes that a run starts itself which folder it has.
_CLAIMED = "ROUTING_LIGHTNING_RUN_FOLDER"
# Files that are written before anything is trained or measured, by loggers, the command line and the recorder.
_BEGUN = ("events.out.", "config.yaml", "hparams.yaml", "metrics.csv", "routes.npz")
_NAME = re.compile(r"\w[\w.+=-]*")


def claim(parent: Path, name: str, first: int | None = None) -> Path:
    """Makes a folder that nobody else has, whoever else is doing the same.

    Args:
        parent: the folder in which it shall lie; made if it is missing.
        name: its name: ``name``, or ``name_1``, ``name_2``, ... where that is taken.
        first: begin with this number in place of none, as in ``version_0``.

    Returns:
        The folder, empty.
    """
    parent.mkdir(parents=True, exist_ok=True)
    numbered = (f"{name}_{number}" for number in itertools.count(1 if first is None else first))
    for candidate in itertools.chain([name] if first is None else [], numbered):
        folder = parent / candidate
        try:
            folder.mkdir()  # atomic: of all that try one succeeds
        except FileExistsError:
            continue
        return folder
    raise AssertionError


def is_first_process() -> bool:
    """Whether this process is the one that writes: the first, or the only one."""
    from lightning.pytorch.utilities.rank_zero import rank_zero_only

    return getattr(rank_zero_only, "rank", 0) == 0


def folder_of_run(parent: Path, name: str) -> Path:
    """The folder of this run: claimed by its first process; the others get to know it from that."""
    if is_first_process():
        folder = claim(parent, name)
        os.environ[_CLAIMED] = str(folder)
        return folder
    # Processes that something else started, such as torchrun, are told by Lightning when they meet.
    return Path(os.environ.get(_CLAIMED, parent / name))


def forget(folder: Path | None, refused: bool) -> None:
    """Removes the folder of a run that failed before it wrote anything; nothing, if another process has it.

    Args:
        folder: the folder, if one was claimed.
        refused: whether the run was refused before its first step: what only tells that it was to begin goes, too.
    """
    os.environ.pop(_CLAIMED, None)
    if folder is None or not is_first_process():
        return
    written = [path for path in folder.rglob("*") if path.is_file()]
    if all(refused and path.name.startswith(_BEGUN) for path in written):
        shutil.rmtree(folder, ignore_errors=True)
        if folder.parent.name == RUNS:
            with contextlib.suppress(OSError):  # it holds other runs
                folder.parent.rmdir()


def checked_name(name: str) -> str:
    """A name for runs.

    Raises:
        UsageError: if it cannot be the name of a folder everywhere.
    """
    if not _NAME.fullmatch(name) or len(name) > 100:
        raise UsageError(f"name is {name!r}; give up to 100 letters, digits and any of _ . + = -, a letter first.")
    return name


def default_name(config: Any) -> str:
    """Name of a run by what it is: method, data, seed; such as ``wpl-digits_mtl-seed0``."""
    method = _method(config.get("model"))
    data = snake(re.sub("(?<=.)MTL$", "_MTL", _last(config.get("data")).removesuffix("DataModule"))) or "data"
    seed = config.get("seed_everything")
    return "-".join([method, data, *([f"seed{seed}"] if isinstance(seed, int) and not isinstance(seed, bool) else [])])


def run_of(checkpoint: Any) -> str | None:
    """Name of the run that wrote a checkpoint, by where it lies; None if it does not lie in the folder of a run."""
    if checkpoint is None:
        return None
    folder = Path(str(checkpoint)).resolve().parent
    run = run_folder(folder)
    return run.name if run != folder and run.parent.name == RUNS else None


def _method(model: Any) -> str:
    args = _args(model)
    router = args.get("router")
    if router is None:
        return snake(_last(args.get("network")) or _last(model)) or "model"
    parts, kind = _args(router), snake(_last(router).removesuffix("Router")) or "router"
    learner = _last(parts.get("learner"))
    if kind == "fixed_routes" and isinstance(parts.get("routes"), str):
        shared = parts.get("shared_depths")
        return f"fixed_{snake(parts.get('routes'))}" + (f"_after_{shared}_shared" if shared else "")
    if not learner:
        return kind
    words = [snake(learner.removeprefix("Approximate"))]
    if "policy" not in parts:  # the learner is not all of the router
        words.insert(0, kind)
    if not _last(parts.get("policy")).startswith("Tabular"):
        words.append(snake(_last(parts.get("policy")).removesuffix("Policy")))
    if parts.get("agents") not in (None, "per_task"):
        words.append(str(parts.get("agents")))
    return "_".join(word for word in words if word)


def _last(part: Any) -> str:
    path = part.get("class_path") if hasattr(part, "get") else part
    return path.rpartition(".")[2] if isinstance(path, str) else getattr(path, "__name__", "")


def _args(part: Any) -> Any:
    return (part.get("init_args") if hasattr(part, "get") else None) or {}


def snake(name: str) -> str:
    """``DigitsMTL`` as ``digits_mtl``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def claim_for_logger(logger: Any, ckpt_path: str | None, claimed: Sequence[Path] = ()) -> Path | None:
    """Gives a logger of the user's that numbers its folders one of its own.

    Args:
        logger: any logger. Those that keep no numbered folder are left alone.
        ckpt_path: the checkpoint that the run goes on from, whose folder it may use.
        claimed: folders that other loggers of the run have got, which it may use, too.

    Returns:
        The folder, if one was claimed.

    Raises:
        UsageError: if the user has fixed the folder and it holds another run.
    """
    if not hasattr(logger, "_version") or not hasattr(logger, "log_dir") or not hasattr(logger, "root_dir"):
        return None
    if not is_first_process():
        return None
    if logger._version is None:
        folder = claim(Path(logger.root_dir), "version", first=0)
        logger._version = int(folder.name.rpartition("_")[2])
        return folder
    folder = Path(logger.log_dir)
    if ckpt_path is not None and folder.resolve() in Path(ckpt_path).resolve().parents:
        return None
    if folder in claimed:
        return None
    try:
        folder.mkdir(parents=True)  # atomic: of runs that begin together one succeeds
    except FileExistsError as error:
        raise UsageError(
            f"the logger's folder {folder} is there already and holds another run, or one that has just begun; give "
            "another version, or leave it out."
        ) from error
    return folder
