"""Add the output of a block (a layer of the backbone) to the residual and apply RMSNorm, in one
pass over the residual stream (CPU inference).

T  tokens      D  width      K  partial sums of squares per token      Dp  D padded to whole words

    residual += factor * added
    out = residual / sqrt(mean of residual^2 + eps) * weight        for each token
"""

import numpy as np
from numba import njit, prange

from runnel.ops.int8_matmul import quantize_row
from runnel.ops.numba_math import PARALLEL, SERIAL, Array, Number, Pointer, Scratch
from runnel.ops.simd import LANES, address, fma, mul, shift, splat, total
from runnel.ops.simd_tile import load_up_to, numbers_per_word, store_up_to


@njit(**SERIAL)
def _add(residual: Pointer, added: Pointer, factor: Number, eps: Number, width: int) -> Number:
    """Add factor * added to one token's residual; return 1 / rms(residual). Arrays are pointers to
    its rows.
    """
    factors = splat(factor)
    sums = splat(np.float32(0.0))
    for c in range(0, width, LANES):
        v = fma(load_up_to(added, c, width - c), factors, load_up_to(residual, c, width - c))
        store_up_to(residual, c, v, width - c)
        sums = fma(v, v, sums)
    return np.float32(1.0) / np.sqrt(total(sums) / np.float32(width) + np.float32(eps))


@njit(**SERIAL)
def _multiply(
    residual: Pointer, inverse: Number, weight: Pointer, width: int, out: Pointer
) -> None:
    """Set out = residual * inverse * weight for one token; inverse: from `_add`."""
    factor = splat(inverse)
    for c in range(0, width, LANES):
        v = mul(mul(load_up_to(residual, c, width - c), factor), load_up_to(weight, c, width - c))
        store_up_to(out, c, v, width - c)


@njit(**SERIAL)
def _factor(squares: Array, t: int, count: int, eps: Number) -> Number:
    """Return the factor of the block's output of token `t`: see `add_rms_norm`."""
    parts = squares.shape[1]
    if parts == 0:
        return np.float32(1.0)
    sums = np.float32(0.0)
    for k in range(parts):
        sums += squares[t, k]
    return np.float32(1.0) / np.sqrt(sums / np.float32(count) + np.float32(eps))


@njit(**PARALLEL)
def add_rms_norm(
    residual: Array,
    added: Array,
    squares: Array,
    count: int,
    weight: Array,
    eps: Number,
    out: Array,
    scales: Array,
    scratch: Scratch,
) -> None:
    """Add factor * added to residual; set out = residual / rms(residual) * weight. Call it inside
    `numba_math.parallel()`.

    Args:
        residual: (T, D) fp32, updated in place.
        added: (T, D) fp32 or bf16 bits (uint16): the block's output.
        squares: (T, K) fp32. A Mamba-2 block leaves its norm until after its output projection,
            which is linear: the factor of token t is 1 / sqrt(sum(squares[t]) / count + eps). With
            K = 0 the factor is 1.
        count: how many numbers the sums of squares cover.
        weight: (D,) fp32. eps: of both norms.
        out: (T, D) fp32 or bf16 bits. Or in 8 bits for `int8_matmul.multiply`: (T, Dp) uint8.
        scales: (T, 1) fp32, filled with the scales of `out` in 8 bits; else not used.
        scratch: D numbers.
    """
    tokens, width = residual.shape
    in_bytes = numbers_per_word(address(out)) == 4  # uint8
    workers = scratch.rows.shape[0]
    for worker in prange(workers):
        normed = shift(address(scratch.rows), worker * scratch.rows.shape[1])
        for t in range(tokens * worker // workers, tokens * (worker + 1) // workers):
            row = shift(address(residual), t * width)
            target = shift(address(out), t * out.shape[1])
            inverse = _add(
                row, shift(address(added), t * width), _factor(squares, t, count, eps), eps, width
            )
            if in_bytes:
                _multiply(row, inverse, address(weight), width, normed)
                scales[t, 0] = quantize_row(normed, width, target)
            else:
                _multiply(row, inverse, address(weight), width, target)
