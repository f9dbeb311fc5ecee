"""Vectors of sixteen fp32 numbers inside numba kernels, and the processor's matrix tiles (Intel
AMX).

    elementwise    `add`, `mul`, `fma`, `exp`, `silu`, ...: a vector of vectors; `total`: the sum
    memory         `address`, `shift`, `load`, `store`, `load_some`, ..., `next_task`
    tiles          `has_tiles`, `configure_tiles`, `multiply_block`, ..., `release_tiles`

With scalar loops, the compiler guesses register use and vector width; kernels that must be as fast
as a matrix product use these vectors instead. LLVM splits them on machines with narrower vectors.
The `build_*` functions emit the same code inside other intrinsics.

Memory is accessed by `address(array)` and a flat element offset: callers pass C-contiguous arrays
and stay inside them. (Arrays themselves would be reference-counted around every load, which costs
more than the loads.) Pointers to uint16 mean bf16 bit patterns, which loads widen and stores round.
A *word* is 32 bits: one fp32 number, or two bf16 numbers of neighboring index, low half first;
words are kept in float32 arrays whatever their content.

Tiles are registers that multiply matrices of bf16 numbers or of bytes several times as fast as
vectors do. A tile has 16 rows of 16 words (64 bytes):

    of the left factor     16 rows, of each 16 words: 32 neighboring bf16 numbers, or 64 bytes
    of the right factor    16 rows of words, of each 16 columns; a word has the numbers of its
                           column in two rows of the matrix (bf16) or in four (bytes)
    of the sums            16 rows, of each 16 numbers

A thread loads a configuration before it uses tiles and releases them afterwards, because other
libraries configure them too. Rows that cross cache lines take up to nine times as long to load.

TILE_ROWS x TILE_COLUMNS is something else: the part of a product that a loop of vectors sums at
once (`simd_tile`). BLOCK x BLOCK is the part that tiles sum at once.
"""

import ctypes
import functools
import sys
from collections.abc import Callable
from functools import partial

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.base import BaseContext
from numba.core.datamodel.manager import DataModelManager
from numba.core.errors import TypingError
from numba.core.typing import Context, Signature
from numba.extending import intrinsic, models, register_jitable, register_model

from runnel.ops import numba_math
from runnel.ops.numba_math import (
    FEATURES,
    SERIAL,
    Definition,
    Number,
    Vector,
    build_constant,
    build_exp,
    build_widen,
    emitting,
)

LANES = 16
NATIVE_BF16 = FEATURES >= {"avx512bf16", "avx512vl"}  # whether the bf16 dot product exists
_AVX512 = "avx512f" in FEATURES  # whether the processor's vectors have 16 lanes, not 8
# Rows and columns of a product that vectors sum at once, without the processor's tiles; the sums
# must fit the vector registers (32 of 16 lanes, or 16 of 8).
TILE_ROWS = 8 if _AVX512 else 4
TILE_COLUMNS = 2 * LANES if _AVX512 else LANES


@register_jitable
def ceil_div(size: int, unit: int) -> int:
    """Return how many units hold `size`."""
    return (size + unit - 1) // unit


@register_jitable
def round_up(size: int, unit: int = LANES) -> int:
    """Return the next multiple of `unit`."""
    return (size + unit - 1) // unit * unit


class _BFloat(ir.Type):
    """LLVM's bf16, which llvmlite does not name."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


# LLVM's types; V: vectors of LANES
F32 = ir.FloatType()
_I16 = ir.IntType(16)
I32 = ir.IntType(32)
I64 = ir.IntType(64)
VF32, _VI16, VI32 = (ir.VectorType(t, LANES) for t in (F32, _I16, I32))
_VBF16 = ir.VectorType(_BFloat(), LANES)
BF16_PAIRS = ir.VectorType(_BFloat(), 2 * LANES)


class F32x16(types.Type):
    """The numba type of the vectors."""


f32x16 = F32x16("F32x16")


@register_model(F32x16)
class _F32x16Model(models.PrimitiveModel):
    def __init__(self, manager: DataModelManager, numba_type: types.Type) -> None:
        super().__init__(manager, numba_type, VF32)


# ---- helpers of the code generators --------------------------------------------------------------


def build_call(
    builder: ir.IRBuilder, name: str, result: ir.Type, arguments: list[ir.Value]
) -> ir.Value:
    """Call one of LLVM's intrinsic functions."""
    function_type = ir.FunctionType(result, [a.type for a in arguments])
    function = builder.module.globals.get(name) or ir.Function(builder.module, function_type, name)
    return builder.call(function, arguments)


def build_fma(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    """Return a * b + c, rounded once."""
    return build_call(builder, "llvm.fma.v16f32", VF32, [a, b, c])


def build_splat(builder: ir.IRBuilder, scalar: ir.Value, vector: ir.VectorType) -> ir.Value:
    """Return a scalar in all lanes."""
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(I32, 0))
    return builder.shuffle_vector(
        first, ir.Constant(vector, ir.Undefined), ir.Constant(VI32, [0] * LANES)
    )


def build_pointer(
    builder: ir.IRBuilder, base: ir.Value, offset: ir.Value, vector: ir.Type
) -> ir.Value:
    """Return a pointer to `vector` at element `offset` of `base`."""
    return builder.bitcast(builder.gep(base, [offset]), vector.as_pointer())


def build_round(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Convert a vector of fp32 to bf16 bits, ties to even; NaN stays NaN."""
    if NATIVE_BF16:
        return builder.bitcast(builder.fptrunc(value, _VBF16), _VI16)
    return numba_math.build_round(builder, value)


def build_lanes_below(builder: ir.IRBuilder, count: ir.Value) -> ir.Value:
    """Return a mask of the first `count` lanes."""
    lanes = ir.Constant(VI32, list(range(LANES)))
    return builder.icmp_signed("<", lanes, build_splat(builder, builder.trunc(count, I32), VI32))


def is_bf16(pointer: types.Type) -> bool:
    """Return whether a numba pointer type means bf16 bits."""
    return bool(pointer.dtype == types.uint16)


# 2^f on |f| <= 1/2, relative error 9.2e-8 before rounding, fitted by reweighted least squares in
# fp64; highest power first.
EXP2 = (
    1.3264726056424689e-3,
    9.671513044619755e-3,
    5.5507337500530246e-2,
    0.24022242078532924,
    0.6931469775930709,
    1.0,
)
# Fast-math flags of arithmetic that must stay in its order; a product may still be fused with a
# sum, and the sign of 0 be ignored. `add`, `sub`, `mul` and `total` have them: a helper of a kernel
# is compiled by itself and again inside its callers, and the process that compiles runs the first
# code where later processes run the second; a sum in another order would give them other bits.
EXACT = ("contract", "nsz")


# ---- elementwise ---------------------------------------------------------------------------------


def elementwise(
    arguments: int, build: Callable[..., ir.Value], doc: str = ""
) -> Callable[..., Vector]:
    """Return an intrinsic from `arguments` vectors to one; `build` emits its code."""
    definition = f32x16(*[f32x16] * arguments), emitting(build)

    # numba counts the parameters of the function, so each number of them needs its own
    def unary(typing_context: Context, a: types.Type) -> Definition:
        return definition

    def binary(typing_context: Context, a: types.Type, b: types.Type) -> Definition:
        return definition

    def ternary(typing_context: Context, a: types.Type, b: types.Type, c: types.Type) -> Definition:
        return definition

    define = (unary, binary, ternary)[arguments - 1]
    define.__doc__ = doc
    return intrinsic(define)


def build_polynomial(
    builder: ir.IRBuilder, x: ir.Value, coefficients: tuple[float, ...]
) -> ir.Value:
    """Return a polynomial of x; the coefficient of the highest power first."""
    result = build_constant(VF32, coefficients[0])
    for coefficient in coefficients[1:]:
        result = build_fma(builder, result, x, build_constant(VF32, coefficient))
    return result


def build_exp2(builder: ir.IRBuilder, t: ir.Value) -> ir.Value:
    """Return 2^t; see `exp2`."""
    lowest = build_constant(VF32, -127.0)
    rounder = build_constant(VF32, 1.5 * 2**23)
    t = builder.select(builder.fcmp_ordered("<", t, lowest), lowest, t)
    # The sum has the nearest integer in its low bits: between 2^23 and 2^24, fp32 numbers are 1
    # apart. Flags of its own, because fast-math would undo it by the subtraction.
    shifted = builder.fadd(t, rounder, flags=EXACT)
    fraction = builder.fsub(t, builder.fsub(shifted, rounder, flags=EXACT), flags=EXACT)
    exponent = builder.shl(builder.bitcast(shifted, VI32), build_constant(VI32, 23))
    power = builder.bitcast(build_polynomial(builder, fraction, EXP2), VI32)
    # adding to the exponent bits multiplies by 2^integer; where t is -127, 1 and -127 give bits 0
    return builder.bitcast(builder.add(power, exponent), VF32)


def _build_exp_plus_one(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """Return 1 + exp(-x) as 1 + 2^t, t = -x log2(e); at large |t|, where the sum hides errors, less
    accurate than `exp`.
    """
    t = builder.fmul(x, build_constant(VF32, -1.44269502162933349609375))  # log2(e) in fp32
    highest = build_constant(VF32, 125.0)
    t = builder.select(builder.fcmp_ordered(">", t, highest), highest, t)
    return builder.fadd(build_constant(VF32, 1.0), build_exp2(builder, t))


def build_silu(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """Return x / (1 + exp(-x))."""
    return build_divide(builder, x, _build_exp_plus_one(builder, x))


def _build_sigmoid(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    return build_divide(builder, build_constant(VF32, 1.0), _build_exp_plus_one(builder, x))


def build_divide(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """Return a / b for b in [2^-126, 2^126]; an estimate and a Newton step (relative error 2e-7)
    are faster than division.
    """
    if not _AVX512:
        return builder.fdiv(a, b)
    # the instruction takes values for lanes left out, and a mask, here of all lanes
    no_mask = [build_constant(VF32, 0.0), ir.Constant(_I16, 0xFFFF)]
    estimate = build_call(builder, "llvm.x86.avx512.rcp14.ps.512", VF32, [b, *no_mask])
    negative = builder.fsub(build_constant(VF32, -0.0), b)
    error = build_fma(builder, negative, estimate, build_constant(VF32, 1.0))
    return builder.fmul(a, build_fma(builder, estimate, error, estimate))


add = elementwise(2, lambda builder, a, b: builder.fadd(a, b, flags=EXACT), "a + b")
sub = elementwise(2, lambda builder, a, b: builder.fsub(a, b, flags=EXACT), "a - b")
mul = elementwise(2, lambda builder, a, b: builder.fmul(a, b, flags=EXACT), "a * b")
fma = elementwise(3, build_fma, "a * b + c")
exp = elementwise(1, build_exp, "exp(x); see `numba_math.fast_exp`")
exp2 = elementwise(
    1,
    build_exp2,
    "2^x for x < 127.5, relative error below 2e-7; exactly 1 at 0, exactly 0 below -127, NaN"
    " for NaN",
)
silu = elementwise(1, build_silu, "x / (1 + exp(-x))")
sigmoid = elementwise(
    1,
    _build_sigmoid,
    "1 / (1 + exp(-x)), absolute error below 2e-7, relative error below 5e-6 where |x| < 86",
)


@intrinsic
def splat(typing_context: Context, x: types.Type) -> Definition:
    """Return the same fp32 number in all lanes."""
    return f32x16(types.float32), emitting(lambda builder, x: build_splat(builder, x, VF32))


@intrinsic
def keep(typing_context: Context, x: types.Type, count: types.Type) -> Definition:
    """Return x in the first `count` lanes, 0 in the others (even where x is NaN)."""
    return f32x16(f32x16, types.intp), emitting(
        lambda builder, x, count: builder.select(
            build_lanes_below(builder, count), x, build_constant(VF32, 0.0)
        )
    )


def reduction(
    combine: Callable[[ir.IRBuilder, ir.Value, ir.Value], ir.Value], doc: str
) -> Callable[[Vector], Number]:
    """Return an intrinsic from a vector to a number; `combine` emits the code that makes one vector
    of two halves.
    """

    def build(builder: ir.IRBuilder, v: ir.Value) -> ir.Value:
        width = LANES
        while width > 1:
            width //= 2
            halves = [
                ir.Constant(ir.VectorType(I32, width), list(range(start, start + width)))
                for start in (0, width)
            ]
            v = combine(
                builder,
                *(
                    builder.shuffle_vector(v, ir.Constant(v.type, ir.Undefined), half)
                    for half in halves
                ),
            )
        return builder.extract_element(v, ir.Constant(I32, 0))

    def define(typing_context: Context, x: types.Type) -> Definition:
        return types.float32(f32x16), emitting(build)

    define.__doc__ = doc
    return intrinsic(define)


total = reduction(lambda builder, a, b: builder.fadd(a, b, flags=EXACT), "The sum of the lanes.")


# ---- memory --------------------------------------------------------------------------------------


@intrinsic
def address(typing_context: Context, array: types.Type) -> Definition:
    """Return a pointer to the first element of a C-contiguous array, which must outlive the
    pointer.
    """
    if array.layout != "C":
        raise TypingError(
            f"{array} is not C-contiguous: elements of its address are others than its own"
        )

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, values: list[ir.Value]
    ) -> ir.Value:
        return context.make_array(array)(context, builder, values[0]).data

    return types.CPointer(array.dtype)(array), generate


@intrinsic
def shift(typing_context: Context, base: types.Type, offset: types.Type) -> Definition:
    """Return a pointer to element `offset`."""
    return base(base, types.intp), emitting(
        lambda builder, pointer, offset: builder.gep(pointer, [offset])
    )


@intrinsic
def number(typing_context: Context, base: types.Type, offset: types.Type) -> Definition:
    """Return one element of fp32 or bf16 memory as fp32."""

    def build(builder: ir.IRBuilder, pointer: ir.Value, offset: ir.Value) -> ir.Value:
        element = builder.load(builder.gep(pointer, [offset]))
        return build_widen(builder, element) if is_bf16(base) else element

    return types.float32(base, types.intp), emitting(build)


def build_load(
    builder: ir.IRBuilder, pointer_type: types.Type, base: ir.Value, offset: ir.Value
) -> ir.Value:
    """Emit `load`; `pointer_type` is numba's type of `base`."""
    if is_bf16(pointer_type):
        return build_widen(
            builder, builder.load(build_pointer(builder, base, offset, _VI16), align=2)
        )
    return builder.load(build_pointer(builder, base, offset, VF32), align=4)


def build_store(
    builder: ir.IRBuilder,
    pointer_type: types.Type,
    base: ir.Value,
    offset: ir.Value,
    value: ir.Value,
) -> None:
    """Emit `store`; `pointer_type` is numba's type of `base`."""
    if is_bf16(pointer_type):
        builder.store(
            build_round(builder, value), build_pointer(builder, base, offset, _VI16), align=2
        )
    else:
        builder.store(value, build_pointer(builder, base, offset, VF32), align=4)


@intrinsic
def load(typing_context: Context, base: types.Type, offset: types.Type) -> Definition:
    """Load elements offset .. offset+15 of fp32 or bf16 memory."""
    return f32x16(base, types.intp), emitting(
        lambda builder, pointer, offset: build_load(builder, base, pointer, offset)
    )


@intrinsic
def load_some(
    typing_context: Context, base: types.Type, offset: types.Type, count: types.Type
) -> Definition:
    """Load only the first `count` lanes; the others are 0."""
    vector = _VI16 if is_bf16(base) else VF32
    name = f"llvm.masked.load.{'v16i16' if is_bf16(base) else 'v16f32'}.p0"

    def build(
        builder: ir.IRBuilder, base_: ir.Value, offset: ir.Value, count: ir.Value
    ) -> ir.Value:
        pointer = build_pointer(builder, base_, offset, vector)
        mask = build_lanes_below(builder, count)
        lanes = build_call(
            builder, name, vector, [pointer, ir.Constant(I32, 2), mask, build_constant(vector, 0)]
        )
        return build_widen(builder, lanes) if is_bf16(base) else lanes

    return f32x16(base, types.intp, types.intp), emitting(build)


@intrinsic
def store(
    typing_context: Context, base: types.Type, offset: types.Type, x: types.Type
) -> Definition:
    """Write 16 elements of fp32 or bf16 memory."""
    return types.none(base, types.intp, f32x16), emitting(
        lambda builder, pointer, offset, x: build_store(builder, base, pointer, offset, x)
    )


@intrinsic
def store_some(
    typing_context: Context, base: types.Type, offset: types.Type, x: types.Type, count: types.Type
) -> Definition:
    """Write only the first `count` lanes."""
    name = f"llvm.masked.store.{'v16i16' if is_bf16(base) else 'v16f32'}.p0"

    def build(
        builder: ir.IRBuilder, base_: ir.Value, offset: ir.Value, x: ir.Value, count: ir.Value
    ) -> None:
        lanes = build_round(builder, x) if is_bf16(base) else x
        pointer = build_pointer(builder, base_, offset, lanes.type)
        mask = build_lanes_below(builder, count)
        build_call(builder, name, ir.VoidType(), [lanes, pointer, ir.Constant(I32, 2), mask])

    return types.none(base, types.intp, f32x16, types.intp), emitting(build)


@intrinsic
def prefetch(typing_context: Context, base: types.Type, offset: types.Type) -> Definition:
    """Prefetch the cache line of an element; offsets outside the array are harmless."""
    # for reading, into the first-level cache, data
    hints = [ir.Constant(I32, hint) for hint in (0, 2, 1)]

    def build(builder: ir.IRBuilder, pointer: ir.Value, offset: ir.Value) -> None:
        line = builder.bitcast(builder.gep(pointer, [offset]), ir.IntType(8).as_pointer())
        build_call(builder, "llvm.prefetch.p0", ir.VoidType(), [line, *hints])

    return types.none(base, types.intp), emitting(build)


@intrinsic
def next_task(typing_context: Context, counter: types.Type) -> Definition:
    """Return the number in int64 memory and increment it atomically."""
    return types.int64(counter), emitting(
        lambda builder, counter: builder.atomic_rmw(
            "add", counter, ir.Constant(I64, 1), "monotonic"
        )
    )


# ---- tiles ---------------------------------------------------------------------------------------

# Rows and columns of a product that `multiply_block` sums at once, in four tiles. Other files of
# ops may have a BLOCK of their own.
BLOCK = 2 * LANES
_COMPILED = FEATURES >= {"amx-tile", "amx-bf16", "amx-int8", "avx512f", "avx512bf16"}
_BYTE = ir.IntType(8)
_PERMISSION = 158, 0x1023, 18  # arch_prctl, ARCH_REQ_XCOMP_PERM, the tiles' data
# Palette 1; from byte 16 on the bytes of a row of each tile, from byte 48 on its rows.
_CONFIGURATION = np.array([1] + [0] * 15 + [64, 0] * 8 + [0] * 16 + [16] * 8 + [0] * 8, np.uint8)


@functools.cache
def has_tiles() -> bool:
    """Return whether kernels may use the tiles: the processor has them, and Linux gives them to
    this process, which must ask.
    """
    return _COMPILED and sys.platform == "linux" and ctypes.CDLL(None).syscall(*_PERMISSION) == 0


def _call(builder: ir.IRBuilder, name: str, *arguments: ir.Value | int) -> None:
    values = [ir.Constant(_BYTE, a) if isinstance(a, int) else a for a in arguments]
    build_call(builder, f"llvm.x86.{name}", ir.VoidType(), values)


@intrinsic
def _load_configuration(typing_context: Context, configuration: types.Type) -> Definition:
    def build(builder: ir.IRBuilder, configuration: ir.Value) -> None:
        if _COMPILED:
            _call(builder, "ldtilecfg", builder.bitcast(configuration, _BYTE.as_pointer()))

    return types.none(configuration), emitting(build)


@intrinsic
def release_tiles(typing_context: Context) -> Definition:
    """Free the tiles of this thread, so that the system need not save them."""
    return types.none(), emitting(
        lambda builder: _call(builder, "tilerelease") if _COMPILED else None
    )


@njit(**SERIAL)
def configure_tiles() -> None:
    """Prepare the tiles of this thread for `multiply_block`."""
    _load_configuration(address(_CONFIGURATION))


def _block_product(rows: int, instruction: str, doc: str) -> Callable[..., None]:
    """Return an intrinsic that multiplies `rows` rows (LANES or BLOCK) of a left factor with BLOCK
    columns of a right one, by an instruction of tiles.
    """

    def define(
        typing_context: Context,
        sums: types.Type,
        sums_row: types.Type,
        left: types.Type,
        left_row: types.Type,
        right: types.Type,
        right_row: types.Type,
        depth: types.Type,
        fresh: types.Type,
    ) -> Definition:
        size = types.intp
        return types.none(sums, size, left, size, right, size, size, types.boolean), emitting(
            partial(_build_block, rows, instruction)
        )

    define.__doc__ = doc
    return intrinsic(define)


def _build_block(
    rows: int,
    instruction: str,
    builder: ir.IRBuilder,
    sums: ir.Value,
    sums_row: ir.Value,
    left: ir.Value,
    left_row: ir.Value,
    right: ir.Value,
    right_row: ir.Value,
    depth: ir.Value,
    fresh: ir.Value,
) -> None:
    """Emit `multiply_block`. Its eight tiles, by number:

               6  7    right factor
        4      0  1
        5      2  3    left factor, sums

    With LANES `rows`, tiles 2, 3 and 5 are not used.
    """
    if not _COMPILED:
        return

    def place(base: ir.Value, row: ir.Value, first: int, column: ir.Value) -> list[ir.Value]:
        """The place of a tile from row `first` on and its stride, as the instructions take them."""
        offset = builder.add(builder.mul(row, ir.Constant(I64, first)), column)
        pointer = builder.gep(builder.bitcast(base, I32.as_pointer()), [offset])
        return [builder.bitcast(pointer, _BYTE.as_pointer()), builder.mul(row, ir.Constant(I64, 4))]

    # the first row (a number here) and the first column (a number in the code) of the two halves
    halves = [(0, ir.Constant(I64, 0)), (LANES, ir.Constant(I64, LANES))]
    outputs = [
        place(sums, sums_row, row, column)
        for row, _ in halves
        if row < rows
        for _, column in halves
    ]
    with builder.if_else(fresh) as (cleared, continued):
        with cleared:
            for tile in range(len(outputs)):
                _call(builder, "tilezero", tile)
        with continued:
            for tile, output in enumerate(outputs):
                _call(builder, "tileloadd64", tile, *output)
    with cgutils.for_range_slice(
        builder, ir.Constant(I64, 0), depth, ir.Constant(I64, LANES), I64
    ) as (k, _):
        below = builder.gep(builder.bitcast(right, I32.as_pointer()), [builder.mul(k, right_row)])
        for half, (row, column) in enumerate(halves):
            if row < rows:
                _call(builder, "tileloadd64", 4 + half, *place(left, left_row, row, k))
            _call(builder, "tileloadd64", 6 + half, *place(below, right_row, 0, column))
        for tile in range(len(outputs)):
            _call(builder, instruction, tile, 4 + tile // 2, 6 + tile % 2)
    for tile, output in enumerate(outputs):
        _call(builder, "tilestored64", tile, *output)


multiply_block = _block_product(
    BLOCK,
    "tdpbf16ps",
    """Add to BLOCK x BLOCK fp32 `sums` the product of bf16 left (BLOCK, 2 depth) and right
    (2 depth, BLOCK). Right is given as `depth` rows of BLOCK words: word c of row k has the numbers
    of column c in rows 2k and 2k + 1.

    Rows of sums, left and right start sums_row, left_row and right_row words apart; `depth` counts
    words, a multiple of LANES. If `fresh`, the old sums are not read. The thread's tiles must be
    configured. On a processor without tiles this does nothing.
    """,
)
multiply_half_block = _block_product(
    LANES, "tdpbf16ps", "Compute the first LANES rows of `multiply_block`, with the same result."
)
multiply_bytes = _block_product(
    BLOCK,
    "tdpbusd",
    "`multiply_block` of left, bytes, and right, signed bytes, both four in a word: word c of row k"
    " of right has rows 4k to 4k + 3 of column c. Sums are int32.",
)
