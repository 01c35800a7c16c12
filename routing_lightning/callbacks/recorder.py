"""RouteRecorder: keeps the raw numbers, on which the callbacks that draw rely."""

import math
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import numpy as np
import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor

from routing_lightning.callbacks.access import depth_names, gains_of, policy_of, router_of, trace_of, writers
from routing_lightning.errors import UsageError
from routing_lightning.paths import local_path
from routing_lightning.record import FILE_NAME, POOLED, RouteRecord, claim_file, write_whole
from routing_lightning.routers import BranchingRouter, Router
from routing_lightning.rows import RowGatherer

BUFFERED_BATCHES = 256
QUICK = 100_000  # probabilities whose snapshot takes no time to speak of


class Snapshot(NamedTuple):
    """The router at one optimizer step: see :class:`RouteRecord` for the arrays, (T, D, K) each."""

    step: int
    counts: np.ndarray
    probabilities: np.ndarray | None


class RouteRecorder(L.Callback):
    """Records policies and routes, and saves them as ``routes.npz`` beside the logs after each epoch.

    A snapshot is taken whenever the step has grown by the share ``growth`` since the last one, so that the start, where
    policies move most, is seen step by step, and after the last batch of each epoch. The history is part of the
    checkpoint: a resumed run goes on with it. When there are more than ``max_values`` probabilities, every second
    snapshot is dropped (its counts go to the next one) and snapshots become half as frequent, so that neither memory
    nor checkpoints grow without bound. Large tables, of which a snapshot takes as long as a training step, begin with
    less frequent ones.

    Without a logger that has a folder, the file goes to the Trainer's ``default_root_dir``. Where that has the file of
    another run it is called ``routes-v1.npz``, and so on, which is noted. With ``fast_dev_run`` nothing is written.

    Args:
        growth: take a snapshot when the step has grown by this share, above 0.
        max_values: about how many probabilities to keep, at least 1; 8 snapshots are kept in any case.

    Attributes:
        task_names: T names, known in training like all below.
        num_actions: (D,) how many actions each depth has.
        num_blocks: (D,) how many of those are blocks.
        depth_names: (D,) the names of their layers; None if not known.
        charts: TensorBoard's grouped curves, to which other callbacks may add at setup.

    Raises:
        UsageError: if a value is out of its range.
    """

    def __init__(self, growth: float = 0.02, max_values: int = 2_000_000) -> None:
        if not growth > 0:
            raise UsageError(f"growth of RouteRecorder is {growth}; give a share above 0, such as 0.02.")
        if max_values < 1:
            raise UsageError(f"max_values of RouteRecorder is {max_values}; give at least 1.")
        self.growth = growth
        self.max_values = max_values
        self.task_names: list[str] = []
        self.num_actions = np.zeros(0, np.int64)
        self.num_blocks = np.zeros(0, np.int64)
        self.depth_names: np.ndarray | None = None
        self.thinned = 0  # how often snapshots became half as frequent
        self.charts: dict[str, dict[str, list[Any]]] = {}
        self._snapshots: list[Snapshot] = []
        self._pending = np.zeros((0, 0, 0), np.int64)  # counts since the last snapshot
        self._buffer: list[tuple[Tensor, Tensor]] = []  # tasks and actions of batches not counted yet
        self._validation: list[Tensor] = []
        self._routes = (np.zeros((0, 0), np.int64), np.zeros(0, np.int64), 0)
        self._packed: tuple[tuple[float, ...], bytes] = ((), b"")
        self._gains: np.ndarray | None = None  # (D, 3), see RouteRecord
        self._router: Router | None = None
        self._path: Path | None = None
        self._owned: Path | None = None  # the file of this run in its place, once it is written
        self._goes_on = False  # the file in its place is of the run that this one goes on with

    # -- state ---------------------------------------------------------------------------------------------------------

    def record(self) -> RouteRecord:
        """The history so far."""
        snapshots = self._snapshots
        shape = (0, *self._pending.shape)
        tables = [snap.probabilities for snap in snapshots if snap.probabilities is not None]
        return RouteRecord(
            task_names=self.task_names,
            num_actions=self.num_actions,
            num_blocks=self.num_blocks,
            steps=np.array([snap.step for snap in snapshots], np.int64),
            counts=np.stack([snap.counts for snap in snapshots]) if snapshots else np.zeros(shape, np.int64),
            probabilities=np.stack(tables) if tables else None,
            routes=self._routes[0],
            route_counts=self._routes[1],
            route_step=self._routes[2],
            depth_names=self.depth_names,
            gains=None if self._gains is None else self._gains.copy(),
        )

    def _content(self) -> bytes:
        """The history as a file; kept until there is a new snapshot, as checkpoint and file both need it."""
        compared = -1.0 if self._gains is None else float(self._gains[:, 0].sum())
        key = (self._snapshots[-1].step if self._snapshots else -1, self._routes[2], compared)
        if self._packed[0] != key:
            self._packed = key, self.record().to_bytes()
        return self._packed[1]

    def state_dict(self) -> dict[str, Any]:
        """The history as the bytes of its file, and the counts since its end."""
        if self._router is None:
            return {}
        self._count()
        content = np.frombuffer(self._content(), np.uint8)
        return {
            "record": torch.from_numpy(content.copy()),
            "pending": torch.from_numpy(self._pending.copy()),
            "thinned": self.thinned,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes a history over."""
        record = RouteRecord.from_bytes(state_dict["record"].numpy().tobytes())
        tables = [None] * len(record.steps) if record.probabilities is None else list(record.probabilities)
        self._snapshots = [Snapshot(*snap) for snap in zip(record.steps.tolist(), record.counts, tables, strict=True)]
        self._routes = record.routes, record.route_counts, record.route_step
        if record.gains is not None:
            self._gains = record.gains
        self._pending = state_dict["pending"].numpy().copy()
        self._buffer.clear()
        self._packed = (), b""
        self._goes_on = True
        self.thinned = int(state_dict["thinned"])

    def _clear(self, shape: tuple[int, ...]) -> None:
        """Begins a history of (T, D, K) = ``shape``."""
        self._pending = np.zeros(shape, np.int64)
        self._snapshots.clear()
        self._buffer.clear()
        self._routes = np.zeros((0, 1 + shape[1]), np.int64), np.zeros(0, np.int64), 0
        if self._gains is not None:
            self._gains = np.zeros((shape[1], 3))
        self._packed = (), b""
        self.thinned = max(0, math.ceil(math.log2(max(1, self._pending.size) / QUICK)))

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Makes an evaluation log at the step of its checkpoint: Lightning would log it at step 0."""
        if not trainer.training:
            progress = checkpoint["loops"]["fit_loop"]["epoch_loop.state_dict"]
            trainer.fit_loop.epoch_loop._batches_that_stepped = progress["_batches_that_stepped"]

    # -- training ------------------------------------------------------------------------------------------------------

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Learns the sizes of the router, and where the logs are."""
        self._router = router_of(pl_module) if stage == "fit" else None
        if self._router is None:
            return
        folder = trainer.log_dir  # all processes ask: the answer is the first one's
        self._path = Path(local_path(folder or trainer.default_root_dir)) / FILE_NAME
        if trainer.fast_dev_run or not trainer.is_global_zero:  # type: ignore[attr-defined]
            self._path = None
        names = pl_module.task_names()[: self._router.spec.num_tasks]  # type: ignore[operator]
        self.task_names = names + [str(task) for task in range(len(names), self._router.spec.num_tasks)]
        self.num_actions = np.array(self._router.spec.num_actions)
        self.num_blocks = np.array(self._router.spec.num_blocks)
        self.depth_names = depth_names(pl_module)
        shape = (len(self.task_names), len(self.num_actions), int(self.num_actions.max()))
        if self._pending.shape != shape:
            self._clear(shape)
        if isinstance(self._router, BranchingRouter) and self._gains is None:
            self._gains = np.zeros((shape[1], 3))
        self.charts = {"accuracy": {f"{stage}, all tasks": ["Multiline", [f"{stage}/acc_task/"]] for stage in STAGES}}
        objective = getattr(pl_module, "objective", None)
        for kind, measure in (("labels", "f1"), ("value", "mae"), ("value", "r2")):
            if objective is not None and objective.targets.number(kind):
                charts = {f"{stage}, all tasks": ["Multiline", [f"{stage}/{measure}_task/"]] for stage in STAGES}
                self.charts[measure] = charts

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Records the router as it starts, unless the history goes on; lays out the grouped curves."""
        if self._router is None:
            return
        if self._snapshots and self._snapshots[-1].step > trainer.global_step:  # another training began
            self._clear(self._pending.shape)
        if not self._snapshots and policy_of(self._router) is not None:
            self._take(trainer.global_step)
        for writer in writers(trainer):
            writer.add_custom_scalars(self.charts)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Notes the batch's routes, and takes a snapshot if one is due."""
        if self._router is None:
            return
        trace = trace_of(outputs)
        if trace is not None:
            self._buffer.append((trace.tasks, trace.actions))
            if self._gains is not None and isinstance(self._router, BranchingRouter) and self._router.is_comparing:
                self._gains += gains_of(trace, self.num_blocks)
        last = self._snapshots[-1].step if self._snapshots else 0
        gap = max(1.0, self.growth * last) * 2**self.thinned
        if trainer.global_step >= last + gap or (trainer.is_last_batch and trainer.global_step > last):
            self._take(trainer.global_step)
        elif len(self._buffer) >= BUFFERED_BATCHES:
            self._count()

    def recent(self, samples: int = POOLED) -> np.ndarray:
        """Training samples that took each action lately, so many of each task or more: (T, D, K) int64."""
        self._count()
        counts = self._pending.copy()
        for snap in reversed(self._snapshots):
            few = counts.sum(-1) < samples
            if not few.any():
                break
            counts += np.where(few[..., None], snap.counts, 0)
        return counts

    def _count(self) -> None:
        """Adds the buffered routes to the pending counts."""
        if not self._buffer:
            return
        tasks = torch.cat([part.cpu() for part, _ in self._buffer]).numpy()
        actions = torch.cat([part.cpu() for _, part in self._buffer]).numpy()
        self._buffer.clear()
        _, depth, most = self._pending.shape
        cells = (tasks[:, None] * depth + np.arange(depth)) * most + actions
        self._pending += np.bincount(cells[actions >= 0], minlength=self._pending.size).reshape(self._pending.shape)

    def _take(self, step: int) -> None:
        """Takes a snapshot."""
        assert self._router is not None  # for the type checker
        self._count()
        probabilities = policy_of(self._router)
        # A copy: the table goes on changing in place.
        table = None if probabilities is None else np.array(probabilities, np.float32)
        self._snapshots.append(Snapshot(step, self._pending, table))
        self._pending = np.zeros_like(self._pending)
        if len(self._snapshots) > max(8, self.max_values // self._pending.size):
            self._thin()

    def _thin(self) -> None:
        """Drops every second snapshot, not the first and the last."""
        kept: list[Snapshot] = []
        carried = np.zeros_like(self._pending)
        for position, snap in enumerate(self._snapshots):
            if position % 2 and position < len(self._snapshots) - 1:
                carried += snap.counts
            else:
                kept.append(snap._replace(counts=snap.counts + carried))
                carried = np.zeros_like(carried)
        self._snapshots = kept
        self.thinned += 1

    # -- validation ----------------------------------------------------------------------------------------------------

    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Forgets the routes of a validation that was broken off."""
        self._validation.clear()

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Notes the routes of routers that look at the activations; a table's are known without."""
        if self._router is None or not self._router.uses_state or trainer.sanity_checking:
            return
        trace = trace_of(outputs)
        if trace is not None:
            self._validation.append(torch.cat([trace.tasks[:, None], trace.actions], dim=1))

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Adds up the routes of all processes."""
        if not self._validation:
            return
        rows = torch.cat([part.cpu() for part in self._validation])
        self._validation.clear()
        routes, counts = rows.unique(dim=0, return_counts=True)
        if trainer.world_size > 1:
            rows = torch.cat([routes, counts[:, None]], dim=1)
            gathered = torch.cat(RowGatherer()(rows, trainer.strategy.root_device))
            routes, place = gathered[:, :-1].unique(dim=0, return_inverse=True)
            counts = torch.zeros(len(routes), dtype=torch.long).index_add_(0, place, gathered[:, -1])
        self._routes = routes.numpy(), counts.numpy(), trainer.global_step

    # -- file ----------------------------------------------------------------------------------------------------------

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Saves the file."""
        self.save()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Takes the last snapshot and saves the file."""
        if self._router is not None and self._snapshots and self._snapshots[-1].step < trainer.global_step:
            self._take(trainer.global_step)
        self.save()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Saves what there is."""
        self.save()

    def save(self) -> None:
        """Writes the file, if there is a place and something to write; that of another run is left as it is."""
        if self._router is None or self._path is None or not self._snapshots:
            return
        content = self._content()  # first, since a file that is claimed is empty until it is written
        if self._owned is None or self._owned.parent != self._path.parent:
            self._owned = self._path if self._goes_on else claim_file(self._path)
            if self._owned != self._path:
                rank_zero_warn(f"{self._path} is the record of another run: that of this one is {self._owned}")
        write_whole(self._owned, content)


STAGES = ("val", "train")
