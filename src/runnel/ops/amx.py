"""Products of bf16 matrices in the tiles of x86 processors with AMX, several times as fast as by vectors.

A tile has 16 rows of 64 bytes: of a product's left factor 32 numbers of each row, of its right factor 16 words (see `simd`), each
with numbers of two rows, of its sums 16 fp32 numbers. A thread loads a configuration before it uses tiles and releases them
afterwards, because other libraries configure them too. Rows that cross cache lines take up to nine times as long to load.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from runnel.ops.numba_math import FEATURES, SERIAL
from runnel.ops.simd import I32, I64, LANES, address, build_call

BLOCK = 2 * LANES  # rows and columns of `multiply_block`
_COMPILED = FEATURES >= {"amx-tile", "amx-bf16", "avx512f", "avx512bf16"}
_BYTE = ir.IntType(8)
_PERMISSION = 158, 0x1023, 18  # arch_prctl, ARCH_REQ_XCOMP_PERM, the tiles' data
# Palette 1; from byte 16 on the bytes of a row of each tile, from byte 48 on its rows.
_CONFIGURATION = np.array([1] + [0] * 15 + [64, 0] * 8 + [0] * 16 + [16] * 8 + [0] * 8, np.uint8)


@functools.cache
def has_tiles() -> bool:
    """Return whether kernels may use the tiles: the processor has them, and Linux gives them to this process, which must ask."""
    return _COMPILED and sys.platform == "linux" and ctypes.CDLL(None).syscall(*_PERMISSION) == 0


def _call(builder: Any, name: str, *arguments: Any) -> None:
    values = [ir.Constant(_BYTE, a) if isinstance(a, int) else a for a in arguments]
    build_call(builder, f"llvm.x86.{name}", ir.VoidType(), values)


@intrinsic
def _load_configuration(typing_context: Any, configuration: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        if _COMPILED:
            _call(builder, "ldtilecfg", builder.bitcast(values[0], _BYTE.as_pointer()))
        return context.get_dummy_value()

    return types.none(configuration), generate


@intrinsic
def release_tiles(typing_context: Any) -> Any:
    """Free the tiles of this thread, so that the system need not save them."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        if _COMPILED:
            _call(builder, "tilerelease")
        return context.get_dummy_value()

    return types.none(), generate


@njit(**SERIAL)
def configure_tiles() -> None:
    """Prepare the tiles of this thread for `multiply_block`."""
    _load_configuration(address(_CONFIGURATION))


@intrinsic
def multiply_block(
    typing_context: Any, sums: Any, sums_row: Any, left: Any, left_row: Any, right: Any, right_row: Any, depth: Any, fresh: Any
) -> Any:  # fmt: skip
    """Add to BLOCK x BLOCK fp32 `sums` the product of bf16 left (BLOCK, 2 depth) and right, `depth` rows of BLOCK pairs of rows.

    Rows of sums, left and right start sums_row, left_row and right_row words apart; `depth` counts words, a multiple of LANES.
    If `fresh`, the old sums are not read. The thread's tiles must be configured. On a processor without tiles this does nothing.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        if _COMPILED:
            _build_block(builder, BLOCK, *values)
        return context.get_dummy_value()

    size = types.intp
    return types.none(sums, size, left, size, right, size, size, types.boolean), generate


@intrinsic
def multiply_half_block(
    typing_context: Any, sums: Any, sums_row: Any, left: Any, left_row: Any, right: Any, right_row: Any, depth: Any, fresh: Any
) -> Any:  # fmt: skip
    """Compute the first LANES rows of `multiply_block`, with the same result, and nothing else."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        if _COMPILED:
            _build_block(builder, LANES, *values)
        return context.get_dummy_value()

    size = types.intp
    return types.none(sums, size, left, size, right, size, size, types.boolean), generate


def _build_block(
    builder: Any, rows: int, sums: Any, sums_row: Any, left: Any, left_row: Any, right: Any, right_row: Any, depth: Any,
    fresh: Any,
) -> None:  # fmt: skip
    """Emit `multiply_block`: tiles 0 to 3 are the sums, 4 and 5 of the left factor, 6 and 7 of the right one.

    With LANES `rows`, tiles 2, 3 and 5 are not used.
    """

    def place(base: Any, row: Any, first: int, column: Any) -> list[Any]:
        """The place of a tile from row `first` on and its stride, as the instructions take them."""
        offset = builder.add(builder.mul(row, ir.Constant(I64, first)), column)
        pointer = builder.gep(builder.bitcast(base, I32.as_pointer()), [offset])
        return [builder.bitcast(pointer, _BYTE.as_pointer()), builder.mul(row, ir.Constant(I64, 4))]

    halves = [(0, ir.Constant(I64, 0)), (LANES, ir.Constant(I64, LANES))]
    outputs = [place(sums, sums_row, row, column) for row, _ in halves if row < rows for _, column in halves]
    with builder.if_else(fresh) as (cleared, continued):
        with cleared:
            for tile in range(len(outputs)):
                _call(builder, "tilezero", tile)
        with continued:
            for tile, output in enumerate(outputs):
                _call(builder, "tileloadd64", tile, *output)
    with cgutils.for_range_slice(builder, ir.Constant(I64, 0), depth, ir.Constant(I64, LANES), I64) as (k, _):
        below = builder.gep(builder.bitcast(right, I32.as_pointer()), [builder.mul(k, right_row)])
        for half, (row, column) in enumerate(halves):
            if row < rows:
                _call(builder, "tileloadd64", 4 + half, *place(left, left_row, row, k))
            _call(builder, "tileloadd64", 6 + half, *place(below, right_row, 0, column))
        for tile in range(len(outputs)):
            _call(builder, "tdpbf16ps", tile, 4 + tile // 2, 6 + tile % 2)
    for tile, output in enumerate(outputs):
        _call(builder, "tilestored64", tile, *output)
