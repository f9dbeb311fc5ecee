"""What the Mamba-2 kernels are given (sizes, weights, memory), and the pieces they are made of. Legend: `kernels`.

The pieces' arrays are pointers (see `simd`); `kind` is the pointer to the projections, whose type chooses bf16 or fp32.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from runnel.backbones.cpu_step import Floats, Indices
from runnel.ops.chunks import CHUNK, ROWS
from runnel.ops.numba_math import SERIAL, Number, Pointer, StepMemory
from runnel.ops.simd import (
    LANES,
    TILE_COLUMNS,
    exp,
    fma,
    keep,
    load,
    mul,
    prefetch,
    round_up,
    shift,
    silu,
    splat,
    store,
    sub,
    total,
)
from runnel.ops.simd_tile import load_up_to, numbers_per_word, store_up_to


class Shape(NamedTuple):
    """Sizes of a block, and the clamp of its time steps."""

    heads: int
    head_size: int
    groups: int
    state_size: int
    dt_min: float
    dt_max: float

    @property
    def inner(self) -> int:
        return self.heads * self.head_size


class Weights(NamedTuple):
    """fp32 weights of one block."""

    conv: Floats  # (w+1, H Pp + 2 G Np): taps, then the bias; every head and group padded with zeros
    dt_bias: Floats  # (H,)
    A: Floats  # (H,), negative
    D: Floats  # (H,)
    norm: Floats  # (Di,)


class Buffers(NamedTuple):
    """Memory that the two kernels share; rows are those of `ops.chunks.ChunkPlan.row`."""

    b_words: Floats  # (rows / numbers per word * G * Np,): B by pairs of rows; with `tiles` B^T by rows
    c_words: Floats  # (rows * G * Np / numbers per word,)
    products: Floats  # (rows * G * Q,): C B^T in panels of TILE_COLUMNS
    dt: Floats  # (H * rows,)
    sums: Floats  # (H * rows,): c
    scratch: Floats  # (workers, scratch_size)
    tasks: Indices  # (2,) the next free task of each kernel; zeroed by the caller
    tiles: bool  # whether `ops.amx` multiplies


def pad_conv(weight: Floats, bias: Floats, s: Shape) -> Floats:
    """`Weights.conv` of weight (Cd, w) and bias (Cd,)."""
    width, n, inner = round_up(s.head_size, TILE_COLUMNS), round_up(s.state_size, 2 * LANES), s.heads * s.head_size
    rows = np.concatenate([weight.T, bias[None]])
    out = np.zeros((rows.shape[0], s.heads * width + 2 * s.groups * n), np.float32)
    out[:, : s.heads * width].reshape(-1, s.heads, width)[..., : s.head_size] = rows[:, :inner].reshape(-1, s.heads, s.head_size)
    shared = rows[:, inner:].reshape(-1, 2 * s.groups, s.state_size)
    out[:, s.heads * width :].reshape(-1, 2 * s.groups, n)[..., : s.state_size] = shared
    return out


def allocate(memory: StepMemory, s: Shape, conv_width: int, rows: int, tiles: bool, per_word: int, workers: int) -> Buffers:
    """Return buffers for a plan of `rows` rows."""
    words, steps = rows * s.groups * round_up(s.state_size, 2 * LANES) // per_word, rows * s.heads
    return Buffers(
        b_words=memory.array("b_words", words),
        c_words=memory.array("c_words", words),
        products=memory.array("products", rows * s.groups * CHUNK),
        dt=memory.array("dt", steps),
        sums=memory.array("sums", steps),
        scratch=memory.array("scratch", workers, scratch_size(s, conv_width)),
        tasks=np.zeros(2, np.int64),
        tiles=tiles,
    )


def scratch_size(s: Shape, conv_width: int) -> int:
    """fp32 numbers of scratch that one worker needs."""
    width, n, back = round_up(s.head_size, TILE_COLUMNS), round_up(s.state_size, 2 * LANES), conv_width - 1
    prepare = 2 * CHUNK * n + CHUNK + max(back * n + CHUNK * LANES, n * TILE_COLUMNS)
    scan = (
        CHUNK * CHUNK + 3 * CHUNK + n + (CHUNK + n) * TILE_COLUMNS + 2 * CHUNK * width + width * n + back * width + CHUNK * LANES
    )
    return round_up(max(prepare, scan), 16) + 16


ZERO = np.float32(0.0)


@njit(**SERIAL)
def mix(out: Pointer, products: Pointer, sums: Pointer, dt: Pointer, tokens: int, rows: int, growth: Pointer) -> None:
    """out[i, j] = C_i . B_j exp(c_i - c_j) dt_j for j <= i, 0 above the diagonal up to a multiple of ROWS; rows of CHUNK.

    Left of the blocks on the diagonal, exp(c_i - c_j) is exp(c_i - c_b) exp(c_b - c_j), where b is the block's first row: two
    numbers of at most 1, one for each row and one for each column. `growth`: scratch of LANES numbers.
    """
    for first in range(0, tokens, LANES):
        last, begin = min(first + LANES, tokens), splat(sums[first])
        store(growth, 0, exp(sub(load(sums, first), begin)))
        for j in range(0, first, LANES):
            weight = mul(exp(sub(begin, load(sums, j))), load(dt, j))
            panel = shift(products, j // TILE_COLUMNS * TILE_COLUMNS * rows + j % TILE_COLUMNS)
            for i in range(first, last):
                store(out, i * CHUNK + j, mul(mul(weight, splat(growth[i - first])), load(panel, i * TILE_COLUMNS)))
        panel = shift(products, first // TILE_COLUMNS * TILE_COLUMNS * rows + first % TILE_COLUMNS)
        steps, earlier = load(dt, first), load(sums, first)
        for i in range(first, last):
            v = mul(mul(exp(sub(splat(sums[i]), earlier)), steps), load(panel, i * TILE_COLUMNS))
            store(out, i * CHUNK + first, keep(v, i - first + 1))
            if first % ROWS == 0:
                store(out, i * CHUNK + first + LANES, splat(ZERO))


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
            v = mul(v, silu(load_up_to(z, t * stride + c, size - c)))
            store_up_to(out, t * out_stride + c, mul(v, load_up_to(weight, c, size - c)), size - c)
            sums = fma(v, v, sums)
        squares[t * heads] = total(sums)


@njit(**SERIAL)
def prefetch_rows(base: Pointer, stride: int, tokens: int, width: int) -> None:
    """Ask for `tokens` rows of `width` numbers, `stride` apart."""
    line = 16 * numbers_per_word(base)  # numbers in 64 bytes
    for t in range(tokens):
        for c in range(0, width + line - 1, line):
            prefetch(base, t * stride + min(c, width - 1))
