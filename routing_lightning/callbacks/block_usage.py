"""BlockUsage: how busy the blocks are, and who shares them."""

import lightning as L
import numpy as np

from routing_lightning.callbacks.access import Epochs, every_steps, log_png, log_scalars, writers
from routing_lightning.callbacks.drawing import RouteCallback
from routing_lightning.plots import HeatmapFrame, figure_png, overlap, task_overlap, usage_heatmap
from routing_lightning.record import in_use, shares, usage

SCALES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # where the colours of a picture may end

MOST_WRITTEN = 12  # tasks whose overlaps are written into the picture: more would take too long during a run


class BlockUsage(RouteCallback):
    """How the training samples spread over the blocks, and how much the tasks share.

    Of the latest tenth of all training samples, each task counting the same; at step 1, 4, 16, ..., then every
    ``every_n_steps`` steps, and at the end of each epoch:

    - ``usage/entropy/depth_<d>``: entropy of the blocks' shares of samples, in nats;
    - ``usage/in_use/depth_<d>``: blocks in use (:func:`~routing_lightning.record.in_use`);
    - ``usage/overlap``: the chance that samples of two tasks take the same block, mean over depths and pairs of tasks;
    - picture ``usage/share`` (depths x blocks).

    After epoch 2, 4, ..., then every ``every_n_epochs`` epochs, and the last: picture ``usage/overlap_of_tasks``
    (task x task).

    Needs a :class:`RouteRecorder` before it in the list of callbacks.

    Args:
        every_n_steps: optimizer steps between two logs, at least 1.
        every_n_epochs: epochs between two pictures of the overlap, at least 1.

    Raises:
        UsageError: if a value is below 1.
    """

    def __init__(self, every_n_steps: int = 1000, every_n_epochs: int = 10) -> None:
        super().__init__()
        self.steps = every_steps(every_n_steps, "BlockUsage")
        self.epochs = Epochs(every_n_epochs, "BlockUsage")

    def check(self) -> None:
        """Asks for charts."""
        self.recorder.charts["use of blocks"] = {
            "entropy, all depths": ["Multiline", ["usage/entropy/"]],
            "blocks in use, all depths": ["Multiline", ["usage/in_use/"]],
        }

    def start(self, trainer: L.Trainer) -> None:
        """Starts to count from here."""
        self.epochs.last = trainer.current_epoch
        # The end of the epoch is logged unless its last batch was.
        self._logged = trainer.global_step - (not self.steps.begin(trainer.global_step))
        self._frames: dict[float, HeatmapFrame] = {}

    def after_batch(self, trainer: L.Trainer) -> None:
        """Logs if it is due."""
        if self.steps.due(trainer.global_step):
            self.write(trainer)

    def after_epoch(self, trainer: L.Trainer) -> None:
        """Logs the state at the end of the epoch, and draws the overlap if it is due."""
        if self._logged < trainer.global_step:
            self.write(trainer)
        if not self.epochs.over(trainer) or not writers(trainer):
            return
        values = overlap(shares(self.recorder.record().recent_counts()))
        names = self.recorder.task_names
        png = figure_png(task_overlap(values, names, "Shared blocks", numbers=len(names) <= MOST_WRITTEN))
        for writer in writers(trainer):
            log_png(writer, "usage/overlap_of_tasks", png, trainer.global_step)

    def write(self, trainer: L.Trainer) -> None:
        """Logs the numbers and the picture of the shares."""
        self._logged = trainer.global_step
        recent = self.recorder.record().recent_counts()
        share, by_task = usage(recent), shares(recent)  # (D, K), (T, D, K)
        seen = int((by_task.sum((1, 2)) > 0).sum())
        values = {}
        for depth, count in enumerate(self.recorder.num_actions):
            here = share[depth, :count]
            positive = here[here > 0]
            values[f"usage/entropy/depth_{depth + 1}"] = float(-(positive * np.log(positive)).sum())
            values[f"usage/in_use/depth_{depth + 1}"] = float(in_use(here, len(recent)).sum())
        common = overlap(by_task)
        if seen > 1:
            values["usage/overlap"] = float((common.sum() - np.trace(common)) / (seen * (seen - 1)))
        log_scalars(trainer, values)
        for writer in writers(trainer):
            log_png(writer, "usage/share", self.picture(share), trainer.global_step)

    def picture(self, share: np.ndarray) -> bytes:
        """The shares (D, K) as a PNG file, colours up to the scale above the largest share."""
        highest = next(scale for scale in SCALES if scale >= share.max() or scale == SCALES[-1])
        if highest not in self._frames:
            depths = [str(depth + 1) for depth in range(len(share))]
            actions = max(self.recorder.record().action_names(), key=len)
            figure = usage_heatmap(np.zeros(share.shape), depths, actions, highest, "Share of the samples of a depth")
            rows, columns = (np.arange(size + 1) - 0.5 for size in share.shape)
            self._frames[highest] = HeatmapFrame(figure, columns, rows)
        missing = np.arange(share.shape[1]) >= self.recorder.num_actions[:, None]
        return self._frames[highest].png(np.where(missing, np.nan, share / highest))
