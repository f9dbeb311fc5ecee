"""Products of bf16 or fp32 matrices for CPU inference, without torch: of bf16 by the processor's
matrix tiles (Intel AMX) if it has them, else by vectors.

    T  tokens      K  inputs      N  outputs
    Kp  for bf16, K padded to whole tiles (_DEPTH)      Np  N padded to TILE_COLUMNS
    word  32 bits: one number in fp32, two in bf16
    LANES  16 numbers, one vector      TILE_COLUMNS  32, or 16 without AVX-512      BLOCK  32 tokens

`pack` and `pack_floats` lay out the weights of a layer once. `multiply` divides a
product into tasks, some tokens times one panel (TILE_COLUMNS outputs):

    multiply -> _multiply, tasks on all cores -> _panel, one task -> _multiply_rows, BLOCK tokens

Where K is long, a panel is multiplied by sections of K, and sums go on from section to section.
Sums are in fp32. A token's result depends on neither the other tokens nor the workers: its sums are
taken in the same order whatever T is, which BLAS does not promise. The instructions for bf16 take
denormal factors and denormal sums as zero.
"""

from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.core.typing import Context
from numba.extending import intrinsic
from numpy.typing import NDArray

from runnel.ops.numba_math import (
    LINE,
    PARALLEL,
    SERIAL,
    Array,
    Definition,
    Numbers,
    Pointer,
    Scratch,
    StepMemory,
    aligned_zeros,
    build_round,
    count_workers,
    emitting,
    flat_rows,
    parallel,
)
from runnel.ops.simd import (
    BF16_PAIRS,
    BLOCK,
    F32,
    I64,
    LANES,
    NATIVE_BF16,
    TILE_COLUMNS,
    address,
    build_call,
    build_pointer,
    build_store,
    ceil_div,
    configure_tiles,
    f32x16,
    has_tiles,
    is_bf16,
    load,
    multiply_block,
    multiply_half_block,
    next_task,
    prefetch,
    release_tiles,
    round_up,
    shift,
)
from runnel.ops.simd_tile import (
    as_kind,
    fill,
    multiply_panel,
    numbers_per_word,
    store_up_to,
    transpose,
)

_DEPTH = 2 * LANES  # numbers of a row of a tile
_BYTES_PER_TASK = 1024 * 768  # of inputs, which fit the second-level cache
# words of K at a time: these rows of a panel, 24 KB, stay in the first-level cache
_SECTION = 1024 * 24 // (4 * TILE_COLUMNS)
_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)


class FloatWeights(NamedTuple):
    """The weights of a linear layer in the layout of `multiply`."""

    # (Np / TILE_COLUMNS, depth, TILE_COLUMNS). In bf16, depth is Kp / 2, and each number is an
    # int32 with two inputs of one output; in fp32, depth is K.
    words: NDArray[np.float32 | np.int32]
    outputs: int  # N


def pack(
    weight: NDArray[np.uint16] | NDArray[np.int8], scale: NDArray[np.float32] | None = None
) -> FloatWeights:
    """Lay weights out for `multiply` in bf16: bits (N, K), C-contiguous, or their products with
    scale (N,) if they are in 8 bits, rounded with ties to even.
    """
    outputs, inputs = weight.shape
    scales = np.ones(outputs, np.float32) if scale is None else scale
    words = aligned_zeros(
        ceil_div(outputs, TILE_COLUMNS), round_up(inputs, _DEPTH) // 2, TILE_COLUMNS, dtype=np.int32
    )
    stages = StepMemory().scratch("stages", LANES * LANES).rows
    with parallel():
        _pack(weight, scales, words, stages.view(np.uint16).reshape(-1, LANES, _DEPTH))
    return FloatWeights(words, outputs)


def pack_floats(weight: NDArray[np.float32]) -> FloatWeights:
    """Lay weights out for `multiply` in fp32: (N, K)."""
    outputs, inputs = weight.shape
    words = aligned_zeros(ceil_div(outputs, TILE_COLUMNS), inputs, TILE_COLUMNS)
    for panel, target in enumerate(words):
        rows = weight[panel * TILE_COLUMNS : (panel + 1) * TILE_COLUMNS]
        target[:, : len(rows)] = rows.T
    return FloatWeights(words, outputs)


@intrinsic
def _bits(typing_context: Context, number: types.Type, scale: types.Type) -> Definition:
    """Return bf16 bits as they are, or an int8 number times `scale` as bf16 bits."""

    def build(builder: ir.IRBuilder, value: ir.Value, scale: ir.Value) -> ir.Value:
        if number == types.uint16:
            return value
        return build_round(builder, builder.fmul(builder.sitofp(value, F32), scale))

    return types.uint16(number, types.float32), emitting(build)


@njit(**SERIAL)
def _pack_panel(source: Array, scale: Array, first: int, words: Pointer, stage: Array) -> None:
    """Write a panel of words from the rows [first, first + TILE_COLUMNS) of the weight, by
    blocks of LANES x LANES words.
    """
    outputs, inputs = source.shape
    block = as_kind(words, address(stage))
    for n in range(first, min(first + TILE_COLUMNS, outputs), LANES):
        for k in range(0, inputs, _DEPTH):
            rows = min(LANES, outputs - n)
            columns = min(_DEPTH, inputs - k)
            if rows < LANES or columns < _DEPTH:
                fill(block, LANES * LANES, 0)
            for r in range(rows):
                for c in range(columns):
                    stage[r, c] = _bits(source[n + r, k + c], scale[n + r])
            transpose(block, LANES, shift(words, k // 2 * TILE_COLUMNS + n - first), TILE_COLUMNS)


@njit(**PARALLEL)
def _pack(source: Array, scale: Array, words: Array, stages: Array) -> None:
    """Write `FloatWeights.words`, which are zero, from a weight (N, K), bf16 bits or int8.

    stages: (workers, LANES, _DEPTH) uint16.
    """
    panels, depth, columns = words.shape
    workers = stages.shape[0]
    for worker in prange(workers):
        for panel in range(worker, panels, workers):
            target = shift(address(words), panel * depth * columns)
            _pack_panel(source, scale, panel * columns, target, stages[worker])


def rows_per_task(row_bytes: int, tokens: int, panels: int, workers: int) -> int:
    """Return how many rows of inputs a task multiplies with a panel: so few that there are tasks
    for all workers, about four for each.
    """
    rows = min(_BYTES_PER_TASK // row_bytes, tokens * panels // (4 * workers))
    return max(BLOCK, rows // BLOCK * BLOCK)


@njit(**SERIAL)
def copy_words(source: Pointer, size: int, target: Pointer, padded: int) -> None:
    """Copy `size` words, then write zeros up to `padded` words."""
    for i in range(size):
        target[i] = source[i]
    fill(shift(target, size), padded - size, _ZERO)


@njit(**SERIAL)
def _multiply_rows(
    tiles: bool,
    x: Pointer,
    rows: int,
    x_row: int,
    words: Pointer,
    depth: int,
    fresh: bool,
    sums: Pointer,
) -> None:
    """Add products of `depth` words to `rows` <= BLOCK rows of `sums`; with `fresh`, set the sums
    to the products. x: rows x_row words apart, readable up to BLOCK.
    """
    left = as_kind(sums, x)  # words, as which products read x
    if not tiles:
        factor = _ZERO if fresh else _ONE
        # the type of the first argument says what a word holds
        multiply_panel(x, left, x_row, words, rows, depth, factor, sums, TILE_COLUMNS)
    elif rows > LANES:  # half a block has LANES rows
        multiply_block(sums, TILE_COLUMNS, left, x_row, words, TILE_COLUMNS, depth, fresh)
    else:
        multiply_half_block(sums, TILE_COLUMNS, left, x_row, words, TILE_COLUMNS, depth, fresh)


@intrinsic
def _store_both(
    typing_context: Context,
    target: types.Type,
    offset: types.Type,
    low: types.Type,
    high: types.Type,
) -> Definition:
    """Write 2 * LANES numbers. For bf16 that is one conversion and one store, which saves a few
    percent of a product's time.
    """

    def build(
        builder: ir.IRBuilder, pointer: ir.Value, offset: ir.Value, low: ir.Value, high: ir.Value
    ) -> None:
        if NATIVE_BF16 and is_bf16(target):
            name = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"
            both = build_call(builder, name, BF16_PAIRS, [high, low])
            builder.store(both, build_pointer(builder, pointer, offset, BF16_PAIRS), align=2)
        else:
            build_store(builder, target, pointer, offset, low)
            after = builder.add(offset, ir.Constant(I64, LANES))
            build_store(builder, target, pointer, after, high)

    return types.none(target, types.intp, f32x16, f32x16), emitting(build)


@njit(**SERIAL)
def store_rows(sums: Pointer, rows: int, out: Pointer, width: int, columns: int) -> None:
    """Write the first `columns` numbers of rows of TILE_COLUMNS sums to `out`, whose rows are
    `width` numbers apart.
    """
    for r in range(rows):
        own = shift(sums, r * TILE_COLUMNS)
        if TILE_COLUMNS == 2 * LANES and columns >= TILE_COLUMNS:
            _store_both(out, r * width, load(own, 0), load(own, LANES))
        else:
            for c in range(0, TILE_COLUMNS, LANES):
                store_up_to(out, r * width + c, load(own, c), columns - c)


@njit(**SERIAL)
def _panel(
    tiles: bool,
    x: Array,
    apart: int,
    last: Pointer,
    w: FloatWeights,
    out: Array,
    first: int,
    stop: int,
    panel: int,
    sums: Pointer,
) -> None:
    """Compute the columns of one panel for the tokens [first, stop).

    Args:
        x, apart: see `_multiply`.
        last: a copy of the inputs of the last block, if it is not full, in rows of `depth` words.
    """
    width = out.shape[1]
    depth = w.words.shape[1]
    column = panel * TILE_COLUMNS
    step = numbers_per_word(address(x))
    # k and `length` count words, and `apart` numbers
    for k in range(0, depth, _SECTION):
        words = shift(address(w.words), (panel * depth + k) * TILE_COLUMNS)
        length = min(_SECTION, depth - k)
        for t in range(first, stop, BLOCK):
            rows = min(BLOCK, stop - t)
            # with several sections of K, the sums of all blocks wait for the next section
            own = shift(sums, 0 if depth <= _SECTION else (t - first) * TILE_COLUMNS)
            left = shift(address(x), t * apart) if rows == BLOCK else last
            row = apart // step if rows == BLOCK else depth
            place = t * width + column
            complete = k + length == depth
            if complete:
                for r in range(rows):
                    # the rows are far apart, so the processor does not foresee them
                    prefetch(address(out), place + r * width)
            _multiply_rows(tiles, shift(left, step * k), rows, row, words, length, k == 0, own)
            if complete:
                store_rows(own, rows, shift(address(out), place), width, width - column)


@njit(**PARALLEL)
def _multiply(
    tiles: bool, x: Array, apart: int, w: FloatWeights, out: Array, rows: int, scratch: Scratch
) -> None:
    """Run `multiply` in tasks of `rows` tokens.

    Args:
        x, apart: `flat_rows` of (T, Kp) bf16 bits, from the start of a cache line on, or of (T, K)
            fp32: the matrix as one row of numbers, and how many numbers there are from the start of
            a token's row to the start of the next.
        scratch: BLOCK rows of inputs, and `rows` rows of sums.
    """
    tokens = out.shape[0]
    panels = w.words.shape[0]
    depth = w.words.shape[1]
    tasks = ceil_div(tokens, rows) * panels
    rest = tokens % BLOCK
    for worker in prange(scratch.rows.shape[0]):
        last = shift(address(scratch.rows), worker * scratch.rows.shape[1])
        sums = shift(last, BLOCK * depth)
        for r in range(rest):
            source = as_kind(last, shift(address(x), (tokens - rest + r) * apart))
            copy_words(source, depth, shift(last, r * depth), depth)
        if rest:
            fill(shift(last, rest * depth), (BLOCK - rest) * depth, _ZERO)
        if tiles:
            configure_tiles()
        task = next_task(address(scratch.tasks))
        while task < tasks:
            first = task // panels * rows
            stop = min(first + rows, tokens)
            _panel(
                tiles, x, apart, as_kind(address(x), last), w, out, first, stop, task % panels, sums
            )
            task = next_task(address(scratch.tasks))
        if tiles:
            release_tiles()


def multiply(x: Numbers, w: FloatWeights, out: Numbers, memory: StepMemory) -> None:
    """Set out = x weight^T. Call it inside `numba_math.parallel()`.

    Args:
        x: (T, K), fp32 or bf16 bits like the weights; it may be some columns of a wider matrix.
            Bits are copied unless K is a multiple of 32 and each row starts on a cache line.
        w: weights (N, K).
        out: (T, N) fp32 or bf16 bits, C-contiguous.
        memory: of the engine's step that multiplies, for the scratch of the workers.
    """
    depth = w.words.shape[1]
    bits = x.dtype == np.uint16
    inputs = 2 * depth  # Kp, in bf16
    if bits and (x.shape[1] != inputs or x.strides[0] % LINE or x.ctypes.data % LINE):
        padded = aligned_zeros(len(x), inputs, dtype=np.uint16)
        padded[:, : x.shape[1]] = x
        x = padded
    rows = rows_per_task(4 * depth, len(x), len(w.words), count_workers())
    scratch = memory.scratch("product", BLOCK * depth + rows * TILE_COLUMNS)
    _multiply(bits and has_tiles(), *flat_rows(x), w, out, rows, scratch)
