"""How much two tasks share."""

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from routing_lightning.plots.heatmaps import CELL, _cells, _colour_bar, _grid_size
from routing_lightning.plots.style import label_ticks, look, new_figure, shortened


def overlap(shares: np.ndarray) -> np.ndarray:
    """How often two tasks meet: the chance that a sample of each takes the same block, mean over depths.

    1 means that both always take the same route. On the diagonal, less than 1 means that a task spreads its samples.

    Args:
        shares: (T, D, K), how each task's samples are spread over the blocks; rows sum to 1, or are 0 where a task has
            no sample.

    Returns:
        (T, T) symmetric, in [0, 1].
    """
    shares = np.asarray(shares, np.float64)
    return np.asarray(np.mean([shares[:, depth] @ shares[:, depth].T for depth in range(shares.shape[1])], axis=0))


def cluster_order(values: np.ndarray) -> np.ndarray:
    """An order of the tasks in which those that share much stand side by side: (T, T) -> (T,) int.

    Joins the two groups of tasks that share most on average, with those ends together that share most, until one is
    left.
    """
    values = np.asarray(values, np.float64)
    groups = [[task] for task in range(len(values))]
    shared = np.where(np.eye(len(values), dtype=bool), -np.inf, values)
    while len(groups) > 1:
        one, two = sorted(divmod(int(shared.argmax()), len(groups)))
        left, right = groups[one], groups.pop(two)
        mean = (shared[one] * len(left) + shared[two] * len(right)) / (len(left) + len(right))
        pairs = [(x, y) for x in (left, left[::-1]) for y in (right, right[::-1])]
        first, second = max(pairs, key=lambda pair: float(values[pair[0][-1], pair[1][0]]))
        groups[one] = first + second
        mean[one] = -np.inf
        shared[one], shared[:, one] = mean, mean
        shared = np.delete(np.delete(shared, two, axis=0), two, axis=1)
    return np.array(groups[0] if groups else [], np.int64)


def task_overlap(values: np.ndarray, tasks: Sequence[str], title: str = "", numbers: bool = True) -> Figure:
    """Who shares blocks with whom: task by task; values where there is room for them.

    Args:
        values: (T, T) in [0, 1], from :func:`overlap`.
        tasks: T names.
        title: what the figure shows.
        numbers: whether to write values, which takes the longer the more tasks there are.

    Returns:
        The figure; its image holds ``values``, in the order shown. Colours go up to the largest value of two tasks,
        since a task always shares with itself.
    """
    order = cluster_order(values)
    values, tasks = np.asarray(values)[np.ix_(order, order)], [shortened(tasks[task]) for task in order.tolist()]
    highest = highest_overlap(values)
    cell = 0.3 if len(tasks) <= 40 else CELL
    width, height, *size = _grid_size(len(tasks), len(tasks), tasks, cell)
    margin = min(max((len(name) for name in tasks), default=0), 40) * 0.05
    with matplotlib.rc_context(look()):
        figure = new_figure(size[0], size[1] + margin)
        axes = figure.subplots()
        image = _cells(axes, values, highest)
        if numbers and cell > CELL:
            write_values(axes, values, highest)
        label_ticks(axes, "x", tasks, width)
        label_ticks(axes, "y", tasks, height)
        axes.set(xlabel="task", ylabel="task")
        axes.set_title(title, loc="left")
        _colour_bar(figure, image, axes, "chance of the same block")
    return figure


def highest_overlap(values: np.ndarray) -> float:
    """The largest overlap of two different tasks; 1 where no two tasks share anything."""
    apart = np.asarray(values)[~np.eye(len(values), dtype=bool)]
    return float(apart.max(initial=0.0)) or 1.0


def write_values(axes: Axes, values: np.ndarray, highest: float) -> None:
    """Writes each value in per cent into its cell, so that it stands out from the cell's colour; nothing for zeros."""
    for (row, column), value in np.ndenumerate(values):
        if value >= 0.005:
            colour = "white" if value < 0.6 * highest else "black"
            text = axes.text(column, row, f"{100 * value:.0f}", ha="center", va="center", fontsize=6, color=colour)
            text.set_in_layout(False)  # there is no need to look for its place
