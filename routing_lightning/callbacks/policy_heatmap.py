"""PolicyHeatmap: the policies as pictures."""

import lightning as L
import numpy as np

from routing_lightning.callbacks.access import Epochs, every_steps, log_png, policy_of, writers
from routing_lightning.callbacks.drawing import RouteCallback
from routing_lightning.plots import HeatmapFrame, evolution_panel, policy_heatmap, time_edges


class PolicyHeatmap(RouteCallback):
    """Shows the policies in TensorBoard: who takes which block, and how that came about.

    - ``policy/depth_<d>``: tasks x blocks, colour = probability, at step 0, 1, 4, 16, ..., then every
      ``every_n_steps`` steps, and together with the next. The step slider plays the evolution.
    - ``policy_evolution/depth_<d>/<task>``: time x blocks, after epoch 2, 4, ..., then every ``every_n_epochs``
      epochs, and the last.

    Needs a :class:`RouteRecorder` before it in the list of callbacks.

    Args:
        every_n_steps: optimizer steps between two heat maps, at least 1.
        every_n_epochs: epochs between two evolution pictures, at least 1.

    Raises:
        UsageError: if a value is below 1.
    """

    def __init__(self, every_n_steps: int = 1000, every_n_epochs: int = 10) -> None:
        super().__init__()
        self.steps = every_steps(every_n_steps, "PolicyHeatmap")
        self.epochs = Epochs(every_n_epochs, "PolicyHeatmap")

    def start(self, trainer: L.Trainer) -> None:
        """Draws the frames, and the first heat maps if training starts from nothing."""
        self.epochs.last = trainer.current_epoch
        self._drawn = trainer.global_step if self.steps.begin(trainer.global_step) else -1
        if not writers(trainer):
            return
        record = self.recorder.record()
        frames: dict[tuple[str, ...], HeatmapFrame] = {}
        for names in record.action_names():
            if tuple(names) not in frames:
                empty = np.zeros((len(record.task_names), len(names)))
                columns, rows = np.arange(len(names) + 1) - 0.5, np.arange(len(empty) + 1) - 0.5
                frames[tuple(names)] = HeatmapFrame(
                    policy_heatmap(empty, record.task_names, names, label=self.measure), columns, rows
                )
        self._frames = [frames[tuple(names)] for names in record.action_names()]
        if trainer.global_step == 0 and policy_of(self.router) is not None:
            self.draw(trainer)

    def after_batch(self, trainer: L.Trainer) -> None:
        """Draws the heat maps if they are due."""
        if self.steps.due(trainer.global_step):
            self.draw(trainer)

    def draw(self, trainer: L.Trainer) -> None:
        """Draws the heat maps of all depths."""
        open_writers = writers(trainer)
        if not open_writers:
            return
        self._drawn = trainer.global_step
        policy = self.policy()
        for depth, frame in enumerate(self._frames):
            png = frame.png(policy[:, depth, : self.recorder.num_actions[depth]])
            for writer in open_writers:
                log_png(writer, f"policy/depth_{depth + 1}", png, trainer.global_step)

    def after_epoch(self, trainer: L.Trainer) -> None:
        """Draws the evolution if it is due, and the heat maps of the same step."""
        if not self.epochs.over(trainer) or not writers(trainer):
            return
        if self._drawn < trainer.global_step:
            self.draw(trainer)
        record = self.recorder.record()
        if len(record.steps) == 0:
            return
        policy, edges = record.policy(), time_edges(record.steps)
        frames: dict[tuple[str, ...], HeatmapFrame] = {}
        for depth, names in enumerate(record.action_names()):
            actions = tuple(names)
            if actions not in frames:
                panel = evolution_panel(record.steps, policy[:, 0, depth, : len(actions)], actions, self.measure)
                frames[actions] = HeatmapFrame(panel, edges, np.arange(len(actions) + 1) - 0.5)
            for task, name in enumerate(record.task_names):
                png = frames[actions].png(policy[:, task, depth, : len(actions)].T)
                for writer in writers(trainer):
                    log_png(writer, f"policy_evolution/depth_{depth + 1}/{name}", png, trainer.global_step)
