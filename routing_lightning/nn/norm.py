"""Batch normalisation inside blocks, which may get few samples of a batch, or one."""

import copy

from torch import Tensor, nn

FEW_VALUES = 16
"""With fewer values per channel than this (samples times pixels), a block's own statistics say little."""


def few_values_norm(
    y: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, momentum: float, eps: float
) -> Tensor:
    """Normalises few values by the running statistics, as in evaluation; these take them in with a smaller weight.

    Args:
        y: (N, C, ...), with fewer than ``FEW_VALUES`` values per channel.
        mean: (C,), running mean; changed in place.
        var: (C,), running variance; changed in place.
        weight: (C,), scale, or None.
        bias: (C,), shift, or None.
        momentum: weight in the running statistics of a part of a batch with ``FEW_VALUES`` values, in [0, 1].
        eps: added to the variance, above 0.

    Returns:
        (N, C, ...).
    """
    # Copies: the backward pass may need the values of now.
    found = nn.functional.batch_norm(y, mean.clone(), var.clone(), weight, bias, eps=eps)
    values = y.numel() // y.shape[1]
    if values:
        share = momentum * values / FEW_VALUES
        seen = y.detach().to(mean.dtype).transpose(0, 1).flatten(1)
        var.lerp_((seen - mean[:, None]).square().mean(1), share)
        mean.lerp_(seen.mean(1), share)
    return found


class _FewValues(nn.modules.batchnorm._BatchNorm):
    """Batch normalisation that uses its running statistics where a training batch has few values per channel.

    Attributes:
        enough: values per channel from which on the batch's own statistics are used.
    """

    enough = FEW_VALUES

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, ...) -> (N, C, ...)."""
        mean, var = self.running_mean, self.running_var
        if not self.training or mean is None or var is None or x.numel() >= self.enough * x.shape[1]:
            return super().forward(x)
        momentum = 0.1 if self.momentum is None else self.momentum
        return few_values_norm(x, mean, var, self.weight, self.bias, momentum, self.eps)


class FewValuesBatchNorm1d(_FewValues, nn.BatchNorm1d):
    """``nn.BatchNorm1d`` for blocks."""


class FewValuesBatchNorm2d(_FewValues, nn.BatchNorm2d):
    """``nn.BatchNorm2d`` for blocks."""


class FewValuesBatchNorm3d(_FewValues, nn.BatchNorm3d):
    """``nn.BatchNorm3d`` for blocks."""


KINDS: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: FewValuesBatchNorm1d,
    nn.BatchNorm2d: FewValuesBatchNorm2d,
    nn.BatchNorm3d: FewValuesBatchNorm3d,
}
ORDINARY = {ours: theirs for theirs, ours in KINDS.items()}


def for_few_values(module: nn.Module) -> nn.Module:
    """Makes the batch normalisations of a block cope with few samples.

    Args:
        module: the block, changed in place.

    Returns:
        The block, or what took its place.
    """
    return _with_kinds(module, KINDS)


def ordinary(module: nn.Module) -> nn.Module:
    """A copy of a block with torch's own batch normalisations again."""
    return _with_kinds(copy.deepcopy(module), ORDINARY)


def _with_kinds(module: nn.Module, kinds: dict[type[nn.Module], type[nn.Module]]) -> nn.Module:
    kind = kinds.get(type(module))
    if kind is not None:
        made = kind.__new__(kind)
        made.__dict__.update(module.__dict__)  # same parameters, statistics, options and hooks
        return made
    for name, child in module._modules.items():
        if child is not None:
            setattr(module, name, _with_kinds(child, kinds))
    return module
