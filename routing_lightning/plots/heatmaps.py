"""Policies and use of blocks as heat maps: one figure per question."""

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import FuncFormatter

from routing_lightning.plots.style import COLOUR_MAP, INK, SOFT, label_ticks, look, new_figure, shortened
from routing_lightning.record import in_use, least_use

CELL = 0.19  # inches
TIME = "optimizer step (linear to 10, dotted line, then logarithmic)"
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


def _colour_bar(figure: Figure, image: AxesImage, axes: Axes | Sequence[Axes], label: str) -> Any:
    bar = figure.colorbar(image, ax=axes, label=label, fraction=0.05, aspect=25, pad=0.02)
    bar.outline.set_visible(False)
    return bar


def _grid_size(rows: int, columns: int, labels: Sequence[str], cell: float = CELL) -> tuple[float, float, float, float]:
    """Width and height of the cells, and of the figure around them, in inches."""
    wide = cell if columns <= 10 else 0.75 * cell  # narrow, so that text is not too small in a thumbnail
    width, height = np.clip(columns * wide, 1.6, 12.0), np.clip(rows * cell, 1.0, 14.0)
    margin = min(max((len(label) for label in labels), default=0), 40) * 0.06
    return float(width), float(height), float(width + margin + 1.2), float(height + 0.9)


def policy_heatmap(
    probabilities: np.ndarray,
    tasks: Sequence[str],
    actions: Sequence[str],
    title: str = "",
    label: str = "probability",
) -> Figure:
    """The policy of each task at one depth: a row per task, a column per block.

    Args:
        probabilities: (T, K) in [0, 1], how probable each task takes each block.
        tasks: T names.
        actions: K names.
        title: what the figure shows.
        label: what the colour means.

    Returns:
        The figure; its image holds ``probabilities``.
    """
    return _heatmap(probabilities, tasks, actions, title, label, "task")[0]


def usage_heatmap(
    shares: np.ndarray, depths: Sequence[str], actions: Sequence[str], highest: float, title: str = ""
) -> Figure:
    """How the samples of each depth spread over its blocks: a row per depth, a column per block.

    Args:
        shares: (D, K) in [0, 1]; NaN where a depth has no such block.
        depths: D names.
        actions: K names.
        highest: share of the brightest colour, above 0.
        title: what the figure shows.

    Returns:
        The figure; its image holds ``shares``. Equal use of all blocks is marked at the colour bar.
    """
    figure, bar = _heatmap(shares, depths, actions, title, "share of samples", "depth", highest)
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
    equal = 1 / len(actions)
    if equal < highest:
        bar.ax.axhline(equal, color="white", linewidth=1.2)
        bar.ax.annotate("equal use", (0, equal), xytext=(-3, 0), textcoords="offset points", ha="right", va="center",
                        fontsize=6, rotation=90)  # fmt: skip
    return figure


def _heatmap(
    values: np.ndarray,
    rows: Sequence[str],
    actions: Sequence[str],
    title: str,
    label: str,
    what: str,
    highest: float = 1.0,
) -> tuple[Figure, Any]:
    """A figure of rows by blocks, and its colour bar."""
    names = [shortened(name) for name in rows]
    width, height, *size = _grid_size(len(rows), len(actions), names)
    with matplotlib.rc_context(look()):
        figure = new_figure(*size)
        axes = figure.subplots()
        image = _cells(axes, values, highest)
        label_ticks(axes, "x", actions, width)
        label_ticks(axes, "y", names, height)
        axes.set(xlabel="function block", ylabel=what)
        axes.set_title(title, loc="left")
        return figure, _colour_bar(figure, image, axes, label)


def time_axis(axes: Axes, edges: np.ndarray) -> None:
    """Makes x a time axis with step numbers, from the first to the last of the edges (see :func:`time_edges`).

    A dotted line marks where it becomes logarithmic; small ticks stand at 1, 2, ..., 10, 20, ..., 100, 200, ...
    """
    axes.set_xlim(edges[0], edges[-1])
    powers = [10.0**power for power in range(1, 12)]
    for minor, ticks in (
        (False, [0, *powers]),
        (True, [*range(1, 10), *(n * power for power in powers for n in range(2, 10))]),
    ):
        places = time_position(np.array(ticks))
        shown = (places >= edges[0]) & (places <= edges[-1])
        axes.xaxis.set_ticks(
            places[shown], [] if minor else [_short(tick) for tick in np.array(ticks)[shown]], minor=minor
        )
    switch = float(time_position(np.array(LINEAR_STEPS)))
    if edges[0] < switch < edges[-1]:
        axes.vlines(switch, 0, 1, color=SOFT, linewidth=0.8, linestyle=":", transform=axes.get_xaxis_transform())


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
        axes.set(xlabel="optimizer step (linear to 10, then logarithmic)", ylabel="function block")
        _colour_bar(figure, mesh, axes, label)
    return figure


def policy_evolution(
    steps: np.ndarray,
    probabilities: np.ndarray,
    tasks: Sequence[str],
    actions: Sequence[str],
    title: str = "",
    label: str = "probability",
) -> Figure:
    """How the policies of all tasks at one depth changed: a panel per task.

    Args:
        steps: (S,) ascending optimizer steps of the snapshots.
        probabilities: (S, T, K) in [0, 1].
        tasks: T names.
        actions: K names.
        title: what the figure shows.
        label: what the colour means.

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
            panels[task].set_title(shortened(name, 30), fontsize=7, pad=2)
        for panel in panels[len(tasks) :]:
            panel.set_axis_off()
        label_ticks(panels[0], "y", actions, 1.1)
        figure.supxlabel(TIME, fontsize=8)
        figure.supylabel("function block", fontsize=8)
        figure.suptitle(title, fontsize=9, x=0.01, ha="left")
        _colour_bar(figure, mesh, panels, label)
    return figure


def block_usage(
    shares: Sequence[np.ndarray], actions: Sequence[Sequence[str]], num_tasks: int, title: str = ""
) -> Figure:
    """Share of the samples that each block got: a panel of bars per depth. Blocks not in use are faint.

    Args:
        shares: for each of the D depths (K_d,) in [0, 1] that sum to 1.
        actions: for each depth K_d names.
        num_tasks: T, on which it depends what is in use (see :func:`~routing_lightning.record.in_use`).
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
            used = in_use(share, num_tasks)
            axes.bar(np.arange(len(share)), share, width=0.8, color=["#31688e" if use else SOFT for use in used])
            axes.axhline(1 / len(share), color=INK, linewidth=0.6, linestyle=":")
            axes.set_xlim(-0.6, len(share) - 0.4)
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
            label_ticks(axes, "x", names, width)
            axes.grid(axis="y", color=SOFT, linewidth=0.3)
            axes.set_axisbelow(True)
            least = 100 * least_use(len(share), num_tasks)
            entropy = -np.sum(share[share > 0] * np.log(share[share > 0]))
            axes.set_title(
                f"depth {depth + 1}: {used.sum()} of {len(share)} in use (at least {least:.2g} %), "
                f"entropy {entropy:.2f} of {np.log(len(share)):.2f} nats",
                loc="left",
                fontsize=8,
            )
        grid[-1].set_xlabel("function block (dotted: equal use)")
        figure.supylabel("share of samples, mean over tasks", fontsize=8)
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
        columns = min(len(shares), 4)
        rows = -(-len(shares) // columns)
        figure = new_figure(max(3.0 * columns, 4.0) + 0.9, 2.5 * rows + 0.7)
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes in grid[len(shares) :]:
            axes.set_axis_off()
        for depth, (axes, share, names) in enumerate(zip(grid, shares, actions, strict=False)):
            mesh = _evolution(axes, edges, share)
            mesh.set_clim(0, highest)
            label_ticks(axes, "y", names, 2.2)
            axes.set_title(f"depth {depth + 1}", loc="left")
        figure.supxlabel(TIME, fontsize=8)
        figure.supylabel("function block", fontsize=8)
        figure.suptitle(title, fontsize=9, x=0.01, ha="left")
        _colour_bar(figure, mesh, list(grid), "share of samples")
    return figure
