"""What a test found, task by task, and its file."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from routing_lightning.errors import UsageError
from routing_lightning.record.route_record import write_whole

TEST_FILE = "test.json"
MOST_PAIRS = 2000  # values kept of a task, evenly spread over its samples


@dataclass
class TestedTask:
    """What a test found of one task.

    Attributes:
        name: name of the task.
        kind: ``"classes"``, ``"labels"`` or ``"value"``.
        samples: number of test samples, at least 1.
        classes: names of its classes or labels; one for a value.
        confusion: of a task of classes, rows of class, predicted class and number of samples; pairs that do not occur
            are left out.
        outcomes: of one of labels, for each label the samples that have it and get it, get it, and have it.
        pairs: of one of values, value and prediction of at most ``MOST_PAIRS`` samples, in the user's units.
        mae: of one of values, the mean absolute error of all samples.
    """

    __test__ = False  # no test of pytest's

    name: str
    kind: str
    samples: int
    classes: list[str]
    confusion: list[list[int]] = field(default_factory=list)
    outcomes: list[list[int]] = field(default_factory=list)
    pairs: list[list[float]] = field(default_factory=list)
    mae: float | None = None

    def matrix(self) -> np.ndarray:
        """Samples of each class (rows) by predicted class (columns), (C, C) int64."""
        counts = np.zeros((len(self.classes),) * 2, np.int64)
        for label, prediction, number in self.confusion:
            counts[label, prediction] = number
        return counts

    def f1(self) -> np.ndarray:
        """F1 of each class or label, in [0, 1], nan for one that is neither there nor predicted; none for a value."""
        counts = np.array(self.outcomes, np.float64).reshape(-1, 3)
        if self.kind == "classes":
            matrix = self.matrix()
            counts = np.stack([matrix.diagonal(), matrix.sum(0), matrix.sum(1)], 1)
        hit, given, wanted = counts.T
        with np.errstate(invalid="ignore"):
            return np.asarray(2 * hit / (given + wanted))

    def f1_macro(self) -> float:
        """Mean F1 of the classes or labels that are there or predicted; nan if none is."""
        scores = self.f1()
        return float(np.mean(scores[~np.isnan(scores)])) if not np.isnan(scores).all() else np.nan


def sum_up(name: str, kind: str, classes: list[str], labels: np.ndarray, predictions: np.ndarray) -> TestedTask:
    """Sums up one task's samples.

    Args:
        name: name of the task.
        kind: its kind.
        classes: names of its classes or labels.
        labels: what was right, (N, K), as rows of a batch; the class in the first column for tasks of classes.
        predictions: what was predicted, likewise.
    """
    task = TestedTask(name, kind, len(labels), classes)
    if kind == "classes":
        pairs = np.stack([labels[:, 0], predictions[:, 0]], 1).astype(np.int64)
        found, counts = np.unique(pairs, axis=0, return_counts=True)
        task.confusion = np.column_stack([found, counts]).tolist()
    elif kind == "labels":
        wanted, given = (part[:, : len(classes)] > 0 for part in (labels, predictions))
        task.outcomes = np.stack([(wanted & given).sum(0), given.sum(0), wanted.sum(0)], 1).tolist()
    else:
        values = np.stack([labels[:, 0], predictions[:, 0]], 1)
        kept = np.unique(np.linspace(0, len(values) - 1, MOST_PAIRS).round().astype(int))
        task.pairs = values[kept].tolist()
        task.mae = float(np.abs(values[:, 1] - values[:, 0]).mean())
    return task


def save_test(tasks: list[TestedTask], folder: Path) -> Path:
    """Writes what a test found into the folder of its run, and returns the file."""
    path = folder / TEST_FILE
    write_whole(path, json.dumps({"tasks": [asdict(task) for task in tasks]}, ensure_ascii=False).encode())
    return path


def load_test(folder: Path) -> list[TestedTask]:
    """Reads it again; nothing if the folder has none.

    Raises:
        UsageError: if the file holds something else.
    """
    path = folder / TEST_FILE
    if not path.is_file():
        return []
    try:
        return [TestedTask(**task) for task in json.loads(path.read_text(encoding="utf-8"))["tasks"]]
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is not what a test writes ({error}); test again, or leave this run out.") from error
