"""PolicyDynamics: one block over time."""

import re

import lightning as L

from routing_lightning.callbacks.access import Epochs, every_steps, log_png, log_scalars, writers
from routing_lightning.callbacks.drawing import RouteCallback
from routing_lightning.errors import UsageError
from routing_lightning.plots import figure_png, policy_dynamics


class PolicyDynamics(RouteCallback):
    """The probability that each task takes one chosen block, over time (paper, probabilities of taking block 7).

    Logs the scalars ``policy/depth_<d>/block_<k>/<task>`` at step 1, 4, 16, ... and then every ``every_n_steps`` steps;
    TensorBoard's custom scalars show them in one chart. The same as a figure, ``policy_dynamics/depth_<d>/block_<k>``,
    after epoch 2, 4, ..., then every ``every_n_epochs`` epochs, and the last.

    Needs a :class:`RouteRecorder` before it in the list of callbacks.

    Args:
        block: number of the block, from 0.
        depth: depth at which it stands, from 1.
        every_n_steps: optimizer steps between two values, at least 1.
        every_n_epochs: epochs between two figures, at least 1.

    Raises:
        UsageError: if a value is out of its range; at the start of training, if there is no such block.
    """

    def __init__(self, block: int = 0, depth: int = 1, every_n_steps: int = 100, every_n_epochs: int = 10) -> None:
        super().__init__()
        if block < 0:
            raise UsageError(f"block of PolicyDynamics is {block}; give the number of a block, from 0.")
        if depth < 1:
            raise UsageError(f"depth of PolicyDynamics is {depth}; give a depth, from 1.")
        self.block = block
        self.depth = depth
        self.steps = every_steps(every_n_steps, "PolicyDynamics")
        self.epochs = Epochs(every_n_epochs, "PolicyDynamics")

    @property
    def place(self) -> str:
        """The block's place, as part of a tag."""
        return f"depth_{self.depth}/block_{self.block}"

    def check(self) -> None:
        """Checks that the block exists, and asks for a chart."""
        sizes = self.recorder.num_actions.tolist()
        if self.depth > len(sizes):
            raise UsageError(f"depth of PolicyDynamics is {self.depth}, but the router has depths 1 to {len(sizes)}.")
        if self.block >= sizes[self.depth - 1]:
            raise UsageError(
                f"block of PolicyDynamics is {self.block}, but depth {self.depth} has blocks 0 to "
                f"{sizes[self.depth - 1] - 1}; choose one of those."
            )
        chart = ["Multiline", [re.escape(f"policy/{self.place}/")]]
        self.recorder.charts.setdefault("policy", {})[f"block {self.block} at depth {self.depth}, all tasks"] = chart

    def start(self, trainer: L.Trainer) -> None:
        """Starts to count from here."""
        self.steps.last, self.epochs.last = trainer.global_step, trainer.current_epoch

    def after_batch(self, trainer: L.Trainer) -> None:
        """Logs the scalars if they are due."""
        if not self.steps.due(trainer.global_step):
            return
        policy = self.policy()[:, self.depth - 1]
        seen = policy.sum(-1) > 0  # without a table, tasks without samples have no value
        names = self.recorder.task_names
        log_scalars(
            trainer,
            {f"policy/{self.place}/{names[task]}": float(policy[task, self.block]) for task in seen.nonzero()[0]},
        )

    def after_epoch(self, trainer: L.Trainer) -> None:
        """Draws the figure if it is due."""
        if not self.epochs.over(trainer) or not writers(trainer):
            return
        record = self.recorder.record()
        if len(record.steps) == 0:
            return
        title = f"Probability of block {self.block} at depth {self.depth}"
        probability = record.policy()[:, :, self.depth - 1, self.block]
        png = figure_png(policy_dynamics(record.steps, probability, record.task_names, title))
        for writer in writers(trainer):
            log_png(writer, f"policy_dynamics/{self.place}", png, trainer.global_step)
