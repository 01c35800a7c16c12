"""Cross-entropy with label smoothing, where not all classes exist."""

import torch
from torch import Tensor

from routing_lightning.errors import UsageError


def check_smoothing(smoothing: float) -> None:
    """Checks a share of label smoothing.

    Raises:
        UsageError: if it is not in [0, 1).
    """
    if not 0 <= smoothing < 1:
        raise UsageError(f"label_smoothing is {smoothing}; give a share of the target from 0 (none) to below 1.")


def smoothed_cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Cross-entropy with a target of which a share is spread evenly over the classes (Szegedy et al., 2016, section 7).

    Torch's own would be infinite where a class does not exist.

    Args:
        logits: (N, C), minus infinity for classes that do not exist.
        labels: (N,) int64.
        smoothing: the share, in [0, 1).

    Returns:
        (N,) float32.
    """
    scores = logits.float().log_softmax(1)
    losses = -scores.gather(1, labels[:, None])[:, 0]
    if not smoothing:
        return losses
    exists = logits != -torch.inf
    spread = -scores.masked_fill(~exists, 0.0).sum(1) / exists.sum(1)
    return (1 - smoothing) * losses + smoothing * spread
