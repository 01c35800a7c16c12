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
    """Table of what a stage measured per task: accuracy, F1, or error of values; None if there is nothing.

    Args:
        metrics: logged values by name.
        stage: ``val`` or ``test``.
        data: what they come from, for the title.
    """
    columns = {}
    for measure, heading in MEASURES.items():
        prefix = f"{stage}/{measure}_task/"
        found = {name.removeprefix(prefix): float(value) for name, value in metrics.items() if name.startswith(prefix)}
        if found:
            columns[measure] = (heading, found)
    if not columns:
        return None
    title = f"{'Accuracy' if list(columns) in (['acc'], ['acc', 'f1_macro']) else 'Figures'} per task ({data})"
    headings = [heading for heading, _ in columns.values()]
    table = Table("task", *headings, title=title, min_width=len(title))  # else a long title is wrapped
    for task in dict.fromkeys(task for _, found in columns.values() for task in found):
        table.add_row(task, *(_cell(measure, found.get(task)) for measure, (_, found) in columns.items()))
    table.add_section()
    means = [metrics.get(f"{stage}/{measure}") for measure in columns]
    table.add_row("mean over tasks", *(_cell(measure, mean) for measure, mean in zip(columns, means, strict=True)))
    if f"{stage}/loss" in metrics:
        table.add_row("mean loss", f"{float(metrics[f'{stage}/loss']):.3f}")
    return table


MEASURES = {"acc": "accuracy", "f1_macro": "macro-F1", "f1": "F1", "mae": "MAE", "r2": "R²"}
"""What tasks are measured by, by the names under which it is logged."""


def _cell(measure: str, value: float | None) -> str:
    if value is None:
        return ""
    return {"acc": f"{100 * float(value):.1f} %", "mae": f"{float(value):.4g}"}.get(measure, f"{float(value):.3f}")


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
