"""One tile of a matrix product inside a numba kernel, in fp32 or in pairs of bf16 numbers; see `simd` for words and pointers."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from runnel.ops.simd import (
    BF16_PAIRS,
    F32,
    I32,
    I64,
    LANES,
    NATIVE_BF16,
    TILE_COLUMNS,
    TILE_ROWS,
    VF32,
    VI32,
    build_call,
    build_constant,
    build_fma,
    build_pointer,
    build_splat,
    is_bf16,
)


def _multiply_add(builder: Any, bf16: bool, words: Any, word: Any, sums: Any) -> Any:
    """sums + words * word in all lanes; for bf16 the sum of both products of the pairs."""
    a, b = builder.bitcast(words, VI32), build_splat(builder, word, VI32)
    if not bf16:
        return build_fma(builder, builder.bitcast(a, VF32), builder.bitcast(b, VF32), sums)
    if NATIVE_BF16:
        pairs = [builder.bitcast(v, BF16_PAIRS) for v in (a, b)]
        return build_call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", VF32, [sums, *pairs])
    for part in (lambda v: builder.shl(v, build_constant(VI32, 16)), lambda v: builder.and_(v, build_constant(VI32, 0xFFFF0000))):
        sums = build_fma(builder, builder.bitcast(part(a), VF32), builder.bitcast(part(b), VF32), sums)
    return sums


def _row_starts(builder: Any, base: Any) -> list[list[Any]]:
    """Pointers to the vectors of a tile of sums."""
    starts = [[row * TILE_COLUMNS + c for c in range(0, TILE_COLUMNS, LANES)] for row in range(TILE_ROWS)]
    return [[build_pointer(builder, base, ir.Constant(I64, at), VF32) for at in row] for row in starts]


@intrinsic  # type: ignore[untyped-decorator]
def tile_product(
    typing_context: Any,
    kind: Any,
    sums: Any,
    factors: Any,
    factors_stride: Any,
    left: Any,
    left_row: Any,
    left_depth: Any,
    right: Any,
    depth: Any,
) -> Any:
    """One tile of a matrix product: sums[r, :] = factors[r] * sums[r, :] + sum over k of left[r, k] * right[k, :].

    `sums` has TILE_ROWS rows of TILE_COLUMNS fp32 numbers; row r of `left` starts left_row words after row r-1 and its words
    are left_depth apart; `right` has rows of TILE_COLUMNS words; `depth` counts words. With factors_stride < 0 the old sums
    are not read. Pairs of bf16 numbers in words (if `kind` points to uint16) are multiplied exactly and added in fp32.
    """

    def scaled(builder: Any, factor: Any, stride: Any, row: int, place: Any) -> Any:
        at = builder.mul(stride, ir.Constant(I64, row))
        scale = builder.load(build_pointer(builder, factor, at, F32), align=4)
        return builder.fmul(build_splat(builder, scale, VF32), builder.load(place, align=4))

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        _, base, factor, stride, left_, row_stride, depth_stride, right_, length = values
        places = _row_starts(builder, base)
        slots = [[cgutils.alloca_once(builder, VF32) for _ in row] for row in places]
        with builder.if_else(builder.icmp_signed("<", stride, ir.Constant(I64, 0))) as (fresh, continued):
            with fresh:
                for slot in (slot for row in slots for slot in row):
                    builder.store(build_constant(VF32, 0.0), slot)
            with continued:
                for row in range(TILE_ROWS):
                    for slot, place in zip(slots[row], places[row], strict=True):
                        builder.store(scaled(builder, factor, stride, row, place), slot)
        with cgutils.for_range(builder, length) as loop:
            first = builder.mul(loop.index, ir.Constant(I64, TILE_COLUMNS))
            starts = [builder.add(first, ir.Constant(I64, c)) for c in range(0, TILE_COLUMNS, LANES)]
            columns = [builder.load(build_pointer(builder, right_, at, VI32), align=4) for at in starts]
            first = builder.mul(loop.index, depth_stride)
            for row, sums_ in enumerate(slots):
                at = builder.add(first, builder.mul(row_stride, ir.Constant(I64, row)))
                word = builder.load(build_pointer(builder, left_, at, I32), align=4)
                for words, slot in zip(columns, sums_, strict=True):
                    builder.store(_multiply_add(builder, is_bf16(kind), words, word, builder.load(slot)), slot)
        for slot, place in zip((s for row in slots for s in row), (p for row in places for p in row), strict=True):
            builder.store(builder.load(slot), place, align=4)
        return context.get_dummy_value()

    offset = types.intp
    return types.none(kind, sums, factors, offset, left, offset, offset, right, offset), generate
