"""Loops over blocks with few samples each, compiled: one call for a layer in place of several per block.

With a handful of samples per block the time goes into starting the products, not into them. What is left here is to
read each block's weights once and to write its gradient once.
"""

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
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


LANES = 16  # numbers of a vector: one register of AVX-512, two of AVX2, four of NEON
TILE = 4  # rows at a time: as many sums as hide the latency of a multiplication, and few enough for AVX2's registers


def _product(rows):  # type: ignore[no-untyped-def]
    """Makes ``add_product`` for so many rows: y[r, :LANES] += sum over k of x[r, k] * w[k, :LANES].

    Written in vectors, as loops compiled from scalars keep the sums in memory and reach a third of the speed. All
    arrays are given as the address of their first number; steps are distances in numbers: ``x_row`` from a row of x to
    the next, ``x_k`` from k to k + 1, and so on; ``length`` is the number of k, at least 1.
    """

    @intrinsic
    def add_product(typing_context, x, x_row, x_k, w, w_k, y, y_row, length):  # type: ignore[no-untyped-def]
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            x, x_row, x_k, w, w_k, y, y_row, length = arguments
            number, index = ir.FloatType(), ir.IntType(64)
            vector = ir.VectorType(number, LANES)
            multiply_add = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fma.v{LANES}f32"
            )

            def at(address: Any, distance: Any) -> Any:
                return builder.gep(builder.inttoptr(address, number.as_pointer()), [distance])

            def times(step: Any, count: int) -> Any:
                return builder.mul(step, index(count))

            targets = [builder.bitcast(at(y, times(y_row, r)), vector.as_pointer()) for r in range(rows)]
            first = [builder.load(target, align=4) for target in targets]
            before, loop, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
            builder.branch(loop)
            builder.position_at_end(loop)
            k = builder.phi(index)
            sums = [builder.phi(vector) for _ in range(rows)]
            weights = builder.load(builder.bitcast(at(w, builder.mul(k, w_k)), vector.as_pointer()), align=4)
            results = []
            for r in range(rows):
                value = builder.load(at(x, builder.add(times(x_row, r), builder.mul(k, x_k))))
                one = builder.insert_element(vector(ir.Undefined), value, ir.IntType(32)(0))
                all_lanes = ir.VectorType(ir.IntType(32), LANES)([0] * LANES)
                spread = builder.shuffle_vector(one, vector(ir.Undefined), all_lanes)
                results.append(builder.call(multiply_add, [spread, weights, sums[r]]))
            following = builder.add(k, index(1))
            for phi, start, end in zip([k, *sums], [index(0), *first], [following, *results], strict=True):
                phi.add_incoming(start, before)
                phi.add_incoming(end, loop)
            builder.cbranch(builder.icmp_signed("<", following, length), loop, after)
            builder.position_at_end(after)
            for target, result in zip(targets, results, strict=True):
                builder.store(result, target, align=4)
            return context.get_dummy_value()

        return types.none(*[types.int64] * 8), generate

    return add_product


_add_tile, _add_row = _product(TILE), _product(1)  # type: ignore[no-untyped-call]
_FLOAT = 4  # bytes


@numba.njit(cache=True, nogil=True, inline="always")
def _add_products(x, x_row, x_k, w, w_k, y, y_row, length, rows, columns):  # type: ignore[no-untyped-def]
    """y[:rows, :columns] += x @ w, columns a multiple of LANES; arguments as in :func:`_product`."""
    whole = rows // TILE * TILE
    for r in range(0, whole, TILE):
        for c in range(0, columns, LANES):
            _add_tile(
                x + r * x_row * _FLOAT, x_row, x_k, w + c * _FLOAT, w_k, y + (r * y_row + c) * _FLOAT, y_row, length
            )
    for r in range(whole, rows):
        for c in range(0, columns, LANES):
            _add_row(
                x + r * x_row * _FLOAT, x_row, x_k, w + c * _FLOAT, w_k, y + (r * y_row + c) * _FLOAT, y_row, length
            )


@numba.njit(cache=True, nogil=True)
def _frame(x, framed, half, channels):  # type: ignore[no-untyped-def]
    """Copies a picture (height, width * channels) into the middle of a framed one."""
    height, long = x.shape
    for h in range(height):
        inside, source = framed[half + h, half * channels : half * channels + long], x[h]
        for o in range(long):
            inside[o] = source[o]


@numba.njit(cache=True, nogil=True)
def convolve(x, sizes, addresses, size, inputs, outputs, back, y):  # type: ignore[no-untyped-def]
    """Convolves each picture with the weight of its block, or propagates gradients back through that.

    Args:
        x: (N, height, width * inputs) float32, contiguous, sorted by block; with ``back`` the gradients of the outputs.
        sizes: (U,) int64, samples of each block.
        addresses: (U,) int64, where the weight of each block lies: (size, size, inputs, outputs) float32, contiguous;
            with ``back`` (size, size, outputs, inputs).
        size: height and width of the kernel in pixels, odd.
        inputs: numbers of x per pixel.
        outputs: numbers of y per pixel, a multiple of LANES.
        back: whether x are gradients of what ``y`` are the gradients of, which turns the kernel around.
        y: (N, height, width * outputs) float32, contiguous; filled.
    """
    height, width, half = x.shape[1], x.shape[2] // inputs, size // 2
    framed = np.zeros((height + 2 * half, (width + 2 * half) * inputs), np.float32)
    turned = np.empty((size * size, inputs, outputs), np.float32)
    n = 0
    for u in range(len(sizes)):
        weight = addresses[u]
        if back:
            given = carray(_floats_at(weight), (size * size, outputs, inputs))  # type: ignore[call-arg]
            for tap in range(size * size):
                for i in range(inputs):
                    for o in range(outputs):
                        turned[tap, i, o] = given[size * size - 1 - tap, o, i]
            weight = turned.ctypes.data
        for _ in range(sizes[u]):
            _frame(x[n], framed, half, inputs)
            for h in range(height):
                y[n, h] = 0
                target = y[n, h].ctypes.data
                for i in range(size):  # a line of the kernel meets pixels that lie side by side
                    line = weight + i * size * inputs * outputs * _FLOAT
                    source = framed[h + i].ctypes.data
                    _add_products(source, inputs, 1, line, outputs, target, outputs, size * inputs, width, outputs)
            n += 1


@numba.njit(cache=True, nogil=True)
def convolution_weights(x, grad, sizes, size, inputs, outputs, own):  # type: ignore[no-untyped-def]
    """Gradients of the weights of :func:`convolve`.

    Args:
        x: (N, height, width * inputs) float32, contiguous, sorted by block.
        grad: (N, height, width * outputs) float32, contiguous: the gradients of the outputs.
        sizes: (U,) int64, samples of each block.
        size: height and width of the kernel in pixels, odd.
        inputs: numbers of x per pixel.
        outputs: numbers of grad per pixel, a multiple of LANES.
        own: (U, size, size * inputs, outputs) float32, contiguous; filled.
    """
    height, width, half = x.shape[1], x.shape[2] // inputs, size // 2
    framed = np.zeros((height + 2 * half, (width + 2 * half) * inputs), np.float32)
    n = 0
    for u in range(len(sizes)):
        own[u] = 0
        for _ in range(sizes[u]):
            _frame(x[n], framed, half, inputs)
            for h in range(height):
                given = grad[n, h].ctypes.data
                for i in range(size):
                    source, target = framed[h + i].ctypes.data, own[u, i].ctypes.data
                    _add_products(source, 1, inputs, given, outputs, target, outputs, width, size * inputs, outputs)
            n += 1
