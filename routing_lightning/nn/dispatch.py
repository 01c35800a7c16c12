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
        sizes = torch.tensor(self.sizes)
        shift = torch.arange(len(sizes)) * longest - (sizes.cumsum(0) - sizes)
        shift = shift.repeat_interleave(sizes).to(self.inverse.device, non_blocking=True)
        # Sorted sample i of block u stands at u * m + (i - start of u); brought to the order of the batch.
        return (torch.arange(len(shift), device=shift.device) + shift).index_select(0, self.inverse), longest


class _SegmentLinear(torch.autograd.Function):
    """One matrix product per block, on sorted samples."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, route: Route, relu: bool, *parameters: Tensor) -> Tensor:
        count = len(route.sizes)
        weights = [weight.to(x.dtype) for weight in parameters[:count]]
        biases = [bias.to(x.dtype) for bias in parameters[count:]]
        x = x.index_select(0, route.order)
        y = x.new_empty(x.shape[0], weights[0].shape[0])
        pieces = zip(biases, x.split(route.sizes), weights, y.split(route.sizes), strict=True)
        for bias, piece, weight, out in pieces:
            torch.addmm(bias, piece, weight.t(), out=out)
        if relu:
            y.relu_()
        ctx.save_for_backward(x, y, *weights)
        ctx.route, ctx.relu, ctx.types = route, relu, [parameter.dtype for parameter in parameters]
        return y.index_select(0, route.inverse)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, y, *weights = ctx.saved_tensors
        route, types = ctx.route, ctx.types
        grad = grad.index_select(0, route.order)
        if ctx.relu:
            grad = torch.ops.aten.threshold_backward(grad, y, 0)
        grads = grad.split(route.sizes)
        grad_weights = [torch.mm(g.t(), piece) for g, piece in zip(grads, x.split(route.sizes), strict=True)]
        grad_biases = [g.sum(0) for g in grads]
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = torch.empty_like(x)
            for g, weight, out in zip(grads, weights, grad_x.split(route.sizes), strict=True):
                torch.mm(g, weight, out=out)
            grad_x = grad_x.index_select(0, route.inverse)
        own = (g.to(dtype) for g, dtype in zip(grad_weights + grad_biases, types, strict=True))
        return grad_x, None, None, *own


class _PaddedLinear(torch.autograd.Function):
    """One batched matrix product over the blocks in use, each padded to the size of the largest."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, route: Route, relu: bool, *parameters: Tensor) -> Tensor:
        count = len(route.sizes)
        weight = torch.stack(parameters[:count]).to(x.dtype)
        bias = torch.stack(parameters[count:]).to(x.dtype)
        slots, longest = route.slots()
        padded = x.new_zeros(count * longest, x.shape[1]).index_copy_(0, slots, x).view(count, longest, -1)
        y = torch.baddbmm(bias.unsqueeze(1), padded, weight.transpose(1, 2))
        y = y.view(count * longest, -1).index_select(0, slots)
        if relu:
            y.relu_()
        ctx.save_for_backward(padded, y, weight, slots)
        ctx.relu, ctx.types = relu, [parameter.dtype for parameter in parameters]
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        padded, y, weight, slots = ctx.saved_tensors
        count, longest, _ = padded.shape
        if ctx.relu:
            grad = torch.ops.aten.threshold_backward(grad, y, 0)
        grads = grad.new_zeros(count * longest, grad.shape[1]).index_copy_(0, slots, grad).view(count, longest, -1)
        grad_weights = torch.bmm(grads.transpose(1, 2), padded).unbind(0)
        grad_biases = grads.sum(1).unbind(0)
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = torch.bmm(grads, weight).view(count * longest, -1).index_select(0, slots)
        own = (g.to(dtype) for g, dtype in zip(grad_weights + grad_biases, ctx.types, strict=True))
        return grad_x, None, None, *own


def padding_wins(route: Route, out_features: int, device: torch.device) -> bool:
    """Whether the padded product is the faster way, as measured (docs/performance.md, dispatch)."""
    waste = len(route.sizes) * max(route.sizes) / len(route.order)
    if device.type != "cpu":
        return waste <= 8  # a kernel launch per block costs more than much padding
    return waste <= 4 and (out_features <= 32 or len(route.order) >= 256)


def routed_linear(x: Tensor, route: Route, weights: list[Tensor], biases: list[Tensor], relu: bool) -> Tensor:
    """Applies to each sample the linear map of its block.

    Args:
        x: (N, in), the activations; N > 0 and none of them PASSes.
        route: the route of the N samples.
        weights: of the U blocks in use, each (out, in).
        biases: of the U blocks in use, each (out,).
        relu: whether a ReLU follows.

    Returns:
        (N, out), in the order of ``x``. Under autocast in its lower precision, as ``nn.Linear`` does.
    """
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    function = _PaddedLinear if padding_wins(route, weights[0].shape[0], x.device) else _SegmentLinear
    with torch.autocast(x.device.type, enabled=False):
        return function.apply(x, route, relu, *weights, *biases)
