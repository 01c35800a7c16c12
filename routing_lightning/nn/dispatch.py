"""Sending a batch to linear blocks: the samples of a block together, only the chosen blocks at work."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


@dataclass
class Route:
    """Which samples go to which block of a layer, with the samples of a block side by side.

    Attributes:
        order: (N,) int64, the samples sorted by block; those that PASS come last.
        inverse: (N,) int64, where each sample stands in ``order``.
        blocks: the U blocks that got a sample, ascending.
        sizes: how many samples each of them got.
        passed: how many samples PASS.
    """

    order: Tensor
    inverse: Tensor
    blocks: list[int]
    sizes: list[int]
    passed: int

    @staticmethod
    def of(actions: Tensor, num_blocks: int, device: torch.device) -> "Route":
        """Sorts a layer's actions.

        Args:
            actions: (N,) int64 on the host, in [0, num_blocks], the last being PASS.
            num_blocks: K.
            device: where the activations are.

        Returns:
            The route, ``order`` and ``inverse`` on the device.
        """
        chosen = actions.numpy()  # on few numbers NumPy starts faster than torch
        order = np.argsort(chosen, kind="stable")
        counts = np.bincount(chosen, minlength=num_blocks + 1)
        passed = int(counts[num_blocks])
        blocks = np.flatnonzero(counts[:num_blocks])
        inverse = np.empty_like(order)
        inverse[order] = np.arange(len(order))
        return Route(
            torch.from_numpy(order).to(device, non_blocking=True),
            torch.from_numpy(inverse).to(device, non_blocking=True),
            blocks.tolist(),
            counts[blocks].tolist(),
            passed,
        )

    def slots(self) -> tuple[Tensor, int]:
        """Places of the samples in a padded array (U, m, ...), m being the largest size: (N,) int64, and m."""
        longest = max(self.sizes)
        sizes = np.array(self.sizes)
        # Sorted sample i of block u stands at u * m + (i - start of u); brought to the order of the batch.
        shift = np.repeat(np.arange(len(sizes)) * longest - (sizes.cumsum() - sizes), sizes)
        places = torch.from_numpy(np.arange(len(shift)) + shift)
        return places.to(self.inverse.device, non_blocking=True).index_select(0, self.inverse), longest


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
        ctx.save_for_backward(x, y, *blocks)
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
        ctx.save_for_backward(padded, y, weight, slots)
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


def padding_wins(route: Route, out_features: int, device: torch.device) -> bool:
    """Whether the padded product is the faster way, as measured (docs/performance.md, dispatch)."""
    waste = len(route.sizes) * max(route.sizes) / len(route.order)
    if device.type != "cpu":
        return waste <= 8  # a kernel launch per block costs more than much padding
    return waste <= 4 and out_features <= 32


def routed_linear(x: Tensor, route: Route, blocks: list[Tensor], relu: bool) -> Tensor:
    """Applies to each sample the affine map of its block.

    Args:
        x: (N, in), the activations; N > 0 and none of them PASSes.
        route: the route of the N samples.
        blocks: of the U blocks in use, each (in + 1, out): the weight transposed, and the bias as the last row. All of
            one type.
        relu: whether a ReLU follows.

    Returns:
        (N, out), in the order of ``x``. Under autocast in its lower precision, as ``nn.Linear`` does.
    """
    function = _PaddedLinear if padding_wins(route, blocks[0].shape[1], x.device) else _SegmentLinear
    kind = x.device.type
    if not (torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)):
        return function.apply(x, route, relu, *blocks)
    with torch.autocast(kind, enabled=False):
        return function.apply(x.to(torch.get_autocast_dtype(kind)), route, relu, *blocks)
