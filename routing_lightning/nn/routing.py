"""RoutingNetwork: the routing algorithm (paper, Algorithm 1)."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from routing_lightning.errors import UsageError
from routing_lightning.nn.blocks import Blocks

if TYPE_CHECKING:  # at run time the routers import this package's blocks
    from routing_lightning.routers.router import Router
    from routing_lightning.routers.trace import Trace


class RoutingNetwork(nn.Module):
    """Routing: at each depth the router picks, per sample, one block of that depth's layer (paper, Algorithm 1).

    Layered by default: depth d picks from layer d. With ``order`` a layer may serve several depths (recurrent routing),
    and with ``may_pass`` a depth has PASS as a further action, the last one, which leaves the activation as it is
    (paper, appendix; NOTES 20). Returns the last activation (the paper's ``return v`` is a slip: v is never updated).

    Args:
        layers: the sets of function blocks, at least one.
        router: who picks; is built here for these layers.
        num_tasks: T, number of tasks, at least 1.
        order: the layer of each depth; 0, 1, ... by default.
        may_pass: whether each depth has PASS; nowhere by default.

    Raises:
        UsageError: if there is no layer or no task, or sizes do not fit.
    """

    def __init__(
        self,
        layers: Sequence[Blocks],
        router: "Router",
        num_tasks: int,
        order: Sequence[int] | None = None,
        may_pass: Sequence[bool] | None = None,
    ) -> None:
        super().__init__()
        if not layers:
            raise UsageError("the routing network has depth 0; give at least 1 layer.")
        if num_tasks < 1:
            raise UsageError(f"num_tasks is {num_tasks}; give at least 1 task.")
        self.order = list(range(len(layers))) if order is None else list(order)
        self.may_pass = [False] * len(self.order) if may_pass is None else list(may_pass)
        if len(self.may_pass) != len(self.order) or not set(self.order) <= set(range(len(layers))):
            raise UsageError(
                f"order is {self.order} and may_pass {self.may_pass}; give as many of each, with layers "
                f"0..{len(layers) - 1}."
            )
        steps = [layers[index] for index in self.order]
        for depth, (step, passes) in enumerate(zip(steps, self.may_pass, strict=True)):
            if passes and (step.in_features is None or step.in_features != step.out_features):
                raise UsageError(
                    f"depth {depth + 1} has PASS but its blocks map {step.in_features} to {step.out_features} "
                    "features; PASS is allowed only where input and output have the same size."
                )
        for depth, (step, following) in enumerate(pairwise(steps)):
            if None not in (step.out_features, following.in_features) and step.out_features != following.in_features:
                raise UsageError(
                    f"depth {depth + 1} gives {step.out_features} features but depth {depth + 2} takes "
                    f"{following.in_features}; make them equal."
                )
        self.layers = nn.ModuleList(layers)
        self.router = router
        self.num_tasks = num_tasks
        num_actions = [step.num_blocks + passes for step, passes in zip(steps, self.may_pass, strict=True)]
        router.build(num_tasks, num_actions, [step.in_features for step in steps])

    def forward(
        self,
        x: Tensor,
        tasks: Tensor | None = None,
        *,
        explore: bool | None = None,
        generator: torch.Generator | None = None,
    ) -> "tuple[Tensor, Trace]":
        """Routes a batch.

        Args:
            x: (N, ...), the activations that enter the first layer.
            tasks: (N,) int64 in [0, T); best on the host: a table's route is then known without waiting for a device.
                None stands for a dummy task, 0.
            explore: draw actions from the policy, else take the most probable; None: as ``self.training`` says.
            generator: source of the drawing's noise, on the host.

        Returns:
            The last activation (N, ...) and the trace.
        """
        explore = self.training if explore is None else explore
        tasks = torch.zeros(len(x), dtype=torch.long) if tasks is None else tasks.cpu()
        router = self.router
        trace = router.start(tasks, x if router.uses_state else None, explore=explore, generator=generator)
        layers = list(self.layers)
        for depth, index in enumerate(self.order):
            if router.uses_state:
                actions = router.act(trace, x, depth, explore=explore, generator=generator)
            else:
                actions = trace.actions[:, depth]
            x = layers[index](x, actions)
        return x, trace

    def active_parameters(self) -> list[nn.Parameter]:
        """Parameters of the blocks that got a sample in training since :meth:`reset_active`."""
        return [parameter for layer in self.layers for parameter in cast(Blocks, layer).active_parameters()]

    def block_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters of all blocks."""
        for layer in self.layers:
            for block in range(cast(Blocks, layer).num_blocks):
                yield from cast(Blocks, layer).block_parameters(block)

    def reset_active(self) -> None:
        """Forgets which blocks got a sample."""
        for layer in self.layers:
            cast(Blocks, layer).reset_active()
