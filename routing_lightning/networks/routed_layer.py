"""RoutedLayer: alternative modules at one place of a network, and the pass that tells it which to take."""

from collections.abc import Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import Protocol, TypeVar

from torch import Tensor, nn

from routing_lightning.errors import UsageError
from routing_lightning.nn.blocks import Blocks, ModuleBlocks


class RoutedLayer(nn.Module):
    """A set of alternative modules at one place of a network; each sample takes one of them.

    Called like the module that it stands for, ``layer(x)``, wherever it is: in an ``nn.Sequential``, a stage of a
    ResNet, a transformer's feed-forward part. Which block a sample takes it learns from the pass of the
    :class:`RoutingNetwork` that owns it, so nothing in between needs to know. The first dimension of its activation is
    the batch.

    Args:
        blocks: the alternatives: a set of blocks, or any modules that give outputs of one shape.
        allow_pass: whether there is PASS, a further action that leaves the activation as it is (paper, appendix).
        feature_dim: the dimension of the activation that holds the features, over all others of which the state that a
            router sees is averaged; None: 1 for pictures (N, C, H, W), the last one for sequences (N, L, C).
    """

    def __init__(
        self, blocks: Blocks | Sequence[nn.Module], allow_pass: bool = False, feature_dim: int | None = None
    ) -> None:
        super().__init__()
        if isinstance(blocks, nn.Module) and not isinstance(blocks, (Blocks, nn.ModuleList)):
            raise UsageError(
                f"a routed layer got one {type(blocks).__name__}; give a set of blocks or several modules."
            )
        self.blocks = blocks if isinstance(blocks, Blocks) else ModuleBlocks(list(blocks))
        self.allow_pass = allow_pass
        self.feature_dim = feature_dim

    @property
    def num_actions(self) -> int:
        """Number of blocks, and PASS where there is one."""
        return self.blocks.num_blocks + self.allow_pass

    def state(self, x: Tensor) -> Tensor:
        """What a router sees of an activation: (N, ...) -> (N, size), the average over the picture or sequence."""
        x = x if x.is_floating_point() else x.float()
        if x.dim() == 2:
            return x
        features = self.feature_dim if self.feature_dim is not None else (1 if x.dim() > 3 else x.dim() - 1)
        others = [dim for dim in range(1, x.dim()) if dim != features % x.dim()]
        return x.mean(others) if others else x.unsqueeze(1)

    def forward(self, x: Tensor) -> Tensor:
        """Applies to each sample the block that the pass under way says: (N, ...) -> (N, ...).

        Raises:
            UsageError: if no pass is under way.
        """
        return _pass_of(self).apply(self, x)


class Pass(Protocol):
    """A forward pass under way."""

    outer: "Pass | None"

    def owns(self, layer: RoutedLayer) -> bool:
        """Whether the layer belongs to the network of this pass."""

    def apply(self, layer: RoutedLayer, x: Tensor) -> Tensor:
        """The layer's output."""


# One per thread and asynchronous task, so two passes never see each other; a pass within a pass knows the outer one.
_current: ContextVar[Pass | None] = ContextVar("routing_pass", default=None)


def _pass_of(layer: RoutedLayer) -> Pass:
    found = _current.get()
    while found is not None and not found.owns(layer):
        found = found.outer
    if found is None:
        raise UsageError(
            "a routed layer was called outside a pass of its routing network (gradient checkpointing around it does "
            "so, too); call the RoutingNetwork that holds it, or take the network of one task with specialise(task)."
        )
    return found


OwnPass = TypeVar("OwnPass", bound="OpenPass")


class OpenPass:
    """Base of passes: a context in which routed layers find it."""

    def __init__(self, layers: Sequence[RoutedLayer]) -> None:
        self.layers = layers
        self.outer: Pass | None = None

    def owns(self, layer: RoutedLayer) -> bool:
        """Whether the layer belongs to the network of this pass."""
        return any(layer is own for own in self.layers)

    def apply(self, layer: RoutedLayer, x: Tensor) -> Tensor:
        """The layer's output."""
        raise TypeError(f"{type(self).__name__} does not say what a layer gives: override apply")

    def check_next(self, layer: RoutedLayer, depth: int) -> None:
        """Checks that the body calls the layer of this depth next.

        Raises:
            UsageError: if not.
        """
        if depth == len(self.layers) or self.layers[depth] is not layer:
            raise UsageError(
                f"the call number {depth + 1} of a routed layer is to another layer than with the example; the body "
                "must call its routed layers in the same order each time."
            )

    def check_whole(self, depth: int) -> None:
        """Checks that the body has called all routed layers, of which it has called so many.

        Raises:
            UsageError: if not.
        """
        if depth != len(self.layers):
            raise UsageError(
                f"the body called {depth} routed layers but {len(self.layers)} with the example; it must call them in "
                "the same order each time."
            )

    def __enter__(self: OwnPass) -> OwnPass:
        self.outer = _current.get()
        _current.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _current.set(self.outer)
