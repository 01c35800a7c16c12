"""Policies and use of blocks as heat maps: one figure per question."""

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import FuncFormatter

from routing_lightning.plots.style import COLOUR_MAP, INK, SOFT, label_ticks, look, new_figure

CELL = 0.19  # inches
LINEAR_STEPS = 10  # the time axis is linear up to here, then logarithmic: policies move most at the start


def time_position(steps: np.ndarray) -> np.ndarray:
    """Where optimizer steps stand on the time axis of all figures: any shape -> the same, float64.

    Linear from 0 to 10 steps, which take half as much room as each power of 10 after that.
    """
    steps = np.asarray(steps, np.float64)
    return np.where(
        steps <= LINEAR_STEPS, steps / (2 * LINEAR_STEPS), 0.5 + np.log10(np.maximum(steps, 1) / LINEAR_STEPS)
    )


def time_edges(steps: np.ndarray) -> np.ndarray:
    """Where on the time axis each snapshot begins, and where the last one ends: steps (S,) -> (S + 1,) float64.

    A snapshot holds until the next one; the last is given 2 % more steps, and one.
    """
    steps = np.asarray(steps, np.float64)
    return time_position(np.append(steps, steps[-1] * 1.02 + 1))


def _cells(axes: Axes, values: np.ndarray, highest: float = 1.0) -> AxesImage:
    return axes.imshow(values, cmap=COLOUR_MAP, vmin=0.0, vmax=highest, aspect="auto")


def _colour_bar(figure: Figure, image: AxesImage, axes: Axes | Sequence[Axes], label: str) -> None:
    bar = figure.colorbar(image, ax=axes, label=label, fraction=0.05, aspect=25, pad=0.02)
    bar.outline.set_visible(False)


def _grid_size(rows: int, columns: int, labels: Sequence[str]) -> tuple[float, float, float, float]:
    """Width and height of the cells, and of the figure around them, in inches."""
    width, height = np.clip(columns * CELL, 1.6, 12.0), np.clip(rows * CELL, 1.0, 14.0)
    margin = min(max((len(label) for label in labels), default=0), 40) * 0.06
    return float(width), float(height), float(width + margin + 1.3), float(height + 0.9)


def policy_heatmap(probabilities: np.ndarray, tasks: Sequence[str], actions: Sequence[str], title: str = "") -> Figure:
    """The policy of each task at one depth: a row per task, a column per block.

    Args:
        probabilities: (T, K) in [0, 1], how probable each task takes each block.
        tasks: T names.
        actions: K names.
        title: what the figure shows.

    Returns:
        The figure; its image holds ``probabilities``.
    """
    width, height, *size = _grid_size(len(tasks), len(actions), tasks)
    with matplotlib.rc_context(look()):
        figure = new_figure(*size)
        axes = figure.subplots()
        image = _cells(axes, probabilities)
        label_ticks(axes, "x", actions, width)
        label_ticks(axes, "y", tasks, height)
        axes.set(xlabel="function block", ylabel="task")
        axes.set_title(title, loc="left")
        _colour_bar(figure, image, axes, "probability")
    return figure


def time_axis(axes: Axes, edges: np.ndarray) -> None:
    """Makes x a time axis with step numbers, from the first to the last of the edges (see :func:`time_edges`)."""
    axes.set_xlim(edges[0], edges[-1])
    ticks = np.array([0, *(10.0**power for power in range(1, 12))])
    places = time_position(ticks)
    shown = (places >= edges[0]) & (places <= edges[-1])
    axes.xaxis.set_ticks(places[shown], [_short(tick) for tick in ticks[shown]])


def _short(number: float) -> str:
    """A step count as a short text: 10000 -> 10k."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:g}{unit}"
    return f"{number:g}"


def _evolution(axes: Axes, edges: np.ndarray, probabilities: np.ndarray) -> Any:
    """Draws (S, K) over time: a row per block."""
    count = probabilities.shape[1]
    image = axes.pcolorfast(edges, np.arange(count + 1) - 0.5, probabilities.T, cmap=COLOUR_MAP, vmin=0, vmax=1)
    axes.set_ylim(count - 0.5, -0.5)
    time_axis(axes, edges)
    return image


def evolution_panel(
    steps: np.ndarray, probabilities: np.ndarray, actions: Sequence[str], label: str = "probability"
) -> Figure:
    """How one distribution over the blocks changed: time to the right, a row per block (paper, policies over time).

    Args:
        steps: (S,) ascending optimizer steps of the snapshots.
        probabilities: (S, K) in [0, 1].
        actions: K names.
        label: what the colour means.

    Returns:
        The figure; its image holds ``probabilities`` transposed.
    """
    with matplotlib.rc_context(look()):
        figure = new_figure(4.6, 2.4)
        axes = figure.subplots()
        mesh = _evolution(axes, time_edges(steps), probabilities)
        label_ticks(axes, "y", actions, 1.9)
        axes.set(xlabel="optimizer step", ylabel="function block")
        _colour_bar(figure, mesh, axes, label)
    return figure


def policy_evolution(
    steps: np.ndarray, probabilities: np.ndarray, tasks: Sequence[str], actions: Sequence[str], title: str = ""
) -> Figure:
    """How the policies of all tasks at one depth changed: a panel per task.

    Args:
        steps: (S,) ascending optimizer steps of the snapshots.
        probabilities: (S, T, K) in [0, 1].
        tasks: T names.
        actions: K names.
        title: what the figure shows.

    Returns:
        The figure with T panels in reading order.
    """
    columns = min(len(tasks), 5 if len(tasks) <= 40 else 10)
    rows = -(-len(tasks) // columns)
    edges = time_edges(steps)
    with matplotlib.rc_context(look()):
        figure = new_figure(columns * 2.0 + 0.9, rows * 1.5 + 0.7)
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        panels = list(grid.flat)
        for task, name in enumerate(tasks):
            mesh = _evolution(panels[task], edges, probabilities[:, task])
            panels[task].set_title(name, fontsize=7, pad=2)
        for panel in panels[len(tasks) :]:
            panel.set_axis_off()
        label_ticks(panels[0], "y", actions, 1.1)
        figure.supxlabel("optimizer step", fontsize=8)
        figure.supylabel("function block", fontsize=8)
        figure.suptitle(title, fontsize=9, x=0.01, ha="left")
        _colour_bar(figure, mesh, panels, "probability")
    return figure


def block_usage(shares: Sequence[np.ndarray], actions: Sequence[Sequence[str]], title: str = "") -> Figure:
    """Share of all samples that each block got: a panel of bars per depth.

    Args:
        shares: for each of the D depths (K_d,) in [0, 1] that sum to 1.
        actions: for each depth K_d names.
        title: what the figure shows.

    Returns:
        The figure with D panels; bar k of panel d is ``shares[d][k]`` high.
    """
    widest = max(len(names) for names in actions)
    width = float(np.clip(widest * CELL, 4.2, 12.0))
    with matplotlib.rc_context(look()):
        figure = new_figure(width + 0.9, 1.35 * len(shares) + 0.5)
        grid = figure.subplots(len(shares), 1, squeeze=False)[:, 0]
        for depth, (axes, share, names) in enumerate(zip(grid, shares, actions, strict=True)):
            axes.bar(np.arange(len(share)), share, width=0.8, color="#31688e")
            axes.axhline(1 / len(share), color=INK, linewidth=0.6, linestyle=":")
            axes.set_xlim(-0.6, len(share) - 0.4)
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
            label_ticks(axes, "x", names, width)
            axes.grid(axis="y", color=SOFT, linewidth=0.3)
            axes.set_axisbelow(True)
            entropy = -np.sum(share[share > 0] * np.log(share[share > 0]))
            axes.set_title(
                f"depth {depth + 1}: {np.count_nonzero(share)} of {len(share)} in use, entropy {entropy:.2f} nats "
                f"(at most {np.log(len(share)):.2f})",
                loc="left",
                fontsize=8,
            )
        grid[-1].set_xlabel("function block (dotted: equal use)")
        figure.supylabel("share of samples", fontsize=8)
        figure.suptitle(title, fontsize=9, x=0.01, ha="left")
    return figure


def usage_evolution(
    steps: np.ndarray, shares: Sequence[np.ndarray], actions: Sequence[Sequence[str]], title: str = ""
) -> Figure:
    """How the use of the blocks changed: a panel per depth, time to the right, a row per block.

    Args:
        steps: (S,) ascending optimizer steps.
        shares: for each of the D depths (S, K_d) in [0, 1], share of all samples.
        actions: for each depth K_d names.
        title: what the figure shows.

    Returns:
        The figure with D panels.
    """
    edges = time_edges(steps)
    highest = max(float(share.max()) for share in shares) or 1.0
    with matplotlib.rc_context(look()):
        figure = new_figure(3.0 * len(shares) + 0.9, 3.0)
        grid = figure.subplots(1, len(shares), squeeze=False)[0]
        for depth, (axes, share, names) in enumerate(zip(grid, shares, actions, strict=True)):
            mesh = _evolution(axes, edges, share)
            mesh.set_clim(0, highest)
            label_ticks(axes, "y", names, 2.2)
            axes.set_title(f"depth {depth + 1}", loc="left")
        figure.supxlabel("optimizer step", fontsize=8)
        figure.supylabel("function block", fontsize=8)
        figure.suptitle(title, fontsize=9, x=0.01, ha="left")
        _colour_bar(figure, mesh, list(grid), "share of samples")
    return figure
