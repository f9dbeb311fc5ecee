"""One chunk of a recurrence with matrix states, as tile products, for the fused CPU kernels of
Mamba-2; and states in the layout of these products (panels).

    N  columns of q and k        P  columns of v        Np  N padded to whole vectors

With q_i, k_i and v_i the rows of a chunk (at most CHUNK), and S (N, P) the state that enters it:

    y_i = grown_i q_i S + sum over j <= i of mixed_ij v_j
    S  <- decay S + sum over j of k_j^T carried_j v_j

In Mamba-2 (`backbones/mamba2/kernels.py`), q is C, k is B, v is x, and with c the running sum of dt
A: grown_i = exp(c_i), decay = exp(c_Q) of the last token Q, carried_j = exp(c_Q - c_j) dt_j and
mixed_ij = exp(c_i - c_j) dt_j (q_i . k_j).

`multiply_keys` makes all products q_i . k_j of a chunk; Mamba-2's kernels make `mixed` of them;
`scan_panel` computes y and the next S for TILE_COLUMNS columns of v at a time. `load_state` and
`store_state` convert a state between the pool's layout (P, N) and panels.

Arrays are pointers here (see `simd`, also for words and tiles). A word is 32 bits: one fp32 number
or two bf16 numbers. `tiles` says that the processor's matrix tiles multiply (Intel AMX), BLOCK rows
at a time; else vectors do, TILE_ROWS rows at a time. So products may read and write rows up to the
next multiple of BLOCK, and all arrays have room for them. `kind` is any pointer whose type
chooses the factors of the products: bf16, in words of two, or fp32. States and sums are fp32. A
panel is TILE_COLUMNS columns of a matrix, row after row.
"""

import numpy as np
from numba import njit

from runnel.ops.chunks import CHUNK
from runnel.ops.numba_math import SERIAL, Pointer
from runnel.ops.simd import (
    BLOCK,
    LANES,
    TILE_COLUMNS,
    TILE_ROWS,
    ceil_div,
    load,
    mul,
    multiply_block,
    round_up,
    shift,
    splat,
    store,
)
from runnel.ops.simd_tile import fill, numbers_per_word, pack_words, strided_product, transpose

_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)


@njit(**SERIAL)
def _multiply(
    kind: Pointer,
    tiles: bool,
    sums: Pointer,
    left: Pointer,
    left_row: int,
    left_depth: int,
    right: Pointer,
    rows: int,
    depth: int,
    fresh: bool,
    triangle: bool,
) -> None:
    """Compute sums += left @ right for a panel.

    Args:
        sums: `rows` rows of TILE_COLUMNS numbers, and room up to a multiple of BLOCK; with `fresh`
            their old content is not read.
        left: `rows` rows, and room as for `sums`, of `depth` words. Rows are left_row words apart,
            the words of a row left_depth (with `tiles` always 1).
        right: `depth` rows of TILE_COLUMNS words.
        triangle: `left` is zero above the diagonal; words that are zero in all rows of a block are
            left out.
    """
    step = numbers_per_word(kind)
    height = BLOCK if tiles else TILE_ROWS
    for i in range(0, rows, height):
        own = shift(sums, i * TILE_COLUMNS)
        place = shift(left, i * left_row)
        count = min(depth, (i + height) // step) if triangle else depth
        if tiles:
            multiply_block(own, TILE_COLUMNS, place, left_row, right, TILE_COLUMNS, count, fresh)
        else:
            factor = _ZERO if fresh else _ONE
            strided_product(
                kind,
                own,
                TILE_COLUMNS,
                factor,
                place,
                left_row,
                left_depth,
                right,
                TILE_COLUMNS,
                count,
            )


@njit(**SERIAL)
def multiply_keys(
    kind: Pointer,
    tiles: bool,
    q_words: Pointer,
    k_words: Pointer,
    rows: int,
    padded: int,
    height: int,
    panel: Pointer,
    out: Pointer,
) -> None:
    """Set out = Q K^T of one chunk, at least where j <= i, in panels (height, TILE_COLUMNS), each
    with the products of TILE_COLUMNS rows of K.

    Args:
        q_words, k_words: `rows` rows of `padded` numbers, readable up to a multiple of BLOCK rows.
        height: the rows of a panel, at least `rows`.
        panel: scratch for the transpose of TILE_COLUMNS rows of K.
    """
    depth = padded // numbers_per_word(kind)
    for j in range(0, rows, TILE_COLUMNS):
        for jj in range(0, TILE_COLUMNS, LANES):
            for d in range(0, depth, LANES):
                transpose(
                    shift(k_words, (j + jj) * depth + d),
                    depth,
                    shift(panel, d * TILE_COLUMNS + jj),
                    TILE_COLUMNS,
                )
        _multiply(
            kind,
            tiles,
            # the panel of these rows of K, from row j on
            shift(out, j * (height + TILE_COLUMNS)),
            shift(q_words, j * depth),
            depth,
            1,
            panel,
            rows - j,
            depth,
            fresh=True,
            triangle=False,
        )


@njit(**SERIAL)
def _scale(rows: Pointer, count: int, factors: Pointer, stride: int) -> None:
    """Multiply each row of a panel by its factor. Factors are `stride` numbers apart; 0: all rows
    have the same factor.
    """
    for t in range(count):
        factor = splat(factors[t * stride])
        for c in range(t * TILE_COLUMNS, (t + 1) * TILE_COLUMNS, LANES):
            store(rows, c, mul(load(rows, c), factor))


@njit(**SERIAL)
def scan_panel(
    kind: Pointer,
    tiles: bool,
    rows: int,
    padded: int,
    has_state: bool,
    advances: bool,
    q_words: Pointer,
    k_transposed: Pointer,
    k_row: int,
    k_depth: int,
    mixed: Pointer,
    grown: Pointer,
    carried: Pointer,
    v: Pointer,
    stride: int,
    S: Pointer,
    y: Pointer,
    memory: Pointer,
) -> None:
    """Compute TILE_COLUMNS columns of y (rows, TILE_COLUMNS), and, if `advances`, of the state S
    (Np, TILE_COLUMNS) after the chunk.

    Args:
        has_state: S is not zero.
        q_words: rows of Np = `padded` numbers.
        k_transposed: K^T, in words that each join two rows of K; its rows are k_row words apart and
            the words of a row k_depth. With `tiles`, zero up to a multiple of BLOCK rows of K.
        mixed: rows of CHUNK numbers, zero above the diagonal up to a multiple of BLOCK.
        v: fp32, `stride` numbers from row to row.
        grown, carried: (rows,) as in the equations; the last of `grown` is the decay of S.
        memory: (CHUNK + Np) ones, and after them scratch of (CHUNK + Np) TILE_COLUMNS numbers.
    """
    step = numbers_per_word(kind)
    ones = memory
    words = shift(memory, CHUNK + padded)  # v, or carried v, as words
    state_words = shift(words, CHUNK * TILE_COLUMNS)
    used = ceil_div(rows, step)  # rows of words with a token; zeros follow up to `depth`
    depth = round_up(rows, BLOCK) // step
    pack_words(kind, v, stride, rows, ones, words, TILE_COLUMNS)
    fill(shift(words, used * TILE_COLUMNS), (depth - used) * TILE_COLUMNS, _ZERO)
    if has_state:
        pack_words(kind, S, TILE_COLUMNS, padded, ones, state_words, TILE_COLUMNS)
        _multiply(
            kind,
            tiles,
            y,
            q_words,
            padded // step,
            1,
            state_words,
            rows,
            padded // step,
            fresh=True,
            triangle=False,
        )
        _scale(y, rows, grown, 1)
        # y was made of S as it entered the chunk; only now may S decay
        _scale(S, padded, shift(grown, rows - 1), 0)
    _multiply(
        kind,
        tiles,
        y,
        mixed,
        CHUNK // step,
        1,
        words,
        rows,
        depth,
        fresh=not has_state,
        triangle=True,
    )
    if advances:
        pack_words(kind, v, stride, rows, carried, words, TILE_COLUMNS)
        _multiply(
            kind,
            tiles,
            S,
            k_transposed,
            k_row,
            k_depth,
            words,
            padded,
            depth if tiles else used,
            fresh=not has_state,
            triangle=False,
        )


@njit(**SERIAL)
def load_state(pool: Pointer, size: int, n: int, n_padded: int, columns: int, out: Pointer) -> None:
    """Convert a state (P, N) of the pool to panels (Np, columns), each with `columns` of the P rows
    as its columns; padding is zero.

    Args:
        size, n, n_padded: P, N and Np.
        columns: a multiple of LANES.
    """
    if size % columns or n < n_padded:
        fill(out, round_up(size, columns) * n_padded, _ZERO)
    for i in range(0, size, LANES):
        panel = shift(out, i // columns * columns * n_padded + i % columns)
        for k in range(0, n, LANES):
            if size - i >= LANES and n - k >= LANES:
                transpose(shift(pool, i * n + k), n, shift(panel, k * columns), columns)
            else:
                for ii in range(min(LANES, size - i)):
                    for kk in range(k, min(k + LANES, n)):
                        panel[kk * columns + ii] = pool[(i + ii) * n + kk]


@njit(**SERIAL)
def store_state(
    state: Pointer, size: int, n: int, n_padded: int, columns: int, out: Pointer
) -> None:
    """Convert panels to a state of the pool, the inverse of `load_state`."""
    for i in range(0, size, LANES):
        panel = shift(state, i // columns * columns * n_padded + i % columns)
        for k in range(0, n, LANES):
            if size - i >= LANES and n - k >= LANES:
                transpose(shift(panel, k * columns), columns, shift(out, i * n + k), n)
            else:
                for ii in range(min(LANES, size - i)):
                    for kk in range(k, min(k + LANES, n)):
                        out[(i + ii) * n + kk] = panel[kk * columns + ii]
