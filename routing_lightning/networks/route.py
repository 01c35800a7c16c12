"""Routing through named parts of any network."""

import copy
from collections.abc import Callable, Mapping
from typing import Literal

from torch import Tensor, nn

from routing_lightning.errors import UsageError
from routing_lightning.networks.routed_layer import RoutedLayer
from routing_lightning.networks.routing import RoutingNetwork
from routing_lightning.nn.blocks import Blocks, LinearBlocks, ModuleBlocks
from routing_lightning.routers.base import Router

Init = Literal["fresh", "copy"]


def route(
    module: nn.Module,
    layers: Mapping[str, int | None],
    router: Router,
    *,
    num_tasks: int = 1,
    example: Tensor | None = None,
    init: Init = "fresh",
) -> RoutingNetwork:
    """Makes a routing network of any network: named parts become routed layers, with copies of the part as blocks.

    ``route(resnet18(), {"layer4": 4, "fc": 20}, router, num_tasks=20, example=images)`` routes through the last stage
    and the classification layer of a ResNet.

    Args:
        module: the network; its named parts are replaced.
        layers: number of blocks by name of the part, as in ``module.named_modules()``; None: one per task.
        router: who picks.
        num_tasks: T, number of tasks, at least 1.
        example: see :class:`RoutingNetwork`; give it before an optimizer is made.
        init: see :func:`replace_by_routed`.

    Raises:
        UsageError: if there is no such part, or something does not fit.
    """
    if not isinstance(layers, Mapping):
        raise UsageError(f"layers is {layers!r}; give the number of blocks by name of the part, such as {{'fc': 20}}.")
    counts = {name: num_tasks if count is None else count for name, count in layers.items()}
    return RoutingNetwork(replace_by_routed(module, counts, init), router, num_tasks, example)


def replace_by_routed(module: nn.Module, layers: Mapping[str, int], init: Init = "fresh") -> nn.Module:
    """Replaces named parts of a network by routed layers.

    Args:
        module: the network, changed in place.
        layers: number of blocks by name of the part, as in ``module.named_modules()``.
        init: first weights of the blocks: ``"fresh"``: each its own, drawn as the part's modules draw theirs;
            ``"copy"``: all equal to the part's, which may be pretrained.

    Returns:
        The network.

    Raises:
        UsageError: if there is no such part, parts lie within each other, or weights cannot be drawn anew.
    """
    if init not in ("fresh", "copy"):
        raise UsageError(f"init is {init!r}; give 'fresh' or 'copy'.")
    parts = dict(module.named_modules(remove_duplicate=False))
    for name, count in layers.items():  # all of them first: a mistake leaves the network as it was
        if not name or name not in parts:
            known = ", ".join(part for part, _ in module.named_children())
            raise UsageError(f"{type(module).__name__} has no part {name!r} to route; give names such as {known}.")
        outer = [other for other in layers if name.startswith(f"{other}.")]
        if outer:
            raise UsageError(f"layers names both {outer[0]} and {name}, which lies within it; give one of the two.")
        if type(count) is not int or count < 1:
            raise UsageError(f"layers gives {name} {count!r} blocks; give a whole number, at least 1.")
        if init == "fresh":
            check_can_be_drawn(parts[name], name)
    for name, count in layers.items():
        made = RoutedLayer(blocks_like(parts[name], count, init))
        for other, part in parts.items():  # a part may stand in the network under several names
            if part is parts[name]:
                parent, _, child = other.rpartition(".")
                setattr(parts[parent], child, made)
    return module


def blocks_like(part: nn.Module, count: int, init: Init) -> Blocks:
    """A set of blocks like a part of a network, of its type and on its device.

    Args:
        part: the part.
        count: number of blocks, at least 1.
        init: see :func:`replace_by_routed`.
    """
    if type(part) is nn.Linear and part.bias is not None:
        linear = LinearBlocks(count, part.in_features, part.out_features, relu=False).to(part.weight)
        linear.requires_grad_(part.weight.requires_grad)
        if init == "copy":
            for block in range(count):
                weight, bias = linear.linear(block)
                weight.data.copy_(part.weight.data)
                bias.data.copy_(part.bias.data)
        return linear
    copies = [copy.deepcopy(part) for _ in range(count)]
    if init == "fresh":
        for made in copies:
            for module in made.modules():
                if (reset := own_reset(module)) is not None:
                    reset()
    return ModuleBlocks(copies)


def own_reset(module: nn.Module) -> Callable[[], None] | None:
    """What draws a module's own parameters anew, as when it was made; None if it does not say."""
    return getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)


def check_can_be_drawn(module: nn.Module, name: str) -> None:
    """Checks that all parameters of a module can be drawn anew.

    Args:
        module: the module.
        name: its name, for the error.

    Raises:
        UsageError: if a part with parameters does not say how (it has no ``reset_parameters``).
    """
    for part in module.modules():
        if own_reset(part) is None and list(part.parameters(recurse=False)):
            raise UsageError(
                f"{name} holds a {type(part).__name__}, which has no reset_parameters to draw its weights anew; give "
                "it one, or set init to 'copy'."
            )
