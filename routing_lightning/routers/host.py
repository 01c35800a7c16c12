"""Modules that keep their tensors from the model's device or precision."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


class HostModule(nn.Module):
    """A module whose own tensors stay on the host, in the type they were made with, wherever the model goes.

    A tabular route is known before the forward pass and its learning is sequential: both are fastest on the host, and
    the forward pass then never waits for the device. It also keeps policies in float32 at every precision.
    """

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> "HostModule":
        return self


class FixedPrecisionModule(nn.Module):
    """A module whose tensors follow the model to its device but keep the type that they were made with."""

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> "FixedPrecisionModule":
        def move(tensor: Tensor) -> Tensor:
            # What happens to an empty piece tells the device; converting and converting back would lose digits.
            return tensor.to(fn(tensor.detach().flatten()[:0]).device)

        super()._apply(move, recurse)  # type: ignore[no-untyped-call]
        return self
