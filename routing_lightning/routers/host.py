"""Tensors that stay on the host in float32."""

from collections.abc import Callable
from typing import Any

from torch import nn


class HostModule(nn.Module):
    """A module whose own tensors stay on the host, in the type they were made with, wherever the model goes.

    A tabular route is known before the forward pass and its learning is sequential: both are fastest on the host, and
    the forward pass then never waits for the device. It also keeps policies in float32 at every precision.
    """

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> "HostModule":
        return self
