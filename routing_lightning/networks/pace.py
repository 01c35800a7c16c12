"""How fast the parts of a network learn: as all else, slower, or not at all."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import nn

from routing_lightning.errors import UsageError
from routing_lightning.networks.routed_layer import RoutedLayer
from routing_lightning.nn.blocks import ModuleBlocks
from routing_lightning.nn.conv import ConvBlocks


@runtime_checkable
class Paced(Protocol):
    """A module some of whose parameters have a learning rate of their own."""

    def paced_parameters(self) -> tuple[Iterable[nn.Parameter], float]:
        """The parameters, and the factor on their learning rate, in (0, 1)."""


def learning_rate_factors(module: nn.Module) -> dict[int, float]:
    """Factor on the learning rate of each parameter that is :class:`Paced`, by its id; those that two name get both."""
    factors: dict[int, float] = {}
    for part in module.modules():
        if isinstance(part, Paced):
            parameters, factor = part.paced_parameters()
            for parameter in parameters:
                factors[id(parameter)] = factors.get(id(parameter), 1.0) * factor
    return factors


def check_factor(name: str, factor: float) -> None:
    """Checks a factor on a learning rate.

    Raises:
        UsageError: if it is not in [0, 1].
    """
    if not 0 <= factor <= 1:
        raise UsageError(f"{name} is {factor}; give a factor on the learning rate from 0 (frozen) to 1.")


def old_parameters(body: nn.Module, layers: Sequence[RoutedLayer], old_blocks: Sequence[int]) -> list[nn.Parameter]:
    """Parameters of a body without those of the blocks that joined.

    Args:
        body: the body.
        layers: its routed layers.
        old_blocks: of each of them, how many blocks were there before.
    """
    new = {
        id(parameter)
        for layer, count in zip(layers, old_blocks, strict=True)
        for block in range(count, layer.blocks.num_blocks)
        for parameter in layer.blocks.block_parameters(block)
    }
    return [parameter for parameter in body.parameters() if id(parameter) not in new]


def check_can_be_frozen(layers: Iterable[RoutedLayer]) -> None:
    """Checks that blocks can be kept as they are beside others that learn.

    Raises:
        UsageError: if not.
    """
    for layer in layers:
        if isinstance(layer.blocks, ConvBlocks) and layer.blocks.kind == "block":
            raise UsageError(
                "convolutions with norm 'block' take in statistics in training, frozen or not; take networks of norm "
                "'shared', 'group' or 'none', or let the old parts learn slower."
            )


def freeze_old(body: nn.Module, layers: Sequence[RoutedLayer], old_blocks: Sequence[int]) -> None:
    """Keeps all of a body as it is but the blocks that joined: no gradients, and statistics stay in training, too.

    Args:
        body: the body.
        layers: its routed layers.
        old_blocks: of each of them, how many blocks were there before.

    Raises:
        UsageError: if there are blocks that cannot be frozen.
    """
    check_can_be_frozen(layers)
    for parameter in old_parameters(body, layers, old_blocks):
        parameter.requires_grad_(False)
    new = {
        id(module)
        for layer, count in zip(layers, old_blocks, strict=True)
        if isinstance(layer.blocks, ModuleBlocks)
        for block in layer.blocks.blocks[count:]
        for module in block.modules()
    }
    for module in body.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and id(module) not in new:
            module.register_forward_pre_hook(stay_in_evaluation)


def stay_in_evaluation(module: nn.Module, args: Any) -> None:
    """Hook of frozen normalisations: they normalise as in evaluation, always."""
    module.training = False
