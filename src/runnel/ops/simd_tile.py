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


def _tile(builder: Any, bf16: bool, accumulators: list[list[Any]], left: list[Any], right: list[Any], depth: Any) -> None:
    """accumulators += A B, looping over `depth` words; left = [pointer, offset, row stride, depth stride], right = [pointer, offset]."""
    pointer, offset, row_stride, depth_stride = left
    with cgutils.for_range(builder, depth) as loop:
        at = builder.add(right[1], builder.mul(loop.index, ir.Constant(I64, TILE_COLUMNS)))
        columns = []
        for start in range(0, TILE_COLUMNS, LANES):
            address_ = build_pointer(builder, right[0], builder.add(at, ir.Constant(I64, start)), VI32)
            columns.append(builder.load(address_, align=4))
        at = builder.add(offset, builder.mul(loop.index, depth_stride))
        for row, sums in enumerate(accumulators):
            place = builder.add(at, builder.mul(row_stride, ir.Constant(I64, row)))
            word = builder.load(build_pointer(builder, pointer, place, I32), align=4)
            for words, slot in zip(columns, sums, strict=True):
                builder.store(_multiply_add(builder, bf16, words, word, builder.load(slot)), slot)


@intrinsic  # type: ignore[untyped-decorator]
def tile_product(
    typing_context: Any,
    kind: Any,
    sums: Any,
    at: Any,
    factors: Any,
    factors_at: Any,
    factors_stride: Any,
    left: Any,
    left_at: Any,
    left_row: Any,
    left_depth: Any,
    right: Any,
    right_at: Any,
    depth: Any,
) -> Any:
    """One tile of a matrix product: sums[r, :] = factors[r] * sums[r, :] + sum over k of left[r, k] * right[k, :].

    `sums` has TILE_ROWS rows of TILE_COLUMNS fp32 numbers; row r of `left` starts left_row words after row r-1 and its words
    are left_depth apart; `right` has rows of TILE_COLUMNS words; `depth` counts words. With factors_stride < 0 the old sums are not
    read. Pairs of bf16 numbers in words (if `kind` points to uint16) multiply exactly and add in fp32.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        _, base, offset, factor, factor_at, factor_stride, *operands, length = values
        slots = [[cgutils.alloca_once(builder, VF32) for _ in range(TILE_COLUMNS // LANES)] for _ in range(TILE_ROWS)]
        places = []
        for row in range(TILE_ROWS):
            start = [builder.add(offset, ir.Constant(I64, row * TILE_COLUMNS + c)) for c in range(0, TILE_COLUMNS, LANES)]
            places.append([build_pointer(builder, base, s, VF32) for s in start])
        fresh = builder.icmp_signed("<", factor_stride, ir.Constant(I64, 0))
        with builder.if_else(fresh) as (without, with_old):
            with without:
                for slot in (slot for row in slots for slot in row):
                    builder.store(build_constant(VF32, 0.0), slot)
            with with_old:
                for row in range(TILE_ROWS):
                    at_ = builder.add(factor_at, builder.mul(factor_stride, ir.Constant(I64, row)))
                    scale = build_splat(builder, builder.load(build_pointer(builder, factor, at_, F32), align=4), VF32)
                    for slot, place in zip(slots[row], places[row], strict=True):
                        builder.store(builder.fmul(scale, builder.load(place, align=4)), slot)
        _tile(builder, is_bf16(kind), slots, operands[:4], operands[4:], length)
        for row in range(TILE_ROWS):
            for slot, place in zip(slots[row], places[row], strict=True):
                builder.store(builder.load(slot), place, align=4)
        return context.get_dummy_value()

    offsets = types.intp
    signature = types.none(
        kind, sums, offsets, factors, offsets, offsets, left, offsets, offsets, offsets, right, offsets, offsets
    )
    return signature, generate
