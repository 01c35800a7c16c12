"""What a test found of a task: confusion of classes, F1 of labels, values and their predictions."""

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from routing_lightning.plots.style import COLOUR_MAP, SOFT, TASK_COLOURS, label_ticks, look, new_figure, shortened
from routing_lightning.record import TestedTask

MOST_CLASSES = 25
"""Classes that a confusion matrix shows one by one."""
MOST_WRITTEN = 12  # rows up to which each cell has its number written in it


def folded(counts: np.ndarray, names: Sequence[str], most: int = MOST_CLASSES) -> tuple[np.ndarray, list[str]]:
    """A confusion matrix of at most so many classes: those with most mistakes, in their order, and all others in one.

    Args:
        counts: (C, C) samples of each class (rows) by predicted class.
        names: C names.
        most: classes to show, the one for the others included.

    Returns:
        The matrix, of the same sum, and its names. Mistakes among the others stand on the diagonal, and the name of
        the others says how many they are.
    """
    count = len(names)
    if count <= most:
        return counts, list(names)
    mistakes = counts.sum(0) + counts.sum(1) - 2 * counts.diagonal()
    kept = np.sort(np.argsort(-mistakes, kind="stable")[: most - 1])
    place = np.full(count, most - 1)
    place[kept] = np.arange(most - 1)
    small = np.zeros((most, most), counts.dtype)
    np.add.at(small, (place[:, None], place[None, :]), counts)
    return small, [*(names[number] for number in kept), f"{count - most + 1} others"]


def confusion_matrix(counts: np.ndarray, names: Sequence[str], title: str = "") -> Figure:
    """Samples of each class by predicted class; colour is the share of the class's samples.

    Args:
        counts: (C, C) int, rows are the classes, columns the predictions. Of many classes those with most mistakes are
            shown, see :func:`folded`.
        names: C names.
        title: what the figure shows.

    Returns:
        The figure; its image holds the shares, nan for classes without samples.
    """
    counts, names = folded(counts, names)
    names = [shortened(name) for name in names]
    total = counts.sum(1, keepdims=True)
    shares = np.where(total > 0, counts / np.maximum(total, 1), np.nan)
    cell = 0.42 if len(names) <= MOST_WRITTEN else 0.22
    side = max(cell * len(names), 1.5)
    margin = 0.06 * max(len(name) for name in names)
    with matplotlib.rc_context(look()):
        figure = new_figure(side + margin + 1.6, side + margin + 1.0)
        axes = figure.subplots()
        image = axes.imshow(shares, cmap=COLOUR_MAP, vmin=0.0, vmax=1.0)
        if len(names) <= MOST_WRITTEN:
            for (row, column), number in np.ndenumerate(counts):
                if number:
                    colour = "black" if shares[row, column] > 0.6 else "white"
                    axes.text(column, row, str(number), ha="center", va="center", fontsize=6, color=colour)
        label_ticks(axes, "x", names, side)
        label_ticks(axes, "y", names, side)
        axes.set(xlabel="predicted", ylabel="class")
        axes.set_title(title, loc="left")
        bar = figure.colorbar(image, ax=axes, label="share of the class's samples", fraction=0.05, pad=0.02)
        bar.outline.set_visible(False)
    return figure


def label_scores(scores: np.ndarray, names: Sequence[str], title: str = "", most: int = 40) -> Figure:
    """F1 of each label as bars, the worst ones if there are many.

    Args:
        scores: (K,) in [0, 1], nan for labels that are neither wanted nor predicted.
        names: K names.
        title: what the figure shows.
        most: labels to show.

    Returns:
        The figure with a bar per label that is shown.
    """
    order = np.argsort(scores, kind="stable")[:most]  # nan last
    shown = np.sort(order)
    labels = [shortened(names[number]) for number in shown]
    height = max(0.2 * len(shown), 0.8)
    with matplotlib.rc_context(look()):
        figure = new_figure(4.2 + 0.06 * max((len(label) for label in labels), default=0), height + 0.9)
        axes = figure.subplots()
        axes.barh(np.arange(len(shown)), np.nan_to_num(scores[shown]), color=TASK_COLOURS[0], height=0.7)
        label_ticks(axes, "y", labels, height)
        axes.set(xlim=(0, 1), xlabel="F1", ylim=(len(shown) - 0.5, -0.5))
        rest = f" (the worst {most} of {len(names)} labels)" if len(names) > most else ""
        axes.set_title(title + rest, loc="left")
        axes.grid(axis="x", color=SOFT, linewidth=0.3)
    return figure


def value_scatter(values: np.ndarray, predictions: np.ndarray, title: str = "") -> Figure:
    """Predictions over values, a dot per sample; on the line both are equal.

    Args:
        values: (N,).
        predictions: (N,).
        title: what the figure shows.
    """
    with matplotlib.rc_context(look()):
        figure = new_figure(3.8, 3.6)
        axes = figure.subplots()
        axes.axline((float(values[0]), float(values[0])), slope=1, color=SOFT, linewidth=0.8, zorder=0)
        axes.scatter(values, predictions, s=6, color=TASK_COLOURS[0], alpha=0.6, linewidths=0)
        axes.set(xlabel="value", ylabel="predicted")
        axes.set_title(title, loc="left")
        axes.grid(color=SOFT, linewidth=0.3)
    return figure


def draw_tested(task: TestedTask) -> Figure:
    """The figure of a task's kind: confusion matrix, F1 of each label, or values and predictions."""
    title = f"{shortened(task.name, 40)}, {task.samples} test samples"
    if task.kind == "classes":
        return confusion_matrix(task.matrix(), task.classes, title)
    if task.kind == "labels":
        return label_scores(task.f1(), task.classes, title)
    values, predictions = np.array(task.pairs).T
    return value_scatter(values, predictions, title)
