"""Matrix products inside numba kernels, in fp32 or in pairs of bf16 numbers, and their layouts.

See `simd` for pointers and words. `kind` is any pointer whose type selects the numbers: float32, or
uint16 for bf16. A panel is TILE_COLUMNS neighboring columns of a right factor, row after row. A
tile in this file is TILE_ROWS x TILE_COLUMNS sums in vector registers, not one of the processor's
tiles, whose products are in `simd` (`multiply_block`).

    layouts    `transpose` blocks of words, `pack_words`: rows as words of a right factor
    products   `strided_product`, one tile of sums; `multiply_panel` and `multiply`, which divide a
               product into tiles
    rows       `load_up_to`, `store_up_to`, `copy_row`, `read_rows`, `fill`; `place_in_pool`
"""

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.base import BaseContext
from numba.core.typing import Context, Signature
from numba.extending import intrinsic

from runnel.ops.numba_math import (
    SERIAL,
    Array,
    Definition,
    Number,
    Pointer,
    Vector,
    as_f32,
    build_constant,
    emitting,
)
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
    address,
    build_call,
    build_fma,
    build_pointer,
    build_round,
    build_splat,
    f32x16,
    is_bf16,
    load,
    load_some,
    mul,
    shift,
    splat,
    store,
    store_some,
)

_ZERO = np.float32(0.0)


@intrinsic
def as_kind(typing_context: Context, kind: types.Type, base: types.Type) -> Definition:
    """Return `base` as a pointer to the type of `kind` (fp32, or uint16 for bf16)."""

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, values: list[ir.Value]
    ) -> ir.Value:
        return builder.bitcast(values[1], context.get_value_type(kind))

    return kind(kind, base), generate


@intrinsic
def numbers_per_word(typing_context: Context, kind: types.Type) -> Definition:
    """Return 1 if `kind` points to fp32, 2 for bf16, 4 for bytes."""
    return types.int64(kind), emitting(
        lambda builder, _: ir.Constant(I64, 32 // kind.dtype.bitwidth)
    )


@intrinsic
def store_pairs(
    typing_context: Context,
    words: types.Type,
    offset: types.Type,
    low: types.Type,
    high: types.Type,
) -> Definition:
    """Write 16 words, each a pair of bf16 numbers from the same lane of `low` and `high`."""
    # lane 0 of low, lane 0 of high, lane 1 of low, ...
    order = [lane // 2 + LANES * (lane % 2) for lane in range(2 * LANES)]

    def build(
        builder: ir.IRBuilder, words: ir.Value, offset: ir.Value, low: ir.Value, high: ir.Value
    ) -> None:
        pairs = builder.shuffle_vector(
            build_round(builder, low),
            build_round(builder, high),
            ir.Constant(ir.VectorType(I32, 2 * LANES), order),
        )
        builder.store(pairs, build_pointer(builder, words, offset, pairs.type), align=4)

    return types.none(words, types.intp, f32x16, f32x16), emitting(build)


@intrinsic
def transpose(
    typing_context: Context,
    source: types.Type,
    stride: types.Type,
    target: types.Type,
    target_stride: types.Type,
) -> Definition:
    """Transpose a block of 16 x 16 words; rows are `stride` words apart."""

    def build(
        builder: ir.IRBuilder,
        source: ir.Value,
        stride: ir.Value,
        target: ir.Value,
        target_stride: ir.Value,
    ) -> None:
        def place(base: ir.Value, stride: ir.Value, row: int) -> ir.Value:
            return build_pointer(builder, base, builder.mul(stride, ir.Constant(I64, row)), VF32)

        rows = [builder.load(place(source, stride, row), align=4) for row in range(LANES)]
        width = LANES // 2
        while width:  # swap the off-diagonal halves of successively smaller blocks
            low = [lane if not lane & width else lane - width + LANES for lane in range(LANES)]
            high = [lane + width if not lane & width else lane + LANES for lane in range(LANES)]
            for row in range(LANES):
                if not row & width:
                    a = rows[row]
                    b = rows[row + width]
                    rows[row] = builder.shuffle_vector(a, b, ir.Constant(VI32, low))
                    rows[row + width] = builder.shuffle_vector(a, b, ir.Constant(VI32, high))
            width //= 2
        for row, value in enumerate(rows):
            builder.store(value, place(target, target_stride, row), align=4)

    return types.none(source, types.intp, target, types.intp), emitting(build)


def _multiply_add(
    builder: ir.IRBuilder, bf16: bool, words: ir.Value, word: ir.Value, sums: ir.Value
) -> ir.Value:
    """Return sums + words * word in all lanes; for bf16 the sum of both products of the pairs."""
    a = builder.bitcast(words, VI32)
    b = build_splat(builder, word, VI32)
    if not bf16:
        return build_fma(builder, builder.bitcast(a, VF32), builder.bitcast(b, VF32), sums)
    if NATIVE_BF16:
        pairs = [builder.bitcast(v, BF16_PAIRS) for v in (a, b)]
        return build_call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", VF32, [sums, *pairs])
    for part in (
        lambda v: builder.shl(v, build_constant(VI32, 16)),
        lambda v: builder.and_(v, build_constant(VI32, 0xFFFF0000)),
    ):
        sums = build_fma(
            builder, builder.bitcast(part(a), VF32), builder.bitcast(part(b), VF32), sums
        )
    return sums


@intrinsic
def strided_product(
    typing_context: Context,
    kind: types.Type,
    sums: types.Type,
    sums_row: types.Type,
    factor: types.Type,
    left: types.Type,
    left_row: types.Type,
    left_depth: types.Type,
    right: types.Type,
    right_row: types.Type,
    depth: types.Type,
) -> Definition:
    """Compute one tile of a matrix product: sums[r, :] = factor * sums[r, :] + sum over k of
    left[r, k] * right[k, :].

    `sums` has TILE_ROWS rows of TILE_COLUMNS fp32 numbers, sums_row numbers apart; row r of `left`
    starts left_row words after row r-1 and its words are left_depth apart; `right` has rows of
    TILE_COLUMNS words, right_row apart; `depth` counts words. With a factor of 0 the old sums are
    not read. Pairs of bf16 numbers in words (if `kind` points to uint16) are multiplied exactly and
    added in fp32.
    """

    def build(
        builder: ir.IRBuilder,
        _: ir.Value,
        sums: ir.Value,
        sums_row: ir.Value,
        factor: ir.Value,
        left: ir.Value,
        left_row: ir.Value,
        left_depth: ir.Value,
        right: ir.Value,
        right_row: ir.Value,
        depth: ir.Value,
    ) -> None:
        columns = [ir.Constant(I64, c) for c in range(0, TILE_COLUMNS, LANES)]
        sums_rows, left_rows = (
            [builder.mul(row, ir.Constant(I64, r)) for r in range(TILE_ROWS)]
            for row in (sums_row, left_row)
        )
        places = [
            build_pointer(builder, sums, builder.add(row, column), VF32)
            for row in sums_rows
            for column in columns
        ]
        slots = [cgutils.alloca_once(builder, VF32) for _ in places]
        with builder.if_else(builder.fcmp_ordered("==", factor, ir.Constant(F32, 0.0))) as (
            cleared,
            continued,
        ):
            with cleared:
                for slot in slots:
                    builder.store(build_constant(VF32, 0.0), slot)
            with continued:
                scale = build_splat(builder, factor, VF32)
                for slot, place in zip(slots, places, strict=True):
                    builder.store(builder.fmul(scale, builder.load(place, align=4)), slot)
        with cgutils.for_range(builder, depth) as loop:
            first = builder.mul(loop.index, right_row)
            starts = [
                build_pointer(builder, right, builder.add(first, column), VI32)
                for column in columns
            ]
            words = [builder.load(start, align=4) for start in starts]
            first = builder.mul(loop.index, left_depth)
            for r, row in enumerate(left_rows):
                # one word of the left row times the right vectors, added to the slots of row r
                word = builder.load(
                    build_pointer(builder, left, builder.add(first, row), I32), align=4
                )
                for slot, several in zip(slots[r * len(columns) :], words, strict=False):
                    builder.store(
                        _multiply_add(builder, is_bf16(kind), several, word, builder.load(slot)),
                        slot,
                    )
        for slot, place in zip(slots, places, strict=True):
            builder.store(builder.load(slot), place, align=4)

    offset = types.intp
    return types.none(
        kind, sums, offset, types.float32, left, offset, offset, right, offset, offset
    ), emitting(build)


@njit(**SERIAL)
def multiply_panel(
    kind: Pointer,
    left: Pointer,
    left_row: int,
    right: Pointer,
    rows: int,
    depth: int,
    factor: Number,
    sums: Pointer,
    sums_row: int,
) -> None:
    """Set sums = factor * sums + left @ right for a panel `right` and `rows` rows, rounded up to
    TILE_ROWS.

    The `depth` words of a row of `left` are neighbors, and its rows are left_row words apart; rows
    of `right` follow each other. Rows of `sums` are sums_row numbers apart.
    """
    for r in range(0, rows, TILE_ROWS):
        tile = shift(sums, r * sums_row)
        row = shift(left, r * left_row)
        strided_product(kind, tile, sums_row, factor, row, left_row, 1, right, TILE_COLUMNS, depth)


# Which elements of a square left side of a product are not zero: all, those up to the diagonal, or
# those from the diagonal on. Tiles of zeros are skipped.
FULL, LOWER, UPPER = 0, 1, 2


@njit(**SERIAL)
def multiply(
    out: Array,
    a: Array,
    a_row: int,
    a_step: int,
    b: Array,
    rows: int,
    inner: int,
    scale: Number,
    triangle: int = FULL,
) -> None:
    """Set out = scale * out + a @ b, all fp32 and C-contiguous; with scale 0, `out` is not read.

    Args:
        out: (>= rows, columns); all its columns are written.
        a: any shape; element (i, k) of the product's left side is the flat element i * a_row + k *
            a_step.
        b: (>= inner, >= columns).
        rows: multiple of TILE_ROWS.      columns: multiple of TILE_COLUMNS.
        inner: any; with a triangle it equals `rows`.
        triangle: LOWER: a is zero where k > i. UPPER: a is zero where k < i. Within tiles the zeros
            must be stored.
    """
    columns = out.shape[1]
    b_row = b.shape[1]
    for column in range(0, columns, TILE_COLUMNS):
        for row in range(0, rows, TILE_ROWS):
            first = row if triangle == UPPER else 0
            count = (row + TILE_ROWS if triangle == LOWER else inner) - first
            sums = shift(address(out), row * columns + column)
            left = shift(address(a), row * a_row + first * a_step)
            right = shift(address(b), first * b_row + column)
            strided_product(sums, sums, columns, scale, left, a_row, a_step, right, b_row, count)


@njit(**SERIAL)
def place_in_pool(pool: Array, row: int, layer: int, index: int) -> Pointer:
    """Return a pointer to pool[row, layer, index]: the pool has the states of all unfinished texts,
    (rows, layers, ...).
    """
    offset = row * pool.strides[0] + layer * pool.strides[1] + index * pool.strides[2]
    return shift(address(pool), offset // pool.itemsize)


@njit(**SERIAL)
def load_up_to(base: Pointer, offset: int, count: int) -> Vector:
    """Load a vector, but read no more than `count` numbers; the others are zero."""
    return load(base, offset) if count >= LANES else load_some(base, offset, count)


@njit(**SERIAL)
def store_up_to(base: Pointer, offset: int, x: Vector, count: int) -> None:
    """Store a vector, but write no more than `count` numbers. (A masked store of bf16 takes many
    times as long as `store`, so it is used only where it must be.)
    """
    if count >= LANES:
        store(base, offset, x)
    else:
        store_some(base, offset, x, count)


@njit(**SERIAL)
def copy_row(source: Pointer, width: int, out: Pointer) -> None:
    """Copy `width` numbers, rounded or widened where the types differ."""
    for c in range(0, width, LANES):
        store_up_to(out, c, load_up_to(source, c, width - c), width - c)


@njit(**SERIAL)
def read_rows(
    line: Array, distance: int, t: int, count: int, rows: int, column: int, width: int, out: Array
) -> None:
    """Copy a part of `FlatRows` to `out` as fp32: of `count` rows from row `t` on, `width` numbers
    from `column` on. Then write zeros, up to `rows` rows in all.
    """
    for j in range(count):
        at = (t + j) * distance + column
        # slices: checking an index of unknown sign prevents vector loads
        source = line[at : at + width]
        target = out[j]
        for c in range(width):
            target[c] = as_f32(source[c])
    for j in range(count, rows):
        out[j] = np.float32(0.0)


@njit(**SERIAL)
def fill(out: Pointer, count: int, value: Number) -> None:
    """Set the first `count` elements to a value."""
    for i in range(count):
        out[i] = value


@njit(**SERIAL)
def pack_words(
    kind: Pointer,
    source: Pointer,
    stride: int,
    rows: int,
    factors: Pointer,
    words: Pointer,
    width: int,
) -> None:
    """Write rows of `source` times their factors as words of a right factor: for bf16, two rows
    become one row of pairs; for fp32, rows stay as they are.
    """
    step = numbers_per_word(kind)
    for r in range(0, rows, step):
        first = r * stride
        second = (r + 1) * stride
        target = r // step * width
        for c in range(0, width, LANES):
            low = mul(load(source, first + c), splat(factors[r]))
            if step == 1:
                store(words, target + c, low)
            elif r + 1 < rows:
                store_pairs(
                    words, target + c, low, mul(load(source, second + c), splat(factors[r + 1]))
                )
            else:
                store_pairs(words, target + c, low, splat(_ZERO))
