"""PolicyDynamics: one block over time."""

import re

import lightning as L

from routing_lightning.callbacks.access import Epochs, every_steps, log_png, log_scalars, writers
from routing_lightning.callbacks.drawing import RouteCallback
from routing_lightning.errors import UsageError
from routing_lightning.plots import figure_png, policy_dynamics


class PolicyDynamics(RouteCallback):
    """How each task makes up its mind at one depth, over time (paper, probabilities of taking block 7).

    Logs scalars at step 1, 4, 16, ..., then every ``every_n_steps`` steps, and at the end of each epoch: with a chosen
    block ``policy/depth_<d>/block_<k>/<task>``, the probability of that block; without,
    ``policy/depth_<d>/largest/<task>``, the probability of the block that the task wants most. TensorBoard's custom
    scalars show them in one chart. After epoch 2, 4, ..., then every ``every_n_epochs`` epochs, and the last, the
    figure ``policy_dynamics/depth_<d>`` of the chosen block, or of the one that the tasks want most at that time.

    Needs a :class:`RouteRecorder` before it in the list of callbacks.

    Args:
        block: number of the block, from 0; None: no block chosen.
        depth: depth at which it stands, from 1.
        every_n_steps: optimizer steps between two values, at least 1.
        every_n_epochs: epochs between two figures, at least 1.

    Raises:
        UsageError: if a value is out of its range; at the start of training, if there is no such block.
    """

    def __init__(
        self, block: int | None = None, depth: int = 1, every_n_steps: int = 100, every_n_epochs: int = 10
    ) -> None:
        super().__init__()
        if block is not None and block < 0:
            raise UsageError(f"block of PolicyDynamics is {block}; give the number of a block, from 0.")
        if depth < 1:
            raise UsageError(f"depth of PolicyDynamics is {depth}; give a depth, from 1.")
        self.block = block
        self.depth = depth
        self.steps = every_steps(every_n_steps, "PolicyDynamics")
        self.epochs = Epochs(every_n_epochs, "PolicyDynamics")

    @property
    def tag(self) -> str:
        """What the tags of the scalars begin with."""
        return f"policy/depth_{self.depth}/" + ("largest/" if self.block is None else f"block_{self.block}/")

    def check(self) -> None:
        """Checks that the block exists, and asks for a chart."""
        sizes = self.recorder.num_actions.tolist()
        if self.depth > len(sizes):
            raise UsageError(f"depth of PolicyDynamics is {self.depth}, but the router has depths 1 to {len(sizes)}.")
        if self.block is not None and self.block >= sizes[self.depth - 1]:
            raise UsageError(
                f"block of PolicyDynamics is {self.block}, but depth {self.depth} has blocks 0 to "
                f"{sizes[self.depth - 1] - 1}; choose one of those."
            )
        what = "largest probability" if self.block is None else f"block {self.block}"
        chart = ["Multiline", [re.escape(self.tag)]]
        self.recorder.charts.setdefault("policy", {})[f"{what} at depth {self.depth}, all tasks"] = chart

    def start(self, trainer: L.Trainer) -> None:
        """Starts to count from here."""
        self.epochs.last = trainer.current_epoch
        # The end of the epoch is logged unless its last batch was.
        self._logged = trainer.global_step - (not self.steps.begin(trainer.global_step))

    def after_batch(self, trainer: L.Trainer) -> None:
        """Logs the scalars if they are due."""
        if self.steps.due(trainer.global_step):
            self.write(trainer)

    def write(self, trainer: L.Trainer) -> None:
        """Logs the scalars."""
        self._logged = trainer.global_step
        policy = self.policy()[:, self.depth - 1]
        seen = policy.sum(-1) > 0  # without a table, tasks without samples have no value
        wanted = policy.max(-1) if self.block is None else policy[:, self.block]
        names = self.recorder.task_names
        log_scalars(trainer, {f"{self.tag}{names[task]}": float(wanted[task]) for task in seen.nonzero()[0]})

    def after_epoch(self, trainer: L.Trainer) -> None:
        """Logs the state at the end of the epoch, and draws the figure if it is due."""
        if self._logged < trainer.global_step:
            self.write(trainer)
        if not self.epochs.over(trainer) or not writers(trainer):
            return
        record = self.recorder.record()
        if len(record.steps) == 0:
            return
        policy = record.policy()[:, :, self.depth - 1]
        block = int(policy[-1].sum(0).argmax()) if self.block is None else self.block
        name = record.action_names()[self.depth - 1][block]
        title = f"{record.measure.capitalize()} of block {name} at depth {self.depth}"
        png = figure_png(policy_dynamics(record.steps, policy[:, :, block], record.task_names, title, record.measure))
        for writer in writers(trainer):
            log_png(writer, f"policy_dynamics/depth_{self.depth}", png, trainer.global_step)
