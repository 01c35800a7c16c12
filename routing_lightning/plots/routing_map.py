"""The routing map: which task takes which blocks (paper, routing map of MNIST-MTL)."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from routing_lightning.plots.overlap import cluster_order, overlap
from routing_lightning.plots.style import BOX, INK, SOFT, look, new_figure, task_colours, task_dashes

RARE = 0.1  # links of a smaller share of a task's samples are left out
# Sizes in inches.
SLOT = 0.09  # between two links that go through one block
BLOCK = 0.3  # least width of a block
GAP = 0.12  # least room between two blocks
TASK = 0.3  # room of a task's name
BOX_HEIGHT = 0.36
WIDEST = 34.0  # a wider map is drawn smaller


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


def fold_links(links: Sequence[Link], least: float = RARE) -> list[Link]:
    """Leaves out rare links, so that the others can be followed.

    Args:
        links: from :func:`route_links`.
        least: share of the task's samples from which on a link is kept, in [0, 1].

    Returns:
        For each task, from its name downwards: the links of at least that share out of the blocks reached so far, or
        the widest one where all are rare. So each link shown begins where another one ends.
    """
    out: dict[tuple[int, int, int], list[Link]] = {}
    for link in links:
        out.setdefault((link.task, link.row, link.source), []).append(link)
    kept: list[Link] = []
    reached = sorted({(link.task, 0, link.task) for link in links})
    for node in reached:  # grows
        wide = [link for link in out.get(node, []) if link.share >= least]
        if not wide and node in out:
            wide = [max(out[node], key=lambda link: link.share)]
        kept += wide
        reached += [end for link in wide if (end := (link.task, link.next_row, link.target)) not in reached]
    return sorted(kept)


def letters(number: int) -> str:
    """A short name of a task: A to Z, AA, AB, ..."""
    return (letters(number // 26 - 1) if number >= 26 else "") + chr(ord("A") + number % 26)


def spans(numbers: Sequence[int]) -> str:
    """Short names of tasks, neighbours as a span: 0, 1, 2, 5 -> ``A-C F``."""
    words: list[str] = []
    first = last = -2
    for number in [*sorted(numbers), -2]:
        if number == last + 1:
            last = number
            continue
        if first >= 0:
            joint = " " if last == first + 1 else "-"
            words.append(letters(first) + (joint + letters(last) if last > first else ""))
        first = last = number
    return " ".join(words)


def _crossings(links: Sequence[Link], place: dict[tuple[int, int], int]) -> int:
    """How often links between two rows cross."""
    total = 0
    ends = np.array(
        [(link.row, place[link.row, link.source], place[link.next_row, link.target]) for link in links]
    ).reshape(-1, 3)
    for row in np.unique(ends[:, 0]):
        above, below = ends[ends[:, 0] == row, 1], ends[ends[:, 0] == row, 2]
        total += int(((above[:, None] < above) & (below[:, None] > below)).sum())
    return total


def map_order(links: Sequence[Link], num_tasks: int, shown: Sequence[Iterable[int]]) -> list[list[int]]:
    """An order of the tasks, and of the blocks of each depth, in which few links cross.

    Each row in turn is ordered by the mean place of its neighbours in the row above, then below, and so on; the best
    order on the way is taken.

    Args:
        links: what to draw.
        num_tasks: T.
        shown: for each depth the blocks to place, also without links.

    Returns:
        For each row the numbers of its tasks or blocks, from left to right.
    """
    rows = [set(range(num_tasks)), *(set(blocks) for blocks in shown)]
    for link in links:
        rows[link.next_row].add(link.target)
    shares = np.zeros((num_tasks, len(rows) - 1, 1 + max((max(row, default=0) for row in rows), default=0)))
    for link in links:
        shares[link.task, link.next_row - 1, link.target] += link.share
    order = [sorted(row) for row in rows]
    order[0] = cluster_order(overlap(shares)).tolist()

    def places() -> dict[tuple[int, int], int]:
        return {(row, node): place for row, nodes in enumerate(order) for place, node in enumerate(nodes)}

    best, fewest = [list(row) for row in order], math.inf
    for sweep in range(12):
        downwards = sweep % 2 == 0
        for row in range(1, len(order)) if downwards else range(len(order) - 2, -1, -1):
            place = places()
            sums: dict[int, tuple[float, float]] = {}
            for link in links:
                near, far = ((link.next_row, link.target), (link.row, link.source))[:: 1 if downwards else -1]
                if near[0] == row:
                    total, weight = sums.get(near[1], (0.0, 0.0))
                    sums[near[1]] = total + link.share * place[far] / len(order[far[0]]), weight + link.share
            alone = {node: place[row, node] / len(order[row]) for node in order[row]}
            order[row].sort(key=lambda node: sums[node][0] / sums[node][1] if node in sums else alone[node])
        crossings = _crossings(links, places())
        if crossings < fewest:
            best, fewest = [list(row) for row in order], crossings
    return best


class _Node(NamedTuple):
    """A block on the map: its middle, half of its width, and where each task crosses it, in inches."""

    x: float
    half: float
    slots: dict[int, float]


def _layout(links: Sequence[Link], order: Sequence[Sequence[int]]) -> tuple[list[dict[int, _Node]], float]:
    """Where everything stands: for each row its nodes, and the width of the map in inches."""
    guests: dict[tuple[int, int], set[int]] = {}
    for link in links:
        guests.setdefault((link.next_row, link.target), set()).add(link.task)

    def widths(row: int) -> list[float]:
        return [max(BLOCK, (len(guests.get((row, node), ())) + 1) * SLOT) for node in order[row]]

    needed = [len(order[0]) * TASK, *(sum(widths(row)) + GAP * len(order[row]) for row in range(1, len(order)))]
    width = max(3.0, *needed)
    rows = [
        {task: _Node((place + 0.5) * width / len(order[0]), 0.0, {}) for place, task in enumerate(order[0])}
    ]  # each task at its own place
    rows[0] = {task: node._replace(slots={task: node.x}) for task, node in rows[0].items()}
    for row in range(1, len(order)):
        spare = (width - needed[row]) / max(len(order[row]), 1) + GAP
        left, nodes = 0.0, {}
        for node, size in zip(order[row], widths(row), strict=True):
            middle = left + (size + spare) / 2
            here = guests.get((row, node), set())
            # A task crosses a block in the order in which it comes from above, so that links do not cross at its edge.
            origin: dict[int, list[float]] = {task: [] for task in here}
            for link in links:
                if (link.next_row, link.target) == (row, node):
                    origin[link.task].append(rows[link.row][link.source].slots[link.task])
            ordered = sorted(here, key=lambda task: sum(origin[task]) / len(origin[task]))
            slots = {task: middle + (slot - (len(here) - 1) / 2) * SLOT for slot, task in enumerate(ordered)}
            nodes[node] = _Node(middle, size / 2, slots)
            left += size + spare
        rows.append(nodes)
    return rows, width


def _bend(start: tuple[float, float], end: tuple[float, float]) -> np.ndarray:
    """A smooth curve that leaves and arrives upright: (25, 2) points."""
    t = np.linspace(0, 1, 25)
    eased = t * t * (3 - 2 * t)
    return np.stack([start[0] + (end[0] - start[0]) * eased, start[1] + (end[1] - start[1]) * t], 1)


def _end(name: str, longest: int = 16) -> str:
    """The end of a name, which tells layers apart: that of ``body.layer4.1.conv2`` is more than its beginning."""
    return name if len(name) <= longest else f"…{name[1 - longest :]}"


def routing_map(
    routes: np.ndarray,
    counts: np.ndarray,
    tasks: Sequence[str],
    actions: Sequence[Sequence[str]],
    title: str = "",
    in_use: Sequence[np.ndarray] | None = None,
    layers: Sequence[str] | None = None,
) -> Figure:
    """Tasks on top, below them the blocks of each depth, and the routes between: wider where more samples go.

    Tasks and blocks are ordered so that few links cross. Each block shows its number and the letters of the tasks that
    go through it. Blocks not in use are left out, and links of less than a tenth of a task's samples (see
    :func:`fold_links`).

    Args:
        routes: (P, 1 + D) int, a task and its action at each depth; -1 means no decision.
        counts: (P,) samples that took each route, above 0.
        tasks: T names.
        actions: for each of the D depths the names of its actions (blocks, and PASS where there is one).
        title: what the figure shows.
        in_use: for each depth (K_d,) bool, which actions are in use; None: those on the routes.
        layers: for each depth the name of its layer, of which the last characters are shown if it is long; None: none.

    Returns:
        The figure. The line collection with the group name (gid) ``task-<t>`` has the links of task t, in the order of
        :func:`fold_links`; boxes and their texts have ``block-<depth>-<k>-<tasks, joined by ->``.
    """
    every = route_links(routes, counts)
    links = fold_links(every)
    if in_use is None:
        in_use = [np.isin(np.arange(len(names)), [x.target for x in every if x.next_row == row])
                  for row, names in enumerate(actions, start=1)]  # fmt: skip
    order = map_order(links, len(tasks), [np.flatnonzero(used).tolist() for used in in_use])
    rows, width = _layout(links, order)
    letter = {task: place for place, task in enumerate(order[0])}
    longest = min(max((len(name) for name in tasks), default=0), 40)
    depth = len(actions)
    scale = min(1.0, WIDEST / width)
    row_height = float(np.clip(width * scale / 7, 0.8, 2.2)) + BOX_HEIGHT
    drawn = [sum(link.share for link in links if link.next_row == row) for row in range(1, depth + 1)]
    total = [sum(link.share for link in every if link.next_row == row) for row in range(1, depth + 1)]
    with matplotlib.rc_context(look()):
        figure = new_figure(width * scale + 1.2, depth * row_height + 0.6 + 0.055 * longest)
        axes = figure.subplots()
        colours, dashes = task_colours(len(tasks)), task_dashes(len(tasks))
        top, bottom = BOX_HEIGHT / 2, -BOX_HEIGHT / 2

        def edge(row: int, node: int, task: int, side: float) -> tuple[float, float]:
            return rows[row][node].slots[task], -row * row_height + (side if row else 0.0)

        for task in order[0]:
            own = [link for link in links if link.task == task]
            curves = [
                _bend(edge(link.row, link.source, task, bottom), edge(link.next_row, link.target, task, top))
                for link in own
            ]
            axes.add_collection(
                LineCollection(
                    curves, colors=colours[task], linestyles=dashes[task], gid=f"task-{task}", zorder=2,
                    linewidths=[0.5 + 2.0 * link.share for link in own],
                )
            )  # fmt: skip
            # Through a block the link goes on faintly, behind the text.
            through = sorted({(link.next_row, link.target) for link in own})
            axes.add_collection(
                LineCollection(
                    [[edge(*node, task, top), edge(*node, task, bottom)] for node in through],
                    colors=colours[task], linewidths=0.8, alpha=0.35, gid=f"task-{task}", zorder=3,
                )
            )  # fmt: skip
        for row in range(1, depth + 1):
            for block, node in rows[row].items():
                here = sorted(node.slots)
                _box(axes, node, -row * row_height, actions[row - 1][block], [letter[task] for task in here], scale,
                     f"block-{row}-{block}-{'-'.join(map(str, here))}")  # fmt: skip
            used = int(np.count_nonzero(in_use[row - 1]))
            words = f"depth {row}\n"
            if layers is not None and layers[row - 1] != f"depth {row}":
                words += f"{_end(layers[row - 1])}\n"
            words += f"{used} of {len(actions[row - 1])}\nin use"
            if total[row - 1] and drawn[row - 1] < 0.995 * total[row - 1]:
                words += f"\n{100 * drawn[row - 1] / total[row - 1]:.0f} % drawn"
            axes.text(-0.1, -row * row_height, words, ha="right", va="center", fontsize=7)
        size = float(np.clip(72 * width * scale / len(tasks) * 0.8, 4.0, 7.5))
        for task in order[0]:
            x = rows[0][task].x
            axes.scatter([x], [0], c=colours[task], s=14, zorder=3, gid=f"task-{task}")
            axes.text(x, 0.1, f"{letters(letter[task])}  {tasks[task]}", rotation=60, ha="left", va="bottom",
                      rotation_mode="anchor", fontsize=size, gid=f"task-{task}")  # fmt: skip
        axes.set(xlim=(0, width), ylim=(-depth * row_height - BOX_HEIGHT, 0.1))
        axes.set_axis_off()
        figure.suptitle(title, fontsize=9, x=0.01, ha="left")
    return figure


def _box(axes: Axes, node: _Node, y: float, name: str, tasks: Sequence[int], scale: float, gid: str) -> None:
    """A block: its number, and the letters of its tasks; dashed if no link is drawn to it."""
    corner = node.x - node.half, y - BOX_HEIGHT / 2
    edge, dash = (INK, "-") if tasks else (SOFT, ":")
    axes.add_patch(
        Rectangle(corner, 2 * node.half, BOX_HEIGHT, facecolor=BOX, edgecolor=edge, linestyle=dash, linewidth=0.6,
                  zorder=2.5, gid=gid)
    )  # fmt: skip
    words, points = spans(tasks), 2 * node.half * 72 * scale - 2
    size = float(np.clip(points / (0.62 * max(len(name), 1)), 3.0, 7.0))
    small = min(6.5, points / (0.62 * max(len(words), 1)))
    middle: dict[str, Any] = {"ha": "center", "va": "center", "zorder": 4, "gid": gid}
    shift, colour = (0.08, INK) if words else (0.0, SOFT)
    axes.text(node.x, y + shift, name, fontsize=size, weight="bold", color=colour, **middle).set_in_layout(False)
    if words and small >= 3.5:
        axes.text(node.x, y - shift, words, fontsize=small, **middle).set_in_layout(False)
