"""RoutingNetwork: the routing algorithm (paper, Algorithm 1)."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from routing_lightning.errors import UsageError
from routing_lightning.nn.blocks import Blocks
from routing_lightning.routers.router import Router
from routing_lightning.routers.trace import Trace


class RoutingNetwork(nn.Module):
    """Layered routing: at depth d the router picks, per sample, one block of layer d (paper, Algorithm 1).

    Returns the last activation (the paper's ``return v`` is a slip: v is never updated).

    Args:
        layers: the D sets of function blocks, D >= 1.
        router: who picks; is built here for these layers.
        num_tasks: T, number of tasks, at least 1.

    Raises:
        UsageError: if there is no layer or no task, or the sizes of two layers do not fit.
    """

    def __init__(self, layers: Sequence[Blocks], router: Router, num_tasks: int) -> None:
        super().__init__()
        if not layers:
            raise UsageError("the routing network has depth 0; give at least 1 layer.")
        if num_tasks < 1:
            raise UsageError(f"num_tasks is {num_tasks}; give at least 1 task.")
        self.layers = nn.ModuleList(layers)
        self.router = router
        self.num_tasks = num_tasks
        router.build(num_tasks, [layer.num_blocks for layer in layers])

    def forward(
        self, x: Tensor, tasks: Tensor, *, explore: bool | None = None, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Trace]:
        """Routes a batch.

        Args:
            x: (N, ...), the activations that enter the first layer.
            tasks: (N,) int64 in [0, T); best on the host: a table's route is then known without waiting for a device.
            explore: draw actions from the policy, else take the most probable; None: as ``self.training`` says.
            generator: source of the drawing's noise, on the host.

        Returns:
            The last activation (N, ...) and the trace.
        """
        explore = self.training if explore is None else explore
        trace = self.router.act(tasks.cpu(), explore=explore, generator=generator)
        for depth, layer in enumerate(self.layers):
            x = layer(x, trace.actions[:, depth])
        return x, trace

    def active_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters of the blocks that got a sample in training since :meth:`reset_active`."""
        for layer in self.layers:
            assert isinstance(layer, Blocks)
            yield from layer.active_parameters()

    def reset_active(self) -> None:
        """Forgets which blocks got a sample."""
        for layer in self.layers:
            assert isinstance(layer, Blocks)
            layer.reset_active()
