"""Loss per epoch, and per task what its kind is measured by."""

from typing import NamedTuple, cast

import torch
from torch import Tensor
from torchmetrics import Metric

from routing_lightning.targets import Targets


class TaskMetrics(Metric):
    """Mean loss, and share of right predictions of each task, over an epoch.

    Args:
        num_tasks: T, number of tasks.
    """

    is_differentiable = False
    full_state_update = False
    correct: Tensor
    total: Tensor
    loss: Tensor

    def __init__(self, num_tasks: int) -> None:
        super().__init__()
        self.add_state("correct", torch.zeros(num_tasks, dtype=torch.long), dist_reduce_fx="sum")
        self.add_state("total", torch.zeros(num_tasks, dtype=torch.long), dist_reduce_fx="sum")
        self.add_state("loss", torch.zeros(()), dist_reduce_fx="sum")

    def update(self, loss: Tensor, hits: Tensor, tasks: Tensor) -> None:
        """Counts a batch.

        Args:
            loss: (), mean loss of the batch's samples.
            hits: (N,) bool, whether each prediction is right.
            tasks: (N,) int64 in [0, T).
        """
        if not len(tasks):
            return  # the mean of no loss is nan
        # Not in place: a metric that was reset in inference mode holds tensors that may not be changed outside of it.
        self.correct = self.correct.index_add(0, tasks, hits.long())
        self.total = self.total.index_add(0, tasks, torch.ones_like(tasks))
        self.loss = self.loss + loss * len(tasks)

    def compute(self) -> tuple[Tensor, Tensor, Tensor]:
        """Mean loss (), accuracy of each task in [0, 1], (T,) float32, nan for one without samples, and of all, ()."""
        count = self.total.sum()
        return self.loss / count, self.correct.float() / self.total.float(), self.correct.sum() / count

    def _tensors(self) -> dict[str, Tensor]:
        return cast(dict[str, Tensor], self.metric_state)

    def counts(self) -> Tensor:
        """What this process has counted since the last reset, in one row, float64, for a checkpoint."""
        return torch.cat([value.double().flatten() for value in self._tensors().values()])

    def restore(self, counts: Tensor) -> None:
        """Goes on from :meth:`counts`."""
        self.reset()
        state = self._tensors()
        parts = counts.to(self.loss.device).split([value.numel() for value in state.values()])
        for (name, value), part in zip(state.items(), parts, strict=True):
            setattr(self, name, part.reshape(value.shape).to(value))
        self._update_count = 1  # or torchmetrics would hold it for empty


class Scores(NamedTuple):
    """What tasks of several kinds are measured by; nan where a task is of another kind or has no samples.

    Attributes:
        loss: mean loss of all samples, ().
        accuracy: share of right classes, in [0, 1], (T,).
        accuracy_micro: the same over the samples of all tasks of classes, ().
        f1: F1 of the labels, mean over those that are wanted or predicted at all, in [0, 1], (T,).
        mae: mean absolute error, in the user's units, (T,).
        r2: share of the values' variance that is explained, at most 1, (T,); nan for a single value.
    """

    loss: Tensor
    accuracy: Tensor
    accuracy_micro: Tensor
    f1: Tensor
    mae: Tensor
    r2: Tensor


class TargetMetrics(TaskMetrics):
    """Measures tasks of several kinds over an epoch, with one pass over a batch for all of them.

    Args:
        targets: what the T tasks ask for.
        num_classes: C, the largest number of outputs of a task.
    """

    outcomes: Tensor
    sums: Tensor
    moments: Tensor
    is_classes: Tensor
    is_labels: Tensor
    is_value: Tensor

    def __init__(self, targets: Targets, num_classes: int) -> None:
        super().__init__(len(targets.kinds))
        count = len(targets.kinds)
        # wanted and predicted, predicted, wanted: of each label
        self.add_state("outcomes", torch.zeros(3, count, num_classes, dtype=torch.long), dist_reduce_fx="sum")
        # |error|, error^2, value, value^2: of each task, in standard deviations, so that few digits are lost
        self.add_state("sums", torch.zeros(count, 4), dist_reduce_fx="sum")
        self.register_buffer("moments", torch.tensor([targets.means, targets.stds]), persistent=False)
        for kind in ("classes", "labels", "value"):
            self.register_buffer(f"is_{kind}", torch.tensor([of == kind for of in targets.kinds]), persistent=False)

    def update(  # type: ignore[override]
        self, loss: Tensor, hits: Tensor, tasks: Tensor, predictions: Tensor, labels: Tensor
    ) -> None:
        """Counts a batch.

        Args:
            loss: (), mean loss of the batch's samples.
            hits: (N,) bool, whether each predicted class is right; false for other kinds.
            tasks: (N,) int64 in [0, T).
            predictions: (N, C), as :meth:`~routing_lightning.modules.objective.Objective.predictions` gives them.
            labels: (N, K), K at most C, as in a batch.
        """
        if not len(tasks):
            return
        super().update(loss, hits, tasks)
        width = self.outcomes.shape[2]
        wanted, given = torch.nn.functional.pad(labels.float(), (0, width - labels.shape[1])), predictions
        outcomes = torch.stack([wanted * given, given, wanted]) * self.is_labels[tasks, None]
        self.outcomes = self.outcomes.index_add(1, tasks, outcomes.long())
        # of tasks of another kind as well: compute() leaves them out
        mean, std = self.moments[:, tasks]
        value, error = (wanted[:, 0] - mean) / std, (given[:, 0] - wanted[:, 0]) / std
        parts = torch.stack([error.abs(), error.square(), value, value.square()], 1)
        self.sums = self.sums.index_add(0, tasks, parts)

    def compute(self) -> Scores:  # type: ignore[override]
        """The scores of all that was counted."""
        total = self.total.float()
        of_classes = total * self.is_classes
        hit, given, wanted = self.outcomes
        f1 = (2 * hit / (given + wanted)).nanmean(1)  # 0 / 0: a label that is neither wanted nor predicted
        of_value = total.masked_fill(~self.is_value, 0)
        absolute, squared, sum_of, squares = self.sums.masked_fill(~self.is_value[:, None], 0).T
        spread = squares - sum_of.square() / of_value
        # A spread this small is rounding: the values are all the same.
        r2 = torch.where(spread > 1e-6 * squares.clamp_min(1e-30), 1 - squared / spread, torch.nan)
        return Scores(
            self.loss / total.sum(),
            self.correct / of_classes,
            self.correct.sum() / of_classes.sum(),
            f1,
            absolute / of_value * self.moments[1],
            r2.masked_fill(of_value < 2, torch.nan),
        )
