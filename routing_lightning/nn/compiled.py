"""Loops over blocks with few samples each, compiled: one call for a layer in place of several per block.

With a handful of samples per block the time goes into starting the products, not into them. What is left here is to
read each block's weights once and to write its gradient once.
"""

from typing import Any

import numba
import numpy as np
from numba import carray, types
from numba.extending import intrinsic

FAST = {"reassoc", "contract"}  # a sum may be taken in any order, as in a matrix product; nan and infinity count


@numba.njit(cache=True, nogil=True)
def sort_by_block(actions, num_blocks, order, blocks, sizes):  # type: ignore[no-untyped-def]
    """Sorts samples by block, those of a block in their own order (a counting sort).

    Args:
        actions: (N,) int64, in [0, num_blocks], the last being PASS.
        num_blocks: K.
        order: (N,) int64; filled with the samples sorted by block, those that PASS last.
        blocks: (min(N, K),) int64; the first U are filled with the blocks in use, ascending.
        sizes: (min(N, K),) int64; the first U are filled with how many samples each of them has.

    Returns:
        U, or -1 if an action is out of its range, and how many samples PASS.
    """
    starts = np.zeros(num_blocks + 2, np.int64)
    for action in actions:
        if action < 0 or action > num_blocks:
            return -1, 0
        starts[action + 1] += 1
    used = 0
    for k in range(num_blocks):
        if starts[k + 1]:
            blocks[used], sizes[used] = k, starts[k + 1]
            used += 1
        starts[k + 1] += starts[k]
    passed = starts[num_blocks + 1]
    for n in range(len(actions)):
        order[starts[actions[n]]] = n
        starts[actions[n]] += 1
    return used, passed


@intrinsic
def _floats_at(typing_context, address):  # type: ignore[no-untyped-def]
    """The float32 numbers at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.float32)(types.int64), generate


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def forward(x, order, sizes, addresses, relu, y):  # type: ignore[no-untyped-def]
    """Applies to each sample the affine map of its block.

    Four rows of a block's weights at a time meet all of its samples, so that they are read once.

    Args:
        x: (N, in) float32, contiguous.
        order: (N,) int64, the samples sorted by block.
        sizes: (U,) int64, samples of each block.
        addresses: (U,) int64, where each block (in + 1, out) lies: float32, contiguous.
        relu: whether a ReLU follows.
        y: (N, out) float32, contiguous; filled.
    """
    inputs, outputs = x.shape[1], y.shape[1]
    whole = inputs // 4 * 4
    start = 0
    for u in range(len(sizes)):
        block = carray(_floats_at(addresses[u]), (inputs + 1, outputs))  # type: ignore[call-arg]
        rows = order[start : start + sizes[u]]
        start += sizes[u]
        for n in rows:
            for o in range(outputs):
                y[n, o] = block[inputs, o]
        for i in range(0, whole, 4):
            w0, w1, w2, w3 = block[i], block[i + 1], block[i + 2], block[i + 3]
            for n in rows:
                v0, v1, v2, v3 = x[n, i], x[n, i + 1], x[n, i + 2], x[n, i + 3]
                row = y[n]
                for o in range(outputs):
                    row[o] += v0 * w0[o] + v1 * w1[o] + v2 * w2[o] + v3 * w3[o]
        for i in range(whole, inputs):
            for n in rows:
                for o in range(outputs):
                    y[n, o] += x[n, i] * block[i, o]
        if relu:
            for n in rows:
                for o in range(outputs):
                    y[n, o] = np.float32(0) if y[n, o] <= 0 else y[n, o]  # nan stays nan


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def backward(x, y, grad, order, sizes, addresses, relu, wanted, grad_x, grad_blocks):  # type: ignore[no-untyped-def]
    """Gradients of :func:`forward`.

    Args:
        x: (N, in) float32, contiguous.
        y: (N, out) float32, contiguous: the outputs.
        grad: (N, out) float32, contiguous, the gradient of the outputs.
        order: (N,) int64, the samples sorted by block.
        sizes: (U,) int64, samples of each block.
        addresses: (U,) int64, where each block (in + 1, out) lies.
        relu: whether a ReLU follows.
        wanted: whether the gradient of x is.
        grad_x: (N, in) float32, contiguous; filled if wanted.
        grad_blocks: (U, in + 1, out) float32, contiguous; filled.
    """
    inputs, outputs = x.shape[1], grad.shape[1]
    whole = inputs // 4 * 4
    gs = np.empty((max(sizes), outputs), np.float32)  # of one block's samples, before the ReLU
    start = 0
    for u in range(len(sizes)):
        block = carray(_floats_at(addresses[u]), (inputs + 1, outputs))  # type: ignore[call-arg]
        own = grad_blocks[u]
        rows = order[start : start + sizes[u]]
        start += sizes[u]
        bias = own[inputs]
        bias[:] = 0
        for s in range(len(rows)):
            g, given, result = gs[s], grad[rows[s]], y[rows[s]]
            for o in range(outputs):
                g[o] = np.float32(0) if relu and result[o] <= 0 else given[o]
                bias[o] += g[o]
        for i in range(0, whole, 4):
            n = rows[0]
            v0, v1, v2, v3 = x[n, i], x[n, i + 1], x[n, i + 2], x[n, i + 3]
            for o in range(outputs):
                h = gs[0, o]
                own[i, o], own[i + 1, o], own[i + 2, o], own[i + 3, o] = v0 * h, v1 * h, v2 * h, v3 * h
            for s in range(1, len(rows)):
                n = rows[s]
                v0, v1, v2, v3 = x[n, i], x[n, i + 1], x[n, i + 2], x[n, i + 3]
                for o in range(outputs):
                    h = gs[s, o]
                    own[i, o] += v0 * h
                    own[i + 1, o] += v1 * h
                    own[i + 2, o] += v2 * h
                    own[i + 3, o] += v3 * h
            if wanted:
                for s in range(len(rows)):
                    t0 = t1 = t2 = t3 = np.float32(0)
                    for o in range(outputs):
                        h = gs[s, o]
                        t0 += block[i, o] * h
                        t1 += block[i + 1, o] * h
                        t2 += block[i + 2, o] * h
                        t3 += block[i + 3, o] * h
                    n = rows[s]
                    grad_x[n, i], grad_x[n, i + 1], grad_x[n, i + 2], grad_x[n, i + 3] = t0, t1, t2, t3
        for i in range(whole, inputs):
            own[i] = 0
            for s in range(len(rows)):
                t0 = np.float32(0)
                for o in range(outputs):
                    own[i, o] += x[rows[s], i] * gs[s, o]
                    t0 += block[i, o] * gs[s, o]
                if wanted:
                    grad_x[rows[s], i] = t0
