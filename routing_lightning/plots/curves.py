"""Curves over time: one block's probability, and accuracy."""

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from routing_lightning.plots.heatmaps import TIME, time_axis, time_edges, time_position
from routing_lightning.plots.style import SOFT, look, new_figure, task_colours, task_dashes


def _legend(figure: Figure, axes: Axes, count: int) -> None:
    """Names beside the axes, in as many columns as needed."""
    handles, names = axes.get_legend_handles_labels()
    columns = -(-count // 26)
    figure.legend(handles, names, loc="outside right upper", ncols=columns, handlelength=2.2, columnspacing=1.0)


def policy_dynamics(
    steps: np.ndarray, probabilities: np.ndarray, tasks: Sequence[str], title: str = "", label: str = "probability"
) -> Figure:
    """The probability of one block over time, a curve per task (paper, probabilities of taking block 7).

    Args:
        steps: (S,) ascending optimizer steps of the snapshots.
        probabilities: (S, T) in [0, 1].
        tasks: T names.
        title: what the figure shows.
        label: what the curves are.

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
        axes.set(xlabel=TIME, ylabel=label, ylim=(-0.02, 1.02))
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


def accuracy_curves(
    curves: Sequence[Curve],
    title: str = "",
    what: str = "accuracy (mean over tasks)",
    legend: bool = True,
    inches: float = 5.0,
) -> Figure:
    """Accuracy over epochs, with a band of one standard deviation around each mean.

    Args:
        curves: what to draw, values in [0, 1].
        title: what the figure shows.
        what: which accuracy it is, for the axis.
        legend: whether the figure names its curves.
        inches: width of the figure without the legend.

    Returns:
        The figure with a line per curve.
    """
    colours = [curve.colour or own for curve, own in zip(curves, task_colours(len(curves)), strict=True)]
    widest = min(max((len(curve.name) for curve in curves), default=0), 60)
    columns = -(-len(curves) // 26)
    with matplotlib.rc_context(look()):
        figure = new_figure(inches + (columns * (0.6 + 0.055 * widest) if legend else 0), 3.6)
        axes = figure.subplots()
        # The colours of many curves repeat: then a pattern tells them apart.
        dashes = ["-"] * len(curves) if len(curves) <= 10 else task_dashes(len(curves))
        for curve, colour, dash in zip(curves, colours, dashes, strict=True):
            dot = "o" if len(curve.epochs) == 1 or curve.dashed else None
            line, size = (":", 2.5) if curve.dashed else (dash, 4)
            axes.plot(
                curve.epochs, curve.mean, color=colour, linestyle=line, marker=dot, markersize=size, linewidth=1.4,
                label=curve.name,
            )  # fmt: skip
            if curve.dashed or not np.any(curve.spread > 0):
                continue
            low, high = curve.mean - curve.spread, curve.mean + curve.spread
            if len(curve.epochs) == 1:
                axes.vlines(curve.epochs, low, high, color=colour, alpha=0.4, linewidth=3)
            else:
                axes.fill_between(curve.epochs, low, high, color=colour, alpha=0.2, lw=0)
        axes.set(xlabel="epoch", ylabel=what)
        epochs = [epoch for curve in curves for epoch in curve.epochs.tolist()]
        if epochs and min(epochs) == max(epochs):
            axes.set_xlim(epochs[0] - 0.5, epochs[0] + 0.5)
        _span_of_shares(axes)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
        axes.set_title(title, loc="left")
        axes.grid(color=SOFT, linewidth=0.3)
        if legend:
            _legend(figure, axes, len(curves))
    return figure


def _span_of_shares(axes: Axes, least: float = 0.1) -> None:
    """Makes the y axis span at least ``least``, and nothing outside of [0, 1] but the width of a line."""
    low, high = axes.get_ylim()
    more = max(0.0, least - (high - low)) / 2
    axes.set_ylim(max(low - more, -0.01), min(high + more, 1.01))
