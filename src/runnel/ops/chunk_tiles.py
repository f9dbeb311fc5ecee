"""One chunk of a recurrence with matrix states, as tile products, for the fused CPU kernels of Mamba-2.

    N  columns of q and k        P  columns of v        Np  N padded to whole vectors

With q_i, k_i and v_i the rows of a chunk (at most CHUNK), and S (N, P) the state that enters it:

    y_i = grown_i q_i S + sum_j mixed_ij v_j            S  <- decay S + sum_j k_j^T carried_j v_j

A row sees itself and earlier ones. Arrays are pointers here (see `simd`); `kind` is any pointer whose type chooses the factors
of the products: bf16, in words of two, or fp32. States and sums are fp32.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from runnel.ops.amx import BLOCK, multiply_block
from runnel.ops.chunks import CHUNK
from runnel.ops.numba_math import SERIAL, Number, Pointer
from runnel.ops.simd import LANES, TILE_COLUMNS, TILE_ROWS, ceil_div, load, mul, round_up, shift, splat, store
from runnel.ops.simd_tile import fill, numbers_per_word, pack, store_pairs, tile_product, transpose

_ZERO = np.float32(0.0)


@njit(**SERIAL)
def multiply_keys(
    kind: Pointer, tiles: bool, q_words: Pointer, k_words: Pointer, rows: int, padded: int, height: int, panel: Pointer,
    out: Pointer,
) -> None:  # fmt: skip
    """out = Q K^T of one chunk where a row sees another, in panels (height, TILE_COLUMNS). q, k: rows of `padded` numbers."""
    depth = padded // numbers_per_word(kind)
    for j in range(0, rows, TILE_COLUMNS):
        for jj in range(0, TILE_COLUMNS, LANES):
            for d in range(0, depth, LANES):
                transpose(shift(k_words, (j + jj) * depth + d), depth, shift(panel, d * TILE_COLUMNS + jj), TILE_COLUMNS)
        panel_sums = shift(out, j * height)
        for i in range(j, rows, BLOCK if tiles else TILE_ROWS):
            sums, left = shift(panel_sums, i * TILE_COLUMNS), shift(q_words, i * depth)
            if tiles:
                multiply_block(sums, TILE_COLUMNS, left, depth, panel, TILE_COLUMNS, depth, True)
            else:
                tile_product(kind, sums, panel, -1, left, depth, 1, panel, depth)


@njit(**SERIAL)
def scan_panel(
    kind: Pointer, rows: int, padded: int, known: bool, wanted: bool, q_words: Pointer, k_words: Pointer,
    mixed: Pointer, grown: Pointer, carried: Pointer, decay: Pointer, v: Pointer, stride: int, S: Pointer, y: Pointer,
    memory: Pointer,
) -> None:  # fmt: skip
    """TILE_COLUMNS columns of y (rows, TILE_COLUMNS) from v, and of S (Np, TILE_COLUMNS), which advances if `wanted`.

    Args:
        known: S is not zero.
        q_words, k_words: rows of Np = `padded` numbers; k in words that join two rows.
        mixed: rows of CHUNK numbers.
        v: fp32, `stride` numbers from row to row.
        memory: ones (CHUNK + Np,), and scratch of (CHUNK + Np) TILE_COLUMNS numbers behind them.
    """
    step, ones = numbers_per_word(kind), memory
    words = shift(memory, CHUNK + padded)
    state_words = shift(words, CHUNK * TILE_COLUMNS)
    pack(kind, v, stride, rows, ones, words, TILE_COLUMNS)
    if known and step == 2:
        pack(kind, S, TILE_COLUMNS, padded, ones, state_words, TILE_COLUMNS)
    right = state_words if step == 2 else S
    for i in range(0, rows, TILE_ROWS):
        out = shift(y, i * TILE_COLUMNS)
        if known:
            tile_product(kind, out, ones, -1, shift(q_words, i * padded // step), padded // step, 1, right, padded // step)
        left, depth = shift(mixed, i * CHUNK // step), ceil_div(min(i + TILE_ROWS, rows), step)
        tile_product(kind, out, shift(grown, i), 1 if known else -1, left, CHUNK // step, 1, words, depth)
    if wanted:
        pack(kind, v, stride, rows, carried, words, TILE_COLUMNS)
        for k in range(0, padded, TILE_ROWS):
            out = shift(S, k * TILE_COLUMNS)
            tile_product(kind, out, decay, 0 if known else -1, shift(k_words, k), 1, padded, words, ceil_div(rows, step))


@njit(**SERIAL)
def scan_panel_amx(
    kind: Pointer, rows: int, padded: int, known: bool, wanted: bool, q_words: Pointer, k_words: Pointer, k_row: int,
    mixed: Pointer, grown: Pointer, carried: Pointer, v: Pointer, stride: int, S: Pointer, y: Pointer, memory: Pointer,
) -> None:  # fmt: skip
    """`scan_panel` by tiles of AMX. k_words: K^T, rows of bf16 numbers `k_row` words apart; zero up to a multiple of BLOCK."""
    ones, height, half = memory, round_up(rows, BLOCK), padded // 2
    words = shift(memory, CHUNK + padded)
    state_words = shift(words, CHUNK * TILE_COLUMNS)
    pack(kind, v, stride, rows, ones, words, TILE_COLUMNS)
    fill(shift(words, ceil_div(rows, 2) * TILE_COLUMNS), (height // 2 - ceil_div(rows, 2)) * TILE_COLUMNS, _ZERO)
    if known:
        _pack_state(S, padded, grown[rows - 1], state_words)
        for i in range(0, rows, BLOCK):
            out = shift(y, i * TILE_COLUMNS)
            multiply_block(out, TILE_COLUMNS, shift(q_words, i * half), half, state_words, TILE_COLUMNS, half, True)
        for t in range(rows):
            factor = splat(grown[t])
            for c in range(t * TILE_COLUMNS, (t + 1) * TILE_COLUMNS, LANES):
                store(y, c, mul(load(y, c), factor))
    for i in range(0, rows, BLOCK):
        out, left = shift(y, i * TILE_COLUMNS), shift(mixed, i * CHUNK // 2)
        multiply_block(out, TILE_COLUMNS, left, CHUNK // 2, words, TILE_COLUMNS, (i + BLOCK) // 2, not known)
    if wanted:
        pack(kind, v, stride, rows, carried, words, TILE_COLUMNS)
        for k in range(0, padded, BLOCK):
            out = shift(S, k * TILE_COLUMNS)
            multiply_block(out, TILE_COLUMNS, shift(k_words, k * k_row), k_row, words, TILE_COLUMNS, height // 2, not known)


@njit(**SERIAL)
def _pack_state(S: Pointer, padded: int, decay: Number, words: Pointer) -> None:
    """Write a panel's state as words of two rows, and let it decay to the end of the chunk."""
    factor = splat(decay)
    for k in range(0, padded, 2):
        for c in range(0, TILE_COLUMNS, LANES):
            first, second = k * TILE_COLUMNS + c, (k + 1) * TILE_COLUMNS + c
            low, high = load(S, first), load(S, second)
            store_pairs(words, k // 2 * TILE_COLUMNS + c, low, high)
            store(S, first, mul(low, factor))
            store(S, second, mul(high, factor))


@njit(**SERIAL)
def load_state(pool: Pointer, size: int, n: int, n_padded: int, panels: int, out: Pointer) -> None:
    """(P, N) of the pool -> panels (Np, TILE_COLUMNS) with P across the columns; padding is zero."""
    if size < panels * TILE_COLUMNS or n < n_padded:
        fill(out, panels * TILE_COLUMNS * n_padded, _ZERO)
    for i in range(0, size, LANES):
        panel = shift(out, i // TILE_COLUMNS * TILE_COLUMNS * n_padded + i % TILE_COLUMNS)
        for k in range(0, n, LANES):
            if size - i >= LANES and n - k >= LANES:
                transpose(shift(pool, i * n + k), n, shift(panel, k * TILE_COLUMNS), TILE_COLUMNS)
            else:
                for ii in range(min(LANES, size - i)):
                    for kk in range(k, min(k + LANES, n)):
                        panel[kk * TILE_COLUMNS + ii] = pool[(i + ii) * n + kk]


@njit(**SERIAL)
def store_state(state: Pointer, size: int, n: int, n_padded: int, out: Pointer) -> None:
    """Inverse of `load_state`."""
    for i in range(0, size, LANES):
        panel = shift(state, i // TILE_COLUMNS * TILE_COLUMNS * n_padded + i % TILE_COLUMNS)
        for k in range(0, n, LANES):
            if size - i >= LANES and n - k >= LANES:
                transpose(shift(panel, k * TILE_COLUMNS), TILE_COLUMNS, shift(out, i * n + k), n)
            else:
                for ii in range(min(LANES, size - i)):
                    for kk in range(k, min(k + LANES, n)):
                        out[(i + ii) * n + kk] = panel[kk * TILE_COLUMNS + ii]
