"""The pieces of the fused Mamba-2 kernels; legend in `kernels`.

Arrays are pointers here (see `simd`); `kind` is the pointer to the projections, whose type chooses bf16 or fp32.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from runnel.ops.causal_conv1d.fused import conv_silu
from runnel.ops.chunks import CHUNK
from runnel.ops.numba_math import SERIAL, Number, Pointer
from runnel.ops.simd import (
    LANES,
    TILE_COLUMNS,
    exp,
    fma,
    keep,
    load,
    load_some,
    mul,
    number,
    prefetch,
    shift,
    silu,
    splat,
    store,
    store_some,
    sub,
    total,
)
from runnel.ops.simd_tile import numbers_per_word

ZERO = np.float32(0.0)


@njit(**SERIAL)
def history(
    source: Pointer, stride: int, width: int, padded: int, before: int, back: int, old: Pointer, known: bool, out: Pointer
) -> None:
    """The `back` inputs of the conv before `source`: rows of it, or of the conv state `old` (width, back), or zeros."""
    for k in range(back):
        if before + k >= back:
            for c in range(0, padded, LANES):
                store(out, k * padded + c, load_some(source, (k - back) * stride + c, width - c))
        else:
            for c in range(padded):
                out[k * padded + c] = old[c * back + before + k] if known and c < width else ZERO


@njit(**SERIAL)
def convolve(
    source: Pointer, stride: int, width: int, padded: int, tokens: int, past: Pointer, w: Pointer, w_stride: int,
    taps: tuple[int, ...], out: Pointer,
) -> None:  # fmt: skip
    """conv + SiLU of `width` channels into rows of `padded` numbers. `past`: from `history`, and memory behind it."""
    stage = shift(past, (len(taps) - 1) * padded)
    for c in range(0, padded, LANES):
        if width - c >= LANES:
            conv_silu(
                shift(source, c), stride, shift(past, c), padded, shift(w, c), w_stride, shift(out, c), padded, tokens, taps
            )
        else:
            for t in range(tokens):
                store(stage, t * LANES, load_some(source, t * stride + c, width - c))
            conv_silu(stage, LANES, shift(past, c), padded, shift(w, c), w_stride, shift(out, c), padded, tokens, taps)


@njit(**SERIAL)
def keep_inputs(
    source: Pointer, stride: int, width: int, length: int, back: int, old: Pointer, known: bool, out: Pointer
) -> None:
    """The conv state after a sequence of `length` tokens; `source`: its first. `old` and `out` may be the same memory."""
    for c in range(width):
        for k in range(back):
            t = length - back + k
            if t >= 0:
                out[c * back + k] = number(source, t * stride + c)
            else:
                out[c * back + k] = old[c * back + k + length] if known else ZERO


@njit(**SERIAL)
def mix(out: Pointer, products: Pointer, sums: Pointer, dt: Pointer, tokens: int, rows: int) -> None:
    """out[i, j] = C_i . B_j exp(c_i - c_j) dt_j for j <= i, 0 above the diagonal up to the next multiple of 16; rows of CHUNK."""
    for i in range(tokens):
        own = splat(sums[i])
        for j in range(0, i + 1, LANES):
            v = mul(exp(sub(own, load(sums, j))), load(dt, j))
            v = mul(v, load(products, j // TILE_COLUMNS * TILE_COLUMNS * rows + i * TILE_COLUMNS + j % TILE_COLUMNS))
            store(out, i * CHUNK + j, keep(v, i - j + 1) if i - j < LANES else v)


@njit(**SERIAL)
def gate(
    z: Pointer, stride: int, y: Pointer, x: Pointer, x_stride: int, D: Number, weight: Pointer, tokens: int, size: int,
    out: Pointer, out_stride: int, squares: Pointer, heads: int,
) -> None:  # fmt: skip
    """out = (y + D x) silu(z) * weight, and the sums of squares before the weight."""
    skip = splat(D)
    for t in range(tokens):
        sums = splat(ZERO)
        for c in range(0, size, LANES):
            v = load(y, c // TILE_COLUMNS * TILE_COLUMNS * CHUNK + t * TILE_COLUMNS + c % TILE_COLUMNS)
            v = fma(skip, load(x, t * x_stride + c), v)
            if size - c >= LANES:
                v = mul(v, silu(load(z, t * stride + c)))
                store(out, t * out_stride + c, mul(v, load(weight, c)))
            else:
                v = mul(v, silu(load_some(z, t * stride + c, size - c)))
                store_some(out, t * out_stride + c, mul(v, load_some(weight, c, size - c)), size - c)
            sums = fma(v, v, sums)
        squares[t * heads] = total(sums)


@njit(**SERIAL)
def prefetch_rows(base: Pointer, stride: int, tokens: int, width: int) -> None:
    """Ask for `tokens` rows of `width` numbers, `stride` apart."""
    line = 16 * numbers_per_word(base)  # numbers in 64 bytes
    for t in range(tokens):
        for c in range(0, width + line - 1, line):
            prefetch(base, t * stride + min(c, width - 1))
