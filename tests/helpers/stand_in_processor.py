"""Software in place of instructions that this processor may not have: VNNI's dot product, and the
tiles of AMX.

Results are the same numbers (of bf16 tiles: up to the order of sums). Import this before any kernel
is compiled, in a process whose NUMBA_CACHE_DIR is its own: numba's cache does not see what was
replaced.
"""

from types import ModuleType
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from runnel.backbones.mamba2 import cpu as mamba2
from runnel.ops import chunk_tiles, int8_matmul, matmul
from runnel.ops.numba_math import SERIAL, build_constant
from runnel.ops.simd import BLOCK, LANES, TILE_COLUMNS, TILE_ROWS, VI32, shift
from runnel.ops.simd_tile import strided_product


def build_dot(builder: Any, sums: Any, inputs: Any, weights: Any) -> Any:
    """Return what `int8_matmul._build_dot` returns, without VNNI."""
    for byte in range(4):
        unsigned = builder.and_(
            builder.lshr(inputs, build_constant(VI32, 8 * byte)), build_constant(VI32, 255)
        )
        left = builder.shl(weights, build_constant(VI32, 24 - 8 * byte))
        sums = builder.add(
            sums, builder.mul(unsigned, builder.ashr(left, build_constant(VI32, 24)))
        )
    return sums


@intrinsic
def as_bits(typing_context: Any, pointer: Any) -> Any:
    """Return a pointer to uint16."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.bitcast(values[0], ir.IntType(16).as_pointer())

    return types.CPointer(types.uint16)(pointer), generate


@njit(**SERIAL)
def multiply_rows(
    rows: int,
    sums: Any,
    sums_row: int,
    left: Any,
    left_row: int,
    right: Any,
    right_row: int,
    depth: int,
    fresh: bool,
) -> None:
    bits = as_bits(left)
    for c in range(0, min(BLOCK, right_row), TILE_COLUMNS):
        for r in range(0, rows, TILE_ROWS):
            own = shift(sums, r * sums_row + c)
            row = shift(left, r * left_row)
            factor = 0.0 if fresh else 1.0
            strided_product(
                bits, own, sums_row, factor, row, left_row, 1, shift(right, c), right_row, depth
            )


@njit(**SERIAL)
def multiply_block(
    sums: Any,
    sums_row: int,
    left: Any,
    left_row: int,
    right: Any,
    right_row: int,
    depth: int,
    fresh: bool,
) -> None:
    multiply_rows(BLOCK, sums, sums_row, left, left_row, right, right_row, depth, fresh)


@njit(**SERIAL)
def multiply_half_block(
    sums: Any,
    sums_row: int,
    left: Any,
    left_row: int,
    right: Any,
    right_row: int,
    depth: int,
    fresh: bool,
) -> None:
    multiply_rows(LANES, sums, sums_row, left, left_row, right, right_row, depth, fresh)


@njit(**SERIAL)
def multiply_bytes(
    sums: Any,
    sums_row: int,
    left: Any,
    left_row: int,
    right: Any,
    right_row: int,
    depth: int,
    fresh: bool,
) -> None:
    for r in range(BLOCK):
        for c in range(min(BLOCK, right_row)):
            total = 0 if fresh else sums[r * sums_row + c]
            for k in range(depth):
                word = right[k * right_row + c]
                for byte in range(4):
                    signed = ((word >> (8 * byte) & 255) ^ 128) - 128
                    total += left[4 * (r * left_row + k) + byte] * signed
            sums[r * sums_row + c] = total


def use(*, tiles: bool) -> None:
    """Put the stand-ins in their places.

    Mamba-2 lays its chunks out for tiles whose columns are those of a block: on narrow processors
    its tiles stay off.
    """
    places: list[tuple[ModuleType, dict[str, Any]]]
    places = [(int8_matmul, {"_build_dot": build_dot, "vnni_problem": lambda: None})]
    places += [(module, {"has_tiles": lambda: tiles}) for module in (matmul, int8_matmul)]
    if tiles:
        blocks = {"multiply_block": multiply_block, "multiply_half_block": multiply_half_block}
        places += [(matmul, blocks), (int8_matmul, {"multiply_bytes": multiply_bytes})]
        if TILE_COLUMNS == BLOCK:
            places += [
                (chunk_tiles, {"multiply_block": multiply_block}),
                (mamba2, {"has_tiles": lambda: True}),
            ]
    for module, values in places:
        for name, value in values.items():
            setattr(module, name, value)
