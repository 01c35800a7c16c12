"""The plain network of one task: no router, no dispatch, only what the task uses."""

import copy
from typing import Literal

import torch
from torch import Tensor, nn

from routing_lightning.errors import UsageError
from routing_lightning.export.whole import TaskScores, whole
from routing_lightning.modules import MultiTaskClassifier, RoutedClassifier, TaskClassifier
from routing_lightning.networks import CrossStitch, SoftMixture, TaskSpecific
from routing_lightning.nn.blocks import Blocks
from routing_lightning.nn.layers import TaskMLP

Input = Literal["uint8", "float"]


class TaskNetwork(nn.Module):
    """Images as they are read -> logits of one task's own classes or labels, or its value in the user's units.

    Args:
        body: normalised images (N, C, H, W) -> logits (N, at least ``classes``).
        classes: number of the task's classes; logits beyond are left out.
        moments: factor and summand that normalise grey values 0..255; None: images come normalised, as float32.
        given: what images are: ``"uint8"``, 0 to 255, or ``"float"``, the same divided by 255. Of no meaning without
            ``moments``.
        value: mean and standard deviation of the task's values; None: it is of classes or labels.
    """

    scale: Tensor | None
    shift: Tensor | None

    def __init__(
        self,
        body: nn.Module,
        classes: int,
        moments: tuple[Tensor, Tensor] | None,
        given: Input = "uint8",
        value: tuple[float, float] | None = None,
    ) -> None:
        super().__init__()
        self.body = body
        self.classes = classes
        self.grey = given == "float"
        self.value = value
        self.register_buffer("scale", None if moments is None else moments[0].clone())
        self.register_buffer("shift", None if moments is None else moments[1].clone())

    def forward(self, images: Tensor) -> Tensor:
        """Logits, or the value: (N, C, H, W) -> (N, classes)."""
        x = images
        if self.scale is not None and self.shift is not None:
            # The datamodule's own operations in its order: the results are the same to the bit.
            x = (x * 255).round() if self.grey else x.to(torch.float32)
            x = x * self.scale + self.shift
        logits: Tensor = self.body(x)
        return in_units(logits[:, : self.classes], self.value)


def in_units(outputs: Tensor, value: tuple[float, float] | None) -> Tensor:
    """Outputs (N, K) as they are, or, of a task of values with mean and standard deviation, in the user's units."""
    return outputs if value is None else outputs * value[1] + value[0]


def plain_network(model: TaskClassifier, task: int) -> nn.Module:
    """The network of one task: normalised images (N, C, H, W) -> logits (N, num_classes).

    In evaluation, and without gradient, it gives what the model gives for samples of the task: to the bit, but where
    the router looks at activations (see :func:`~routing_lightning.export.whole.whole`).

    Args:
        model: a trained model.
        task: in [0, T).

    Raises:
        UsageError: if there is no such task, or the model says nothing from which a plain network can be made.
    """
    if not 0 <= task < model.num_tasks:
        raise UsageError(f"task is {task}; give 0..{model.num_tasks - 1}.")
    if isinstance(model, RoutedClassifier):
        made = whole(model.network, task) if model.router.uses_state else model.network.specialise(task)
    elif isinstance(model, MultiTaskClassifier):
        features = model.features
        front = features.single(task) if isinstance(features, Blocks) else copy.deepcopy(features)
        made = nn.Sequential(front, head_of(model.network, task))
    else:
        raise UsageError(
            f"{type(model).__name__} says nothing of a task's own network; export a RoutedClassifier or "
            "MultiTaskClassifier."
        )
    return made.eval().requires_grad_(False)


def head_of(network: nn.Module, task: int) -> nn.Module:
    """One task's part of an unrouted multi-task network: features (N, F) -> logits (N, C)."""
    if isinstance(network, TaskSpecific):
        own = [layer.single(task) for layer in network.own if isinstance(layer, Blocks)]
        return nn.Sequential(*copy.deepcopy(network.shared), *own)
    if isinstance(network, CrossStitch):
        return CrossStitchOfTask(network, task)
    if isinstance(network, SoftMixture):
        return SoftMixtureOfTask(network, task)
    return ForTask(copy.deepcopy(network), task)


class CrossStitchOfTask(nn.Module):
    """A cross-stitch network read out at one task: all towers, since each feeds the others.

    Also the last layers of the others, which do not: the library computes all towers' products at once, and without
    those it rounds in another way.

    Args:
        network: the network.
        task: the task.
    """

    def __init__(self, network: CrossStitch, task: int) -> None:
        super().__init__()
        self.mixing, self.towers = copy.deepcopy(network.mixing), copy.deepcopy(network.towers)
        self.task = task

    def forward(self, x: Tensor) -> Tensor:
        """Logits: (N, in_features) -> (N, C)."""
        v = x.expand(len(self.mixing[0]), *x.shape)
        for mixing, tower in zip(self.mixing, self.towers, strict=True):
            v = tower(torch.einsum("ij,jnf->inf", mixing, v))
        return v[self.task]


class SoftMixtureOfTask(nn.Module):
    """A soft mixture for one task: all blocks, since each sample mixes all of them.

    Args:
        network: the network.
        task: the task.
    """

    def __init__(self, network: SoftMixture, task: int) -> None:
        super().__init__()
        self.blocks = copy.deepcopy(network.blocks)
        self.attention = nn.ModuleList(
            TaskScores(attention, task) if isinstance(attention, TaskMLP) else ForTask(copy.deepcopy(attention), task)
            for attention in network.attention
        )

    def forward(self, x: Tensor) -> Tensor:
        """Logits: (N, in_features) -> (N, C)."""
        for attention, blocks in zip(self.attention, self.blocks, strict=True):
            x = torch.einsum("nk,kno->no", attention(x).softmax(-1), blocks(x))
        return x


class ForTask(nn.Module):
    """Any multi-task network, told the same task for each sample.

    Args:
        network: a module that maps features and tasks to logits, or to a pair of these and an auxiliary loss.
        task: the task.
    """

    def __init__(self, network: nn.Module, task: int) -> None:
        super().__init__()
        self.network = network
        self.task = task

    def forward(self, x: Tensor) -> Tensor:
        """What the network gives for the task: (N, ...) -> (N, C)."""
        output = self.network(x, torch.full((x.shape[0],), self.task, dtype=torch.long, device=x.device))
        logits: Tensor = output[0] if isinstance(output, tuple) else output
        return logits
