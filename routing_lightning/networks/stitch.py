"""Cross-stitch units between the routes of tasks: each task's network hears those of the others."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from routing_lightning.errors import UsageError
from routing_lightning.networks.probe import Call
from routing_lightning.networks.routed_layer import OpenPass, RoutedLayer
from routing_lightning.nn.tracing import on_host


class Stitches(nn.Module):
    """Learned mixtures of the tasks' activations in front of routed fully connected layers (Misra et al., 2016).

    Where routes stay, the blocks of a task's route are a network of its own, its tower. For each sample the fully
    connected layers of all towers are computed; the input of tower i's layer is ``sum_j w_ij v_j`` over the outputs v_j
    of all towers' layers before it, with a learned matrix w in front of each layer, the identity at first: the network
    begins as it was without. All towers begin with the features of the sample's own route, and its own one is read out.
    Tasks whose fully connected layers are the same have one tower.

    The layers meant are the last ones whose activations are vectors; nothing is mixed in front of the first of them.
    What stands between them sees a batch of N samples for each tower, one tower after the other. The cost of these
    layers grows with the number of towers, that of all others does not.

    Args:
        calls: the calls of the routed layers.
        num_tasks: T, number of tasks.

    Attributes:
        first: the first depth of the towers, from 0.
        mixing: w in front of each later depth, (T, T), of which a tower takes row and column of its first task.

    Raises:
        UsageError: if there is nothing to mix.
    """

    def __init__(self, calls: Sequence[Call], num_tasks: int) -> None:
        super().__init__()
        others = [depth for depth, call in enumerate(calls) if not call.is_vector]
        self.first = others[-1] + 1 if others else 0
        if self.first > len(calls) - 2:
            raise UsageError(
                "stitch of the router is true, but the network does not end with two routed layers that take vectors "
                "(N, F), between which to mix; route its fully connected layers, or set stitch to false."
            )
        self.mixing = nn.ParameterList(torch.eye(num_tasks) for _ in range(self.first + 1, len(calls)))

    def towers(self, routes: Tensor) -> tuple[Tensor, Tensor]:
        """The first task of each of the P towers (P,), and the tower of each task (T,); routes: (T, D)."""
        found, own = routes[:, self.first :].unique(dim=0, return_inverse=True)
        tasks = torch.arange(len(own))
        return tasks.new_full((len(found),), len(own)).scatter_reduce_(0, own, tasks, "amin"), own

    def mixtures(self, tasks: Tensor) -> list[Tensor]:
        """The matrix in front of each depth behind the first, of these tasks alone: each (P, P)."""
        tasks = tasks.to(self.mixing[0].device)
        return [mixing[tasks][:, tasks] for mixing in self.mixing]

    def specialise(self, calls: Sequence[RoutedLayer], routes: Tensor, task: int) -> list[nn.Module]:
        """What stands for the layers from ``first`` on in the network of one task: all towers, one of which is read."""
        tasks, own = self.towers(routes)
        mixtures = [None, *(mixing.detach() for mixing in self.mixtures(tasks))]
        found: list[nn.Module] = []
        for depth, mixing in enumerate(mixtures, self.first):
            rows = range(len(tasks))
            if mixing is not None and depth == len(calls) - 1:
                rows = range(int(own[task]), int(own[task]) + 1)
                mixing = mixing[list(rows)]
            actions = [int(routes[tasks[row], depth]) for row in rows]
            found.append(Towers([alone(calls[depth], action) for action in actions], mixing))
        return found


def alone(layer: RoutedLayer, action: int) -> nn.Module:
    """A layer's block as a module of its own, or what PASS does."""
    return nn.Identity() if action == layer.blocks.num_blocks else layer.blocks.single(action)


class StitchedPass(OpenPass):
    """A pass through all towers.

    Args:
        calls: the routed layer of each depth.
        stitches: what mixes.
        routes: (T, D), the route of each task.
        tasks: (N,) on the host.
    """

    def __init__(self, calls: Sequence[RoutedLayer], stitches: Stitches, routes: Tensor, tasks: Tensor) -> None:
        super().__init__(calls)
        self.first = stitches.first
        firsts, own = stitches.towers(routes)
        self.actions = routes[tasks]  # (N, D)
        self.paths = routes[firsts]  # (P, D)
        self.own = own[tasks]  # (N,)
        self.mixtures = stitches.mixtures(firsts)
        self.depth = 0

    @on_host
    def apply(self, layer: RoutedLayer, x: Tensor) -> Tensor:
        """Below the towers (N, ...) -> (N, ...), within them up to (P * N, F), out of them (N, F)."""
        self.check_next(layer, self.depth)
        depth, self.depth = self.depth, self.depth + 1
        count, towers = len(self.own), len(self.paths)
        if depth < self.first:
            y: Tensor = layer.blocks(x, self.actions[:, depth])
            return y
        if depth == self.first:
            x = x.repeat(towers, 1)
        else:
            mixing = self.mixtures[depth - self.first - 1].to(x.dtype)
            v = x.view(towers, count, x.shape[-1])
            if depth == len(self.layers) - 1:
                x = torch.einsum("np,pnf->nf", mixing[self.own.to(mixing.device)], v)
                return layer.blocks(x, self.actions[:, depth])  # type: ignore[no-any-return]
            x = torch.einsum("ij,jnf->inf", mixing, v).flatten(0, 1)
        return layer.blocks(x, self.paths[:, depth].repeat_interleave(count))  # type: ignore[no-any-return]

    @on_host
    def close(self) -> None:
        """Checks that the pass was whole."""
        self.check_whole(self.depth)


class Towers(nn.Module):
    """Blocks side by side, each with its own input.

    Args:
        blocks: Q blocks.
        mixing: (Q, P), the inputs as mixtures of P activations that come one behind the other; None: one for all.
    """

    mixing: Tensor | None

    def __init__(self, blocks: Sequence[nn.Module], mixing: Tensor | None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.register_buffer("mixing", None if mixing is None else mixing.clone())

    def forward(self, x: Tensor) -> Tensor:
        """(P * N, F), or (N, F) where nothing is mixed -> (Q * N, F')."""
        if self.mixing is None:
            return torch.cat([block(x) for block in self.blocks])
        v = torch.einsum("qp,pnf->qnf", self.mixing, x.unflatten(0, (self.mixing.shape[1], -1)))
        return torch.cat([block(row) for block, row in zip(self.blocks, v, strict=True)])
