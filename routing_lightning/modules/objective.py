"""Loss, prediction and hits of tasks of several kinds in one batch."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, pad, smooth_l1_loss

from routing_lightning.errors import UsageError
from routing_lightning.modules.smoothing import smoothed_cross_entropy
from routing_lightning.targets import Targets


class Asked(NamedTuple):
    """What the task of each sample asks for.

    Attributes:
        classes: whether it is one of several classes, (N,) bool.
        labels: whether it is any number of labels, (N,) bool.
        value: whether it is a number, (N,) bool.
        mean: mean of its values, (N,) float32.
        std: their standard deviation, (N,) float32.
        own: which of the C outputs the task has, (N, C) bool.
    """

    classes: Tensor
    labels: Tensor
    value: Tensor
    mean: Tensor
    std: Tensor
    own: Tensor


class Objective:
    """What is minimised, and what outputs mean, where not all tasks are classifications.

    Of a sample with outputs x and labels y, both C wide and in the task's own outputs alone, the loss is

    * for classes the cross-entropy of x with the class y_0;
    * for labels the mean over them of the binary cross-entropy of sigmoid(x_k) with y_k, 0 or 1;
    * for a value the smooth L1 distance (Huber, 1964, with its bend at 1) of x_0 to (y_0 - mean) / std: an outlier
      pulls no harder than a sample that is a standard deviation off.

    Each is near 1 for a network that has learned nothing, so that the mean over a batch's samples weighs tasks of all
    kinds alike.

    Args:
        targets: what the T tasks ask for.
        num_classes: C, the largest number of outputs of a task.
    """

    def __init__(self, targets: Targets, num_classes: int) -> None:
        self.targets = targets
        self.num_classes = num_classes
        kinds = torch.tensor([[kind == of for of in ("classes", "labels", "value")] for kind in targets.kinds])
        own = torch.arange(num_classes) < torch.tensor(targets.sizes)[:, None]
        moments = torch.tensor([targets.means, targets.stds], dtype=torch.float32).T
        # One table, so that tasks that stay on the host need one copy to the device per batch.
        table = torch.cat([kinds.float(), moments, own.float()], 1)
        self.tables = {table.device: table}

    def asked(self, tasks: Tensor, device: torch.device) -> Asked:
        """What tasks (N,) ask for, on a device."""
        if tasks.device not in self.tables:
            self.tables[tasks.device] = next(iter(self.tables.values())).to(tasks.device)
        rows = self.tables[tasks.device][tasks].to(device, non_blocking=True)
        classes, labels, value = rows[:, :3].bool().unbind(1)
        return Asked(classes, labels, value, rows[:, 3], rows[:, 4], rows[:, 5:].bool())

    def check(self, tasks: Tensor, labels: Tensor) -> None:
        """Checks a batch's labels (N, K) on the host, once tasks (N,) are known to be in their range.

        Raises:
            UsageError: if a task of classes gets no number of one of its classes, one of labels something else than 0
                and 1, or one of values no finite number.
        """
        asked = self.asked(tasks, labels.device)
        first, sizes = labels[:, 0], asked.own.sum(1)
        is_class = (first >= 0) & (first < sizes) & (first == first.round())
        is_labels = ((labels == 0) | (labels == 1)).all(1)
        right = torch.where(asked.classes, is_class, torch.where(asked.labels, is_labels, first.isfinite()))
        if right.all():
            return
        bad = int(torch.nonzero(~right)[0])
        kind = self.targets.kinds[int(tasks[bad])]
        allowed = {
            "classes": f"a number 0..{int(sizes[bad]) - 1} first",
            "labels": "0 and 1",
            "value": "a finite number first",
        }
        raise UsageError(
            f"a batch has labels {labels[bad].tolist()} for a sample of task {int(tasks[bad])}, of kind {kind}; "
            f"allowed is {allowed[kind]}; mend the data."
        )

    def losses(self, logits: Tensor, tasks: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """Loss of each sample, (N,) float32.

        Args:
            logits: (N, C) or wider; those that a task does not have count for nothing.
            tasks: (N,) int64.
            labels: (N, K) float, K at most C: the class's number first; or 0 or 1 for each label; or the value first.
            smoothing: label smoothing of classes, in [0, 1).
        """
        asked = self.asked(tasks, logits.device)
        logits, labels = logits[:, : self.num_classes].float(), labels.float()
        first, scores = labels[:, 0], logits.masked_fill(~asked.own, 0.0)
        # Each kind is computed for all samples and then picked: to look at the kinds on the host would wait for the
        # device. What is not picked is kept finite, or its gradient, times zero, would be no number.
        classes = logits.masked_fill(~asked.own, -torch.inf)
        by_class = smoothed_cross_entropy(classes, torch.where(asked.classes, first, 0.0).long(), smoothing)
        wanted = pad(labels, (0, self.num_classes - labels.shape[1])) * asked.labels[:, None]
        by_label = binary_cross_entropy_with_logits(scores, wanted, reduction="none") * asked.own
        off = torch.where(asked.value, (first - asked.mean) / asked.std, 0.0)
        by_value = smooth_l1_loss(scores[:, 0], off, reduction="none")
        return torch.where(
            asked.classes, by_class, torch.where(asked.labels, by_label.sum(1) / asked.own.sum(1), by_value)
        )

    def predictions(self, logits: Tensor, tasks: Tensor) -> Tensor:
        """What logits (N, C) or wider say, in the form of labels: (N, C) float32.

        The most probable class; 1 for each label of probability above 1/2; the value in the user's units.
        """
        asked = self.asked(tasks, logits.device)
        logits = logits[:, : self.num_classes].float()
        best = logits.masked_fill(~asked.own, -torch.inf).argmax(1).float()
        found = ((logits > 0) & asked.own & asked.labels[:, None]).float()
        number = torch.where(asked.classes, best, logits[:, 0] * asked.std + asked.mean)
        found[:, 0] = torch.where(asked.labels, found[:, 0], number)
        return found

    def probabilities(self, logits: Tensor, tasks: Tensor) -> Tensor:
        """Of the predicted class first, or of each label: (N, C) float32 from logits (N, C) or wider; NaN elsewhere."""
        asked = self.asked(tasks, logits.device)
        logits = logits[:, : self.num_classes].float()
        found = logits.sigmoid().masked_fill(~(asked.own & asked.labels[:, None]), torch.nan)
        best = logits.masked_fill(~asked.own, -torch.inf).softmax(1).amax(1)
        found[:, 0] = torch.where(asked.classes, best, found[:, 0])
        return found

    def hits(self, logits: Tensor, tasks: Tensor, labels: Tensor) -> Tensor:
        """Whether the right class is predicted, (N,) bool; false for tasks of another kind."""
        asked = self.asked(tasks, logits.device)
        best = logits[:, : self.num_classes].masked_fill(~asked.own, -torch.inf).argmax(1)
        return (best == labels[:, 0]) & asked.classes
