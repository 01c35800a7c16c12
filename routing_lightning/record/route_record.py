"""The raw numbers behind all figures, and their file."""

import io
import itertools
import math
import os
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from routing_lightning.errors import UsageError

FILE_NAME = "routes.npz"
POOLED = 100  # samples of a task that make a share: its standard error is then at most 5 %

AXES = {
    "steps": ["snapshot"],
    "probabilities": ["snapshot", "task", "depth", "action"],
    "counts": ["snapshot", "task", "depth", "action"],
    "task_names": ["task"],
    "num_actions": ["depth"],
    "num_blocks": ["depth"],
    "routes": ["route", "task and action at each depth"],
    "route_counts": ["route"],
    "route_step": [],
    "depth_names": ["depth"],
    "gains": ["depth", "samples, sum, sum of squares"],
}


def action_labels(num_actions: int, num_blocks: int) -> list[str]:
    """Names of the actions of a depth: the blocks by number, and PASS where there is such an action.

    Args:
        num_actions: number of actions of the depth.
        num_blocks: number of its blocks; the action after the last block is PASS.
    """
    return [str(action) if action < num_blocks else "PASS" for action in range(num_actions)]


def shares(counts: np.ndarray) -> np.ndarray:
    """How samples spread over the last axis, which then sums to 1; 0 where there is no sample."""
    totals = counts.sum(-1, keepdims=True)
    found: np.ndarray = np.divide(counts, totals, out=np.zeros(counts.shape, np.float32), where=totals > 0)
    return found


def usage(counts: np.ndarray) -> np.ndarray:
    """How the samples spread over the blocks of each depth, each task counting the same.

    Args:
        counts: (..., T, D, K), samples.

    Returns:
        (..., D, K) float32: the mean of the tasks' shares, over the tasks that have samples there; sums to 1.
    """
    by_task = shares(counts)
    return shares(by_task.sum(-3))


def in_use(share: np.ndarray, num_tasks: int) -> np.ndarray:
    """Which blocks of a depth are in use: those with at least a tenth of an equal share (see :func:`least_use`).

    The one meaning of "in use" in all figures and logs.

    Args:
        share: (K,) in [0, 1], from :func:`usage`.
        num_tasks: T.

    Returns:
        (K,) bool.
    """
    return share >= least_use(len(share), num_tasks)


def least_use(num_actions: int, num_tasks: int) -> float:
    """From which share of the samples on a block is in use, in (0, 1).

    A tenth of what each block gets if all are used equally, or of what a block gets that serves one task alone,
    whichever is less: so exploration does not count, and a task's own block does, with many blocks or many tasks.
    """
    return 0.1 / max(num_actions, num_tasks)


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file so that a reader sees the old or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_bytes(content)
    os.replace(part, path)


def claim_file(path: Path) -> Path:
    """Makes an empty file that no other run has: at the path, or ``name-v1``, ``name-v2``, ... where that is taken."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count():
        candidate = path if number == 0 else path.with_name(f"{path.stem}-v{number}{path.suffix}")
        try:
            candidate.open("xb").close()  # atomic: of all that try one succeeds
        except FileExistsError:
            continue
        return candidate
    raise AssertionError


@dataclass
class Trial:
    """What a search found out about a depth.

    Attributes:
        first: optimizer step of the first snapshot in which it was asked.
        last: that of the last one.
        is_open: whether it was still being asked at the end of the record.
        gain: mean of what another block than the common one brought more, in units of the reward; NaN if unknown.
        error: its standard error; NaN if unknown.
        sure: (A,) in (0, 1], how sure each task that was asked was of its favourite, at ``last``.
    """

    first: int
    last: int
    is_open: bool
    gain: float
    error: float
    sure: np.ndarray


@dataclass
class RouteRecord:
    """What the router of a run did, over time.

    S snapshots, T tasks, D depths, K actions of the depth that has most. An action is a block, or the number after the
    last block for PASS.

    Attributes:
        task_names: T names.
        num_actions: (D,) how many of the K actions exist.
        num_blocks: (D,) how many of those are blocks; the others are PASS.
        steps: (S,) int64, optimizer steps of the snapshots, ascending.
        counts: (S, T, D, K) int64, training samples that took each action since the snapshot before.
        probabilities: (S, T, D, K) float32, the policy of each task at the snapshot; None for routers that look at the
            activations, which have no such table.
        routes: (P, 1 + D) int64, for those routers, the routes of the last validation: task and action at each depth
            (-1: no decision).
        route_counts: (P,) int64, validation samples that took each route.
        route_step: optimizer step of that validation.
        depth_names: (D,) str, the layer of each depth; None where it is not known, as in records of old.
        gains: (D, 3) float64, of a search that asked what the other choice would have brought: at each depth the number
            of samples that compared another block with the common one, the sum of what the other brought more, in units
            of the reward, and the sum of its squares; None where the router does not ask.
    """

    task_names: list[str]
    num_actions: np.ndarray
    num_blocks: np.ndarray
    steps: np.ndarray
    counts: np.ndarray
    probabilities: np.ndarray | None = None
    routes: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    route_counts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    route_step: int = 0
    depth_names: np.ndarray | None = None
    gains: np.ndarray | None = None

    # -- views ---------------------------------------------------------------------------------------------------------

    def action_names(self) -> list[list[str]]:
        """For each depth the names of its actions."""
        pairs = zip(self.num_actions.tolist(), self.num_blocks.tolist(), strict=True)
        return [action_labels(actions, blocks) for actions, blocks in pairs]

    def layers(self) -> list[str]:
        """For each depth the name of its layer, or its number where that is not known."""
        if self.depth_names is None:
            return [f"depth {depth + 1}" for depth in range(len(self.num_actions))]
        return [str(name) for name in self.depth_names]

    def trials(self) -> "list[Trial | None]":
        """What a search found at each depth; None at those that it never asked. Empty without a search."""
        if self.gains is None or self.probabilities is None:
            return []
        undecided = (self.probabilities.max(-1) < 1).transpose(2, 0, 1)  # (D, S, T)
        found: list[Trial | None] = []
        for depth, (samples, total, squares) in enumerate(self.gains):
            when = np.flatnonzero(undecided[depth].any(-1))
            if not len(when):
                found.append(None)
                continue
            asked = undecided[depth, when].any(0)
            sure = self.probabilities[when[-1], asked, depth].max(-1)
            mean, spread = math.nan, math.nan
            if samples > 1:
                mean = total / samples
                spread = math.sqrt(max(0.0, squares / samples - mean**2) / (samples - 1))
            is_open = bool(when[-1] == len(self.steps) - 1)
            found.append(Trial(int(self.steps[when[0]]), int(self.steps[when[-1]]), is_open, mean, spread, sure))
        return found

    @property
    def measure(self) -> str:
        """What :meth:`policy` gives, in words."""
        return "share of samples" if self.probabilities is None else "probability"

    def policy(self) -> np.ndarray:
        """What each task does at each snapshot: (S, T, D, K) float32.

        The policy's probabilities; for routers without a table, how the training samples went (:meth:`pooled`).
        """
        if self.probabilities is not None:
            return self.probabilities
        return self.pooled()

    def pooled(self) -> np.ndarray:
        """Shares of the training samples around each snapshot: (S, T, D, K) float32.

        Of as many snapshots up to it as hold at least ``POOLED`` samples of the task; at the start, of its first so
        many. A few samples alone would look like a policy that jumps.
        """
        until = np.concatenate([np.zeros_like(self.counts[:1]), self.counts.cumsum(0)])  # (S + 1, T, D, K)
        samples = until.sum(-1)  # (S + 1, T, D)
        first, last = np.zeros_like(samples[1:]), np.zeros_like(samples[1:])
        here = np.arange(1, len(samples))
        for task, depth in np.ndindex(samples.shape[1:]):
            column = samples[:, task, depth]
            enough = min(int(np.searchsorted(column, POOLED)), len(column) - 1)
            last[:, task, depth] = np.maximum(here, enough)
            since = np.searchsorted(column, column[last[:, task, depth]] - POOLED, "right") - 1
            first[:, task, depth] = np.where(here > enough, np.maximum(since, 0), 0)
        ends = [np.take_along_axis(until, at[..., None], axis=0) for at in (first, last)]
        return shares(ends[1] - ends[0])

    def usage(self) -> np.ndarray:
        """How the training samples around each snapshot spread over the blocks: (S, D, K) float32."""
        return shares(self.pooled().sum(1))

    def recent_counts(self, portion: float = 0.1) -> np.ndarray:
        """Counts of the latest snapshots that together hold this portion of all training samples: (T, D, K) int64."""
        samples = self.counts.sum((1, 2, 3))
        missing = np.cumsum(samples[::-1])[::-1] - samples  # samples after each snapshot
        latest: np.ndarray = self.counts[missing < portion * samples.sum()]
        return np.asarray(latest.sum(0))

    def in_use(self) -> list[np.ndarray]:
        """For each depth (K_d,) bool: the actions in use by the latest tenth of the training samples."""
        share = usage(self.recent_counts())
        return [in_use(share[depth, :count], len(self.task_names)) for depth, count in enumerate(self.num_actions)]

    def map_routes(self) -> tuple[np.ndarray, np.ndarray, int]:
        """Routes (P, 1 + D), samples that take each (P,), and their optimizer step, for the routing map.

        For policies that are tables, the most probable route of each task, which is the one taken in evaluation; else
        the counted routes of the last validation.
        """
        if self.probabilities is None:
            return self.routes, self.route_counts, self.route_step
        last = self.probabilities[-1]
        best = last.argmax(-1)
        if self.gains is not None:  # a task that is undecided goes on with the common block, the last
            best = last.shape[-1] - 1 - last[..., ::-1].argmax(-1)
        tasks = np.arange(len(best))[:, None]
        return np.concatenate([tasks, best], axis=1), np.ones(len(best), np.int64), int(self.steps[-1])

    # -- file ----------------------------------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """The record as a compressed ``.npz`` of plain arrays; ``<array>_axes`` names the axes of each."""
        arrays: dict[str, Any] = {name: getattr(self, name) for name in AXES if getattr(self, name) is not None}
        arrays["task_names"] = np.array(self.task_names, dtype=np.str_)
        if self.depth_names is not None:
            arrays["depth_names"] = np.array(self.depth_names, dtype=np.str_)
        arrays |= {f"{name}_axes": np.array(AXES[name], dtype=np.str_) for name in arrays}
        file = io.BytesIO()
        np.savez_compressed(file, **arrays)
        return file.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> "RouteRecord":
        """Reads what :meth:`to_bytes` wrote.

        Raises:
            ValueError, KeyError, TypeError, OSError, EOFError, zipfile.BadZipFile: if it is something else.
        """
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            arrays = {name: file[name] for name in AXES if name in file}
        return cls(
            **{
                **arrays,
                "task_names": arrays["task_names"].tolist(),
                "route_step": int(arrays["route_step"]),
            }
        )

    def save(self, path: Path) -> None:
        """Writes the file at once: a reader sees the old or the new one, never a part."""
        write_whole(path, self.to_bytes())

    @classmethod
    def load(cls, path: Path) -> "RouteRecord":
        """Reads a file.

        Raises:
            UsageError: if it is missing or broken.
        """
        try:
            return cls.from_bytes(path.read_bytes())
        except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
            raise UsageError(
                f"{path} cannot be read as a record of routes ({error}); give a run with a whole {FILE_NAME}."
            ) from error
