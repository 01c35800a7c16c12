"""How much two tasks share."""

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from routing_lightning.plots.heatmaps import _cells, _colour_bar, _grid_size
from routing_lightning.plots.style import label_ticks, look, new_figure


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
    return np.mean([shares[:, depth] @ shares[:, depth].T for depth in range(shares.shape[1])], axis=0)


def task_overlap(values: np.ndarray, tasks: Sequence[str], title: str = "") -> Figure:
    """Who shares blocks with whom: task by task.

    Args:
        values: (T, T) in [0, 1], from :func:`overlap`.
        tasks: T names.
        title: what the figure shows.

    Returns:
        The figure; its image holds ``values``.
    """
    width, height, *size = _grid_size(len(tasks), len(tasks), tasks)
    margin = min(max((len(name) for name in tasks), default=0), 40) * 0.05
    with matplotlib.rc_context(look()):
        figure = new_figure(size[0], size[1] + margin)
        axes = figure.subplots()
        image = _cells(axes, values)
        label_ticks(axes, "x", tasks, width)
        label_ticks(axes, "y", tasks, height)
        axes.set(xlabel="task", ylabel="task")
        axes.set_title(title, loc="left")
        _colour_bar(figure, image, axes, "chance of the same block")
    return figure
