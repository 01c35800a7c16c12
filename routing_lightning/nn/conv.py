"""Convolutional function blocks: a layer of the paper's SimpleConvNet (section 4), many of it at one place."""

import copy
from collections.abc import Iterable, Sequence
from typing import Any, Literal, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.utils import skip_init

from routing_lightning.errors import UsageError
from routing_lightning.nn import compiled
from routing_lightning.nn.blocks import Blocks, reorder
from routing_lightning.nn.dispatch import Route
from routing_lightning.nn.dispatch import _addresses as addresses
from routing_lightning.nn.norm import FEW_VALUES, few_values_norm

Norm = Literal["shared", "block", "group", "none"]
NORMS: tuple[Norm, ...] = ("shared", "block", "group", "none")

FEW_PIXELS = 512
"""Mean pixels per block up to which the compiled loops are chosen where PyTorch has several threads.

The loops have one. With one thread they are as fast as a call per block, or faster, at nearly all sizes; the figure is
where about half of a call was its start, so that a second thread cannot make up for it (estimated, not measured).
"""


def _by_pixel(x: Tensor) -> Tensor:
    """Activations (N, channels, height, width) as (N, height, width, channels), contiguous; a view if channels-last."""
    return x.permute(0, 2, 3, 1).contiguous()


def _lines(x: Tensor) -> np.ndarray:
    """Activations (N, height, width, channels) as the compiled loops take it."""
    return x.flatten(2).numpy()


class _SegmentConv(torch.autograd.Function):
    """One convolution per block, on sorted samples."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, counts: np.ndarray, *weights: Tensor) -> Tensor:
        ctx.sizes, ctx.dtype = counts.tolist(), weights[0].dtype
        half = weights[0].shape[-1] // 2
        x = x.contiguous(memory_format=torch.channels_last)
        weights = tuple(weight.to(x.dtype, memory_format=torch.channels_last) for weight in weights)
        ctx.save_for_backward(x, *weights)
        y = x.new_empty(len(x), *x.shape[2:], len(weights[0])).permute(0, 3, 1, 2)
        for piece, own, weight in zip(x.split(ctx.sizes), y.split(ctx.sizes), weights, strict=True):
            own.copy_(F.conv2d(piece, weight, padding=half))  # while it is in the cache
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        wanted, half = ctx.needs_input_grad[0], weights[0].shape[-1] // 2
        grad = grad.contiguous(memory_format=torch.channels_last)
        grad_x = torch.empty_like(x) if wanted else x
        grads = []
        parts = zip(x.split(ctx.sizes), grad.split(ctx.sizes), grad_x.split(ctx.sizes), weights, strict=True)
        for piece, given, own, weight in parts:
            found, grad_weight, _ = torch.ops.aten.convolution_backward(
                given, piece, weight, None, [1, 1], [half, half], [1, 1], False, [0, 0], 1, [wanted, True, False]
            )
            grads.append(grad_weight.to(ctx.dtype))
            if wanted:
                own.copy_(found)
        return grad_x if wanted else None, None, *grads


class _CompiledConv(torch.autograd.Function):
    """One compiled loop over the blocks, on sorted samples; float32 on the host.

    Starting the library's convolutions, three per block and step, takes as long as their work on a few samples.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, counts: np.ndarray, *weights: Tensor) -> Tensor:
        x = _by_pixel(x)
        weights = tuple(weight.permute(2, 3, 1, 0).contiguous() for weight in weights)
        size, _, inputs, outputs = ctx.shape = weights[0].shape
        y = x.new_empty(*x.shape[:3], outputs)
        compiled.convolve(_lines(x), counts, addresses(weights, ctx.shape), size, inputs, outputs, False, _lines(y))
        ctx.save_for_backward(x, *weights)
        ctx.counts = counts
        return y.permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        grad = _by_pixel(grad)
        size, _, inputs, outputs = ctx.shape
        own = x.new_empty(len(weights), *ctx.shape)
        compiled.convolution_weights(
            _lines(x), _lines(grad), ctx.counts, size, inputs, outputs, own.flatten(2, 3).numpy()
        )
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = torch.empty_like(x)
            where = addresses(weights, ctx.shape)
            compiled.convolve(_lines(grad), ctx.counts, where, size, outputs, inputs, True, _lines(grad_x))
            grad_x = grad_x.permute(0, 3, 1, 2)
        return grad_x, None, *own.permute(0, 4, 3, 1, 2).unbind(0)


def fastest_way(x: Tensor, counts: np.ndarray, weight: Tensor) -> type[torch.autograd.Function]:
    """The way that is the fastest as measured, for several blocks.

    Args:
        x: (N, in, height, width), the activations.
        counts: (U,) int64, samples of each block.
        weight: of one of the blocks.
    """
    outputs, inputs = weight.shape[:2]
    # The compiled loops work on whole vectors of output channels; in the backward pass those are the input's.
    fits = outputs % compiled.LANES == 0 and (inputs % compiled.LANES == 0 or not x.requires_grad)
    if x.device.type != "cpu" or not x.dtype == weight.dtype == torch.float32 or not fits:
        return _SegmentConv
    few = len(x) * x.shape[2] * x.shape[3] <= FEW_PIXELS * len(counts)
    return _CompiledConv if few or torch.get_num_threads() == 1 else _SegmentConv


def routed_conv(x: Tensor, counts: np.ndarray, weights: Sequence[Tensor]) -> Tensor:
    """Convolves each sample with the weight of its block, zeros around the picture.

    Args:
        x: (N, in, height, width), the activations sorted by block; N > 0.
        counts: (U,) int64, how many samples each of the U blocks got.
        weights: of these blocks, each (out, in, size, size), size odd.

    Returns:
        (N, out, height, width), channels-last if several blocks are in use. Under autocast in its lower precision, as
        ``nn.Conv2d`` does. Has a first derivative only if several blocks are in use.

    Raises:
        UsageError: if ``x`` does not fit the weights or counts, or has another type and there is no autocast.
    """
    kind, inputs = x.device.type, weights[0].shape[1]
    if x.dim() != 4 or x.shape[1] != inputs or counts.sum() != len(x):  # what the compiled loops take on trust
        raise UsageError(
            f"convolutions of {inputs} channels got activations {tuple(x.shape)} and {counts.sum()} samples; give (N, "
            f"{inputs}, height, width) and N samples."
        )
    autocast = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    if x.dtype != weights[0].dtype and not autocast:
        raise UsageError(f"a layer of {weights[0].dtype} got activations of {x.dtype}; convert one of them.")
    if len(weights) == 1:
        return F.conv2d(x, weights[0], padding=weights[0].shape[-1] // 2)
    if not autocast:
        return cast(Tensor, fastest_way(x, counts, weights[0]).apply(x, counts, *weights))
    with torch.autocast(kind, enabled=False):
        x = x.to(torch.get_autocast_dtype(kind))
        return cast(Tensor, fastest_way(x, counts, weights[0]).apply(x, counts, *weights))


class Pool(nn.Module):
    """2x2 max pooling, left out where the picture is one pixel high or wide."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, height, width) -> (N, C, height // 2, width // 2)."""
        return F.max_pool2d(x, 2) if min(x.shape[2:]) > 1 else x


class ConvBlocks(Blocks):
    """Convolutional function blocks: convolution, normalisation, 2x2 max pooling and ReLU (paper, section 4).

    Values are those of ``Conv2d, BatchNorm2d, MaxPool2d, ReLU`` if all samples take one block. Whatever does not depend
    on the block runs once for the whole batch. Height and width stay as they are but for the pooling, which is left out
    where the picture is one pixel high or wide.

    What a batch is normalised by, ``norm``:

    - ``shared``: one batch normalisation for all blocks, statistics and affine map: the scale on which the layer speaks
      to the next one is common to its blocks, and a block with a single sample is as safe as any. Its parameters
      belong to no block.
    - ``block``: each block has its own batch normalisation. A block that gets fewer than ``FEW_VALUES`` values per
      channel (samples times pixels) is normalised by its running statistics, as in evaluation, and these take the few
      values in with a weight that is as much smaller.
    - ``group``: group normalisation, each sample by its own statistics, over groups of 8 channels (or all channels, if
      8 does not divide them); each block has its own affine map.
    - ``none``: no normalisation; each block has a bias.

    Args:
        num_blocks: K, at least 1.
        in_channels: channels of the input, at least 1.
        out_channels: channels of the output, at least 1.
        kernel_size: height and width of the kernel in pixels, odd.
        norm: see above.
        pool: whether 2x2 max pooling follows.
        relu: whether a ReLU follows.

    Attributes:
        blocks: one weight per block, (out_channels, in_channels, kernel_size, kernel_size).
        affine: for ``block`` and ``group`` one (2, out_channels) per block, scale and shift; for ``none`` one
            (1, out_channels) per block, the bias; empty for ``shared``.
        norm: the ``nn.BatchNorm2d`` of all blocks, None but for ``shared``.
        running_mean: (K, out_channels), for ``block``, else None.
        running_var: (K, out_channels), for ``block``, else None.
        keeps_shape: whether input and output are alike, so that a sample may PASS.

    Raises:
        UsageError: if a size is below 1, ``kernel_size`` is even, or ``norm`` is another word.
    """

    running_mean: Tensor | None
    running_var: Tensor | None

    def __init__(
        self,
        num_blocks: int,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 3,
        norm: Norm = "shared",
        pool: bool = True,
        relu: bool = True,
    ) -> None:
        super().__init__(num_blocks)
        for name, size in (("in_channels", in_channels), ("out_channels", out_channels), ("kernel_size", kernel_size)):
            if size < 1:
                raise UsageError(f"{name} of a layer is {size}; give at least 1.")
        if kernel_size % 2 == 0:
            raise UsageError(f"kernel_size of a layer is {kernel_size}; give an odd number, such as 3.")
        if norm not in NORMS:
            raise UsageError(f"norm of a layer is {norm!r}; give one of {', '.join(NORMS)}.")
        self.in_channels, self.out_channels, self.kind = in_channels, out_channels, norm
        self.pool, self.relu = pool, relu
        self.keeps_shape = not pool and in_channels == out_channels
        # One parameter per block, for the reasons that LinearBlocks gives. Its output channels lie side by side, as the
        # compiled loops want them; where all samples share a block PyTorch brings its weight to a layout of its own.
        self.blocks, self.affine = nn.ParameterList(), nn.ParameterList()
        for _ in range(num_blocks):
            conv = nn.Conv2d(in_channels, out_channels, kernel_size)
            self.blocks.append(conv.weight.detach().permute(2, 3, 1, 0).contiguous().permute(3, 2, 0, 1))
            if norm == "none":
                self.affine.append(cast(Tensor, conv.bias).detach().unsqueeze(0))
            elif norm != "shared":
                self.affine.append(torch.stack([torch.ones(out_channels), torch.zeros(out_channels)]))
        self.norm = nn.BatchNorm2d(out_channels) if norm == "shared" else None
        per_block = norm == "block"
        self.register_buffer("running_mean", torch.zeros(num_blocks, out_channels) if per_block else None)
        self.register_buffer("running_var", torch.ones(num_blocks, out_channels) if per_block else None)
        self.groups = out_channels // 8 if out_channels % 8 == 0 else 1
        self.momentum, self.eps = 0.1, 1e-5  # as nn.BatchNorm2d
        self._names = [str(block) for block in range(num_blocks)]

    def forward(self, x: Tensor, actions: Tensor) -> Tensor:
        """Applies to each sample its block.

        Args:
            x: (N, in_channels, height, width).
            actions: (N,) int64, a block in [0, K), or K for PASS.

        Returns:
            (N, out_channels, height, width), height and width halved by the pooling.

        Raises:
            UsageError: as :meth:`Blocks.forward`; also if a sample PASSes though input and output differ in shape.
        """
        if x.dim() != 4 or x.shape[1] != self.in_channels:
            raise UsageError(
                f"a layer got activations {tuple(x.shape)}; give (N, {self.in_channels}, height, width), or set "
                "in_channels to that of the input."
            )
        if not self.keeps_shape and bool((actions == self.num_blocks).any()):
            raise UsageError(
                f"a sample PASSes a layer of {self.in_channels} to {self.out_channels} channels"
                f"{' with pooling' if self.pool else ''}; PASS is allowed only where input and output have the same "
                "shape."
            )
        return super().forward(x, actions)

    def apply_route(self, x: Tensor, route: Route) -> Tensor:
        """The blocks, on samples none of which PASSes."""
        if not route.blocks:
            height, width = [size // 2 if self._pools(x) else size for size in x.shape[2:]]
            return x.new_zeros(0, self.out_channels, height, width) + x.sum()
        several = len(route.blocks) > 1
        if several:
            x = reorder(x, route.order, route.inverse)
        y = self._normalised(routed_conv(x, route.counts, self._of(self.blocks, route.blocks)), route)
        # Pooling first gives the same values as ReLU first, and all that follows then touches a quarter of them.
        if self._pools(x):
            y = F.max_pool2d(y, 2)
        if self.kind == "none":  # a bias does not change which value is the largest
            y = y + self._per_sample(route, y.dtype)[:, 0]
        if self.relu:
            y = y.relu_()
        return reorder(y, route.inverse, route.order) if several else y

    def _pools(self, x: Tensor) -> bool:
        return self.pool and min(x.shape[2:]) > 1

    def _of(self, parameters: nn.ParameterList, blocks: Sequence[int]) -> list[Tensor]:
        # Indexing the ParameterList itself takes microseconds, which many small blocks would feel.
        found = cast(dict[str, Tensor], parameters._parameters)
        return [found[self._names[block]] for block in blocks]

    def _per_sample(self, route: Route, dtype: torch.dtype) -> Tensor:
        """Each sorted sample's row of its block's ``affine``: (N, 1 or 2, out_channels, 1, 1)."""
        rows = torch.stack(self._of(self.affine, route.blocks))[..., None, None].to(dtype)
        if len(route.blocks) == 1:
            return rows
        slots = torch.from_numpy(np.repeat(np.arange(len(route.blocks)), route.counts))
        return rows.index_select(0, slots.to(rows.device, non_blocking=True))

    def _normalised(self, y: Tensor, route: Route) -> Tensor:
        """Normalises sorted samples (N, out_channels, height, width)."""
        if self.norm is not None:
            if y.numel() > self.out_channels or not self.training:
                return cast(Tensor, self.norm(y))
            # A single value per channel has no variance; nn.BatchNorm2d would refuse it.
            norm = self.norm
            return F.batch_norm(y, norm.running_mean, norm.running_var, norm.weight, norm.bias, False, 0.0, norm.eps)
        if self.kind == "group":
            if len(route.blocks) == 1:
                scale, shift = self._of(self.affine, route.blocks)[0]
                return F.group_norm(y, self.groups, scale, shift, self.eps)
            scale, shift = self._per_sample(route, y.dtype).unbind(1)
            return torch.addcmul(shift, F.group_norm(y, self.groups, eps=self.eps), scale)
        if self.kind == "block":
            pieces = y.split(route.sizes)
            affine = self._of(self.affine, route.blocks)
            found = [self._own_norm(*own) for own in zip(pieces, route.blocks, affine, strict=True)]
            return torch.cat(found) if len(found) > 1 else found[0]
        return y

    def _own_norm(self, y: Tensor, block: int, affine: Tensor) -> Tensor:
        """Batch normalisation of the samples of one block."""
        running = cast(Tensor, self.running_mean)[block], cast(Tensor, self.running_var)[block]
        if not self.training:
            return F.batch_norm(y, *running, affine[0], affine[1], eps=self.eps)
        if y.numel() < FEW_VALUES * self.out_channels:
            return few_values_norm(y, *running, affine[0], affine[1], self.momentum, self.eps)
        # Copies: the blocks' own rows count as one tensor that has been changed.
        mean, var = running[0].clone(), running[1].clone()
        found = F.batch_norm(y, mean, var, affine[0], affine[1], True, self.momentum, self.eps)
        running[0].copy_(mean)
        running[1].copy_(var)
        return found

    @torch.no_grad()
    def copy_block(self, source: int, targets: Iterable[int]) -> None:
        """Gives blocks the weights, and running statistics, of another one; see the base class."""
        targets = list(targets)
        super().copy_block(source, targets)
        for running in (self.running_mean, self.running_var):
            if running is not None:
                running[targets] = running[source].clone()

    def single(self, block: int) -> nn.Module:
        """The block as ordinary modules: convolution, normalisation, pooling, ReLU.

        In evaluation it gives what the block gives.
        """
        weight = self.blocks[block].detach()
        size = weight.shape[-1]
        conv = skip_init(nn.Conv2d, *weight.shape[1::-1], size, padding=size // 2, bias=self.kind == "none")
        conv.weight = nn.Parameter(weight.clone())
        layers: list[nn.Module] = [conv]
        if conv.bias is not None:
            conv.bias.data.copy_(self.affine[block][0])
        if self.norm is not None:
            layers.append(copy.deepcopy(self.norm))
        elif self.kind != "none":
            made = (
                nn.GroupNorm(self.groups, self.out_channels, self.eps)
                if self.running_mean is None or self.running_var is None
                else nn.BatchNorm2d(self.out_channels, self.eps, self.momentum)
            )
            if isinstance(made, nn.BatchNorm2d):
                cast(Tensor, made.running_mean).copy_(cast(Tensor, self.running_mean)[block])
                cast(Tensor, made.running_var).copy_(cast(Tensor, self.running_var)[block])
            for target, value in zip((made.weight, made.bias), self.affine[block].detach(), strict=True):
                target.data.copy_(value)
            layers.append(made)
        if self.pool:
            layers.append(Pool())
        if self.relu:
            layers.append(nn.ReLU())
        return nn.Sequential(*layers)

    def block_parameters(self, block: int) -> list[nn.Parameter]:
        """Weight of one block, and its scale and shift or bias if it has one of its own."""
        lists = [self.blocks] if self.kind == "shared" else [self.blocks, self.affine]
        return [cast(nn.Parameter, self._of(parameters, [block])[0]) for parameters in lists]
