"""Everything of a Mamba-2 block between its two projections, for CPU inference.

    T  tokens      Q  CHUNK, the most tokens of a chunk, which belong to one sequence
    H  heads       P  head size      G  groups      N  state size      w  conv width
    Di = H P       Cd = Di + 2 G N                  W  columns of the input projection
    R  rows of the state pool        L  layers
    Pp  P rounded up to whole panels                Np  N rounded up to two whole vectors
    Kp  P rounded up to whole words of four bytes, in 8 bits

    word     32 bits: one number in fp32, two in bf16; memory for words has dtype fp32
    vector   LANES = 16 numbers
    panel    TILE_COLUMNS columns of a matrix, row after row; panel follows panel. So in a matrix of
             r rows, column c begins at c // TILE_COLUMNS * TILE_COLUMNS * r + c % TILE_COLUMNS
    tiles    the processor's matrix registers (Intel AMX), which multiply bf16; where `tiles` is
             false, vectors multiply

In the kernels, `size` is P, `width` Pp, `n` N, `padded` or `n_padded` Np, and `back` w - 1; `h` is
a head, `g` a group, `t` a token. `read` and `write` are the rows of the pool where a state
comes from and goes to (-1: none), and `before` is the number of a sequence's tokens before a chunk.

`plan` (`ops.chunks.ChunkPlan`) has sequence s in the chunks first_chunk[s] to first_chunk[s + 1] -
1. Chunk k belongs to sequence[k], begins with the token start[k], and has the rows row[k] to row[k
+ 1] - 1 of `Buffers`: one for each token, rounded up to a multiple of ROWS.

Two kernels per block. `prepare_chunks` computes what all heads of a group share: conv + SiLU of B
and C, the time steps, and C B^T of every chunk. `scan_heads` gives each (sequence, head) to one
core, which walks through its chunks. With M the state (P, N) before a chunk, and c_i the sum of dt
A over the tokens of the chunk up to i:

    y_i = exp(c_i) M C_i + sum over j <= i of exp(c_i - c_j) dt_j (C_i . B_j) x_j + D x_i
    M  <- exp(c_Q) M + sum over j of exp(c_Q - c_j) dt_j x_j B_j^T

The sums are matrix products (`ops.chunk_tiles`). The conv and SiLU of x come before them and the
gate after them, while the chunk is in cache:

    prepare_chunks   _prepare_group, for each chunk and group; _time_steps, for each chunk
    scan_heads       for each sequence and head, for each chunk: conv of x, `mix`, `scan_panel`,
                     `gate`; at the end the states go to the pool

A worker of `scan_heads` has this scratch, in order, fp32:

    mixed     (Q, Q)        exp(c_i - c_j) dt_j (C_i . B_j), as factors of a product
    grown     (Q,)          exp(c_i)
    carried   (Q,)          exp(c_Q - c_j) dt_j
    ones      (Q + Np,)     factors for `pack_words` where it only changes the layout; and after
                            them `scan_panel`'s words, (Q + Np) TILE_COLUMNS numbers
    x         (Q, Pp)       after conv and SiLU
    y         (Q, Pp)       in panels of TILE_COLUMNS columns
    state     (Pp, Np)      in panels of TILE_COLUMNS of the P rows
    past      (w-1, Pp)     the inputs of the conv before the chunk, and `convolve`'s Q vectors

The state stays fp32 between chunks; the factors of the products are bf16 where the projections are
bf16 (sums in fp32), and fp32 where they are fp32. The division by the gated norm's root mean square
is left to `add_rms_norm`: here only its sums of squares are computed.

`kind` is a pointer to the projections, whose type chooses bf16 or fp32. Names that end in `row` or
`stride` are distances between rows, in numbers.
"""

from typing import NamedTuple

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from runnel.backbones.cpu_step import Floats, Indices
from runnel.ops.causal_conv1d.fused import convolve, history, keep_inputs
from runnel.ops.chunk_tiles import load_state, multiply_keys, scan_panel, store_state
from runnel.ops.chunks import CHUNK, ROWS, ChunkPlan
from runnel.ops.int8_matmul import quantize_row
from runnel.ops.numba_math import PARALLEL, SERIAL, Array, Number, Pointer, StepMemory, softplus
from runnel.ops.simd import (
    LANES,
    TILE_COLUMNS,
    address,
    configure_tiles,
    exp,
    fma,
    keep,
    load,
    mul,
    next_task,
    number,
    prefetch,
    release_tiles,
    round_up,
    shift,
    silu,
    splat,
    store,
    sub,
    total,
)
from runnel.ops.simd_tile import (
    as_kind,
    fill,
    load_up_to,
    numbers_per_word,
    pack_words,
    place_in_pool,
    store_up_to,
    transpose,
)

ZERO = np.float32(0.0)


class Shape(NamedTuple):
    """Sizes of a block, and the clamp of its time steps."""

    heads: int
    head_size: int
    groups: int
    state_size: int
    dt_min: float
    dt_max: float


class Weights(NamedTuple):
    """fp32 weights of one block."""

    # (w+1, H Pp + 2 G Np): taps, then the bias; every head and group padded with zeros
    conv: Floats
    dt_bias: Floats  # (H,)
    A: Floats  # (H,), negative
    D: Floats  # (H,)
    norm: Floats  # (Di,)


class Buffers(NamedTuple):
    """Memory that the two kernels share. `rows` are the rows of all chunks (`ChunkPlan.row`). The
    first three have the matrices of one chunk after another, each chunk group by group.
    """

    # (rows * G * Np / numbers per word,): B in words that join rows. With `tiles` the transpose, so
    # that the words of a row of B^T are neighbors, as tiles load them.
    b_words: Floats
    c_words: Floats  # (rows * G * Np / numbers per word,): C, whose words join columns
    products: Floats  # (rows * G * Q,): C B^T in panels
    dt: Floats  # (H * rows,), head by head
    sums: Floats  # (H * rows,): c, head by head
    scratch: Floats  # (workers, scratch_size)
    tasks: Indices  # (2,) the next free task of each kernel; zeroed by the caller
    tiles: bool  # whether tiles multiply


class Outputs(NamedTuple):
    """What `scan_heads` fills."""

    # (T, Di): y silu(z) * weight in the dtype of the projections, out_proj's input but for its rms.
    # Or in 8 bits for `int8_matmul.multiply`, a head being a group: (T, H Kp) uint8.
    gated: NDArray[np.generic]
    scales: Floats  # (T, H), the scales of `gated` in 8 bits; else not used
    squares: Floats  # (T, H), the sums of squares of y silu(z) over each head


def pad_conv(weight: Floats, bias: Floats, shape: Shape) -> Floats:
    """Return `Weights.conv` for weight (Cd, w) and bias (Cd,)."""
    width = round_up(shape.head_size, TILE_COLUMNS)
    n = round_up(shape.state_size, 2 * LANES)
    inner = shape.heads * shape.head_size
    rows = np.concatenate([weight.T, bias[None]])
    out = np.zeros((rows.shape[0], shape.heads * width + 2 * shape.groups * n), np.float32)
    out[:, : shape.heads * width].reshape(-1, shape.heads, width)[..., : shape.head_size] = rows[
        :, :inner
    ].reshape(-1, shape.heads, shape.head_size)
    shared = rows[:, inner:].reshape(-1, 2 * shape.groups, shape.state_size)
    out[:, shape.heads * width :].reshape(-1, 2 * shape.groups, n)[..., : shape.state_size] = shared
    return out


def allocate(
    memory: StepMemory, shape: Shape, conv_width: int, rows: int, tiles: bool, per_word: int
) -> Buffers:
    """Return buffers for a plan of `rows` rows. `per_word`: the numbers in a word."""
    words = rows * shape.groups * round_up(shape.state_size, 2 * LANES) // per_word
    steps = rows * shape.heads
    scratch, tasks = memory.scratch("heads", scratch_size(shape, conv_width))
    return Buffers(
        b_words=memory.array("b_words", words),
        c_words=memory.array("c_words", words),
        products=memory.array("products", rows * shape.groups * CHUNK),
        dt=memory.array("dt", steps),
        sums=memory.array("sums", steps),
        scratch=scratch,
        tasks=tasks,
        tiles=tiles,
    )


def scratch_size(shape: Shape, conv_width: int) -> int:
    """Return the fp32 numbers of scratch that a worker needs for the larger of the two kernels."""
    width = round_up(shape.head_size, TILE_COLUMNS)
    n = round_up(shape.state_size, 2 * LANES)
    back = conv_width - 1
    # `_prepare_group`: smooth and natural, ones, and the larger of the two uses of `spare`
    prepare = 2 * CHUNK * n + CHUNK + max(back * n + CHUNK * LANES, n * TILE_COLUMNS)
    scan = (
        CHUNK * CHUNK  # mixed
        + 2 * CHUNK  # grown, carried
        + (CHUNK + n) * (1 + TILE_COLUMNS)  # ones and words
        + 2 * CHUNK * width  # x, y
        + width * n  # state
        + back * width  # past
        + CHUNK * LANES
    )
    return round_up(max(prepare, scan), LANES) + LANES  # with a cache line between workers


@njit(**SERIAL)
def mix(
    out: Pointer,
    products: Pointer,
    sums: Pointer,
    dt: Pointer,
    tokens: int,
    rows: int,
    growth: Pointer,
) -> None:
    """Set out[i, j] = C_i . B_j exp(c_i - c_j) dt_j for j <= i, and 0 above the diagonal up to a
    multiple of ROWS; rows are CHUNK numbers apart. A block here is LANES rows and columns.

    Left of the blocks on the diagonal, exp(c_i - c_j) is exp(c_i - c_b) exp(c_b - c_j), where b is
    the block's first row: two numbers of at most 1, one for each row and one for each column.

    Args:
        products: C B^T in panels of `rows` rows.
        sums, dt: (tokens,) the c_i and the dt_j.
        growth: scratch of LANES numbers.
    """
    for first in range(0, tokens, LANES):
        last = min(first + LANES, tokens)
        begin = splat(sums[first])
        store(growth, 0, exp(sub(load(sums, first), begin)))
        for j in range(0, first, LANES):
            weight = mul(exp(sub(begin, load(sums, j))), load(dt, j))
            panel = shift(products, j // TILE_COLUMNS * TILE_COLUMNS * rows + j % TILE_COLUMNS)
            for i in range(first, last):
                store(
                    out,
                    i * CHUNK + j,
                    mul(mul(weight, splat(growth[i - first])), load(panel, i * TILE_COLUMNS)),
                )
        panel = shift(products, first // TILE_COLUMNS * TILE_COLUMNS * rows + first % TILE_COLUMNS)
        steps = load(dt, first)
        earlier = load(sums, first)
        for i in range(first, last):
            v = mul(mul(exp(sub(splat(sums[i]), earlier)), steps), load(panel, i * TILE_COLUMNS))
            store(out, i * CHUNK + first, keep(v, i - first + 1))
            if first % ROWS == 0:  # LANES more columns up to a multiple of ROWS
                store(out, i * CHUNK + first + LANES, splat(ZERO))


@njit(**SERIAL)
def gate(
    z: Pointer,
    stride: int,
    y: Pointer,
    x: Pointer,
    x_stride: int,
    D: Number,
    weight: Pointer,
    tokens: int,
    size: int,
    out: Pointer,
    out_stride: int,
    squares: Pointer,
    heads: int,
) -> None:
    """Set out = (y + D x) silu(z) * weight, and `squares` to the sums of squares of (y + D x)
    silu(z), for one chunk of a head: `tokens` rows of `size` numbers.

    y is in panels, the other rows are `stride`, `x_stride` and `out_stride` apart; `squares` has a
    number for each of the `heads`.
    """
    skip = splat(D)
    for t in range(tokens):
        sums = splat(ZERO)
        for c in range(0, size, LANES):
            v = load(
                y, c // TILE_COLUMNS * TILE_COLUMNS * CHUNK + t * TILE_COLUMNS + c % TILE_COLUMNS
            )
            v = fma(skip, load(x, t * x_stride + c), v)
            v = mul(v, silu(load_up_to(z, t * stride + c, size - c)))
            store_up_to(out, t * out_stride + c, mul(v, load_up_to(weight, c, size - c)), size - c)
            sums = fma(v, v, sums)
        squares[t * heads] = total(sums)


@njit(**SERIAL)
def prefetch_rows(base: Pointer, stride: int, tokens: int, width: int) -> None:
    """Have the processor load `tokens` rows of `width` numbers into cache, `stride` apart."""
    line = 16 * numbers_per_word(base)  # numbers in 64 bytes
    for t in range(tokens):
        for c in range(0, width + line - 1, line):
            prefetch(base, t * stride + min(c, width - 1))


# ---- what the heads of a group share -------------------------------------------------------------


@njit(**SERIAL)
def _time_steps(
    source: Pointer,
    stride: int,
    tokens: int,
    bias: Pointer,
    A: Pointer,
    heads: int,
    low: Number,
    high: Number,
    rows: int,
    dt: Pointer,
    sums: Pointer,
) -> None:
    """Set dt = clamp(softplus(source + bias)), and `sums` to the running sum of dt A, for all heads
    of one chunk; the numbers of a head begin `rows` after the numbers of the head before.
    """
    for h in range(heads):
        running = ZERO
        for t in range(tokens):
            step = min(max(softplus(number(source, t * stride + h) + bias[h]), low), high)
            running += step * A[h]
            dt[h * rows + t] = step
            sums[h * rows + t] = running


@njit(**SERIAL)
def _prepare_group(
    source: Pointer,
    stride: int,
    layer: int,
    pool: Array,
    shape: Shape,
    taps: tuple[int, ...],
    weights: Weights,
    plan: ChunkPlan,
    buffers: Buffers,
    chunk: int,
    g: int,
    scratch: Pointer,
) -> None:
    """Compute B and C of one chunk and group by the conv, write them as words for the tile
    products, and compute C B^T. `source`: the projection of the chunk's first token.
    """
    heads, groups, n = shape.heads, shape.groups, shape.state_size
    back = len(taps) - 1
    padded = round_up(n, 2 * LANES)
    step = numbers_per_word(source)
    row = plan.row[chunk]
    rows = plan.row[chunk + 1] - plan.row[chunk]
    sequence = plan.sequence[chunk]
    before = plan.start[chunk] - plan.cu_seqlens[sequence]
    tokens = min(plan.cu_seqlens[sequence + 1] - plan.start[chunk], CHUNK)
    read = plan.read_rows[sequence]
    smooth = scratch  # (Q, Np) fp32: B, then C, after conv and SiLU
    # (Q, Np) B as factors of the products, row by row; C goes straight to the buffers
    natural = shift(scratch, CHUNK * padded)
    ones = shift(scratch, 2 * CHUNK * padded)  # (Q,) factors for `pack_words`
    spare = shift(ones, CHUNK)  # for `history` and `convolve`, then for words to be transposed
    fill(ones, CHUNK, np.float32(1.0))
    c_words = shift(address(buffers.c_words), (row * groups + g * rows) * padded // step)
    for part in range(2):  # B, then C
        column = heads * shape.head_size + (part * groups + g) * n
        state = place_in_pool(pool, max(read, 0), layer, column)
        first = shift(source, heads * shape.head_size + column)
        history(first, stride, n, padded, before, back, state, read >= 0, spare)
        before_weights = (
            heads * round_up(shape.head_size, TILE_COLUMNS) + (part * groups + g) * padded
        )
        conv_weights = shift(address(weights.conv), before_weights)
        convolve(
            first,
            stride,
            n,
            padded,
            tokens,
            spare,
            conv_weights,
            weights.conv.shape[1],
            taps,
            smooth,
            padded,
        )
        target = as_kind(source, natural if part == 0 else c_words)
        for i in range(0, tokens * padded, LANES):
            store(target, i, load(smooth, i))
        if part == 0:
            b_words = shift(address(buffers.b_words), (row * groups + g * rows) * padded // step)
            if buffers.tiles:
                pack_words(source, smooth, padded, tokens, ones, spare, padded)
                _transpose_pairs(spare, tokens, rows, padded, b_words)
            else:
                pack_words(source, smooth, padded, tokens, ones, b_words, padded)
    products = shift(address(buffers.products), (row * groups + g * rows) * CHUNK)
    multiply_keys(source, buffers.tiles, c_words, natural, tokens, padded, rows, spare, products)


@njit(**SERIAL)
def _transpose_pairs(pairs: Pointer, tokens: int, rows: int, padded: int, out: Pointer) -> None:
    """Write the transpose of a chunk's B, given as words that join two of its first `tokens` rows:
    `padded` rows of `rows` numbers. Only tiles need it, and so only bf16.
    """
    used = (tokens + 1) // 2 * padded
    fill(shift(pairs, used), rows // 2 * padded - used, ZERO)
    for t in range(0, rows // 2, LANES):
        for k in range(0, padded, LANES):
            transpose(
                shift(pairs, t * padded + k), padded, shift(out, k * rows // 2 + t), rows // 2
            )


@njit(**PARALLEL)
def prepare_chunks(
    projected: Array,
    layer: int,
    conv_pool: Array,
    shape: Shape,
    taps: tuple[int, ...],
    weights: Weights,
    plan: ChunkPlan,
    buffers: Buffers,
) -> None:
    """Fill `buffers` with what `scan_heads` needs of B, C and dt. Call it inside
    `numba_math.parallel()`.

    Args:
        projected: (T, W) fp32 or bf16 bits: z, x, B, C, dt of each token, and perhaps unused
            columns.
        layer: which layer of the pool.
        conv_pool: (R, L, Cd, w-1) fp32; read only.
        shape, weights: of the block.
        taps: (0, .. w-1), a tuple so that the code is compiled for this w.
        plan, buffers: of the step; `buffers.tasks` zero.
    """
    chunks = plan.sequence.shape[0]
    stride = projected.shape[1]
    groups = shape.groups  # a chunk has a task for each group, and one for its time steps
    steps = 2 * (shape.heads * shape.head_size + groups * shape.state_size)  # the column of dt
    for worker in prange(buffers.scratch.shape[0]):
        scratch = shift(address(buffers.scratch), worker * buffers.scratch.shape[1])
        if buffers.tiles:
            configure_tiles()
        while True:
            task = next_task(address(buffers.tasks))
            if task >= chunks * (groups + 1):
                break
            chunk = task // (groups + 1)
            g = task % (groups + 1)
            start = plan.start[chunk]
            source = shift(address(projected), start * stride)
            if g < groups:
                _prepare_group(
                    source,
                    stride,
                    layer,
                    conv_pool,
                    shape,
                    taps,
                    weights,
                    plan,
                    buffers,
                    chunk,
                    g,
                    scratch,
                )
            else:
                row = plan.row[chunk]
                _time_steps(
                    shift(source, steps),
                    stride,
                    min(plan.cu_seqlens[plan.sequence[chunk] + 1] - start, CHUNK),
                    address(weights.dt_bias),
                    address(weights.A),
                    shape.heads,
                    np.float32(shape.dt_min),
                    np.float32(shape.dt_max),
                    plan.row[chunks],
                    shift(address(buffers.dt), row),
                    shift(address(buffers.sums), row),
                )
        if buffers.tiles:
            release_tiles()


@njit(**SERIAL)
def _prefetch_chunk(
    projected: Array,
    gated: Array,
    shape: Shape,
    plan: ChunkPlan,
    sequence: int,
    h: int,
    before: int,
) -> None:
    """Have the processor load z, x and the output of one head and chunk into cache: short rows far
    apart, which it does not foresee.
    """
    begin = plan.cu_seqlens[sequence] + before
    stride = projected.shape[1]
    width = gated.shape[1]
    size = shape.head_size
    tokens = min(plan.cu_seqlens[sequence + 1] - begin, CHUNK)
    source = shift(address(projected), begin * stride + h * size)
    prefetch_rows(source, stride, tokens, size)
    prefetch_rows(shift(source, shape.heads * size), stride, tokens, size)
    prefetch_rows(
        shift(address(gated), begin * width + h * (width // shape.heads)), width, tokens, size
    )


# ---- one head of one sequence --------------------------------------------------------------------


@njit(**SERIAL)
def _scan_chunk(
    kind: Pointer,
    chunk: int,
    h: int,
    tokens: int,
    has_state: bool,
    advances: bool,
    shape: Shape,
    plan: ChunkPlan,
    buffers: Buffers,
    x: Pointer,
    state: Pointer,
    y: Pointer,
    memory: Pointer,
) -> None:
    """Compute y of one chunk from x (tokens, Pp) and the panels of the state, which is zero unless
    `has_state`; if `advances`, update the state. `memory`: the worker's scratch.
    """
    step = numbers_per_word(kind)
    n = round_up(shape.state_size, 2 * LANES)
    width = round_up(shape.head_size, TILE_COLUMNS)
    row = plan.row[chunk]
    rows = plan.row[chunk + 1] - plan.row[chunk]
    # rows of other chunks and groups that are before the rows of this chunk and group
    earlier = row * shape.groups + h // (shape.heads // shape.groups) * rows
    b_words = shift(address(buffers.b_words), earlier * n // step)
    c_words = shift(address(buffers.c_words), earlier * n // step)
    steps = h * plan.row[plan.sequence.shape[0]] + row  # a head has all rows of the plan
    dt = shift(address(buffers.dt), steps)
    sums = shift(address(buffers.sums), steps)
    mixed = memory
    grown = shift(mixed, CHUNK * CHUNK)
    carried = shift(grown, CHUNK)
    mix(
        as_kind(kind, mixed),
        shift(address(buffers.products), earlier * CHUNK),
        sums,
        dt,
        tokens,
        rows,
        grown,  # as scratch, before it is filled
    )
    for t in range(0, tokens, LANES):
        store(grown, t, exp(load(sums, t)))
        store(carried, t, mul(load(dt, t), exp(sub(splat(sums[tokens - 1]), load(sums, t)))))
    # how many words the rows of B^T are apart, and the words of a row: see `Buffers.b_words`
    b_row, b_depth = (rows // 2, 1) if buffers.tiles else (1, n)
    for column in range(0, width, TILE_COLUMNS):
        scan_panel(
            kind,
            buffers.tiles,
            tokens,
            n,
            has_state,
            advances,
            c_words,
            b_words,
            b_row,
            b_depth,
            mixed,
            grown,
            carried,
            shift(x, column),
            width,
            shift(state, column * n),
            shift(y, column * CHUNK),
            shift(carried, CHUNK),  # ones and words
        )


@njit(**SERIAL)
def _gate_chunk(
    z: Pointer,
    stride: int,
    y: Pointer,
    x: Pointer,
    outputs: Outputs,
    shape: Shape,
    weights: Weights,
    start: int,
    h: int,
    tokens: int,
) -> None:
    """Write one chunk of a head to the outputs and overwrite x. `start`: its first token."""
    size, heads = shape.head_size, shape.heads
    width = round_up(shape.head_size, TILE_COLUMNS)
    row = outputs.gated.shape[1]
    out = shift(address(outputs.gated), start * row + h * (row // heads))
    sums = shift(address(outputs.squares), start * heads + h)
    weight = shift(address(weights.norm), h * size)
    if numbers_per_word(address(outputs.gated)) == 4:
        gate(z, stride, y, x, width, weights.D[h], weight, tokens, size, x, width, sums, heads)
        for t in range(tokens):
            outputs.scales[start + t, h] = quantize_row(
                shift(x, t * width), size, shift(out, t * row)
            )
    else:
        gate(z, stride, y, x, width, weights.D[h], weight, tokens, size, out, row, sums, heads)


@njit(**SERIAL)
def _keep_conv(
    source: Pointer,
    stride: int,
    layer: int,
    pool: Array,
    shape: Shape,
    back: int,
    length: int,
    h: int,
    read: int,
    write: int,
) -> None:
    """Write the conv state of one head's channels, and of its group's if it is the group's first
    head.
    """
    per_group = shape.heads // shape.groups
    inner = shape.heads * shape.head_size
    for part in range(3 if h % per_group == 0 else 1):  # x, B, C
        if part == 0:
            channel = h * shape.head_size
            width = shape.head_size
        else:
            channel = inner + ((part - 1) * shape.groups + h // per_group) * shape.state_size
            width = shape.state_size
        old = place_in_pool(pool, max(read, 0), layer, channel)
        new = place_in_pool(pool, write, layer, channel)
        inputs = shift(source, inner + channel)
        keep_inputs(inputs, stride, width, length, back, old, read >= 0, new)


@njit(**SERIAL)
def _scan_head(
    projected: Array,
    outputs: Outputs,
    layer: int,
    conv_pool: Array,
    pool: Array,
    shape: Shape,
    taps: tuple[int, ...],
    weights: Weights,
    plan: ChunkPlan,
    buffers: Buffers,
    task: int,
    upcoming: int,
    memory: Pointer,
) -> None:
    """Compute all tokens of one head of one sequence, number `task`. While it computes the last
    chunk, the processor loads the first chunk of the `upcoming` task.
    """
    sequence = task // shape.heads
    h = task % shape.heads
    size, n = shape.head_size, shape.state_size
    back = len(taps) - 1
    stride = projected.shape[1]
    width = round_up(size, TILE_COLUMNS)
    n_padded = round_up(n, 2 * LANES)
    begin = plan.cu_seqlens[sequence]
    length = plan.cu_seqlens[sequence + 1] - plan.cu_seqlens[sequence]
    read = plan.read_rows[sequence]
    write = plan.write_rows[sequence]
    inputs = place_in_pool(conv_pool, max(read, 0), layer, h * size)
    source = shift(address(projected), begin * stride)
    ones = shift(memory, CHUNK * CHUNK + 2 * CHUNK)  # after mixed, grown and carried
    fill(ones, CHUNK + n_padded, np.float32(1.0))
    x = shift(ones, (CHUNK + n_padded) * (1 + TILE_COLUMNS))
    y = shift(x, CHUNK * width)
    state = shift(y, CHUNK * width)
    past = shift(state, width * n_padded)
    if read >= 0:
        old = place_in_pool(pool, read, layer, h)
        load_state(old, size, n, n_padded, TILE_COLUMNS, state)
    has_state = read >= 0
    for chunk in range(plan.first_chunk[sequence], plan.first_chunk[sequence + 1]):
        before = plan.start[chunk] - begin
        tokens = min(length - before, CHUNK)
        here = shift(source, before * stride)
        own_x = shift(here, (shape.heads + h) * size)
        if before + tokens < length:
            _prefetch_chunk(projected, outputs.gated, shape, plan, sequence, h, before + tokens)
        elif upcoming < (plan.cu_seqlens.shape[0] - 1) * shape.heads:
            _prefetch_chunk(
                projected,
                outputs.gated,
                shape,
                plan,
                upcoming // shape.heads,
                upcoming % shape.heads,
                0,
            )
        history(own_x, stride, size, width, before, back, inputs, read >= 0, past)
        conv_weights = shift(address(weights.conv), h * width)
        convolve(
            own_x,
            stride,
            size,
            width,
            tokens,
            past,
            conv_weights,
            weights.conv.shape[1],
            taps,
            x,
            width,
        )
        needed = write >= 0 or before + tokens < length
        _scan_chunk(
            source, chunk, h, tokens, has_state, needed, shape, plan, buffers, x, state, y, memory
        )
        z = shift(here, h * size)
        _gate_chunk(z, stride, y, x, outputs, shape, weights, plan.start[chunk], h, tokens)
        has_state = True
    if write >= 0:
        new = place_in_pool(pool, write, layer, h)
        if not has_state:  # a new sequence without tokens
            fill(new, size * n, ZERO)
        elif length or read != write:  # else the pool has this state already
            store_state(state, size, n, n_padded, TILE_COLUMNS, new)
        _keep_conv(source, stride, layer, conv_pool, shape, back, length, h, read, write)


@njit(**PARALLEL)
def scan_heads(
    projected: Array,
    outputs: Outputs,
    layer: int,
    conv_pool: Array,
    pool: Array,
    shape: Shape,
    taps: tuple[int, ...],
    weights: Weights,
    plan: ChunkPlan,
    buffers: Buffers,
) -> None:
    """Compute the rest of the block, after `prepare_chunks` with the same arguments. Call it inside
    `numba_math.parallel()`.

    Args:
        outputs: to be filled.
        conv_pool, pool: (R, L, Cd, w-1) and (R, L, H, P, N) fp32; the rows in `plan.write_rows` are
            updated.
    """
    tasks = (plan.cu_seqlens.shape[0] - 1) * shape.heads
    for worker in prange(buffers.scratch.shape[0]):
        memory = shift(address(buffers.scratch), worker * buffers.scratch.shape[1])
        if buffers.tiles:
            configure_tiles()
        task = next_task(shift(address(buffers.tasks), 1))
        while task < tasks:
            upcoming = next_task(shift(address(buffers.tasks), 1))
            _scan_head(
                projected,
                outputs,
                layer,
                conv_pool,
                pool,
                shape,
                taps,
                weights,
                plan,
                buffers,
                task,
                upcoming,
                memory,
            )
            task = upcoming
        if buffers.tiles:
            release_tiles()


@njit(**PARALLEL)
def normalize_groups(gated: Array, squares: Array, groups: int, count: int, eps: float) -> None:
    """Divide each group of heads by its root mean square, in place. One group needs no such pass.

    Args:
        gated: (T, Di). Or its scales (T, H) in 8 bits: dividing a scale divides its head's bytes.
        squares: (T, H).
        count: how many numbers the sums of squares of a group cover.
    """
    inner = gated.shape[1]
    heads = squares.shape[1]
    for t in prange(gated.shape[0]):
        row = shift(address(gated), t * inner)
        for g in range(groups):
            sums = ZERO
            for h in range(g * heads // groups, (g + 1) * heads // groups):
                sums += squares[t, h]
            factor = splat(np.float32(1.0) / np.sqrt(sums / np.float32(count) + np.float32(eps)))
            end = (g + 1) * inner // groups
            for c in range(g * inner // groups, end, LANES):
                store_up_to(row, c, mul(load_up_to(row, c, end - c), factor), end - c)
