"""RoutingMap: which task takes which blocks."""

import lightning as L
import numpy as np

from routing_lightning.callbacks.access import Epochs, log_png, writers
from routing_lightning.callbacks.drawing import RouteCallback
from routing_lightning.plots import figure_png, routing_map

WIDEST = 1400  # pixels of a picture, about


class RoutingMap(RouteCallback):
    """The routing map (paper): tasks on top, a row of blocks per depth, and the routes between.

    Logged as ``routing_map`` after epoch 2, 4, ..., then every ``every_n_epochs`` epochs, and the last. For policies
    that are tables it shows the most probable route of each task; for routers that look at the activations, the routes
    that were counted in the last validation. If no route has changed, the last picture is logged again.

    Needs a :class:`RouteRecorder` before it in the list of callbacks.

    Args:
        every_n_epochs: epochs between two maps, at least 1.

    Raises:
        UsageError: if the value is below 1.
    """

    def __init__(self, every_n_epochs: int = 1) -> None:
        super().__init__()
        self.epochs = Epochs(every_n_epochs, "RoutingMap")
        self._drawn: tuple[np.ndarray, ...] = ()
        self._png = b""

    def start(self, trainer: L.Trainer) -> None:
        """Starts to count from here."""
        self.epochs.last = trainer.current_epoch
        self._drawn = ()

    def after_epoch(self, trainer: L.Trainer) -> None:
        """Draws the map if it is due."""
        if not self.epochs.over(trainer) or not writers(trainer):
            return
        record = self.recorder.record()
        if len(record.steps) == 0:
            return
        routes, counts, _ = record.map_routes()
        if len(routes) == 0:
            return
        same = [np.array_equal(now, then) for now, then in zip((routes, counts), self._drawn, strict=False)]
        if not same or not all(same):
            names, used = record.action_names(), record.in_use()
            figure = routing_map(routes, counts, record.task_names, names, "Routing map", used, record.layers())
            self._png = figure_png(figure, dpi=int(min(80, WIDEST / figure.get_figwidth())))
            self._drawn = routes, counts
        for writer in writers(trainer):
            log_png(writer, "routing_map", self._png, trainer.global_step)
