"""Residual addition, LayerNorm, token shift, mixes and the low-rank activations made of them; relu^2. Legend in `kernels`.

A token's mixes need the normed token before it. Tokens are worked on in blocks, any block by any core, and the residual stream is
updated in place, so that what comes before each block is computed first, from the old residual stream.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from runnel.backbones.rwkv7.kernel_math import read, squared_relu, tanh, write
from runnel.backbones.rwkv7.kernel_plan import ROWS, BlockPlan, Buffers, LowRank, ShiftWeights
from runnel.ops.int8_matmul import quantize_row
from runnel.ops.numba_math import PARALLEL, SERIAL, Array, Number, Pointer
from runnel.ops.simd import (
    LANES,
    TILE_COLUMNS,
    TILE_ROWS,
    add,
    address,
    fma,
    keep,
    load,
    mul,
    next_task,
    round_up,
    shift,
    sigmoid,
    splat,
    store,
    sub,
    total,
)
from runnel.ops.simd_tile import as_kind, numbers_per_word, tile_product

_PIECE = 4096  # numbers per task of relu^2
_ZERO = np.float32(0.0)


@njit(**SERIAL)
def _norm_token(residual: Pointer, added: Pointer, width: int, w: ShiftWeights, eps: Number, out: Pointer, update: bool) -> None:
    """out = norm(residual + added); residual += added if `update`. Pointers to one token; `out` has Dp numbers."""
    sums = splat(_ZERO)
    for c in range(0, width, LANES):
        v = add(read(residual, c, width - c), read(added, c, width - c))
        store(out, c, v)
        sums = add(sums, v)
    mean, squares = splat(total(sums) / np.float32(width)), splat(_ZERO)
    for c in range(0, width, LANES):
        v = load(out, c)
        if update:
            write(residual, c, v, width - c)
        v = sub(v, mean)
        v = v if width - c >= LANES else keep(v, width - c)
        squares = fma(v, v, squares)
    factor = splat(np.float32(1.0) / np.sqrt(total(squares) / np.float32(width) + eps))
    for c in range(0, width, LANES):
        v = mul(sub(load(out, c), mean), factor)
        store(out, c, fma(v, load(address(w.norm), c), load(address(w.bias), c)))


@njit(**SERIAL)
def _copy(source: Pointer, width: int, out: Pointer) -> None:
    """One row of fp32."""
    for c in range(0, width, LANES):
        write(out, c, read(source, c, width - c), width - c)


@njit(**SERIAL)
def _start(pool: Array, layer: int, p: BlockPlan, s: int, before: Pointer) -> None:
    """What comes before a sequence, into the Dp numbers of `before`; an empty sequence's is also its end."""
    read_row, write_row, width = p.read_rows[s], p.write_rows[s], pool.shape[2]
    old = shift(address(pool), (max(read_row, 0) * pool.shape[1] + layer) * width)
    for c in range(0, width, LANES):
        store(before, c, read(old, c, width - c) if read_row >= 0 else splat(_ZERO))
    if write_row >= 0 and p.cu_seqlens[s + 1] == p.cu_seqlens[s]:
        _copy(before, width, shift(address(pool), (write_row * pool.shape[1] + layer) * width))


@njit(**SERIAL)
def _mix(
    now: Pointer, before: Pointer, width: int, padded: int, mixes: Pointer, parts: tuple[int, ...], out: Pointer, size: int
) -> None:
    """out[m] = now + (before - now) * mixes[m] of one token; `size` numbers from one m to the next."""
    for c in range(0, width, LANES):
        x = load(now, c)
        step = sub(load(before, c), x)
        for m in range(len(parts)):
            write(out, m * size + c, fma(step, load(mixes, m * padded + c), x), width - c)


@njit(**SERIAL)
def _project(mixed: Pointer, tokens: int, padded: int, low_rank: LowRank, stage: Pointer, out: Pointer, stride: int) -> None:
    """The low-rank activations of one block from its mixes for v, w, a and g, (4, ROWS, Dp) in the dtype of `out`."""
    step = numbers_per_word(out)
    depth = padded // step
    for part in range(4):
        left = shift(mixed, part * ROWS * depth)
        for panel in range(low_rank.first[part], low_rank.first[part + 1]):
            right = shift(address(low_rank.down), panel * depth * TILE_COLUMNS)
            for t in range(0, tokens, TILE_ROWS):
                tile_product(out, shift(stage, t * TILE_COLUMNS), stage, -1, shift(left, t * depth), depth, 1, right, depth)
            for i in range(0, tokens * TILE_COLUMNS, LANES):
                x = load(stage, i)
                if part == 1:
                    x = tanh(x)
                elif part == 3:
                    x = sigmoid(x)
                store(out, i // TILE_COLUMNS * stride + panel * TILE_COLUMNS + i % TILE_COLUMNS, x)


@njit(**SERIAL)
def _shift_block(
    residual: Array, added: Array, w: ShiftWeights, eps: Number, parts: tuple[int, ...], pool: Array, layer: int, p: BlockPlan,
    b: Buffers, out: Array, scales: Array, kept: tuple[int, ...], low_rank: LowRank, low: Array, block: int, memory: Pointer,
) -> None:  # fmt: skip
    """The tokens of one block. `memory`: scratch."""
    tokens, width = residual.shape[0], residual.shape[1]
    padded, s, begin = round_up(width), p.first[block], block * ROWS
    end = min(tokens, begin + ROWS)
    before, now, other, mixed = shift(address(b.before), block * padded), memory, shift(memory, padded), shift(memory, 2 * padded)
    stage = shift(mixed, 4 * ROWS * padded)
    whole = shift(stage, ROWS * TILE_COLUMNS)  # (3, Dp): mixes on their way to 8 bits
    for t in range(begin, end):
        while p.cu_seqlens[s + 1] <= t:  # empty sequences too
            s += 1
        if t == p.cu_seqlens[s]:
            before = shift(address(b.before), (p.first.shape[0] + s) * padded)
        _norm_token(shift(address(residual), t * width), shift(address(added), t * width), width, w, eps, now, True)
        if numbers_per_word(address(out)) == 4:
            _mix(now, before, padded, padded, address(w.mixes), parts, whole, padded)
            for m in range(len(parts)):
                row = shift(address(out), (m * tokens + t) * out.shape[2])
                scales[m, t] = quantize_row(shift(whole, m * padded), width, row)
        else:
            _mix(now, before, width, padded, address(w.mixes), parts, shift(address(out), t * width), tokens * width)
        if len(kept) > 0:
            tile, mixes = shift(as_kind(address(low), mixed), (t - begin) * padded), shift(address(w.mixes), 2 * padded)
            _mix(now, before, padded, padded, mixes, kept, tile, ROWS * padded)
        if t + 1 == p.cu_seqlens[s + 1] and p.write_rows[s] >= 0:
            _copy(now, width, shift(address(pool), (p.write_rows[s] * pool.shape[1] + layer) * width))
        before, now, other = now, other, now
    if len(kept) > 0:
        _project(mixed, end - begin, padded, low_rank, stage, shift(address(low), begin * low.shape[1]), low.shape[1])


@njit(**PARALLEL)
def add_norm_shift(
    residual: Array, added: Array, w: ShiftWeights, eps: float, parts: tuple[int, ...], pool: Array, layer: int, p: BlockPlan,
    b: Buffers, out: Array, scales: Array, kept: tuple[int, ...], low_rank: LowRank, low: Array,
) -> None:  # fmt: skip
    """residual += added; y = norm(residual); x_m = y_t + (y_{t-1} - y_t) * mixes[m]. Call it inside `numba_math.parallel()`.

    Args:
        residual: (T, D) fp32, updated in place.
        added: (T, D) fp32 or bf16 bits (uint16).
        w: `ShiftWeights`: one mix, or those of r, k, v, w, a, g.
        eps: of the norm.
        parts: (0,) or (0, 1, 2): the mixes that go to `out`, as a tuple so that the code is made for this number of them.
        pool: (R, L, D) fp32: y of the token before each sequence; the rows in `p.write_rows` are updated.
        layer: which layer of the pool.
        p, b: plan and buffers, `b.tasks` zero.
        out: (M, T, D) fp32 or bf16 bits. Or in 8 bits for `int8_matmul.multiply`: (M, T, Kp) uint8.
        scales: (M, T) fp32, filled with the scales of `out` in 8 bits; else not used.
        kept: () or (0, 1, 2, 3): no low-rank activations, or those of v, w, a, g.
        low_rank: `LowRank`, fp32 or bf16.
        low: (at least T, Rw) in the same dtype, filled with down_v x_v, tanh(down_w x_w), down_a x_a, sigmoid(down_g x_g).
    """
    blocks, width, small = p.first.shape[0], residual.shape[1], np.float32(eps)
    padded = round_up(width)
    for i in prange(blocks + p.read_rows.shape[0]):
        before = shift(address(b.before), i * padded)
        if i >= blocks:
            _start(pool, layer, p, i - blocks, before)
        elif p.cu_seqlens[p.first[i]] < i * ROWS:
            row = (i * ROWS - 1) * width
            _norm_token(shift(address(residual), row), shift(address(added), row), width, w, small, before, False)
    for worker in prange(b.scratch.shape[0]):
        memory = shift(address(b.scratch), worker * b.scratch.shape[1])
        block = next_task(address(b.tasks))
        while block < blocks:
            _shift_block(residual, added, w, small, parts, pool, layer, p, b, out, scales, kept, low_rank, low, block, memory)
            block = next_task(address(b.tasks))


@njit(**PARALLEL)
def add_norm(residual: Array, added: Array, w: ShiftWeights, eps: float, out: Array) -> None:
    """out = norm(residual + added); arguments as in `add_norm_shift`, but `out` is (T, D) fp32 and the residual is left alone."""
    tokens, width = residual.shape[0], residual.shape[1]
    for block in prange((tokens + ROWS - 1) // ROWS):
        row = np.empty(round_up(width), np.float32)
        for t in range(block * ROWS, min(tokens, (block + 1) * ROWS)):
            at = t * width
            _norm_token(shift(address(residual), at), shift(address(added), at), width, w, np.float32(eps), address(row), False)
            _copy(address(row), width, shift(address(out), at))


@njit(**PARALLEL)
def square_relu(x: Array) -> None:
    """max(x, 0)^2 in place; fp32 or bf16 bits, contiguous."""
    for i in prange((x.size + _PIECE - 1) // _PIECE):
        for c in range(i * _PIECE, min(x.size, (i + 1) * _PIECE), LANES):
            write(address(x), c, squared_relu(read(address(x), c, x.size - c)), x.size - c)


@njit(**PARALLEL)
def square_relu_bytes(x: Array, out: Array, scales: Array) -> None:
    """max(x, 0)^2 in 8 bits for `int8_matmul.multiply`: x (T, F) fp32 or bf16 bits, out (T, G Kp) uint8, scales (T, G) fp32."""
    (tokens, width), groups = x.shape, scales.shape[1]
    size, padded = width // groups, out.shape[1] // groups
    for block in prange((tokens + ROWS - 1) // ROWS):
        row = np.empty(round_up(width), np.float32)
        for t in range(block * ROWS, min(tokens, (block + 1) * ROWS)):
            for c in range(0, width, LANES):
                store(address(row), c, squared_relu(read(address(x), t * width + c, width - c)))
            for g in range(groups):
                own = shift(address(out), t * out.shape[1] + g * padded)
                scales[t, g] = quantize_row(shift(address(row), g * size), size, own)
