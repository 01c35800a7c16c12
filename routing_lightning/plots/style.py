"""The look that all figures share, and the ways out of a figure: array, file, text."""

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from routing_lightning.plots.fonts import families, missing_characters

COLOUR_MAP = "viridis"  # perceptually uniform, and readable without seeing colours

# 20 colours found by a search that makes the smallest distance of two of them (OKLab) as large as possible for normal
# sight, protanopia and deuteranopia at once (simulation of Machado et al., 2009), with a contrast of at least 1.75 to
# white and to nearly black. Any first n of them are the farthest apart.
TASK_COLOURS = (
    "#4b5ae1", "#3ce100", "#870000", "#d2b4ff", "#87784b", "#4b2d87", "#004b4b", "#5ab4b4", "#1e6996", "#a5a55a",
    "#7878c3", "#78d296", "#0000e1", "#b469ff", "#c36987", "#f01e1e", "#b41e0f", "#a596f0", "#695a5a", "#004bb4",
)  # fmt: skip

# Each ten tasks have a dash pattern of their own, so that no pair relies on colour alone.
DASHES = ("-", (0, (4, 1.2)), (0, (1.2, 1.2)), (0, (6, 1.2, 1.2, 1.2)))

INK = "#303234"  # text and axes
SOFT = "#b9bcc0"  # what should stay in the background
BOX = "#e9ebed"  # a block in use
FAINT = "#dfe1e3"  # the outline of one that is not

# How the colours above are written in a page, so that figures follow its light and dark look.
PAGE_COLOURS = {INK: "currentColor", SOFT: "var(--soft)", BOX: "var(--box)", FAINT: "var(--faint)"}
PAGE_COLOURS |= {colour: f"var(--task-{number})" for number, colour in enumerate(TASK_COLOURS)}

_RC = {
    "font.size": 8.0,
    "axes.titlesize": 9.0,
    "axes.labelsize": 8.0,
    "xtick.labelsize": 7.0,
    "ytick.labelsize": 7.0,
    "legend.fontsize": 7.0,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text: small files, selectable, in the reader's font
    "image.interpolation": "nearest",
    "text.parse_math": False,  # a $ in a name is a $
}


def look() -> Any:
    """The settings of the look, for ``with rc_context(look()):`` around the drawing of a figure."""
    return {**_RC, "font.sans-serif": list(families())}


def task_colours(count: int) -> list[str]:
    """One colour per task, as ``#rrggbb``; they repeat after 20 tasks, then with another dash pattern."""
    return [TASK_COLOURS[task % len(TASK_COLOURS)] for task in range(count)]


def task_dashes(count: int) -> list[Any]:
    """One dash pattern per task: solid for the first ten, dashed for the next ten, and so on."""
    return [DASHES[task // 10 % len(DASHES)] for task in range(count)]


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of a size in inches, on a canvas without window."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def shortened(name: str, most: int = 20) -> str:
    """A name of at most so many characters; the end of a longer one is left out."""
    return name if len(name) <= most else name[: most - 1] + "…"


def label_ticks(axes: Axes, which: str, labels: Sequence[str], inches: float) -> None:
    """Names the cells 0, 1, ... of an axis, leaving out names where there is no room for all.

    Args:
        axes: the axes.
        which: ``"x"`` or ``"y"``.
        labels: one name per cell.
        inches: length of the axis.
    """
    room = inches * 72 / max(len(labels), 1)  # points per label
    size = float(np.clip(room * 0.85, 5.0, 7.0))
    widest = max((len(label) for label in labels), default=0)
    turned = which == "x" and widest > 4 and widest * size * 0.65 > room
    needed = size * 0.65 * (widest + 1) if which == "x" and not turned else size * 1.15
    shown = range(0, len(labels), max(1, int(np.ceil(needed / room))))
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_ticks(list(shown), [labels[i] for i in shown], fontsize=size)
    if turned:
        for text in axes.get_xticklabels():
            text.set(rotation=60, ha="right", rotation_mode="anchor")


def to_array(figure: Figure, dpi: int = 80) -> np.ndarray:
    """Draws a figure: (height, width, 3) uint8."""
    figure.set_dpi(dpi)
    canvas = FigureCanvasAgg(figure)
    with missing_characters(tell=True):
        canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def to_svg(figure: Figure) -> str:
    """A figure as one ``<svg>`` element to stand in a page.

    Its background is clear; text and axes have the page's text colour. The page's style must define the colours
    ``--soft``, ``--box``, ``--faint`` and ``--task-0`` to ``--task-19``.
    """
    figure.patch.set_alpha(0)
    for axes in figure.axes:
        axes.patch.set_alpha(0)
    text = io.StringIO()
    with matplotlib.rc_context(look()), missing_characters(tell=False):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # Names of groups are the same in each figure of a page; those of the routing map become data for its script.
    svg = re.sub(r'<g id="task-(\d+)"', r'<g data-tasks="\1"', svg)
    svg = re.sub(r'<g id="block-\d+-\d+-([\d-]*)"', lambda m: f'<g data-tasks="{m[1].replace("-", " ")}"', svg)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    for colour, page_colour in PAGE_COLOURS.items():
        svg = svg.replace(colour, page_colour)
    return svg


def save(figure: Figure, path: Path) -> None:
    """Writes a figure in the format that the file's ending names (``.png``, ``.svg``, ...)."""
    with matplotlib.rc_context(look()), missing_characters(tell=path.suffix != ".svg"):
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=150, metadata=metadata)
