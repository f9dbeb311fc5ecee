"""Layouts of the mlstm kernels' matrices.

Arrays are pointers here (see `simd`). *Rows*: a row-major matrix. *Panels*: the same matrix cut into
vertical strips of TILE_COLUMNS columns, each strip a separate matrix, the layout of `tile_product`'s right side and result.
Widths are rounded up by `wide`, with zeros beyond the true width.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from runnel.ops.numba_math import SERIAL, Number, Pointer
from runnel.ops.simd import LANES, TILE_COLUMNS, TILE_ROWS, add, fma, load, mul, shift, splat, store
from runnel.ops.simd_tile import LOWER, load_up_to, store_up_to, tile_product, transpose

ZERO = np.float32(0.0)
LOWER_OUT = 3  # besides FULL and LOWER: a product skips tiles of the result with columns > row


class Rows(NamedTuple):
    """Rows of any width, such as one head's part of consecutive tokens."""

    first: Pointer  # fp32 or bf16 bits
    stride: int  # numbers from row to row


class Panels(NamedTuple):
    """Panels of fp32, of any height."""

    first: Pointer
    stride: int  # numbers from panel to panel


class Matrix(NamedTuple):
    """The left side of a product, fp32: element (r, d) is at r * row + d * depth."""

    first: Pointer
    row: int
    depth: int


@njit(**SERIAL)
def from_row(rows: Rows, row: int) -> Rows:
    """Return the rows from number `row` on."""
    return Rows(shift(rows.first, row * rows.stride), rows.stride)


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
def read(source: Rows, count: int, rows: int, width: int, factor: Number, out: Pointer) -> None:
    """Read rows (rows, wide(width)) of fp32: `count` rows of `source` times the factor, then zeros."""
    columns, scale = wide(width), splat(factor)
    for j in range(count):
        for c in range(0, columns, LANES):
            store(out, j * columns + c, mul(scale, load_up_to(source.first, j * source.stride + c, width - c)))
    fill(shift(out, count * columns), (rows - count) * columns, ZERO)


@njit(**SERIAL)
def write(source: Pointer, columns: int, count: int, width: int, factors: Pointer, out: Rows) -> None:
    """Write `count` rows of `source` (rows of `columns`), each times its factor."""
    for j in range(count):
        factor = splat(factors[j])
        for c in range(0, width, LANES):
            store_up_to(out.first, j * out.stride + c, mul(factor, load(source, j * columns + c)), width - c)


@njit(**SERIAL)
def scale_rows(source: Pointer, columns: int, rows: int, factors: Pointer, out: Pointer) -> None:
    """Multiply each row by its factor; `out` may be `source`."""
    for j in range(rows):
        factor = splat(factors[j])
        for c in range(j * columns, (j + 1) * columns, LANES):
            store(out, c, mul(factor, load(source, c)))


@njit(**SERIAL)
def turn(source: Pointer, columns: int, rows: int, out: Panels) -> None:
    """Convert rows (rows, columns) to panels of the transposed matrix (columns, rows), in blocks of 16 x 16."""
    for j in range(0, rows, LANES):
        strip = j // TILE_COLUMNS * out.stride + j % TILE_COLUMNS
        for c in range(0, columns, LANES):
            transpose(shift(source, j * columns + c), columns, shift(out.first, strip + c * TILE_COLUMNS), TILE_COLUMNS)


@njit(**SERIAL)
def product(out: Panels, factors: Rows, left: Matrix, right: Panels, rows: int, depth: int, columns: int, zeros: int) -> None:
    """Set out[r, :] = factors[r] * out[r, :] + left[r, :] @ right.

    Args:
        factors: rows of one fp32 number; with a stride of 0 all rows have the same factor, with stride < 0 `out` is only written.
        rows, columns: rounded up to whole tiles.   depth: any; with LOWER it equals `rows`.
        zeros: FULL, LOWER or LOWER_OUT.
    """
    for c in range(0, columns, TILE_COLUMNS):
        panel = c // TILE_COLUMNS
        target, source = shift(out.first, panel * out.stride), shift(right.first, panel * right.stride)
        for r in range(0, rows, TILE_ROWS):
            if zeros == LOWER_OUT and c >= r + TILE_ROWS:
                continue
            count = min(r + TILE_ROWS, depth) if zeros == LOWER else depth
            tile_product(
                out.first, shift(target, r * TILE_COLUMNS), shift(factors.first, r * max(factors.stride, 0)), factors.stride,
                shift(left.first, r * left.row), left.row, left.depth, source, count,
            )  # fmt: skip


@njit(**SERIAL)
def advance_line(line: Pointer, size: int, factor: Number, rows: Pointer, columns: int, count: int) -> None:
    """Set line = factor * line + the sum of `count` rows, in place; `line` has `size` fp32 numbers, of any length."""
    for c in range(0, size, LANES):
        sums = splat(ZERO)
        for j in range(count):
            sums = add(sums, load(rows, j * columns + c))
        store_up_to(line, c, fma(splat(factor), load_up_to(line, c, size - c), sums), size - c)
