"""BlockUsage: how busy the blocks are, and who shares them."""

import lightning as L
import numpy as np

from routing_lightning.callbacks.access import every_steps, log_png, log_scalars, writers
from routing_lightning.callbacks.drawing import RouteCallback
from routing_lightning.plots import HeatmapFrame, overlap, policy_heatmap, task_overlap
from routing_lightning.record import shares


class BlockUsage(RouteCallback):
    """How the training samples spread over the blocks, and how much the tasks share.

    Counted since the last log, at step 1, 4, 16, ... and then every ``every_n_steps`` steps:

    - ``usage/entropy/depth_<d>``: entropy of the blocks' shares of samples, in nats;
    - ``usage/in_use/depth_<d>``: blocks that got a sample;
    - ``usage/overlap``: the chance that samples of two tasks take the same block, mean over depths and pairs of tasks;
    - pictures ``usage/share`` (depths x blocks) and ``usage/overlap_of_tasks`` (task x task).

    Needs a :class:`RouteRecorder` before it in the list of callbacks.

    Args:
        every_n_steps: optimizer steps between two logs, at least 1.

    Raises:
        UsageError: if the value is below 1.
    """

    def __init__(self, every_n_steps: int = 1000) -> None:
        super().__init__()
        self.steps = every_steps(every_n_steps, "BlockUsage")

    def check(self) -> None:
        """Asks for charts."""
        self.recorder.charts["use of blocks"] = {
            "entropy, all depths": ["Multiline", ["usage/entropy/"]],
            "blocks in use, all depths": ["Multiline", ["usage/in_use/"]],
        }

    def start(self, trainer: L.Trainer) -> None:
        """Draws the frames."""
        self.steps.last = trainer.global_step
        if not writers(trainer):
            return
        names = self.recorder.task_names
        depths = [f"depth {depth + 1}" for depth in range(len(self.recorder.num_actions))]
        most = int(self.recorder.num_actions.max())
        actions = max(self.recorder.record().action_names(), key=len)
        usage = policy_heatmap(np.zeros((len(depths), most)), depths, actions, "Share of the samples of a depth")
        self._usage = HeatmapFrame(usage, np.arange(most + 1) - 0.5, np.arange(len(depths) + 1) - 0.5)
        square = np.arange(len(names) + 1) - 0.5
        self._overlap = HeatmapFrame(task_overlap(np.zeros((len(names), len(names))), names), square, square)

    def after_batch(self, trainer: L.Trainer) -> None:
        """Logs if it is due."""
        if not self.steps.due(trainer.global_step):
            return
        recent = self.counts_since()
        usage, by_task = shares(recent.sum(0)), shares(recent)  # (D, K), (T, D, K)
        seen = by_task.sum((1, 2)) > 0
        values = {}
        for depth, share in enumerate(usage):
            positive = share[share > 0]
            values[f"usage/entropy/depth_{depth + 1}"] = float(-(positive * np.log(positive)).sum())
            values[f"usage/in_use/depth_{depth + 1}"] = float(len(positive))
        common = overlap(by_task)
        pairs = int(seen.sum()) * (int(seen.sum()) - 1)
        if pairs:
            values["usage/overlap"] = float((common.sum() - np.trace(common)) / pairs)
        log_scalars(trainer, values)
        for writer in writers(trainer):
            log_png(writer, "usage/share", self._usage.png(usage), trainer.global_step)
            log_png(writer, "usage/overlap_of_tasks", self._overlap.png(common), trainer.global_step)
