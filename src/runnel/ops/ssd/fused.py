"""Everything of a Mamba-2 block between its two projections, for CPU inference.

    T  tokens           S  sequences           C  chunks (at most CHUNK tokens of one sequence)      Q  CHUNK
    H  heads            P  head size           G  groups        N  state size                        w  conv width
    Di = H P            Cd = Di + 2 G N        R  rows of the state pool                             L  layers
    Pp, Np              P and N padded to whole tiles and vectors

Two kernels per block. `prepare_chunks` works on what all heads of a group share: conv + SiLU of B and C, the time steps, and
C B^T of every chunk. `scan_heads` gives each (sequence, head) to one core, which walks through its chunks:

    y_i = exp(c_i) C_i S + sum_{j<=i} exp(c_i - c_j) dt_j (C_i . B_j) x_j + D x_i          c: running sum of dt A in the chunk
    S  <- exp(c_Q) S + sum_j exp(c_Q - c_j) dt_j x_j B_j^T

as matrix tiles, the conv and SiLU of x before and the gate after them while the chunk is in cache. The state stays fp32 between
chunks; the factors of the products are bf16 where the projections are bf16 (sums in fp32), and fp32 where they are fp32. The
division by the gated norm's root mean square is left to `add_rms_norm`, which is why only its sums of squares are returned here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from runnel.ops.causal_conv1d.fused import conv_silu
from runnel.ops.numba_math import PARALLEL, SERIAL, softplus
from runnel.ops.simd import (
    LANES,
    TILE_COLUMNS,
    TILE_ROWS,
    address,
    as_kind,
    exp,
    fma,
    keep,
    load,
    load_some,
    mul,
    next_task,
    number,
    numbers_per_word,
    silu,
    splat,
    store,
    store_pairs,
    store_some,
    sub,
    total,
    transpose,
)
from runnel.ops.simd_tile import tile_product

CHUNK = 64
_ZERO = np.float32(0.0)


class Shape(NamedTuple):
    """Sizes of a block, and the clamp of its time steps."""

    heads: int
    head_size: int
    groups: int
    state_size: int
    dt_min: float
    dt_max: float
    taps: tuple[int, ...]  # 0 .. w-1; as a tuple so that the kernels know w

    @property
    def inner(self) -> int:
        return self.heads * self.head_size


class Weights(NamedTuple):
    """fp32 weights of one block."""

    conv: NDArray[np.float32]  # (w, Cd)
    conv_bias: NDArray[np.float32]  # (Cd,)
    dt_bias: NDArray[np.float32]  # (H,)
    A: NDArray[np.float32]  # (H,), negative
    D: NDArray[np.float32]  # (H,)
    norm: NDArray[np.float32]  # (Di,)


class Plan(NamedTuple):
    """How a step's sequences are cut into chunks."""

    cu_seqlens: NDArray[np.int64]  # (S+1,)
    read_rows: NDArray[np.int64]  # (S,), -1: start from zero
    write_rows: NDArray[np.int64]  # (S,), -1: the end state is not wanted
    first_chunk: NDArray[np.int64]  # (S+1,)
    sequence: NDArray[np.int64]  # (C,) which sequence a chunk belongs to
    start: NDArray[np.int64]  # (C,) its first token
    row: NDArray[np.int64]  # (C+1,) its first row in the buffers, a multiple of 16


class Buffers(NamedTuple):
    """Memory that the two kernels share; rows are those of `Plan.row`."""

    b_words: NDArray[np.float32]  # (rows / numbers per word * G * Np,)
    c_words: NDArray[np.float32]  # (rows * G * Np / numbers per word,)
    products: NDArray[np.float32]  # (rows * G * Q,): C B^T in panels of TILE_COLUMNS
    dt: NDArray[np.float32]  # (H * rows,)
    sums: NDArray[np.float32]  # (H * rows,): c
    scratch: NDArray[np.float32]  # (workers, scratch_size)
    task: NDArray[np.int64]  # (1,) the next task that is free


# ---- shared by both kernels --------------------------------------------------------------------------------------------


@njit(**SERIAL)  # type: ignore[untyped-decorator]
def _convolve(
    source: Any, at: int, stride: int, width: int, padded: int, tokens: int, before: int, old: Any, old_at: int,
    weights: Any, weights_at: int, weights_stride: int, taps: Any, scratch: Any, out: Any, out_at: int,
) -> None:  # fmt: skip
    """conv + SiLU of `width` channels of one chunk into rows of `padded` numbers; `before` tokens of its sequence precede it.

    `old` holds the sequence's conv state (width, w-1) at `old_at` (-1: zeros).
    """
    back = len(taps) - 1
    stage = back * padded
    for k in range(back):
        row = k * padded
        if before + k >= back:
            for c in range(0, padded, LANES):
                store(scratch, row + c, load_some(source, at - (back - k) * stride + c, width - c))
        else:
            for c in range(padded):
                scratch[row + c] = old[old_at + c * back + before + k] if old_at >= 0 and c < width else _ZERO
    for c in range(0, padded, LANES):
        w = weights_at + c
        if width - c >= LANES:
            conv_silu(source, at + c, stride, scratch, c, padded, weights, w, weights_stride, out, out_at + c, padded, tokens, taps)
        else:
            for t in range(tokens):
                store(scratch, stage + t * LANES, load_some(source, at + t * stride + c, width - c))
            conv_silu(scratch, stage, LANES, scratch, c, padded, weights, w, weights_stride, out, out_at + c, padded, tokens, taps)


@njit(**SERIAL)  # type: ignore[untyped-decorator]
def _pack(kind: Any, source: Any, at: int, stride: int, rows: int, factors: Any, factors_at: int, words: Any, words_at: int, width: int) -> None:
    """Rows of `source` times their factors as the right side of a tile product: pairs of rows become one row of words."""
    step = numbers_per_word(kind)
    for r in range(0, rows, step):
        f = splat(factors[factors_at + r])
        target = words_at + r // step * width
        for c in range(0, width, LANES):
            low = mul(load(source, at + r * stride + c), f)
            if step == 1:
                store(words, target + c, low)
            elif r + 1 < rows:
                store_pairs(words, target + c, low, mul(load(source, at + (r + 1) * stride + c), splat(factors[factors_at + r + 1])))
            else:
                store_pairs(words, target + c, low, splat(_ZERO))


@njit(**SERIAL)  # type: ignore[untyped-decorator]
def _pad(size: int, unit: int) -> int:
    return (size + unit - 1) // unit * unit


# ---- what the heads of a group share -----------------------------------------------------------------------------------


@njit(**SERIAL)  # type: ignore[untyped-decorator]
def _time_steps(source: Any, at: int, stride: int, tokens: int, rows: int, row: int, bias: Any, A: Any, dt: Any, sums: Any, s: Any) -> None:
    for h in range(s.heads):
        total_ = _ZERO
        place = h * rows + row
        for t in range(tokens):
            step = softplus(number(source, at + t * stride + h) + bias[h])
            step = min(max(step, np.float32(s.dt_min)), np.float32(s.dt_max))
            total_ += step * A[h]
            dt[place + t] = step
            sums[place + t] = total_


@njit(**SERIAL)  # type: ignore[untyped-decorator]
def _prepare_group(kind: Any, chunk: int, g: int, source: Any, stride: int, conv: Any, conv_at: int, s: Any, w: Any, p: Any, b: Any, scratch: Any) -> None:
    """B and C of one chunk and group: conv, words for the tile products, and C B^T."""
    heads, size, groups, n, taps = s.heads, s.head_size, s.groups, s.state_size, s.taps
    padded, step = _pad(n, TILE_COLUMNS), numbers_per_word(kind)
    row, rows = p.row[chunk], p.row[chunk + 1] - p.row[chunk]
    sequence, start = p.sequence[chunk], p.start[chunk]
    tokens = min(p.cu_seqlens[sequence + 1] - start, CHUNK)
    before = start - p.cu_seqlens[sequence]
    inner, weights, channels = heads * size, address(w.conv), w.conv.shape[1]
    natural, out, ones = 0, CHUNK * padded, 2 * CHUNK * padded
    rest = ones + CHUNK
    fill = scratch
    for t in range(CHUNK):
        fill[ones + t] = np.float32(1.0)
    c_words, b_words, products = address(b.c_words), address(b.b_words), address(b.products)
    c_at = row * groups * padded // step + g * rows * padded // step
    for part in range(2):  # B, then C
        column = inner + (part * groups + g) * n
        old_at = conv_at + column * (len(taps) - 1) if conv_at >= 0 else -1
        weights_at = heads * _pad(size, TILE_COLUMNS) + (part * groups + g) * padded
        _convolve(
            source, start * stride + inner + column, stride, n, padded, tokens, before, conv, old_at,
            weights, weights_at, channels, taps, scratch_from(scratch, rest), scratch, out,
        )  # fmt: skip
