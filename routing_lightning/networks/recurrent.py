"""Recurrent routing: one routed layer, called several times (paper, appendix "The PASS action")."""

from torch import Tensor, nn

from routing_lightning.errors import UsageError
from routing_lightning.networks.routed_layer import RoutedLayer


class Recurrent(nn.Module):
    """Calls a routed layer several times: any of its blocks each time, in any order (docs/paper.md, reading 20).

    Args:
        layer: the layer; its blocks give what they take.
        steps: how often, at least 1 (paper: 2).

    Raises:
        UsageError: if ``steps`` is below 1.
    """

    def __init__(self, layer: RoutedLayer, steps: int = 2) -> None:
        super().__init__()
        if steps < 1:
            raise UsageError(f"steps of Recurrent is {steps}; give at least 1.")
        self.layer = layer
        self.steps = steps

    def forward(self, x: Tensor) -> Tensor:
        """Applies the layer to its own output: (N, ...) -> (N, ...)."""
        for _ in range(self.steps):
            x = self.layer(x)
        return x
