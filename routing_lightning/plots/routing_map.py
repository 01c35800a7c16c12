"""The routing map: which task takes which blocks (paper, routing map of MNIST-MTL)."""

from collections.abc import Sequence
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from routing_lightning.plots.style import BOX, FAINT, INK, SOFT, look, new_figure, task_colours, task_dashes

PLACE = 0.32  # width of a block, inches


class Link(NamedTuple):
    """A part of the routes of one task: from a row of the map to a lower one.

    Attributes:
        task: the task.
        row: row where it begins; 0 is the row of tasks, d the row of depth d.
        source: task or block where it begins.
        next_row: row where it ends; the row below, unless depths without decision lie between.
        target: block where it ends; the number after the last block means PASS.
        share: share of the task's samples that take it, in (0, 1].
    """

    task: int
    row: int
    source: int
    next_row: int
    target: int
    share: float


def route_links(routes: np.ndarray, counts: np.ndarray) -> list[Link]:
    """Adds up whole routes to the links of the map.

    Args:
        routes: (P, 1 + D) int, a task and its action at each depth; -1 means no decision.
        counts: (P,) samples that took each route, above 0.

    Returns:
        The links, ordered by task, row, source, target.
    """
    routes, counts = np.asarray(routes), np.asarray(counts, np.float64)
    totals = np.bincount(routes[:, 0], weights=counts) if len(routes) else np.zeros(0)
    share: dict[tuple[int, int, int, int, int], float] = {}
    for route, count in zip(routes.tolist(), counts.tolist(), strict=True):
        task, row, source = route[0], 0, route[0]
        for depth, action in enumerate(route[1:], start=1):
            if action < 0:
                continue
            key = (task, row, source, depth, action)
            share[key] = share.get(key, 0.0) + count / totals[task]
            row, source = depth, action
    return [Link(*key, value) for key, value in sorted(share.items())]


def _places(count: int, width: float) -> np.ndarray:
    """Centres of ``count`` equal places on ``[0, width]``."""
    return (np.arange(count) + 0.5) * width / count


def _slots(links: Sequence[Link], gap: float) -> dict[tuple[int, int, int], float]:
    """Where each task crosses a node, beside its centre: (row, node, task) -> offset; tasks lie side by side."""
    guests: dict[tuple[int, int], set[int]] = {}
    for link in links:
        guests.setdefault((link.next_row, link.target), set()).add(link.task)
    slots = {}
    for (row, node), tasks in guests.items():
        step = min(gap, 0.8 / len(tasks))
        for slot, task in enumerate(sorted(tasks)):
            slots[row, node, task] = (slot - (len(tasks) - 1) / 2) * step
    return slots


def _bend(start: tuple[float, float], end: tuple[float, float]) -> np.ndarray:
    """A smooth curve that leaves and arrives upright: (25, 2) points."""
    t = np.linspace(0, 1, 25)
    eased = t * t * (3 - 2 * t)
    return np.stack([start[0] + (end[0] - start[0]) * eased, start[1] + (end[1] - start[1]) * t], 1)


def _row_of_blocks(axes: Axes, depth: int, names: Sequence[str], used: set[int], width: float) -> None:
    places, size = _places(len(names), width), width / len(names)
    half = min(0.4 * size, 0.42)
    boxes = [Rectangle((x - half, -depth - 0.1), 2 * half, 0.2) for x in places]
    for chosen, face, edge in ((True, BOX, INK), (False, "none", FAINT)):
        picked = [box for block, box in enumerate(boxes) if (block in used) == chosen]
        axes.add_collection(PatchCollection(picked, facecolor=face, edgecolor=edge, linewidth=0.6, zorder=1))
    if size * PLACE >= 0.1:
        for block, (x, name) in enumerate(zip(places, names, strict=True)):
            colour = INK if block in used else SOFT
            at = (x - half, -depth - 0.11)  # at the left, since the links go through the middle
            axes.text(*at, name, ha="left", va="top", fontsize=min(6.5, 22 * size * PLACE), color=colour, zorder=4)
    axes.text(
        -0.3, -depth, f"depth {depth}\n{len(used)} of {len(names)}\nin use", ha="right", va="center", fontsize=7
    )  # fmt: skip


def routing_map(
    routes: np.ndarray, counts: np.ndarray, tasks: Sequence[str], actions: Sequence[Sequence[str]], title: str = ""
) -> Figure:
    """Tasks on top, below them the blocks of each depth, and the routes between: wider where more samples go.

    Blocks that no sample takes are faint.

    Args:
        routes: (P, 1 + D) int, a task and its action at each depth; -1 means no decision.
        counts: (P,) samples that took each route, above 0.
        tasks: T names.
        actions: for each of the D depths the names of its actions (blocks, and PASS where there is one).
        title: what the figure shows.

    Returns:
        The figure. Its line collection with the label ``links`` has one curve per link of :func:`route_links`.
    """
    links = route_links(routes, counts)
    most = max(len(tasks), *(len(names) for names in actions))
    width = float(np.clip(most, 6, 110))  # in places
    longest = min(max((len(name) for name in tasks), default=0), 40)
    depth = len(actions)
    places = [_places(len(tasks), width), *(_places(len(names), width) for names in actions)]
    colours, dashes = task_colours(len(tasks)), task_dashes(len(tasks))
    slots = _slots(links, gap=0.09)

    def place(row: int, node: int, task: int) -> float:
        return float(places[row][node] + slots.get((row, node, task), 0.0))

    with matplotlib.rc_context(look()):
        row_height = float(np.clip(width * PLACE / 6, 1.1, 3.0))  # links of a wide map need height to stay apart
        figure = new_figure(width * PLACE + 0.8, depth * row_height + 0.6 + 0.05 * longest)
        axes = figure.subplots()
        curves = [
            _bend(
                (place(link.row, link.source, link.task), -link.row - 0.02),
                (place(link.next_row, link.target, link.task), -link.next_row - 0.02),
            )
            for link in links
        ]
        axes.add_collection(
            LineCollection(
                curves,
                colors=[colours[link.task] for link in links],
                linestyles=[dashes[link.task] for link in links],
                linewidths=[0.25 + 1.75 * link.share for link in links],
                label="links",
                zorder=2,
            )
        )
        for row, names in enumerate(actions, start=1):
            used = {link.target for link in links if link.next_row == row}
            _row_of_blocks(axes, row, names, used, width)
        axes.scatter(places[0], np.zeros(len(tasks)), c=colours, s=14, zorder=3)
        size = float(np.clip(72 * PLACE * width / len(tasks) * 0.8, 4.0, 7.5))
        for x, name in zip(places[0], tasks, strict=True):
            axes.text(x, 0.08, name, rotation=60, ha="left", va="bottom", rotation_mode="anchor", fontsize=size)
        axes.set(xlim=(-0.2, width + 0.2), ylim=(-depth - 0.35, 0.1))
        axes.set_axis_off()
        figure.suptitle(title, fontsize=9, x=0.01, ha="left")
    return figure
