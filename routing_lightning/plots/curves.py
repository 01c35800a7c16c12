"""Curves over time: one block's probability, and accuracy."""

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from routing_lightning.plots.heatmaps import time_axis, time_edges, time_position
from routing_lightning.plots.style import SOFT, look, new_figure, task_colours, task_dashes


def _legend(figure: Figure, axes: Axes, count: int) -> None:
    """Names beside the axes, in as many columns as needed."""
    handles, names = axes.get_legend_handles_labels()
    columns = -(-count // 26)
    figure.legend(handles, names, loc="outside right upper", ncols=columns, handlelength=2.2, columnspacing=1.0)


def policy_dynamics(steps: np.ndarray, probabilities: np.ndarray, tasks: Sequence[str], title: str = "") -> Figure:
    """The probability of one block over time, a curve per task (paper, probabilities of taking block 7).

    Args:
        steps: (S,) ascending optimizer steps of the snapshots.
        probabilities: (S, T) in [0, 1].
        tasks: T names.
        title: what the figure shows.

    Returns:
        The figure with T lines in the order of the tasks.
    """
    columns = -(-len(tasks) // 26)
    widest = min(max((len(name) for name in tasks), default=0), 40)
    with matplotlib.rc_context(look()):
        figure = new_figure(5.5 + columns * (0.5 + 0.055 * widest), 3.6)
        axes = figure.subplots()
        for task, (name, colour, dashes) in enumerate(
            zip(tasks, task_colours(len(tasks)), task_dashes(len(tasks)), strict=True)
        ):
            axes.plot(
                time_position(steps), probabilities[:, task], color=colour, linestyle=dashes, linewidth=1.2, label=name
            )
        time_axis(axes, time_edges(steps))
        axes.set(xlabel="optimizer step", ylabel="probability", ylim=(-0.02, 1.02))
        axes.set_title(title, loc="left")
        axes.grid(color=SOFT, linewidth=0.3)
        _legend(figure, axes, len(tasks))
    return figure


@dataclass(frozen=True)
class Curve:
    """A quantity over epochs, over one or more runs.

    Attributes:
        name: what the legend says.
        epochs: (E,) ascending, counted from 1.
        mean: (E,) mean over the runs.
        spread: (E,) standard deviation over the runs, 0 for one run.
        dashed: whether it is drawn dashed and without band, as the paper's values are.
        colour: its colour, ``#rrggbb``; None: one of its own.
    """

    name: str
    epochs: np.ndarray
    mean: np.ndarray
    spread: np.ndarray
    dashed: bool = False
    colour: str | None = None


def accuracy_curves(curves: Sequence[Curve], title: str = "") -> Figure:
    """Accuracy over epochs, with a band of one standard deviation around each mean.

    Args:
        curves: what to draw, values in [0, 1].
        title: what the figure shows.

    Returns:
        The figure with a line per curve.
    """
    colours = [curve.colour or own for curve, own in zip(curves, task_colours(len(curves)), strict=True)]
    widest = min(max((len(curve.name) for curve in curves), default=0), 60)
    columns = -(-len(curves) // 26)
    with matplotlib.rc_context(look()):
        figure = new_figure(5.5 + columns * (0.6 + 0.055 * widest), 3.8)
        axes = figure.subplots()
        for curve, colour in zip(curves, colours, strict=True):
            dot = "o" if len(curve.epochs) == 1 or curve.dashed else None
            line = ":" if curve.dashed else "-"
            axes.plot(
                curve.epochs, curve.mean, color=colour, linestyle=line, marker=dot, markersize=2.5, linewidth=1.4,
                label=curve.name,
            )  # fmt: skip
            if not curve.dashed and np.any(curve.spread > 0):
                axes.fill_between(
                    curve.epochs, curve.mean - curve.spread, curve.mean + curve.spread, color=colour, alpha=0.2, lw=0
                )
        axes.set(xlabel="epoch", ylabel="accuracy (mean over tasks)")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
        axes.set_title(title, loc="left")
        axes.grid(color=SOFT, linewidth=0.3)
        _legend(figure, axes, len(curves))
    return figure
