"""Linear layers in 8 bits for CPU inference: twice the multiply-adds of bf16, by the processor's
matrix tiles (Intel AMX) if it has them, else by vectors (VNNI).

    T  tokens      K  inputs      N  outputs      G  groups of inputs that share a scale
    Kp  K / G padded to whole words      Np  N padded to TILE_COLUMNS
    word  32 bits: four bytes, or one sum      panel  TILE_COLUMNS outputs with all their inputs
    LANES  16 words, one vector      TILE_COLUMNS  32, or 16 without AVX-512
    BLOCK  32 tokens, multiplied at once by tiles      TILE_ROWS  8 or 4, at once by vectors

A weight is q * scale, with q from -127 to 127 and one scale per output. An input is (b - 128) *
scale, with b from 1 to 255 and one scale per token and group, computed from the group's largest
number, so that a token's result does not depend on other tokens. Products are summed exactly in
int32 within a group; the scales are applied in fp32. The zero point of the inputs, 128, costs
nothing: 128 times the sum of a group's weights is subtracted at the start of the sum.

    multiply -> _multiply, tasks on all cores -> _panel, one task (some tokens times one panel)
    -> _by_tiles, or _by_vectors

Tiles multiply where the bytes of a group fill whole rows of tiles, 64 bytes; else vectors do. The
results of both are the same bits. `pack` lays out the weights once; `unpack` undoes it.

The inputs become bytes with `quantize_row`, a group at a time: in the kernel before, if it computes
all numbers of a group together, else in `quantize_rows`. NaN and infinity enter the scale, and so
every number of the result.
"""

from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.core import cgutils
from numba.core.typing import Context
from numba.extending import intrinsic
from numpy.typing import NDArray

from runnel.ops.matmul import copy_words, rows_per_task, store_rows
from runnel.ops.numba_math import (
    FEATURES,
    LINE,
    PARALLEL,
    SERIAL,
    Array,
    Definition,
    Number,
    Numbers,
    Pointer,
    Scratch,
    StepMemory,
    aligned_zeros,
    build_constant,
    count_workers,
    emitting,
)
from runnel.ops.simd import (
    BLOCK,
    F32,
    I32,
    I64,
    LANES,
    TILE_COLUMNS,
    TILE_ROWS,
    VF32,
    VI32,
    address,
    build_call,
    build_fma,
    build_lanes_below,
    build_pointer,
    build_splat,
    ceil_div,
    configure_tiles,
    elementwise,
    f32x16,
    fma,
    has_tiles,
    load,
    load_some,
    mul,
    multiply_bytes,
    next_task,
    prefetch,
    release_tiles,
    round_up,
    shift,
    splat,
    store,
)
from runnel.ops.simd_tile import as_kind

_BYTES_PER_WORD = 4
_ZERO_POINT = 128


def vnni_problem() -> str | None:
    """Return why 8-bit products cannot run here, or None if they can."""
    if FEATURES.isdisjoint({"avx512vnni", "avxvnni"}):
        return "the processor has no VNNI instructions, or numba is configured not to use them"
    return None


class Int8Weights(NamedTuple):
    """The weights of a linear layer in the layout of `multiply`."""

    # (Np / TILE_COLUMNS, G Kp / 4, TILE_COLUMNS), each number four inputs of one output
    words: NDArray[np.int32]
    # (Np / TILE_COLUMNS, G, TILE_COLUMNS): initial values of a group's sums
    offsets: NDArray[np.int32]
    scale: NDArray[np.float32]  # (N,)


def pack(q: NDArray[np.int8], scale: NDArray[np.float32], groups: int) -> Int8Weights:
    """Lay weights out for `multiply`: q (N, K) int8, scale (N,)."""
    outputs, inputs = q.shape
    panels = ceil_div(outputs, TILE_COLUMNS)
    size = bytes_per_group(inputs, groups)
    padded = np.zeros((panels * TILE_COLUMNS, groups, size), np.int8)
    padded[:outputs, :, : inputs // groups] = q.reshape(outputs, groups, -1)
    sums = padded.sum(-1, dtype=np.int32).reshape(panels, TILE_COLUMNS, groups)
    words = aligned_zeros(panels, groups * size // _BYTES_PER_WORD, TILE_COLUMNS, dtype=np.int32)
    words[:] = padded.view(np.int32).reshape(panels, TILE_COLUMNS, -1).transpose(0, 2, 1)
    return Int8Weights(words, np.ascontiguousarray(-_ZERO_POINT * sums.transpose(0, 2, 1)), scale)


def unpack(w: Int8Weights, inputs: int) -> NDArray[np.int8]:
    """Return the q (N, K) that was given to `pack`, with K = `inputs`."""
    groups = w.offsets.shape[1]
    rows = (
        w.words[..., None]
        .view(np.int8)
        .transpose(0, 2, 1, 3)
        .reshape(-1, groups, bytes_per_group(inputs, groups))
    )
    return np.ascontiguousarray(rows[: len(w.scale), :, : inputs // groups]).reshape(
        len(w.scale), inputs
    )


def count_groups(inputs: int, size: int) -> int:
    """Return the number of groups of inputs that share a scale: groups of `size` inputs if that
    divides the number of inputs, else one group.
    """
    return 1 if inputs % size else max(1, inputs // size)


def bytes_per_group(inputs: int, groups: int) -> int:
    """Return Kp of a layer with `inputs` inputs; a row of its input has Kp `groups` bytes."""
    return round_up(ceil_div(inputs, groups), _BYTES_PER_WORD)


def _build_larger(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    # Without a sign, numbers, infinity and NaN compare as their bits do. The mask takes the sign
    # off a; b has none.
    a = builder.bitcast(a, VI32)
    b = builder.bitcast(b, VI32)
    a = builder.and_(a, build_constant(VI32, 0x7FFFFFFF))
    return builder.bitcast(builder.select(builder.icmp_unsigned(">", a, b), a, b), VF32)


_larger = elementwise(
    2,
    _build_larger,
    "The larger of |a| and |b|, with b already positive. NaN is larger than all numbers.",
)


@intrinsic
def _largest(typing_context: Context, x: types.Type) -> Definition:
    """Return the largest lane of positive numbers, or NaN if a lane is NaN."""

    def build(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
        name = "llvm.vector.reduce.umax.v16i32"
        return builder.bitcast(build_call(builder, name, I32, [builder.bitcast(x, VI32)]), F32)

    return types.float32(f32x16), emitting(build)


@intrinsic
def _store_bytes(
    typing_context: Context,
    target: types.Type,
    offset: types.Type,
    x: types.Type,
    count: types.Type,
) -> Definition:
    """Write the first `count` lanes, rounded to integers from -127 to 127, as
    bytes from 1 to 255.
    """
    vector = ir.VectorType(ir.IntType(8), LANES)

    def build(
        builder: ir.IRBuilder, target: ir.Value, offset: ir.Value, x: ir.Value, count: ir.Value
    ) -> None:
        integers = builder.fptosi(build_call(builder, "llvm.rint.v16f32", VF32, [x]), VI32)
        lanes = builder.trunc(builder.add(integers, build_constant(VI32, _ZERO_POINT)), vector)
        place = build_pointer(builder, target, offset, vector)
        arguments = [lanes, place, ir.Constant(I32, 1), build_lanes_below(builder, count)]
        build_call(builder, "llvm.masked.store.v16i8.p0", ir.VoidType(), arguments)

    return types.none(target, types.intp, f32x16, types.intp), emitting(build)


@njit(**SERIAL)
def quantize_row(source: Pointer, size: int, target: Pointer) -> Number:
    """Write `size` numbers as bytes and return their scale. source: pointer to fp32 or bf16;
    target: to uint8.
    """
    largest = splat(np.float32(0.0))
    for c in range(0, size, LANES):
        largest = _larger(load_some(source, c, size - c), largest)
    top = _largest(largest)
    # 127 / top is infinite for numbers below 4e-37; so small ones become 0, far from the limit
    inverse = splat(np.float32(127.0) / top if top > np.float32(1e-30) else np.float32(0.0))
    for c in range(0, size, LANES):
        _store_bytes(target, c, mul(load_some(source, c, size - c), inverse), size - c)
    return top / np.float32(127.0)


@njit(**PARALLEL)
def quantize_rows(source: Array, target: Array, scales: Array) -> None:
    """Write rows as bytes in groups, if the kernel before could not. Call it inside
    `numba_math.parallel()`.

    Args:
        source: (T, K) fp32 or bf16 bits, C-contiguous.
        target: (T, G Kp) uint8, C-contiguous.
        scales: (T, G) fp32.
    """
    tokens, groups = scales.shape
    size = source.shape[1] // groups
    padded = target.shape[1] // groups
    for t in prange(tokens):
        for g in range(groups):
            own = shift(address(source), t * source.shape[1] + g * size)
            scales[t, g] = quantize_row(
                own, size, shift(address(target), t * target.shape[1] + g * padded)
            )


def _build_dot(
    builder: ir.IRBuilder, sums: ir.Value, inputs: ir.Value, weights: ir.Value
) -> ir.Value:
    """Return sums + the sum of four products of unsigned and signed bytes, in each of sixteen
    words.
    """
    if "avx512vnni" in FEATURES:
        return build_call(builder, "llvm.x86.avx512.vpdpbusd.512", VI32, [sums, inputs, weights])
    # AVX-VNNI has vectors of eight words; LLVM's name for its instruction is of AVX-512, too
    half = ir.VectorType(I32, LANES // 2)
    halves = []
    for start in (0, LANES // 2):
        order = ir.Constant(half, list(range(start, start + LANES // 2)))
        own = [
            builder.shuffle_vector(v, ir.Constant(VI32, ir.Undefined), order)
            for v in (sums, inputs, weights)
        ]
        halves.append(build_call(builder, "llvm.x86.avx512.vpdpbusd.256", half, own))
    return builder.shuffle_vector(*halves, ir.Constant(VI32, list(range(LANES))))


@intrinsic
def _by_vectors(
    typing_context: Context,
    x: types.Type,
    x_row: types.Type,
    rows: types.Type,
    scales: types.Type,
    groups: types.Type,
    words: types.Type,
    offsets: types.Type,
    depth: types.Type,
    out: types.Type,
) -> Definition:
    """Compute a panel for a few tokens: out[r, :] = sum over groups g of scales[r, g] *
    (offsets[g, :] + sum over k in g of x[r, k] * words[k, :]). The inner sums are int32, in `sums`,
    the outer ones fp32, in `totals`; all stay in vector registers.

    Args:
        x: the first byte of `rows` <= TILE_ROWS tokens, `x_row` bytes apart.
        scales: fp32, `groups` per token.
        words, offsets: of one panel; `depth` words per group.
        out: TILE_ROWS rows of TILE_COLUMNS fp32; the content of rows from `rows` on is undefined.
    """

    def build(
        builder: ir.IRBuilder,
        x: ir.Value,
        x_row: ir.Value,
        count: ir.Value,
        scales: ir.Value,
        groups: ir.Value,
        words: ir.Value,
        offsets: ir.Value,
        depth: ir.Value,
        out: ir.Value,
    ) -> None:
        vectors = range(0, TILE_COLUMNS, LANES)
        last = builder.sub(count, ir.Constant(I64, 1))
        rows = [ir.Constant(I64, r) for r in range(TILE_ROWS)]
        # not past the last token
        rows = [builder.select(builder.icmp_signed("<", r, last), r, last) for r in rows]
        starts = [
            builder.bitcast(builder.gep(x, [builder.mul(x_row, r)]), I32.as_pointer()) for r in rows
        ]
        sums = [[cgutils.alloca_once(builder, VI32) for _ in vectors] for _ in rows]
        totals = [
            [cgutils.alloca_once_value(builder, build_constant(VF32, 0.0)) for _ in vectors]
            for _ in rows
        ]

        def columns(base: ir.Value, row: ir.Value) -> list[ir.Value]:
            first = builder.mul(row, ir.Constant(I64, TILE_COLUMNS))
            places = [
                build_pointer(builder, base, builder.add(first, ir.Constant(I64, c)), VI32)
                for c in vectors
            ]
            return [builder.load(place, align=4) for place in places]

        with cgutils.for_range(builder, groups) as group:
            for row in sums:
                for slot, value in zip(row, columns(offsets, group.index), strict=True):
                    builder.store(value, slot)
            with cgutils.for_range(builder, depth) as loop:
                k = builder.add(builder.mul(group.index, depth), loop.index)
                weights = columns(words, k)
                for start, row in zip(starts, sums, strict=True):
                    inputs = build_splat(
                        builder, builder.load(builder.gep(start, [k]), align=1), VI32
                    )
                    for slot, value in zip(row, weights, strict=True):
                        builder.store(_build_dot(builder, builder.load(slot), inputs, value), slot)
            for r, row, total in zip(rows, sums, totals, strict=True):
                at = builder.add(builder.mul(r, groups), group.index)
                scale = build_splat(builder, builder.load(builder.gep(scales, [at]), align=4), VF32)
                for slot, target in zip(row, total, strict=True):
                    value = builder.sitofp(builder.load(slot), VF32)
                    builder.store(build_fma(builder, value, scale, builder.load(target)), target)
        for r, total in enumerate(totals):
            for c, slot in zip(vectors, total, strict=True):
                place = build_pointer(builder, out, ir.Constant(I64, r * TILE_COLUMNS + c), VF32)
                builder.store(builder.load(slot), place, align=4)

    size = types.intp
    return types.none(x, size, size, scales, size, words, offsets, size, out), emitting(build)


@intrinsic
def _numbers(
    typing_context: Context,
    sums: types.Type,
    offset: types.Type,
    starts: types.Type,
    start: types.Type,
) -> Definition:
    """Return sixteen sums of int32 memory, plus where they started, as fp32."""

    def build(
        builder: ir.IRBuilder, sums: ir.Value, offset: ir.Value, starts: ir.Value, start: ir.Value
    ) -> ir.Value:
        added = builder.load(build_pointer(builder, sums, offset, VI32), align=4)
        initial = builder.load(build_pointer(builder, starts, start, VI32), align=4)
        return builder.sitofp(builder.add(added, initial), VF32)

    return f32x16(sums, types.intp, starts, types.intp), emitting(build)


@njit(**SERIAL)
def _by_tiles(
    x: Pointer,
    row: int,
    rows: int,
    scales: Pointer,
    groups: int,
    words: Pointer,
    offsets: Pointer,
    depth: int,
    out: Pointer,
    sums: Pointer,
) -> None:
    """Compute what `_by_vectors` computes, for `rows` <= BLOCK tokens, by the processor's tiles.

    Args:
        x: rows are `row` bytes apart; BLOCK rows are read.
        sums: memory for BLOCK rows of int32.
    """
    for g in range(groups):
        own = shift(words, g * depth * TILE_COLUMNS)
        inputs = shift(x, _BYTES_PER_WORD * g * depth)
        multiply_bytes(
            sums, TILE_COLUMNS, inputs, row // _BYTES_PER_WORD, own, TILE_COLUMNS, depth, True
        )
        for r in range(rows):
            scale = splat(scales[r * groups + g])
            for c in range(0, TILE_COLUMNS, LANES):
                at = r * TILE_COLUMNS + c
                value = _numbers(sums, at, offsets, g * TILE_COLUMNS + c)
                store(out, at, mul(value, scale) if g == 0 else fma(value, scale, load(out, at)))


@njit(**SERIAL)
def _panel(
    tiles: bool,
    x: Array,
    last: Pointer,
    scales: Array,
    w: Int8Weights,
    out: Array,
    first: int,
    stop: int,
    panel: int,
    results: Pointer,
    sums: Pointer,
) -> None:
    """Compute the outputs of one panel for the tokens [first, stop).

    Args:
        last: for `tiles`, a copy of the last inputs, if they do not fill a block: tiles read BLOCK
            rows, which would go past the end of x.
        results, sums: scratch of BLOCK rows of TILE_COLUMNS words; `sums` only for `tiles`.
    """
    stride = x.shape[1]
    groups = scales.shape[1]
    width = out.shape[1]
    depth = w.words.shape[1]  # words of all groups
    column = panel * TILE_COLUMNS
    rest = len(w.scale) - column
    words = shift(address(w.words), column * depth)
    offsets = shift(address(w.offsets), column * groups)
    scale = shift(address(w.scale), column)
    height = BLOCK if tiles else TILE_ROWS
    for t in range(first, stop, height):
        rows = min(height, stop - t)
        place = t * width + column
        own = shift(address(scales), t * groups)
        source = shift(address(x), t * stride)
        for r in range(rows):
            # the rows are far apart, so the processor does not foresee them
            prefetch(address(out), place + r * width)
        if tiles:
            source = source if rows == BLOCK else last
            _by_tiles(
                source,
                stride,
                rows,
                own,
                groups,
                words,
                offsets,
                depth // groups,
                results,
                as_kind(words, sums),  # sums, as a pointer to int32
            )
        else:
            _by_vectors(source, stride, rows, own, groups, words, offsets, depth // groups, results)
        for c in range(0, TILE_COLUMNS, LANES):
            factor = load_some(scale, c, rest - c)
            for r in range(rows):
                store(
                    results, r * TILE_COLUMNS + c, mul(load(results, r * TILE_COLUMNS + c), factor)
                )
        store_rows(results, rows, shift(address(out), place), width, rest)


@njit(**PARALLEL)
def _multiply(
    tiles: bool, x: Array, scales: Array, w: Int8Weights, out: Array, rows: int, scratch: Scratch
) -> None:
    """Run `multiply` in tasks of `rows` tokens.

    Args:
        x: for `tiles`, from the start of a cache line on.
        scratch: for each worker, in words: BLOCK rows of results (fp32), BLOCK rows of sums
            (int32), and BLOCK rows of inputs (bytes).
    """
    tokens = x.shape[0]
    panels = w.words.shape[0]
    stride = x.shape[1]
    tasks = ceil_div(tokens, rows) * panels
    rest = tokens % BLOCK
    for worker in prange(scratch.rows.shape[0]):
        results = shift(address(scratch.rows), worker * scratch.rows.shape[1])
        sums = shift(results, BLOCK * TILE_COLUMNS)
        last = shift(sums, BLOCK * TILE_COLUMNS)
        if tiles:
            if rest:
                own = as_kind(results, shift(address(x), (tokens - rest) * stride))
                copy_words(
                    own, rest * stride // _BYTES_PER_WORD, last, BLOCK * stride // _BYTES_PER_WORD
                )
            configure_tiles()
        task = next_task(address(scratch.tasks))
        while task < tasks:
            first = task // panels * rows
            _panel(
                tiles,
                x,
                as_kind(address(x), last),
                scales,
                w,
                out,
                first,
                min(first + rows, tokens),
                task % panels,
                results,
                sums,
            )
            task = next_task(address(scratch.tasks))
        if tiles:
            release_tiles()


def multiply(
    x: NDArray[np.uint8],
    scales: NDArray[np.float32],
    w: Int8Weights,
    out: Numbers,
    memory: StepMemory,
) -> None:
    """Set out = x weight^T. Call it inside `numba_math.parallel()`.

    Args:
        x: (T, G Kp) uint8, C-contiguous; padding bytes may have any value.
        scales: (T, G) fp32.
        w: `Int8Weights` packed for G groups.
        out: (T, N) fp32 or bf16 bits; its rows may be longer.
        memory: the step's, for the scratch of the workers.
    """
    tokens, stride = x.shape
    # Whether the bytes of each group fill rows of tiles (LINE bytes), and begin on a cache line:
    # rows across two lines are slow to load.
    whole = stride // scales.shape[1] % LINE == 0 and x.ctypes.data % LINE == 0
    rows = rows_per_task(stride, tokens, len(w.words), count_workers())
    # results and sums, then inputs: as in `_multiply`
    scratch = memory.scratch(
        "product", 2 * BLOCK * TILE_COLUMNS + BLOCK * stride // _BYTES_PER_WORD
    )
    _multiply(whole and has_tiles(), x, scales, w, out, rows, scratch)
