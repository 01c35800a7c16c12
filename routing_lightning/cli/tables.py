"""What a command says at its end: accuracies, and how to go on."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def which_data(stage: str, datamodule: Any) -> str:
    """Which data the figures of a stage come from: ``"test set"`` or ``"validation part"``."""
    on_test = stage == "test" or getattr(datamodule, "validates_on_test", False)
    return "test set" if on_test else "validation part"


def accuracy_table(metrics: dict[str, Any], stage: str, data: str) -> Table | None:
    """Table of a stage's accuracy per task; None if there is none.

    Args:
        metrics: logged values by name.
        stage: ``val`` or ``test``.
        data: what they come from, for the title.
    """
    if f"{stage}/acc" not in metrics:
        return None
    prefix = f"{stage}/acc_task/"
    title = f"Accuracy per task ({data})"
    table = Table("task", "accuracy", title=title, min_width=len(title))  # else a long title is wrapped
    for name, value in metrics.items():
        if name.startswith(prefix):
            table.add_row(name.removeprefix(prefix), f"{100 * float(value):.1f} %")
    table.add_section()
    table.add_row("mean over tasks", f"{100 * float(metrics[f'{stage}/acc']):.1f} %")
    if f"{stage}/loss" in metrics:
        table.add_row("mean loss", f"{float(metrics[f'{stage}/loss']):.3f}")
    return table


def show(table: Table | None) -> None:
    """Prints a table, at its full width also where the output is no terminal."""
    if table is not None:
        Console().print(table)


def program() -> list[str]:
    """The words with which the command line was started."""
    if Path(sys.argv[0]).name == "train.py":
        return ["python", sys.argv[0]]
    return ["routing-lightning"] if Path(sys.argv[0]).name == "routing-lightning" else ["python", "train.py"]


def ways_on(checkpoint: Path | None, folder: Path, trusted: Sequence[str], with_router: bool) -> list[tuple[str, str]]:
    """Commands that go on from a finished training, each with what it does.

    Args:
        checkpoint: what was saved; None if nothing was.
        folder: the folder of the run.
        trusted: modules that the checkpoint needs and that must be named.
        with_router: whether there is a router to draw.
    """
    trust = [word for module in trusted for word in ("--trust", module)]
    commands = []
    if checkpoint is not None:
        commands.append(("check it", [*program(), "validate", "--ckpt_path", str(checkpoint), *trust]))
    if with_router and (folder / "routes.npz").is_file():
        commands.append(("draw the router", [*program(), "plot", str(folder)]))
    if any(folder.glob("events.out.*")) or (folder / "metrics.csv").is_file():
        commands.append(("report", [*program(), "report", str(folder)]))
    return [(what, shlex.join(words)) for what, words in commands]
