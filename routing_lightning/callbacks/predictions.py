"""Writes what ``predict`` finds."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import BasePredictionWriter
from torch import Tensor

from routing_lightning.errors import UsageError
from routing_lightning.paths import local_path
from routing_lightning.targets import SEPARATOR, Targets, in_words

ENDINGS = (".csv", ".parquet")
OWN = ("index", "file", "task", "label", "prediction", "probability", "route")


class PredictionTable(BasePredictionWriter):
    """Writes a table of the predictions: task, label, prediction by name, its probability and the route.

    Of several labels the names are joined by ``|``, and so are their probabilities; values are in the user's units and
    have no probability. The route is the block at each depth, such as ``2-0-1``, or ``pass``; networks that are not
    routed have none. Where the datamodule has ``test_columns``, texts by name for each sample, these columns follow.
    Of images without labels the table begins with ``file``, of others with ``index``.

    With several processes the first one writes the samples of all.

    Args:
        out: the file, whose name ends in .csv or .parquet; None: ``predictions.csv`` beside the logs.

    Raises:
        UsageError: if the file has another ending, or is Parquet and pyarrow is not installed.
    """

    def __init__(self, out: Path | None = None) -> None:
        super().__init__(write_interval="epoch")
        self.out = out
        if out is not None and out.suffix.lower() not in ENDINGS:
            raise UsageError(f"out is {out}; give a file whose name ends in {' or '.join(ENDINGS)}.")
        if out is not None and out.suffix.lower() == ".parquet":
            parquet_writer(out)

    def write_on_epoch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        predictions: Sequence[Any],
        batch_indices: Sequence[Any],
    ) -> None:
        """Writes the table."""
        parts: list[Any] = [predictions]
        if trainer.world_size > 1:
            parts = [None] * trainer.world_size
            dist.all_gather_object(parts, predictions)
        # All processes ask: the answer is the first one's.
        folder = Path(local_path(trainer.log_dir or trainer.default_root_dir))
        if not trainer.is_global_zero:
            return
        # The processes take turns, batch by batch (datamodules, EvaluationBatchSampler).
        batches = [batch for turn in zip(*parts, strict=True) for batch in turn]
        found = {key: torch.cat([batch[key] for batch in batches]) for key in batches[0]}
        spec = getattr(getattr(pl_module, "router", None), "spec", None)
        objective = getattr(pl_module, "objective", None)
        targets = None if objective is None else objective.targets
        table = columns_of(found, getattr(trainer, "datamodule", None), spec, targets)
        path = folder / "predictions.csv" if self.out is None else self.out
        path.parent.mkdir(parents=True, exist_ok=True)
        write_table(path, table)
        print(f"Predictions: {path}")


def columns_of(found: dict[str, Tensor], data: Any, spec: Any, targets: Targets | None = None) -> dict[str, list[Any]]:
    """Columns of the table, by name.

    Args:
        found: what the model's ``predict_step`` gives, of all samples.
        data: the datamodule, or None.
        spec: what the router decides about, or None.
        targets: what the tasks ask for; None: all are of classes.
    """
    tasks = found["task"].tolist()
    task_names, class_names = getattr(data, "task_names", None), getattr(data, "class_names", None)
    further = {name: values[: len(tasks)] for name, values in (getattr(data, "test_columns", None) or {}).items()}
    table: dict[str, list[Any]] = {}
    labelled = getattr(data, "labelled", True)
    if labelled:
        table["index"] = list(range(len(tasks)))
    else:
        table["file"] = further.pop("path")
    table["task"] = [task_names[task] if task_names else task for task in tasks]
    for key in ("label", "prediction") if labelled else ("prediction",):
        table[key] = [
            in_words(kind_of(targets, task), row, class_names[task] if class_names else None)
            for task, row in zip(tasks, rows_of(found[key]), strict=True)
        ]
    rows = zip(tasks, rows_of(found["probability"]), rows_of(found["prediction"]), strict=True)
    table["probability"] = [probability_of(kind_of(targets, task), *row) for task, *row in rows]
    if "route" in found:
        table["route"] = [route_text(route, spec.num_blocks) for route in found["route"].tolist()]
    return table | {name: values for name, values in further.items() if name not in OWN}


def kind_of(targets: Targets | None, task: int) -> str:
    """Kind of a task."""
    return "classes" if targets is None else targets.kinds[task]


def rows_of(values: Tensor) -> list[list[float]]:
    """Values (N,) or (N, K) as N rows."""
    return values.reshape(len(values), -1).tolist()


def probability_of(kind: str, probabilities: Sequence[float], prediction: Sequence[float]) -> float | str:
    """What stands in the table for the probability of a prediction; those of several labels are joined."""
    if kind == "classes":
        return round(probabilities[0], 6)
    chosen = zip(probabilities, prediction, strict=True) if kind == "labels" else ()
    return SEPARATOR.join(f"{probability:.6g}" for probability, said in chosen if said > 0)


def route_text(route: Sequence[int], num_blocks: Sequence[int]) -> str:
    """The block at each depth as text: ``2-0-1``; ``pass`` where there is none."""
    return "-".join("pass" if block >= count else str(block) for block, count in zip(route, num_blocks, strict=True))


def write_table(path: Path, table: dict[str, list[Any]]) -> None:
    """Writes columns as CSV or Parquet, by the ending of the file's name."""
    if path.suffix.lower() == ".parquet":
        readable = {name: [_readable(value) for value in values] for name, values in table.items()}
        if any(isinstance(value, str) for value in readable["probability"]):  # a column is of one type
            readable["probability"] = [str(value) for value in readable["probability"]]
        parquet_writer(path)(readable)
        return
    with open(path, "w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))


def parquet_writer(path: Path) -> Any:
    """What writes columns to a Parquet file.

    Raises:
        UsageError: if pyarrow is not installed.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise UsageError(
            f"out is {path}, but Parquet needs pyarrow: pip install 'routing-lightning[parquet]', or give a .csv."
        ) from error
    return lambda table: parquet.write_table(pyarrow.table(table), path)


def _readable(value: Any) -> Any:
    """Names of files may be bytes that are no text; Parquet holds text."""
    return value.encode(errors="surrogateescape").decode(errors="replace") if isinstance(value, str) else value
