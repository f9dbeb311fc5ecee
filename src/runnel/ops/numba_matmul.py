"""Small fp32 matrix products inside numba kernels, as fast as BLAS and without calling it.

LLVM does not keep a tile of sums in registers for numba's loops, so the innermost tile is written in
LLVM's vector types here. Operands are scratch matrices in cache whose row lengths are multiples of `LANES` and whose row
counts are multiples of `ROWS`, which divides LANES (padded with zeros), so there are no edge cases.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from runnel.ops.numba_math import FEATURES, SERIAL, Array, Number

_WIDE = "avx512f" in FEATURES
LANES = 16 if _WIDE else 8  # numbers per vector
ROWS = 8 if _WIDE else 4  # rows of a tile: ROWS * 2 vectors of sums leave registers for the operands

_F32 = ir.FloatType()
_VECTOR = ir.VectorType(_F32, LANES)
_INDEX = ir.IntType(64)


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, offset: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(builder.bitcast(data, _F32.as_pointer()), [offset])


def _tile(vectors: int, accumulate: bool) -> Any:
    """Return an intrinsic for out[ROWS, vectors * LANES] = (scale * out +) a @ b; matrices are arrays, offsets and strides."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        out, out_at, out_row, a, a_at, a_row, a_step, b, b_at, b_row, inner, scale = arguments
        out_type, a_type, b_type = (signature.args[i] for i in (0, 3, 7))
        lanes = ir.Constant(_INDEX, LANES)
        multiply_add = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_VECTOR, [_VECTOR] * 3), f"llvm.fmuladd.v{LANES}f32"
        )

        def spread(value: Any) -> Any:
            first = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
            return builder.shuffle_vector(
                first, ir.Constant(_VECTOR, ir.Undefined), ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
            )

        def as_vector(pointer: Any, offset: Any) -> Any:
            return builder.bitcast(builder.gep(pointer, [offset]), _VECTOR.as_pointer())

        out_pointer = _pointer(context, builder, out_type, out, out_at)
        a_pointer = _pointer(context, builder, a_type, a, a_at)
        b_pointer = _pointer(context, builder, b_type, b, b_at)
        cells = []
        for i in range(ROWS):
            for v in range(vectors):
                offset = builder.add(builder.mul(ir.Constant(_INDEX, i), out_row), builder.mul(ir.Constant(_INDEX, v), lanes))
                cells.append((i, v, as_vector(out_pointer, offset), cgutils.alloca_once(builder, _VECTOR)))
        for _, _, target, total in cells:
            start = (
                builder.fmul(builder.load(target, align=4), spread(scale)) if accumulate else ir.Constant(_VECTOR, [0.0] * LANES)
            )
            builder.store(start, total)
        with cgutils.for_range(builder, inner) as loop:
            b_offset = builder.mul(loop.index, b_row)
            columns = [
                builder.load(as_vector(b_pointer, builder.add(b_offset, ir.Constant(_INDEX, v * LANES))), align=4)
                for v in range(vectors)
            ]
            a_offset = builder.mul(loop.index, a_step)
            for i in range(ROWS):
                at = builder.add(a_offset, builder.mul(ir.Constant(_INDEX, i), a_row))
                value = spread(builder.load(builder.gep(a_pointer, [at])))
                for _, v, _, total in cells[i * vectors : (i + 1) * vectors]:
                    builder.store(builder.call(multiply_add, [value, columns[v], builder.load(total)]), total)
        for _, _, target, total in cells:
            builder.store(builder.load(total), target, align=4)
        return context.get_dummy_value()

    @intrinsic
    def tile(
        typing_context: Any, out: Any, out_at: Any, out_row: Any, a: Any, a_at: Any, a_row: Any, a_step: Any, b: Any,
        b_at: Any, b_row: Any, inner: Any, scale: Any,
    ) -> Any:  # fmt: skip
        index = types.int64
        return types.void(out, index, index, a, index, index, index, b, index, index, index, types.float32), generate

    return tile


_set_two, _set_one = _tile(2, False), _tile(1, False)
_add_two, _add_one = _tile(2, True), _tile(1, True)


# The known zero elements of a square left side; their products are skipped, tile by tile.
FULL, LOWER, UPPER = 0, 1, 2


@njit(**SERIAL)
def multiply(
    out: Array, a: Array, a_row: int, a_step: int, b: Array, rows: int, inner: int, scale: Number, triangle: int = FULL
) -> None:
    """Set out = scale * out + a @ b; with scale 0, `out` is not read.

    Args:
        out: (>= rows, columns) C-contiguous fp32; all its columns are written.
        a: C-contiguous fp32, any shape; element (i, k) of the product's left side is the flat element i * a_row + k * a_step.
        b: (>= inner, >= columns) C-contiguous fp32.
        rows: multiple of ROWS.   columns: multiple of LANES.   inner: any; with a triangle it equals `rows`.
        triangle: LOWER: a is zero where k > i. UPPER: a is zero where k < i. Within tiles the zeros must be stored.
    """
    columns, b_row = out.shape[1], b.shape[1]
    for column in range(0, columns, 2 * LANES):
        two = column + 2 * LANES <= columns
        for row in range(0, rows, ROWS):
            first = row if triangle == UPPER else 0
            count = (row + ROWS if triangle == LOWER else inner) - first
            out_at, a_at, b_at = row * columns + column, row * a_row + first * a_step, first * b_row + column
            if scale == np.float32(0.0):
                if two:
                    _set_two(out, out_at, columns, a, a_at, a_row, a_step, b, b_at, b_row, count, scale)
                else:
                    _set_one(out, out_at, columns, a, a_at, a_row, a_step, b, b_at, b_row, count, scale)
            elif two:
                _add_two(out, out_at, columns, a, a_at, a_row, a_step, b, b_at, b_row, count, scale)
            else:
                _add_one(out, out_at, columns, a, a_at, a_row, a_step, b, b_at, b_row, count, scale)
