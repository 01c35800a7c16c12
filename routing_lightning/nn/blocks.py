"""Sets of function blocks, and the dispatch of a batch to its blocks (paper, section 3)."""

from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from routing_lightning.errors import UsageError
from routing_lightning.nn.dispatch import Route, routed_linear
from routing_lightning.nn.norm import for_few_values, ordinary
from routing_lightning.nn.tracing import on_host, refuse_tracing


class _Reorder(torch.autograd.Function):
    """Gathers samples into another order; its gradient is a gather, too, where that of ``index_select`` adds up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(order, inverse)
        if x.dim() != 4 or not x.is_contiguous(memory_format=torch.channels_last):
            return x.index_select(0, order)
        y = torch.empty_like(x)  # keeps the memory format, and is no view, which nobody could change in place
        torch.index_select(x.permute(0, 2, 3, 1), 0, order, out=y.permute(0, 2, 3, 1))
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        order, inverse = ctx.saved_tensors
        return reorder(grad, inverse, order), None, None


def reorder(x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
    """The samples of x (N, ...) in another order, in x's memory format.

    Args:
        x: the samples.
        order: (N,) int64, a permutation: the place in x of each sample of the result.
        inverse: (N,) int64, the inverse permutation.
    """
    return cast(Tensor, _Reorder.apply(x, order, inverse))


class Blocks(nn.Module):
    """A set of function blocks of one layer. Each sample of a batch goes through the block chosen for it.

    Only the blocks that got a sample are run; the parameters of the others get no gradient. A derived class says what
    the blocks do in :meth:`apply_route`.

    Args:
        num_blocks: K, at least 1.
        in_features: size of the input, None if it is no vector.
        out_features: size of the output, None if it is no vector.

    Attributes:
        active: the blocks that got a sample since :meth:`reset_active`.

    Raises:
        UsageError: if ``num_blocks`` is below 1.
    """

    def __init__(self, num_blocks: int, in_features: int | None = None, out_features: int | None = None) -> None:
        super().__init__()
        if num_blocks < 1:
            raise UsageError(f"num_blocks is {num_blocks}; give at least 1 block per layer.")
        self.num_blocks = num_blocks
        self.in_features = in_features
        self.out_features = out_features
        self.active: set[int] = set()

    def apply_route(self, x: Tensor, route: Route) -> Tensor:
        """Applies to each sample, none of which PASSes, its block: (N, ...) -> (N, ...)."""
        raise TypeError(f"{type(self).__name__} does not say what its blocks do: override apply_route")

    def block_parameters(self, block: int) -> Iterable[nn.Parameter]:
        """Parameters of one block."""
        raise TypeError(f"{type(self).__name__} does not say what a block holds: override block_parameters")

    @torch.no_grad()
    def copy_block(self, source: int, targets: Iterable[int]) -> None:
        """Gives blocks the parameters, and buffers, of another one of this set."""
        for target in targets:
            for ours, theirs in zip(self.block_parameters(target), self.block_parameters(source), strict=True):
                ours.copy_(theirs)

    def single(self, block: int) -> nn.Module:
        """A block as a module of its own: a copy, made of ordinary modules."""
        raise TypeError(f"{type(self).__name__} does not say how a block stands alone: override single")

    def forward(self, x: Tensor, actions: Tensor) -> Tensor:
        """Applies to each sample its block.

        Args:
            x: (N, ...), the activations.
            actions: (N,) int64, a block in [0, K), or K for PASS, which leaves the activation as it is. Best on the
                host: on a device the call waits for it.

        Returns:
            (N, ...), in the order of ``x``.

        Raises:
            UsageError: if there is not one action per sample, in its range, or ``x`` does not fit the blocks.
        """
        refuse_tracing(self)
        return self._send(x, actions)

    @on_host
    def _send(self, x: Tensor, actions: Tensor) -> Tensor:
        """Sorts the samples by block and applies the blocks; see :meth:`forward`."""
        if len(actions) != len(x):
            raise UsageError(f"a layer got {len(actions)} actions for {len(x)} samples; give one per sample.")
        actions = actions.cpu()
        route = Route.of(actions, self.num_blocks, x.device)
        if self.training and torch.is_grad_enabled():
            self.active.update(route.blocks)
        if not route.passed:
            return self.apply_route(x, route)
        if not route.blocks:  # all PASS
            return x
        stay = torch.nonzero(actions != self.num_blocks).squeeze(1)
        moved = stay.to(x.device, non_blocking=True)
        part = self.apply_route(x.index_select(0, moved), Route.of(actions[stay], self.num_blocks, x.device))
        return x.to(part.dtype).index_copy(0, moved, part)

    def active_parameters(self) -> list[nn.Parameter]:
        """Parameters of the blocks that got a sample since :meth:`reset_active`."""
        return [parameter for block in sorted(self.active) for parameter in self.block_parameters(block)]

    def reset_active(self) -> None:
        """Forgets which blocks got a sample."""
        self.active.clear()


class LinearBlocks(Blocks):
    """Fully connected function blocks, each with its own parameters and the initialisation of ``nn.Linear``.

    Args:
        num_blocks: K, at least 1.
        in_features: size of the input, at least 1.
        out_features: size of the output, at least 1.
        relu: whether a block ends with a ReLU (all but the classification layer do).

    Attributes:
        blocks: one parameter per block, (in_features + 1, out_features): the weight transposed, and the bias as the
            last row; see :meth:`linear`.

    Raises:
        UsageError: if a size is below 1.
    """

    def __init__(self, num_blocks: int, in_features: int, out_features: int, relu: bool = True) -> None:
        super().__init__(num_blocks, in_features, out_features)
        for name, size in (("in_features", in_features), ("out_features", out_features)):
            if size < 1:
                raise UsageError(f"{name} of a layer is {size}; give at least 1.")
        self.relu = relu
        # One parameter per block, not one stack: optimizers skip a parameter without gradient, so a block without
        # samples is moved neither by momentum nor by weight decay, and costs nothing. And not two per block: what
        # autograd and optimizer do per parameter costs as much as the products of a small block.
        self.blocks = nn.ParameterList()
        self._names = [str(block) for block in range(num_blocks)]
        for _ in range(num_blocks):
            linear = nn.Linear(in_features, out_features)
            self.blocks.append(torch.cat([linear.weight.detach().t(), linear.bias.detach().unsqueeze(0)]))

    def apply_route(self, x: Tensor, route: Route) -> Tensor:
        """Affine maps, and ReLU: (N, ..., in_features) -> (N, ..., out_features)."""
        if not x.numel():
            return x.new_zeros(*x.shape[:-1], cast(int, self.out_features)) + x.sum()
        blocks = self._parameters_of(route.blocks)
        if x.dim() <= 2:
            return routed_linear(x, route, blocks, self.relu)
        rows = routed_linear(x.flatten(0, -2), route.repeat(x[0, ..., 0].numel()), blocks, self.relu)
        return rows.view(*x.shape[:-1], -1)

    def single(self, block: int) -> nn.Module:
        """The block as ``nn.Linear``, and ``nn.ReLU`` where it ends with one."""
        weight, bias = self.linear(block)
        linear = skip_init(nn.Linear, *weight.t().shape)
        # With the weight's layout too: without gradient the products are then the same to the bit.
        linear.weight, linear.bias = nn.Parameter(weight.detach().clone()), nn.Parameter(bias.detach().clone())
        return nn.Sequential(linear, nn.ReLU()) if self.relu else linear

    def _parameters_of(self, blocks: Iterable[int]) -> list[nn.Parameter]:
        # Indexing the ParameterList itself takes microseconds, which many small blocks would feel.
        parameters = cast(dict[str, nn.Parameter], self.blocks._parameters)
        return [parameters[self._names[block]] for block in blocks]

    def linear(self, block: int) -> tuple[Tensor, Tensor]:
        """Weight (out_features, in_features) and bias (out_features,) of one block, as ``nn.Linear`` has them.

        Both are views of the block's parameter: writing to them changes the block.
        """
        return self.blocks[block][:-1].t(), self.blocks[block][-1]

    def block_parameters(self, block: int) -> list[nn.Parameter]:
        """The parameter of one block."""
        return self._parameters_of([block])

    def active_parameters(self) -> list[nn.Parameter]:
        """Parameters of the blocks that got a sample since :meth:`reset_active`."""
        return self._parameters_of(sorted(self.active))


class ModuleBlocks(Blocks):
    """Function blocks that are any modules; those of one set must give outputs of the same shape.

    Args:
        modules: the blocks. Batch normalisation in them is made to cope with few samples, or one
            (:mod:`routing_lightning.nn.norm`), and what works in place (``nn.ReLU(inplace=True)``) no longer does: a
            sample's output must not depend on which other samples take its block.
        in_features: size of the input, for layers that are checked against each other; None if not a vector.
        out_features: size of the output; None if not a vector.

    Raises:
        UsageError: if there is no module.
    """

    def __init__(
        self, modules: Sequence[nn.Module], in_features: int | None = None, out_features: int | None = None
    ) -> None:
        strangers = [type(module).__name__ for module in modules if not isinstance(module, nn.Module)]
        if strangers:
            raise UsageError(f"a set of blocks got {', '.join(strangers)}; give torch modules.")
        super().__init__(len(modules), in_features, out_features)
        for part in (part for module in modules for part in module.modules()):
            if getattr(part, "inplace", False) is True:
                part.inplace = False  # type: ignore[assignment]
        self.blocks = nn.ModuleList(for_few_values(module) for module in modules)

    def apply_route(self, x: Tensor, route: Route) -> Tensor:
        """Calls the module of each block in use; for an empty batch the first, which knows the shape of the output."""
        if len(route.blocks) <= 1:
            alone: Tensor = self.blocks[route.blocks[0] if route.blocks else 0](x)
            return alone
        # No views: a block of one's own may write to its input.
        pieces = torch.unsafe_split_with_sizes(reorder(x, route.order, route.inverse), route.sizes)
        outputs = [self.blocks[block](piece) for block, piece in zip(route.blocks, pieces, strict=True)]
        return reorder(torch.cat(outputs), route.inverse, route.order)

    @torch.no_grad()
    def copy_block(self, source: int, targets: Iterable[int]) -> None:
        """Gives blocks the state of another one; see the base class."""
        state = self.blocks[source].state_dict()
        for target in targets:
            self.blocks[target].load_state_dict(state)

    def single(self, block: int) -> nn.Module:
        """A copy of the block's module."""
        return ordinary(self.blocks[block])

    def block_parameters(self, block: int) -> Iterable[nn.Parameter]:
        """Parameters of the block's module."""
        return self.blocks[block].parameters()
