"""Putting chosen blocks in the place of routed layers."""

from collections.abc import Sequence

from torch import nn

from routing_lightning.errors import UsageError
from routing_lightning.networks.recurrent import Recurrent
from routing_lightning.networks.routed_layer import RoutedLayer


def put_in_place(body: nn.Module, calls: Sequence[RoutedLayer], blocks: Sequence[nn.Module]) -> nn.Module:
    """Replaces each routed layer of a body by the block of its call; a recurrent one by its blocks in a row.

    Args:
        body: the body, changed in place.
        calls: the routed layer of each depth.
        blocks: the block of each depth.

    Returns:
        The body, or what replaced it.

    Raises:
        UsageError: if a layer is called several times, but not by :class:`Recurrent`.
    """

    def replacement(module: nn.Module) -> nn.Module | None:
        layer = module.layer if isinstance(module, Recurrent) else module
        own = [block for call, block in zip(calls, blocks, strict=True) if call is layer]
        if not own:
            return None
        if isinstance(module, Recurrent):
            return nn.Sequential(*own)
        if len(own) > 1:
            raise UsageError(
                f"a routed layer is called {len(own)} times by the network's own code, and may take another block each "
                "time; put it into Recurrent, which can be unrolled."
            )
        return own[0]

    def visit(module: nn.Module) -> nn.Module:
        found = replacement(module)
        if found is not None:
            return found
        for name, child in module._modules.items():  # also a child that stands there under two names
            if child is not None:
                setattr(module, name, visit(child))
        return module

    return visit(body)
