"""An auxiliary loss over the classes of all tasks together, on the features that the tasks share."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from routing_lightning.errors import UsageError
from routing_lightning.modules.smoothing import smoothed_cross_entropy
from routing_lightning.networks.routed_layer import RoutedLayer


class JointLoss(nn.Module):
    """Cross-entropy of one linear layer over the classes of all tasks: which class of which task is this?

    A task's own loss tells its few classes apart; this one tells all apart, so that the features know more than a task
    alone asks of them. The layer is of the training alone: no prediction and no exported network uses it.

    Args:
        weight: share of this loss in the whole, in (0, 1); the task's own has the rest.
        place: name of the module, within the network, whose input the features are.
        in_features: their size.
        num_tasks: T, number of tasks.
        num_classes: C, the largest number of classes of a task; class c of task t is number ``t * C + c``.
    """

    def __init__(self, weight: float, place: str, in_features: int, num_tasks: int, num_classes: int) -> None:
        super().__init__()
        self.weight = weight
        self.place = place
        self.num_classes = num_classes
        self.head = nn.Linear(in_features, num_tasks * num_classes)

    def forward(
        self, features: Tensor, tasks: Tensor, labels: Tensor, label_mask: Tensor | None = None, smoothing: float = 0.0
    ) -> Tensor:
        """Loss of each sample, (N,) float32.

        Args:
            features: (N, in_features).
            tasks: (N,) int64, on any device.
            labels: the class within the task, (N,) int64; or (N, K), the class first.
            label_mask: which classes the tasks have, (T, C) bool or of fewer tasks; None: all of them.
            smoothing: share of the target that is spread over all classes, in [0, 1).
        """
        logits = self.head(features.to(self.head.weight.dtype))
        if label_mask is not None:
            exists = pad(label_mask.flatten(), (0, logits.shape[1] - label_mask.numel()))
            logits = logits.masked_fill(~exists.to(logits.device, non_blocking=True), -torch.inf)
        labels = labels if labels.dim() == 1 else labels[:, 0].long()
        return smoothed_cross_entropy(logits, tasks.to(logits.device) * self.num_classes + labels, smoothing)

    @contextmanager
    def watch(self, network: nn.Module) -> Iterator[list[Tensor]]:
        """Keeps the features of a pass of a network: a list that holds them after it."""
        seen: list[Tensor] = []

        def keep(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            if not seen:
                seen.append(arguments[0])

        # For the pass alone: a hook that stayed would be copied and exported with the network.
        handle = network.get_submodule(self.place).register_forward_pre_hook(keep)
        try:
            yield seen
        finally:
            handle.remove()


@contextmanager
def watched(joint: JointLoss | None, network: nn.Module) -> Iterator[list[Tensor]]:
    """:meth:`JointLoss.watch`, or, without such a loss, nothing: an empty list."""
    if joint is None:  # no nullcontext([]): torch.compile of torch 2.11 fails over it
        yield []
    else:
        with joint.watch(network) as features:
            yield features


def check_joint_loss(weight: float) -> None:
    """Checks the weight of a joint loss.

    Raises:
        UsageError: if it is not in [0, 1).
    """
    if not 0 <= weight < 1:
        raise UsageError(f"joint_loss is {weight}; give its share of the loss, from 0 (none) to below 1.")


class FeatureFinder:
    """Finds the features of a network in a pass: the vector that goes into its first fully connected layer.

    That is a linear or a routed layer outside of routed blocks. What goes in must come from parameters that learn: the
    pixels of a picture are no features.

    Args:
        network: the network.

    Attributes:
        found: name of the layer and size of the vector, after a pass within the context; None: there is none.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.found: tuple[str, int] | None = None
        self._learned = False
        self._handles: list[Any] = []

    def __enter__(self) -> "FeatureFinder":
        self._handles = [
            module.register_forward_pre_hook(partial(self._see, name))
            for name, module in outside_of_blocks(self.network)
        ]
        return self

    def _see(self, name: str, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        if not name:  # a pass begins
            self._learned = False
        routed = isinstance(module, RoutedLayer)
        given = arguments[0] if arguments else None
        if self.found is None and self._learned and (routed or isinstance(module, nn.Linear)):
            is_vector = isinstance(given, Tensor) and given.dim() == 2
            self.found = (name, given.shape[1]) if is_vector else None  # type: ignore[union-attr]
        self._learned |= any(parameter.requires_grad for parameter in module.parameters(recurse=routed))

    def loss(self, weight: float, num_tasks: int, num_classes: int) -> JointLoss:
        """The joint loss of a weight on the features that were found.

        Raises:
            UsageError: if there are none.
        """
        if self.found is None:
            raise UsageError(
                f"joint_loss is {weight} but {type(self.network).__name__} has no vector of features, which learned "
                "parts give to a fully connected layer; set it to 0, or use another network."
            )
        return JointLoss(weight, *self.found, num_tasks, num_classes)

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()


def outside_of_blocks(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The modules of a network by name, without what is within routed layers."""
    yield name, module
    if not isinstance(module, RoutedLayer):
        for child, part in module.named_children():
            yield from outside_of_blocks(part, f"{name}.{child}" if name else child)
