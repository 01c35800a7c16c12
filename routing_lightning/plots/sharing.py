"""Where tasks share and where they part: the share of tasks with a block of their own, depth by depth."""

from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from routing_lightning.plots.style import SOFT, look, new_figure, task_colours

MOST_NAMED = 12


def private_blocks(routes: np.ndarray) -> np.ndarray:
    """Whether no other task takes a task's block: (T, D), its block at each depth -> (T, D) bool."""
    found: np.ndarray = (routes[:, None] == routes[None]).sum(1) == 1
    return found


def private_share(routes: np.ndarray) -> np.ndarray:
    """Share of the tasks whose block no other task takes, at each depth: (T, D) -> (D,) in [0, 1]."""
    found: np.ndarray = private_blocks(routes).mean(0)
    return found


def sharing_profile(shares: Mapping[str, np.ndarray], title: str = "", layers: Sequence[str] = ()) -> Figure:
    """Share of tasks with a block of their own over the depths.

    Args:
        shares: for each line its name, and (D,) in [0, 1] from :func:`private_share`; or (S, D), of several runs, drawn
            as their mean with a band from the lowest to the highest.
        title: what the figure shows.
        layers: names of the D layers, in place of their depths; a network of more than 12 is shown by depths.

    Returns:
        The figure with a line per name.
    """
    with matplotlib.rc_context(look()):
        figure = new_figure(6.4, 3.2)
        axes = figure.subplots()
        for (name, values), colour in zip(shares.items(), task_colours(len(shares)), strict=True):
            runs = np.atleast_2d(values)
            depths = np.arange(1, runs.shape[1] + 1)
            axes.plot(depths, runs.mean(0), "o-", color=colour, markersize=4, linewidth=1.4, label=name)
            if len(runs) > 1:
                axes.fill_between(depths, runs.min(0), runs.max(0), color=colour, alpha=0.2, lw=0)
        axes.set(xlabel="depth", ylabel="tasks with a block of their own", ylim=(-0.03, 1.03))
        if 0 < len(layers) <= MOST_NAMED:
            axes.set_xticks(range(1, len(layers) + 1), layers, rotation=30, ha="right", rotation_mode="anchor")
            axes.set_xlabel("")
        else:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
        axes.set_title(title, loc="left")
        axes.grid(color=SOFT, linewidth=0.3)
        if len(shares) > 1:
            figure.legend(loc="outside right upper")
    return figure
