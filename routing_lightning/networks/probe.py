"""The first pass, on one example: finds the depths of a network and refuses what does not fit."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from routing_lightning.errors import UsageError
from routing_lightning.networks.routed_layer import OpenPass, RoutedLayer


class Call(NamedTuple):
    """A call of a routed layer.

    Attributes:
        layer: the layer.
        state_size: size of the state before it.
        is_vector: whether its activation is one (N, F).
    """

    layer: RoutedLayer
    state_size: int
    is_vector: bool


def probe(body: nn.Module, layers: Sequence[RoutedLayer], example: Tensor) -> tuple[list[Call], Tensor]:
    """Sends one example through a network, in evaluation mode; each routed layer tries all its blocks.

    A second, short pass with another number of samples finds out a body that moves the batch away from the first
    dimension.

    Args:
        body: the network.
        layers: its routed layers.
        example: inputs (N, ...), N at least 1, of which the first is used.

    Returns:
        The calls of routed layers, in order, and the body's output (1, ...).

    Raises:
        UsageError: if something does not fit.
    """
    _check_nesting(layers)
    if not len(example):
        raise UsageError(f"the first batch, of shape {tuple(example.shape)}, is empty; give at least one sample.")
    modes = [(module, module.training) for module in body.modules()]
    body.eval()
    _avoid_fast_paths(body)
    probing = Probing(layers, samples=2, thorough=True)
    try:
        for tried in (probing, Probing(layers, samples=3, thorough=False)):
            with torch.no_grad(), tried:
                output = body(example[:1].expand(tried.samples, *example.shape[1:]))
    except UsageError:
        raise
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError) as error:
        if RoutedLayer.__name__ in str(error):
            raise UsageError(
                f"{type(body).__name__} uses a routed layer as more than a module that takes one tensor and gives one "
                f"({_line(error)}); route parts that are called as layer(x), such as those within it."
            ) from error
        raise UsageError(
            f"{type(body).__name__} cannot take an example of shape {tuple(example.shape[1:])} ({_line(error)}); give "
            "inputs that fit the network."
        ) from error
    finally:
        for module, mode in modes:
            module.training = mode
    if not isinstance(output, Tensor):
        raise UsageError(f"{type(body).__name__} gives a {type(output).__name__}; a routed network must give a tensor.")
    unused = [layer for layer in layers if all(layer is not call.layer for call in probing.calls)]
    if unused:
        names = [name for name, module in body.named_modules() if any(module is layer for layer in unused)]
        raise UsageError(
            f"{type(body).__name__} does not call its routed layers {', '.join(names)} with the example; remove them, "
            "or let the network call them each time."
        )
    return probing.calls, output[:1]


def _avoid_fast_paths(body: nn.Module) -> None:
    """Keeps torch's transformers from fast paths that read the weights of linear layers: a routed one has none."""
    for module in body.modules():
        routed = any(isinstance(part, RoutedLayer) for part in module.modules())
        if routed and isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0
        if routed and isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False


def _check_nesting(layers: Sequence[RoutedLayer]) -> None:
    for layer in layers:
        if any(isinstance(module, RoutedLayer) for module in layer.blocks.modules()):
            raise UsageError(
                "a routed layer stands inside a block of another one, where it would see a part of the batch only; "
                "route one of the two."
            )


def _line(error: BaseException) -> str:
    """The first line of what an error says."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


class Probing(OpenPass):
    """The pass of :func:`probe`.

    Args:
        layers: the routed layers of the network.
        samples: number of samples of the pass.
        thorough: whether to try all blocks, or the first.

    Attributes:
        calls: their calls so far.
    """

    def __init__(self, layers: Sequence[RoutedLayer], samples: int, thorough: bool) -> None:
        super().__init__(layers)
        self.samples = samples
        self.thorough = thorough
        self.calls: list[Call] = []

    def apply(self, layer: RoutedLayer, x: Tensor) -> Tensor:
        """Tries all blocks; gives the output of the first."""
        where = f"the routed layer at depth {len(self.calls) + 1}"
        if not isinstance(x, Tensor):
            raise UsageError(f"{where} gets a {type(x).__name__}; it takes one tensor and gives one.")
        if x.dim() < 1 or len(x) != self.samples:
            raise UsageError(
                f"{where} gets activations {tuple(x.shape)} for {self.samples} samples; the first dimension must be "
                "the batch."
            )
        outputs: list[Tensor] = []
        for block in range(layer.blocks.num_blocks if self.thorough else 1):
            given = x.clone()
            version = given._version
            try:
                outputs.append(layer.blocks(given, torch.full((self.samples,), block)))
            except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, UsageError) as error:
                raise UsageError(
                    f"block {block} of {where} cannot take activations {('N', *tuple(x.shape[1:]))} ({_line(error)}); "
                    "make sizes fit."
                ) from error
            if not isinstance(outputs[-1], Tensor):
                raise UsageError(
                    f"block {block} of {where} gives a {type(outputs[-1]).__name__}; a block takes one tensor and "
                    "gives one."
                )
            if given._version != version:
                raise UsageError(
                    f"block {block} of {where} changes its input in place, which others may still need; let it work on "
                    "a copy."
                )
            if outputs[-1].shape != outputs[0].shape:
                raise UsageError(
                    f"the blocks of {where} give different shapes, {tuple(outputs[0].shape[1:])} and, block {block}, "
                    f"{tuple(outputs[-1].shape[1:])}; make them equal."
                )
        if layer.allow_pass and outputs[0].shape != x.shape:
            raise UsageError(
                f"{where} has PASS but its blocks map {tuple(x.shape[1:])} to {tuple(outputs[0].shape[1:])}; PASS is "
                "allowed only where input and output have the same size."
            )
        self.calls.append(Call(layer, layer.state(x).shape[1], x.dim() == 2))
        return outputs[0]
