"""Sending a batch to linear blocks: the samples of a block together, only the chosen blocks at work."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from routing_lightning.errors import UsageError
from routing_lightning.nn import compiled


@dataclass
class Route:
    """Which samples go to which block of a layer, with the samples of a block side by side.

    Attributes:
        device: where the activations are.
        host_order: (N,) int64 on the host, the samples sorted by block; those that PASS come last.
        blocks: the U blocks that got a sample, ascending.
        counts: (U,) int64 on the host, how many samples each of them got.
        passed: how many samples PASS.
    """

    device: torch.device
    host_order: np.ndarray
    blocks: list[int]
    counts: np.ndarray
    passed: int

    @staticmethod
    def of(actions: Tensor, num_blocks: int, device: torch.device) -> "Route":
        """Sorts a layer's actions.

        Args:
            actions: (N,) int64 on the host, in [0, num_blocks], the last being PASS.
            num_blocks: K.
            device: where the activations are.

        Raises:
            UsageError: if they are no integers (N,), or out of their range.
        """
        chosen = actions.numpy()  # on few numbers NumPy starts faster than torch
        if chosen.ndim != 1 or chosen.dtype.kind not in "iu":
            raise UsageError(f"a layer got actions {tuple(actions.shape)} of {actions.dtype}; give (N,) integers.")
        order, most = np.empty(len(chosen), np.int64), min(len(chosen), num_blocks)
        blocks, counts = np.empty(most, np.int64), np.empty(most, np.int64)
        used, passed = compiled.sort_by_block(chosen, num_blocks, order, blocks, counts)
        if used < 0:
            raise UsageError(
                f"a layer got actions {chosen.min()}..{chosen.max()}; give blocks 0..{num_blocks - 1}, or {num_blocks} "
                "for PASS."
            )
        return Route(device, order, blocks[:used].tolist(), counts[:used], passed)

    @cached_property
    def sizes(self) -> list[int]:
        """How many samples each block in use got."""
        return [int(count) for count in self.counts]

    @cached_property
    def order(self) -> Tensor:
        """(N,) int64 on the device, the samples sorted by block; those that PASS come last."""
        return torch.from_numpy(self.host_order).to(self.device, non_blocking=True)

    @cached_property
    def inverse(self) -> Tensor:
        """(N,) int64 on the device, where each sample stands in ``order``."""
        inverse = np.empty_like(self.host_order)
        inverse[self.host_order] = np.arange(len(inverse))
        return torch.from_numpy(inverse).to(self.device, non_blocking=True)

    def repeat(self, count: int) -> "Route":
        """The route of as many rows per sample, side by side, for activations (N, count, ...) as (N * count, ...)."""
        order = (self.host_order[:, None] * count + np.arange(count)).ravel()
        return Route(self.device, order, self.blocks, self.counts * count, self.passed * count)

    def slots(self) -> tuple[Tensor, int]:
        """Places of the samples in a padded array (U, m, ...), m being the largest size: (N,) int64, and m."""
        longest = int(self.counts.max())
        # Sorted sample i of block u stands at u * m + (i - start of u); brought to the order of the batch.
        starts = self.counts.cumsum() - self.counts
        shift = np.repeat(np.arange(len(self.counts)) * longest - starts, self.counts)
        places = np.empty(len(shift), np.int64)
        places[self.host_order[: len(shift)]] = np.arange(len(shift)) + shift
        return torch.from_numpy(places).to(self.device, non_blocking=True), longest


def _with_ones(x: Tensor) -> Tensor:
    """A column of ones behind x, which the bias multiplies: (N, in) -> (N, in + 1)."""
    return torch.cat([x, x.new_ones(x.shape[0], 1)], 1)


class _SegmentLinear(torch.autograd.Function):
    """One matrix product per block, on sorted samples."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, route: Route, relu: bool, *blocks: Tensor) -> Tensor:
        ctx.route, ctx.relu, ctx.dtype = route, relu, blocks[0].dtype
        if ctx.dtype != x.dtype:
            blocks = tuple(block.to(x.dtype) for block in blocks)
        x = _with_ones(x.index_select(0, route.order))
        y = torch.cat([torch.mm(piece, block) for piece, block in zip(x.split(route.sizes), blocks, strict=True)])
        if relu:
            y.relu_()
        ctx.save_for_backward(x, y if relu else None, *blocks)
        return y.index_select(0, route.inverse)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, y, *blocks = ctx.saved_tensors
        sizes = ctx.route.sizes
        grad = grad.index_select(0, ctx.route.order)
        if ctx.relu:
            grad = torch.ops.aten.threshold_backward(grad, y, 0)
        grads = grad.split(sizes)
        own = [torch.mm(piece, g) for piece, g in zip(x.t().split(sizes, 1), grads, strict=True)]
        if ctx.dtype != x.dtype:
            own = [g.to(ctx.dtype) for g in own]
        grad_x = None
        if ctx.needs_input_grad[0]:
            pieces = [torch.mm(g, block.t()) for g, block in zip(grads, blocks, strict=True)]
            grad_x = torch.cat(pieces)[:, :-1].index_select(0, ctx.route.inverse)
        return grad_x, None, None, *own


class _PaddedLinear(torch.autograd.Function):
    """One batched matrix product over the blocks in use, each padded to the size of the largest."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, route: Route, relu: bool, *blocks: Tensor) -> Tensor:
        weight = torch.stack(blocks).to(x.dtype)
        slots, longest = route.slots()
        count, inputs, outputs = weight.shape
        padded = x.new_zeros(count * longest, inputs).index_copy_(0, slots, _with_ones(x)).view(count, longest, inputs)
        y = torch.bmm(padded, weight).view(count * longest, outputs).index_select(0, slots)
        if relu:
            y.relu_()
        ctx.save_for_backward(padded, y if relu else None, weight, slots)
        ctx.relu, ctx.dtype = relu, blocks[0].dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        padded, y, weight, slots = ctx.saved_tensors
        count, longest, _ = padded.shape
        if ctx.relu:
            grad = torch.ops.aten.threshold_backward(grad, y, 0)
        grads = grad.new_zeros(count * longest, grad.shape[1]).index_copy_(0, slots, grad).view(count, longest, -1)
        own = torch.bmm(padded.transpose(1, 2), grads).to(ctx.dtype).unbind(0)
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = torch.bmm(grads, weight[:, :-1].transpose(1, 2)).view(count * longest, -1).index_select(0, slots)
        return grad_x, None, None, *own


def _addresses(blocks: Sequence[Tensor], shape: torch.Size) -> np.ndarray:
    """Where blocks lie: (U,) int64. Checks what the compiled loops take on trust."""
    if {(block.shape, block.dtype, block.device.type) for block in blocks} != {(shape, torch.float32, "cpu")}:
        raise UsageError(
            f"the blocks of a layer differ in shape, type or device; give all {tuple(shape)} and one type."
        )
    return np.array([block.data_ptr() for block in blocks])


class _CompiledLinear(torch.autograd.Function):
    """One compiled loop over the blocks, for few samples per block; float32 on the host."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, route: Route, relu: bool, *blocks: Tensor) -> Tensor:
        blocks = tuple(block.contiguous() for block in blocks)
        addresses = _addresses(blocks, blocks[0].shape)
        x = x.contiguous()
        y = x.new_empty(x.shape[0], blocks[0].shape[1])
        compiled.forward(x.numpy(), route.host_order, route.counts, addresses, relu, y.numpy())
        ctx.save_for_backward(x, y if relu else None, *blocks)
        ctx.route, ctx.relu, ctx.shape = route, relu, blocks[0].shape
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, y, *blocks = ctx.saved_tensors
        addresses = _addresses(blocks, ctx.shape)
        own = x.new_empty(len(blocks), *ctx.shape)
        wanted = ctx.needs_input_grad[0]
        grad_x = torch.empty_like(x)
        order, counts = ctx.route.host_order, ctx.route.counts
        given = grad.contiguous().numpy()
        result = y.numpy() if ctx.relu else given
        compiled.backward(
            x.numpy(), result, given, order, counts, addresses, ctx.relu, wanted, grad_x.numpy(), own.numpy()
        )
        return grad_x if wanted else None, None, None, *own.unbind(0)


def _one_block(x: Tensor, block: Tensor, relu: bool) -> Tensor:
    """All samples through one block, as ``nn.Linear`` computes it, to the bit; without gradient."""
    y = torch.addmm(block[-1].to(x.dtype), x, block[:-1].to(x.dtype))
    return y.relu_() if relu else y


def fastest_way(x: Tensor, route: Route, block: Tensor) -> type[torch.autograd.Function]:
    """The way that is the fastest as measured (docs/performance.md, dispatch).

    Args:
        x: the activations.
        route: their route.
        block: one of the blocks in use.
    """
    count, used = len(route.host_order), len(route.counts)
    on_host = x.device.type == "cpu"
    if on_host and count <= 16 * used and x.dtype == block.dtype == torch.float32:
        return _CompiledLinear
    waste = used * int(route.counts.max()) / count
    if not on_host:
        return _PaddedLinear if waste <= 8 else _SegmentLinear  # a kernel launch per block costs more than much padding
    return _PaddedLinear if waste <= 4 and block.shape[1] <= 32 else _SegmentLinear


def routed_linear(x: Tensor, route: Route, blocks: Sequence[Tensor], relu: bool) -> Tensor:
    """Applies to each sample the affine map of its block.

    Args:
        x: (N, in), the activations; N > 0 and none of them PASSes.
        route: the route of the N samples.
        blocks: of the U blocks in use, each (in + 1, out): the weight transposed, and the bias as the last row. All of
            one type.
        relu: whether a ReLU follows.

    Returns:
        (N, out), in the order of ``x``. Under autocast in its lower precision, as ``nn.Linear`` does. Has a first
        derivative only.

    Raises:
        UsageError: if ``x`` does not fit the blocks.
    """
    kind, inputs = x.device.type, blocks[0].shape[0] - 1
    if x.dim() != 2 or x.shape[1] != inputs or len(route.host_order) != len(x):
        raise UsageError(
            f"a layer got activations {tuple(x.shape)} and {len(route.host_order)} actions; give (N, {inputs}) and as "
            "many actions."
        )
    if not (torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)):
        if x.dtype != blocks[0].dtype:
            raise UsageError(f"a layer of {blocks[0].dtype} got activations of {x.dtype}; convert one of them.")
        if len(blocks) == 1 and not torch.is_grad_enabled():
            return _one_block(x, blocks[0], relu)
        return cast(Tensor, fastest_way(x, route, blocks[0]).apply(x, route, relu, *blocks))
    with torch.autocast(kind, enabled=False):
        x = x.to(torch.get_autocast_dtype(kind))
        if len(blocks) == 1 and not torch.is_grad_enabled():
            return _one_block(x, blocks[0], relu)
        return cast(Tensor, fastest_way(x, route, blocks[0]).apply(x, route, relu, *blocks))
