"""Loss and accuracy per task."""

import torch
from torch import Tensor
from torchmetrics import Metric


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

    def counts(self) -> Tensor:
        """What this process has counted since the last reset, (2 T + 1,) float64, for a checkpoint."""
        return torch.cat([self.correct.double(), self.total.double(), self.loss.double()[None]])

    def restore(self, counts: Tensor) -> None:
        """Goes on from :meth:`counts`."""
        self.reset()
        correct, total, loss = counts.to(self.loss.device).split([len(self.correct), len(self.total), 1])
        self.correct, self.total, self.loss = correct.long(), total.long(), loss[0].to(self.loss)
        self._update_count = 1  # or torchmetrics would hold it for empty
