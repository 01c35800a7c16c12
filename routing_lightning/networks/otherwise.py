"""Running the part of a network above a depth again, with other actions there."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from routing_lightning.networks.routed_layer import RoutedLayer


class Start(NamedTuple):
    """Where a pass is taken up again.

    Attributes:
        child: number of the first child of a body that is a sequence; None: the body begins anew.
        depth: number of routed layers that were called before.
    """

    child: int | None
    depth: int


class Kept(NamedTuple):
    """What a pass leaves behind, from which it can be taken up again.

    Attributes:
        start: where.
        x: (N, ...), the activation there.
        noise: states of torch's sources of random numbers there, on the host and on the activation's device: dropout is
            to draw the same again.
    """

    start: Start
    x: Tensor
    noise: list[Tensor]


def start_of(body: nn.Module, calls: Sequence[RoutedLayer], depth: int) -> Start:
    """The latest place from which a pass can be taken up to do otherwise at a depth.

    A body that is an ``nn.Sequential`` is taken up at the child that holds the layer; any other begins anew.

    Args:
        body: the network.
        calls: the routed layer of each depth.
        depth: from 0.
    """
    if not isinstance(body, nn.Sequential) or type(body).forward is not nn.Sequential.forward:
        return Start(None, 0)
    for number, child in enumerate(body):
        inside = [any(module is call for module in child.modules()) for call in calls]
        if inside[depth]:
            return Start(number, inside.index(True))
    return Start(None, 0)


def keep(start: Start, x: Tensor, own: bool) -> Kept:
    """Keeps what a pass needs to be taken up again.

    Args:
        start: where it is now.
        x: (N, ...), the activation.
        own: whether what comes next leaves it as it is.
    """
    x = x.detach()
    return Kept(start, x if own else x.clone(), _noise(x.device))


def children_from(body: nn.Module, start: Start) -> list[nn.Module]:
    """What is run from there on."""
    if start.child is None or not isinstance(body, nn.Sequential):
        return [body]
    return list(body)[start.child :]


@contextmanager
def as_before(kept: Kept, modules: Sequence[nn.Module], learning: Sequence[nn.Parameter]) -> Iterator[None]:
    """Draws the noise of the first run again, on copies of buffers, such as running statistics; then all is put back.

    Args:
        kept: of the first run.
        modules: what is run again.
        learning: parameters that get a gradient; no others of these modules do.
    """
    device = kept.x.device
    now = _noise(device)
    buffers = [
        (module, name, buffer)
        for whole in modules
        for module in whole.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    wanted = {id(parameter) for parameter in learning}
    parameters = (parameter for module in modules for parameter in module.parameters())
    held = [parameter for parameter in parameters if parameter.requires_grad and id(parameter) not in wanted]
    _set_noise(kept.noise, device)
    try:
        for module, name, buffer in buffers:
            module._buffers[name] = buffer.clone()
        for parameter in held:
            parameter.requires_grad_(False)
        yield
    finally:
        _set_noise(now, device)
        for module, name, buffer in buffers:
            module._buffers[name] = buffer
        for parameter in held:
            parameter.requires_grad_(True)


def _noise(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    if device.type != "cpu":
        states.append(torch.get_device_module(device).get_rng_state(device))
    return states


def _set_noise(states: list[Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0])
    if device.type != "cpu":
        torch.get_device_module(device).set_rng_state(states[1], device)
