"""Many heat maps with the same axes, drawn fast."""

import io

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from routing_lightning.plots.style import COLOUR_MAP, to_array

LEVELS = 240  # colours of the map in a picture's palette of 256; the rest are greys for text


def _palette() -> np.ndarray:
    """(256, 3) uint8: the colour map, then greys from black to white."""
    colours = matplotlib.colormaps[COLOUR_MAP](np.linspace(0, 1, LEVELS))[:, :3] * 255
    greys = np.repeat(np.linspace(0, 255, 256 - LEVELS)[:, None], 3, axis=1)
    return np.concatenate([colours, greys]).round().astype(np.uint8)


class HeatmapFrame:
    """Axes, names and colour bar of a heat map, drawn once; cells are then painted in a millisecond.

    A figure takes matplotlib about 100 ms, most of it for text that never changes. During training that is too much for
    a picture per task and depth. Pictures have a palette of 256 colours, which makes them small and quick to compress.

    Args:
        figure: a figure whose first axes show the cells.
        x_edges: (C + 1,) ascending, where the columns begin and end, in the axes' units.
        y_edges: (R + 1,) ascending, where the rows begin and end.
        dpi: pixels per inch.
    """

    def __init__(self, figure: Figure, x_edges: np.ndarray, y_edges: np.ndarray, dpi: int = 80) -> None:
        self.palette = _palette()
        drawn = to_array(figure, dpi)
        holder = Image.new("P", (1, 1))
        holder.putpalette(self.palette.tobytes())
        self._background = np.array(Image.fromarray(drawn).quantize(palette=holder, dither=Image.Dither.NONE))
        axes = figure.axes[0]
        box = axes.get_window_extent()
        height = len(drawn)
        # Pixels inside the axes, without those that the axes' lines may touch.
        columns = np.arange(int(np.ceil(box.x0)) + 1, int(np.floor(box.x1)) - 1)
        rows = np.arange(int(np.ceil(height - box.y1)) + 1, int(np.floor(height - box.y0)) - 1)
        to_data = axes.transData.inverted()
        x = to_data.transform(np.stack([columns + 0.5, np.full(len(columns), box.y0)], 1))[:, 0]
        y = to_data.transform(np.stack([np.full(len(rows), box.x0), height - rows - 0.5], 1))[:, 1]
        self._area = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
        self._row_of = np.clip(np.searchsorted(y_edges, y, "right") - 1, 0, len(y_edges) - 2)
        self._column_of = np.clip(np.searchsorted(x_edges, x, "right") - 1, 0, len(x_edges) - 2)

    def paint(self, values: np.ndarray) -> np.ndarray:
        """The picture for cells (R, C) in [0, 1], white where NaN: (height, width) uint8 numbers of :attr:`palette`."""
        levels = np.where(np.isnan(values), 255, (np.clip(values, 0, 1) * (LEVELS - 1)).round()).astype(np.uint8)
        picture = self._background.copy()
        picture[self._area] = levels[self._row_of][:, self._column_of]
        return picture

    def png(self, values: np.ndarray) -> bytes:
        """The picture for cells (R, C) in [0, 1] as a PNG file."""
        image = Image.fromarray(self.paint(values))
        image.putpalette(self.palette.tobytes())  # makes of grey levels numbers of colours
        return encode(image)


def encode(image: Image.Image) -> bytes:
    """A picture as a PNG file."""
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=6)
    return file.getvalue()


def figure_png(figure: Figure, dpi: int = 80) -> bytes:
    """A figure as a PNG file with a palette of 256 colours, which is a third of the size."""
    return encode(Image.fromarray(to_array(figure, dpi)).quantize(256, method=Image.Quantize.FASTOCTREE))
