"""Layouts of the mlstm kernels' matrices.

Arrays are pointers here (see `simd`). *Rows*: a row-major matrix. *Panels*: the same matrix cut into
vertical strips of TILE_COLUMNS columns, each strip a separate matrix, the layout of `tile_product`'s right side and result.
Widths are rounded up by `wide`, with zeros beyond the true width.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from runnel.ops.numba_math import SERIAL, Number, Pointer
from runnel.ops.simd import (
    LANES,
    TILE_COLUMNS,
    TILE_ROWS,
    add,
    fma,
    load,
    load_some,
    mul,
    shift,
    splat,
    store,
    store_some,
)
from runnel.ops.simd_tile import tile_product, transpose

ZERO = np.float32(0.0)
# What a product may skip, in whole tiles: nothing; zeros of the left side where depth > row, or where depth < row;
# columns > row of the result.
FULL, LOWER, UPPER, LOWER_OUT = 0, 1, 2, 3


@njit(**SERIAL)
def wide(size: int) -> int:
    """Round `size` up to whole panels, which are also whole vectors and whole tiles."""
    return (size + TILE_COLUMNS - 1) // TILE_COLUMNS * TILE_COLUMNS  # not `round_up`: the compiled code would be longer


@njit(**SERIAL)
def fill(out: Pointer, count: int, value: Number) -> None:
    """Set the first `count` elements, a multiple of 16, to a value."""
    for c in range(0, count, LANES):
        store(out, c, splat(value))


@njit(**SERIAL)
def read(source: Pointer, stride: int, count: int, rows: int, width: int, factor: Number, out: Pointer) -> None:
    """Read rows (rows, wide(width)) of fp32: `count` lines of `source` (fp32 or bf16 bits), `stride` apart, times the factor."""
    columns, scale = wide(width), splat(factor)
    for j in range(count):
        for c in range(0, columns, LANES):
            if width - c >= LANES:
                store(out, j * columns + c, mul(scale, load(source, j * stride + c)))
            else:
                store(out, j * columns + c, mul(scale, load_some(source, j * stride + c, width - c)))
    fill(shift(out, count * columns), (rows - count) * columns, ZERO)


@njit(**SERIAL)
def write(source: Pointer, columns: int, count: int, width: int, factors: Pointer, out: Pointer, stride: int) -> None:
    """Write lines `stride` apart, fp32 or bf16 bits: `count` rows of `source` (rows of `columns`), each times its factor."""
    for j in range(count):
        factor = splat(factors[j])
        for c in range(0, width, LANES):
            value = mul(factor, load(source, j * columns + c))
            if width - c >= LANES:
                store(out, j * stride + c, value)
            else:
                store_some(out, j * stride + c, value, width - c)


@njit(**SERIAL)
def scale_rows(source: Pointer, columns: int, rows: int, factors: Pointer, out: Pointer) -> None:
    """Multiply each row by its factor; `out` may be `source`."""
    for j in range(rows):
        factor = splat(factors[j])
        for c in range(j * columns, (j + 1) * columns, LANES):
            store(out, c, mul(factor, load(source, c)))


@njit(**SERIAL)
def to_panels(source: Pointer, columns: int, rows: int, panel: int, out: Pointer) -> None:
    """Convert rows (rows, columns) to panels that begin `panel` numbers apart."""
    for j in range(rows):
        for c in range(0, columns, LANES):
            store(out, c // TILE_COLUMNS * panel + j * TILE_COLUMNS + c % TILE_COLUMNS, load(source, j * columns + c))


@njit(**SERIAL)
def turn(source: Pointer, columns: int, rows: int, panel: int, out: Pointer) -> None:
    """Convert rows (rows, columns) to panels of the transposed matrix (columns, rows), in blocks of 16 x 16."""
    for j in range(0, rows, LANES):
        strip = j // TILE_COLUMNS * panel + j % TILE_COLUMNS
        for c in range(0, columns, LANES):
            transpose(shift(source, j * columns + c), columns, shift(out, strip + c * TILE_COLUMNS), TILE_COLUMNS)


@njit(**SERIAL)
def product(
    out: Pointer, out_panel: int, factors: Pointer, factors_step: int, left: Pointer, left_row: int, left_depth: int,
    right: Pointer, right_panel: int, rows: int, depth: int, columns: int, zeros: int,
) -> None:  # fmt: skip
    """Set out[r, :] = factors[r * factors_step] * out[r, :] + left[r, :] @ right; with factors_step < 0, `out` is only written.

    Args:
        out, right: panels of fp32, `*_panel` numbers apart.
        left: element (r, d) is at r * left_row + d * left_depth.
        rows, columns: rounded up to whole tiles.   depth: any; with LOWER and UPPER it equals `rows`.
        zeros: FULL, LOWER, UPPER or LOWER_OUT.
    """
    for c in range(0, columns, TILE_COLUMNS):
        target, source = shift(out, c // TILE_COLUMNS * out_panel), shift(right, c // TILE_COLUMNS * right_panel)
        for r in range(0, rows, TILE_ROWS):
            if zeros == LOWER_OUT and c >= r + TILE_ROWS:
                continue
            first = r if zeros == UPPER else 0
            count = (min(r + TILE_ROWS, depth) if zeros == LOWER else depth) - first
            tile_product(
                out, shift(target, r * TILE_COLUMNS), shift(factors, r * max(factors_step, 0)), factors_step,
                shift(left, r * left_row + first * left_depth), left_row, left_depth, shift(source, first * TILE_COLUMNS), count,
            )  # fmt: skip


@njit(**SERIAL)
def advance_line(line: Pointer, size: int, factor: Number, rows: Pointer, columns: int, count: int) -> None:
    """Set line = factor * line + the sum of `count` rows, in place; `line` has `size` fp32 numbers, of any length."""
    for c in range(0, size, LANES):
        sums = splat(ZERO)
        for j in range(count):
            sums = add(sums, load(rows, j * columns + c))
        if size - c >= LANES:
            store(line, c, fma(splat(factor), load(line, c), sums))
        else:
            store_some(line, c, fma(splat(factor), load_some(line, c, size - c), sums), size - c)
