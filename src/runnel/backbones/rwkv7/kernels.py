"""Everything of an RWKV-7 layer between its big matrix products, for CPU inference.

    T  tokens           S  sequences       H  heads           N  head size           D = H N
    R  rows of the state pool              L  layers          F  ffn_size
    Np, Dp  N and D rounded up to whole vectors
    Rw      all four ranks together, each a whole number of panels (see `LowRank`)
    M       mixes that big products read: 3 in a time mix (r, k, v), 1 in the feed-forward part
    G, Kp   groups of 8-bit inputs, and the bytes of a group

The letters of the mixes and the equations are those of `model.py`.

In order, per layer (the products in brackets are `Product`s of the caller, `cpu.py`):

    add_norm_shift   x_r, x_k, x_v and the low-rank activations
    [r, k, v]
    mix_heads        per head and block of tokens:
                         _raise     products of the low-rank activations
                         _prepare   r, k, v, decay, a, b
                         advance    the recurrence (ops.wkv7.lanes)
                         _finish    norm, bonus, gate
    [output]
    add_norm_shift   x_k of the feed-forward part
    [key]
    square_relu
    [value]

and at the end of the model `add_norm`. `mix_heads` gives each (sequence, head) to one core, which
walks through its tokens in blocks: the low-rank products and the other inputs of the recurrence are
made in tiles that stay in cache, the state advances token by token, and the output is normed and
gated before it is written. States and all arithmetic are fp32; only factors of matrix products are
bf16 where the weights are.
"""

from typing import NamedTuple

import numpy as np
import torch
from llvmlite import ir
from numba import njit, prange
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from runnel.backbones.cpu_step import Floats, Indices
from runnel.ops.int8_matmul import quantize_row
from runnel.ops.numba_math import (
    PARALLEL,
    SERIAL,
    Array,
    Number,
    Pointer,
    Scratch,
    StepMemory,
    Vector,
    build_constant,
)
from runnel.ops.simd import (
    LANES,
    TILE_COLUMNS,
    VF32,
    add,
    address,
    build_call,
    build_polynomial,
    elementwise,
    fma,
    keep,
    load,
    mul,
    next_task,
    round_up,
    shift,
    sigmoid,
    splat,
    store,
    sub,
    total,
)
from runnel.ops.simd_tile import (
    as_kind,
    copy_row,
    load_up_to,
    multiply_panel,
    numbers_per_word,
    place_in_pool,
    store_up_to,
)
from runnel.ops.wkv7.lanes import advance

BLOCK = 32  # tokens of a block of `mix_heads`: their tiles and the state stay in cache
ROWS = 32  # tokens of a block of `add_norm_shift`, which is one task


class Shape(NamedTuple):
    """Sizes of a layer, and the eps of the norm of each head's output."""

    heads: int
    head_size: int
    eps: float


class HeadWeights(NamedTuple):
    """Small fp32 weights of one layer's time mix, each (H, Np), every head padded with zeros."""

    w0: Floats
    a0: Floats
    v0: Floats  # of any content in the first layer
    k_k: Floats
    k_a: Floats
    r_k: Floats
    norm: Floats
    bias: Floats


class LowRank(NamedTuple):
    """The four low-rank pairs of a layer (v, w, a, g), as words for tile products: panels of
    TILE_COLUMNS rows of a matrix.

    Ranks are rounded up to whole panels and laid end to end, Rw together; v has rank 0 in the first
    layer.
    """

    down: Floats  # (Rw / TILE_COLUMNS, Dp / numbers per word, TILE_COLUMNS)
    up: Floats  # (H panels per head, Rw / numbers per word, TILE_COLUMNS)
    first: Indices  # (5,) the first panel of each pair, and their number


class ShiftWeights(NamedTuple):
    """A norm and the mixes that follow it, fp32, padded with zeros to Dp."""

    norm: Floats  # (Dp,)
    bias: Floats  # (Dp,)
    mixes: Floats  # (M, Dp), and in a time mix three more rows, those of w, a and g


class BlockPlan(NamedTuple):
    """The sequences of a step, and its blocks of ROWS tokens."""

    cu_seqlens: Indices  # (S+1,)
    read_rows: Indices  # (S,), -1: start from zero
    write_rows: Indices  # (S,), -1: the end state is not wanted
    first: Indices  # (blocks,) the sequence of each block's first token


class Mixes(NamedTuple):
    """The results of `add_norm_shift`."""

    # (M, T, D) fp32 or bf16 bits. Or in 8 bits for `int8_matmul.multiply`: (M, T, Kp) uint8.
    mixes: NDArray[np.generic]
    scales: Floats  # (M, T, 1), the scales of `mixes` in 8 bits; else not used
    # (at least T, Rw), the low-rank activations in the dtype of `LowRank`: down_v x_v, tanh(down_w
    # x_w), down_a x_a, sigmoid(down_g x_g)
    low: NDArray[np.generic]


class Buffers(NamedTuple):
    """Memory of the kernels."""

    # (at least blocks of ROWS tokens + S, Dp): the normed token before each block, and before each
    # sequence
    before: Floats
    scratch: Floats  # (workers, scratch_size)
    tasks: Indices  # (1,) the next free task; zeroed by the caller of a kernel


def pad_heads(weight: Floats, s: Shape) -> Floats:
    """Pad each head with zeros: (D,) or (H, N) -> (H, Np)."""
    out = np.zeros((s.heads, round_up(s.head_size)), np.float32)
    out[:, : s.head_size] = weight.reshape(s.heads, s.head_size)
    return out


def pad_columns(weight: Floats) -> Floats:
    """Pad rows with zeros: (..., D) -> (..., Dp)."""
    return np.pad(
        weight, [(0, 0)] * (weight.ndim - 1) + [(0, round_up(weight.shape[-1]) - weight.shape[-1])]
    )


def plan_blocks(cu_seqlens: Indices, read_rows: Indices, write_rows: Indices) -> BlockPlan:
    """Return the plan of a step."""
    starts = np.arange(0, cu_seqlens[-1], ROWS)
    return BlockPlan(
        cu_seqlens, read_rows, write_rows, np.searchsorted(cu_seqlens, starts, side="right") - 1
    )


def pack_panels(matrix: Tensor) -> Floats:
    """Lay a matrix (rows, columns) out as words for tile products: (rows / TILE_COLUMNS, words of a
    row, TILE_COLUMNS). `rows` is a multiple of TILE_COLUMNS, `columns` of LANES.
    """
    step = 4 // matrix.dtype.itemsize
    panels = (
        matrix.unflatten(1, (-1, step))
        .unflatten(0, (-1, TILE_COLUMNS))
        .transpose(1, 2)
        .contiguous()
    )
    return panels.view(torch.float32).squeeze(-1).numpy()


def pack_low_rank(downs: list[Tensor], ups: list[Tensor], s: Shape) -> LowRank:
    """Lay out the low-rank pairs of v (absent in the first layer), w, a and g, all fp32 or all
    bf16: each has a down matrix (rank, D) and an up matrix (D, rank).
    """
    width = s.heads * s.head_size
    panel = TILE_COLUMNS
    down = torch.cat([F.pad(t, (0, -width % LANES, 0, -len(t) % panel)) for t in downs])
    up = torch.cat([F.pad(t, (0, -t.shape[1] % panel)) for t in ups], 1)
    up = F.pad(up.unflatten(0, (s.heads, s.head_size)), (0, 0, 0, -s.head_size % panel)).flatten(
        0, 1
    )
    sizes = [round_up(len(t), panel) // panel for t in downs]
    first = np.cumsum([0] * (5 - len(sizes)) + sizes)
    return LowRank(pack_panels(down), pack_panels(up), first)


def allocate(memory: StepMemory, s: Shape, rows: int) -> Buffers:
    """Return buffers for a plan whose blocks and sequences are together `rows`."""
    scratch, tasks = memory.scratch("heads", scratch_size(s))
    before = memory.array("before", rows, round_up(s.heads * s.head_size))
    return Buffers(before, scratch, tasks)


def scratch_size(s: Shape) -> int:
    """Return the fp32 numbers of scratch that one worker needs, for a block of `add_norm_shift` or
    for a head of `mix_heads`.
    """
    width = round_up(s.heads * s.head_size)
    size = round_up(s.head_size)
    wide = round_up(s.head_size, TILE_COLUMNS)
    block = 5 * width + 4 * ROWS * width + ROWS * TILE_COLUMNS
    return round_up(max(block, size * size + BLOCK * (7 * size + 4 * wide + 2)), 16) + 16


# exp(-exp(-1/2) s) on 0 <= s <= 1 with a relative error of 8e-10, by reweighted least squares in
# fp64; highest power first.
_DECAY = (
    5.0913065242436106e-05,
    -0.0006597653386948565,
    0.005622414086831645,
    -0.03718246067029107,
    0.18393870495726966,
    -0.6065305930804197,
    0.9999999992704464,
)
ZERO = np.float32(0.0)
ONE = np.float32(1.0)


def _build_squared_relu(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    zero = build_constant(VF32, 0.0)
    x = builder.select(builder.fcmp_ordered("<", x, zero), zero, x)  # NaN stays NaN
    return builder.fmul(x, x)


def _build_rsqrt(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    return builder.fdiv(
        build_constant(VF32, 1.0), build_call(builder, "llvm.sqrt.v16f32", VF32, [x])
    )


decay = elementwise(
    1,
    lambda builder, s: build_polynomial(builder, s, _DECAY),
    "exp(-exp(-1/2) s) for s in [0, 1], relative error below 2e-7",
)
squared_relu = elementwise(1, _build_squared_relu, "max(x, 0)^2")
rsqrt = elementwise(1, _build_rsqrt, "1 / sqrt(x)")


@njit(**SERIAL)
def tanh(x: Vector) -> Vector:
    """Hyperbolic tangent, absolute error below 3e-7."""
    s = sigmoid(add(x, x))
    return add(add(s, s), splat(-ONE))


@njit(**SERIAL)
def norm_token(
    residual: Pointer,
    added: Pointer,
    width: int,
    w: ShiftWeights,
    eps: Number,
    out: Pointer,
    update: bool,
) -> None:
    """Set out = norm(residual + added) for one token, and residual += added if `update`. Pointers;
    `out` has Dp numbers.
    """
    sums = splat(ZERO)
    for c in range(0, width, LANES):
        v = add(load_up_to(residual, c, width - c), load_up_to(added, c, width - c))
        store(out, c, v)
        sums = add(sums, v)
    mean = splat(total(sums) / np.float32(width))
    squares = splat(ZERO)
    for c in range(0, width, LANES):
        v = load(out, c)
        if update:
            store_up_to(residual, c, v, width - c)
        v = sub(v, mean)
        v = v if width - c >= LANES else keep(v, width - c)
        squares = fma(v, v, squares)
    factor = splat(np.float32(1.0) / np.sqrt(total(squares) / np.float32(width) + eps))
    for c in range(0, width, LANES):
        v = mul(sub(load(out, c), mean), factor)
        store(out, c, fma(v, load(address(w.norm), c), load(address(w.bias), c)))


@njit(**SERIAL)
def start(pool: Array, layer: int, p: BlockPlan, s: int, before: Pointer) -> None:
    """Set `before` (Dp,) to the token that a sequence carries from the step before (zeros: none).
    If the sequence is empty, carry that token on.
    """
    read_row = p.read_rows[s]
    write_row = p.write_rows[s]
    width = pool.shape[2]
    old = place_in_pool(pool, max(read_row, 0), layer, 0)
    for c in range(0, width, LANES):
        store(before, c, load_up_to(old, c, width - c) if read_row >= 0 else splat(ZERO))
    if write_row >= 0 and p.cu_seqlens[s + 1] == p.cu_seqlens[s]:
        copy_row(before, width, place_in_pool(pool, write_row, layer, 0))


@njit(**SERIAL)
def mix(
    now: Pointer,
    before: Pointer,
    width: int,
    padded: int,
    mixes: Pointer,
    indices: tuple[int, ...],
    out: Pointer,
    size: int,
) -> None:
    """Set out[m] = now + (before - now) * mixes[m] for one token and each m. In `out`, m + 1 is
    `size` numbers after m. `indices`: any tuple of as many integers as there are mixes.
    """
    for c in range(0, width, LANES):
        x = load(now, c)
        step = sub(load(before, c), x)
        for m in range(len(indices)):
            store_up_to(out, m * size + c, fma(step, load(mixes, m * padded + c), x), width - c)


@njit(**SERIAL)
def project(
    mixed: Pointer,
    tokens: int,
    padded: int,
    low_rank: LowRank,
    stage: Pointer,
    out: Pointer,
    stride: int,
) -> None:
    """Compute the low-rank activations of one block (`Mixes.low`) from its mixes for v, w, a and g,
    (4, ROWS, Dp) in the dtype of `out`.
    """
    depth = padded // numbers_per_word(out)
    for part in range(4):
        left = shift(mixed, part * ROWS * depth)
        for panel in range(low_rank.first[part], low_rank.first[part + 1]):
            right = shift(address(low_rank.down), panel * depth * TILE_COLUMNS)
            multiply_panel(out, left, depth, right, tokens, depth, ZERO, stage, TILE_COLUMNS)
            for i in range(0, tokens * TILE_COLUMNS, LANES):
                x = load(stage, i)
                if part == 1:
                    x = tanh(x)
                elif part == 3:
                    x = sigmoid(x)
                store(out, i // TILE_COLUMNS * stride + panel * TILE_COLUMNS + i % TILE_COLUMNS, x)


_LEAST_SQUARE = np.float32(1e-24)  # the square of the least length of a removal key, 1e-12


class Products(NamedTuple):
    """The outputs of the matrix products, fp32 or bf16 bits."""

    r: NDArray[np.float32]  # (T, D)
    k: NDArray[np.float32]  # (T, D)
    v: NDArray[np.float32]  # (T, D)
    v_first: NDArray[np.float32]  # (T, D), v of the first layer; not read in that layer
    # (at least T + TILE_ROWS - 1, Rw): low-rank activations; rows beyond T may have any content
    low: NDArray[np.float32]


class _Tiles(NamedTuple):
    """Pointers to the scratch of one block of a head."""

    # (BLOCK, Np): r, decay, k, v, a, b, out
    r: Pointer
    decay: Pointer
    k: Pointer
    v: Pointer
    a: Pointer
    b: Pointer
    out: Pointer
    scale: Pointer  # (BLOCK,): 1 / the length of the removal key
    bonus: Pointer  # (BLOCK,): sum of r k r_k
    up: Pointer  # (4, panels of a head, BLOCK, TILE_COLUMNS): low-rank products of v, w, a, g


@njit(**SERIAL)
def _tiles(memory: Pointer, size: int) -> _Tiles:
    tile = BLOCK * size
    rest = shift(memory, 7 * tile)
    return _Tiles(
        memory,
        shift(memory, tile),
        shift(memory, 2 * tile),
        shift(memory, 3 * tile),
        shift(memory, 4 * tile),
        shift(memory, 5 * tile),
        shift(memory, 6 * tile),
        rest,
        shift(rest, BLOCK),
        shift(rest, 2 * BLOCK),
    )


@njit(**SERIAL)
def _raise(
    low: Pointer, stride: int, count: int, n: int, low_rank: LowRank, h: int, out: Pointer
) -> None:
    """Compute the low-rank products of one block and head. `low`: the activations of its first
    token.
    """
    step = numbers_per_word(low)
    panels = round_up(n, TILE_COLUMNS) // TILE_COLUMNS
    words = stride // step
    length = low_rank.up.shape[1]
    activations = as_kind(out, low)
    for part in range(4):
        first = low_rank.first[part] * TILE_COLUMNS // step
        depth = low_rank.first[part + 1] * TILE_COLUMNS // step - first
        for panel in range(panels if depth else 0):
            right = shift(
                address(low_rank.up), ((h * panels + panel) * length + first) * TILE_COLUMNS
            )
            target = shift(out, (part * panels + panel) * BLOCK * TILE_COLUMNS)
            left = shift(activations, first)
            multiply_panel(low, left, words, right, count, depth, ZERO, target, TILE_COLUMNS)


@njit(**SERIAL)
def _raised(tiles: _Tiles, part: int, t: int, c: int, n: int) -> Vector:
    """Return the numbers c .. c + 15 of token t of a low-rank product; `part` 0 is v, 1 w, 2 a, 3
    g.
    """
    panel = part * (round_up(n, TILE_COLUMNS) // TILE_COLUMNS) + c // TILE_COLUMNS
    return load(tiles.up, (panel * BLOCK + t) * TILE_COLUMNS + c % TILE_COLUMNS)


@njit(**SERIAL)
def _lengths(k: Pointer, stride: int, count: int, n: int, k_k: Pointer, tiles: _Tiles) -> None:
    """Fill the tiles k and scale: 1 / the length of each removal key k * k_k."""
    size = round_up(n)
    for t in range(count):
        squares = splat(ZERO)
        for c in range(0, size, LANES):
            x = load_up_to(k, t * stride + c, n - c)
            store(tiles.k, t * size + c, x)
            x = mul(x, load(k_k, c))
            squares = fma(x, x, squares)
        tiles.scale[t] = max(total(squares), _LEAST_SQUARE)
    for t in range(0, count, LANES):
        store(tiles.scale, t, rsqrt(load(tiles.scale, t)))


@njit(**SERIAL)
def _prepare(
    x: Products,
    at: int,
    stride: int,
    first_layer: bool,
    count: int,
    n: int,
    w: HeadWeights,
    h: int,
    tiles: _Tiles,
) -> None:
    """Fill the tiles of one block, from the products, whose first numbers are at `at`, and from the
    low-rank products.
    """
    size = round_up(n)
    place = h * size
    _lengths(shift(address(x.k), at), stride, count, n, shift(address(w.k_k), place), tiles)
    unit = splat(ONE)
    for t in range(count):
        scale = splat(tiles.scale[t])
        bonus = splat(ZERO)
        for c in range(0, size, LANES):
            i = at + t * stride + c
            j = t * size + c
            rest = n - c
            m = place + c
            r = load_up_to(address(x.r), i, rest)
            k = load(tiles.k, j)
            gate = sigmoid(add(_raised(tiles, 2, t, c, n), load(address(w.a0), m)))
            removed = mul(mul(k, load(address(w.k_k), m)), scale)
            k = mul(k, fma(sub(gate, unit), load(address(w.k_a), m), unit))
            bonus = fma(mul(r, k), load(address(w.r_k), m), bonus)
            store(tiles.r, j, r)
            store(tiles.k, j, k)
            store(tiles.a, j, sub(splat(ZERO), removed))
            store(tiles.b, j, mul(removed, gate))
            store(
                tiles.decay,
                j,
                decay(sigmoid(add(_raised(tiles, 1, t, c, n), load(address(w.w0), m)))),
            )
            v = load_up_to(address(x.v), i, rest)
            if not first_layer:
                share = sigmoid(add(_raised(tiles, 0, t, c, n), load(address(w.v0), m)))
                v = fma(sub(load_up_to(address(x.v_first), i, rest), v), share, v)
            store(tiles.v, j, v)
        tiles.bonus[t] = total(bonus)


@njit(**SERIAL)
def _finish(
    out: Array,
    scales: Array,
    begin: int,
    count: int,
    s: Shape,
    w: HeadWeights,
    h: int,
    tiles: _Tiles,
) -> None:
    """Set out = (norm(tiles.out) + bonus v) g for `count` tokens from `begin` on."""
    n = s.head_size
    stride = out.shape[1]
    own = shift(address(out), begin * stride + h * (stride // s.heads))
    in_bytes = numbers_per_word(address(out)) == 4
    size = round_up(n)
    place = h * size
    for t in range(count):
        row = t * size
        sums = splat(ZERO)
        for c in range(0, size, LANES):
            sums = add(sums, load(tiles.out, row + c))
        mean = splat(total(sums) / np.float32(n))
        squares = splat(ZERO)
        for c in range(0, size, LANES):
            x = sub(load(tiles.out, row + c), mean)
            x = x if n - c >= LANES else keep(x, n - c)
            squares = fma(x, x, squares)
        factor = splat(ONE / np.sqrt(total(squares) / np.float32(n) + np.float32(s.eps)))
        bonus = splat(tiles.bonus[t])
        for c in range(0, size, LANES):
            x = mul(sub(load(tiles.out, row + c), mean), factor)
            x = fma(x, load(address(w.norm), place + c), load(address(w.bias), place + c))
            x = fma(bonus, load(tiles.v, row + c), x)
            x = mul(x, _raised(tiles, 3, t, c, n))
            if in_bytes:
                store(tiles.out, row + c, x)
            else:
                store_up_to(own, t * stride + c, x, n - c)
        if in_bytes:
            scales[begin + t, h] = quantize_row(shift(tiles.out, row), n, shift(own, t * stride))


@njit(**SERIAL)
def _mix_head(
    x: Products,
    out: Array,
    scales: Array,
    layer: int,
    pool: Array,
    s: Shape,
    w: HeadWeights,
    low_rank: LowRank,
    p: BlockPlan,
    task: int,
    memory: Pointer,
) -> None:
    """Compute all tokens of one head of one sequence."""
    sequence = task // s.heads
    h = task % s.heads
    n = s.head_size
    size = round_up(n)
    stride = x.r.shape[1]
    begin = p.cu_seqlens[sequence]
    end = p.cu_seqlens[sequence + 1]
    read_row = p.read_rows[sequence]
    write_row = p.write_rows[sequence]
    if begin == end and (write_row < 0 or write_row == read_row):
        return
    state = memory
    tiles = _tiles(shift(memory, size * size), size)
    if read_row < 0 or size > n:
        for i in range(0, size * size, LANES):
            store(state, i, splat(ZERO))
    if read_row >= 0:
        old = place_in_pool(pool, read_row, layer, h)
        for i in range(n):
            copy_row(shift(old, i * n), n, shift(state, i * size))
    for t in range(begin, end, BLOCK):
        count = min(BLOCK, end - t)
        ranks = x.low.shape[1]
        _raise(shift(address(x.low), t * ranks), ranks, count, n, low_rank, h, tiles.up)
        _prepare(x, t * stride + h * n, stride, layer == 0, count, n, w, h, tiles)
        advance(
            state, tiles.r, tiles.decay, tiles.k, tiles.v, tiles.a, tiles.b, count, size, tiles.out
        )
        _finish(out, scales, t, count, s, w, h, tiles)
    if write_row >= 0:
        new = place_in_pool(pool, write_row, layer, h)
        for i in range(n):
            copy_row(shift(state, i * size), n, shift(new, i * n))


@njit(**PARALLEL)
def mix_heads(
    x: Products,
    out: Array,
    scales: Array,
    layer: int,
    pool: Array,
    s: Shape,
    w: HeadWeights,
    low_rank: LowRank,
    p: BlockPlan,
    b: Buffers,
) -> None:
    """Compute a layer's recurrence, and everything between it and the matrix products. Call it
    inside `numba_math.parallel()`.

    Args:
        x: `Products`.
        out: (T, D), filled with the output product's input in the dtype of `x`; may be `x.r`. Or in
            8 bits for `int8_matmul.multiply`, a head being a group: (T, H Kp) uint8.
        scales: (T, H) fp32, filled with the scales of `out` in 8 bits; else not used.
        layer: which layer of the pool; 0 has no mixing of v.
        pool: (R, L, H, N, N) fp32, key first; the rows in `p.write_rows` are updated.
        s, w, low_rank, p, b: shape, `HeadWeights`, `LowRank` in the dtype of `x`, plan and buffers,
            `b.tasks` zero.
    """
    tasks = (p.cu_seqlens.shape[0] - 1) * s.heads
    for worker in prange(b.scratch.shape[0]):
        memory = shift(address(b.scratch), worker * b.scratch.shape[1])
        task = next_task(address(b.tasks))
        while task < tasks:
            _mix_head(x, out, scales, layer, pool, s, w, low_rank, p, task, memory)
            task = next_task(address(b.tasks))


# A token's mixes need the normed token before it. Tokens are processed in blocks, any block by any
# core, and the residual stream is updated in place, so the token before each block is computed
# first, from the old residual stream.


@njit(**SERIAL)
def _shift_block(
    residual: Array,
    added: Array,
    w: ShiftWeights,
    eps: Number,
    indices: tuple[int, ...],
    pool: Array,
    layer: int,
    p: BlockPlan,
    b: Buffers,
    out: Mixes,
    low_indices: tuple[int, ...],
    low_rank: LowRank,
    block: int,
    memory: Pointer,
) -> None:
    """Compute the tokens of one block of `add_norm_shift`. `memory`: scratch."""
    tokens, width = residual.shape
    padded = round_up(width)
    s = p.first[block]
    begin = block * ROWS
    end = min(tokens, begin + ROWS)
    before = shift(address(b.before), block * padded)
    now = memory
    other = shift(memory, padded)
    mixed = shift(memory, 2 * padded)
    stage = shift(mixed, 4 * ROWS * padded)
    wide = shift(stage, ROWS * TILE_COLUMNS)  # (3, Dp): mixes on their way to 8 bits
    mixes = address(w.mixes)
    low = address(out.low)
    low_row = out.low.shape[1]
    for t in range(begin, end):
        while p.cu_seqlens[s + 1] <= t:  # empty sequences too
            s += 1
        if t == p.cu_seqlens[s]:
            before = shift(address(b.before), (p.first.shape[0] + s) * padded)
        at = t * width
        norm_token(
            shift(address(residual), at), shift(address(added), at), width, w, eps, now, True
        )
        if numbers_per_word(address(out.mixes)) == 4:
            mix(now, before, padded, padded, mixes, indices, wide, padded)
            for m in range(len(indices)):
                row = shift(address(out.mixes), (m * tokens + t) * out.mixes.shape[2])
                out.scales[m, t] = quantize_row(shift(wide, m * padded), width, row)
        else:
            first_mix = shift(address(out.mixes), at)
            mix(now, before, width, padded, mixes, indices, first_mix, tokens * width)
        if len(low_indices) > 0:
            tile = shift(as_kind(low, mixed), (t - begin) * padded)
            low_mixes = shift(mixes, 2 * padded)
            mix(now, before, padded, padded, low_mixes, low_indices, tile, ROWS * padded)
        if t + 1 == p.cu_seqlens[s + 1] and p.write_rows[s] >= 0:
            copy_row(now, width, place_in_pool(pool, p.write_rows[s], layer, 0))
        before, now, other = now, other, now
    if len(low_indices) > 0:
        target = shift(low, begin * low_row)
        project(mixed, end - begin, padded, low_rank, stage, target, low_row)


@njit(**PARALLEL)
def add_norm_shift(
    residual: Array,
    added: Array,
    w: ShiftWeights,
    eps: float,
    indices: tuple[int, ...],
    pool: Array,
    layer: int,
    p: BlockPlan,
    b: Buffers,
    out: Mixes,
    low_indices: tuple[int, ...],
    low_rank: LowRank,
) -> None:
    """Set residual += added and y = norm(residual), and mix each token with the one before it: x_m
    = y_t + (y_{t-1} - y_t) * mixes[m]. Call it inside `numba_math.parallel()`.

    Args:
        residual: (T, D) fp32, updated in place.
        added: (T, D) fp32 or bf16 bits (uint16).
        w: `ShiftWeights`: one mix, or those of r, k, v, w, a, g.
        eps: of the norm.
        indices: (0,) or (0, 1, 2): the mixes that go to `out.mixes`, as a tuple so that the code is
            made for this number of them.
        pool: (R, L, D) fp32: y of the token before each sequence; the rows in `p.write_rows` are
            updated.
        layer: which layer of the pool.
        p, b: plan and buffers, `b.tasks` zero.
        out: filled.
        low_indices: () or (0, 1, 2, 3): no low-rank activations, or the activations of v, w, a, g.
        low_rank: `LowRank`, fp32 or bf16.
    """
    blocks = p.first.shape[0]
    _, width = residual.shape
    small = np.float32(eps)
    padded = round_up(width)
    for i in prange(blocks + p.read_rows.shape[0]):
        before = shift(address(b.before), i * padded)
        if i >= blocks:
            start(pool, layer, p, i - blocks, before)
        elif p.cu_seqlens[p.first[i]] < i * ROWS:
            row = (i * ROWS - 1) * width
            old = shift(address(residual), row)
            norm_token(old, shift(address(added), row), width, w, small, before, False)
    for worker in prange(b.scratch.shape[0]):
        memory = shift(address(b.scratch), worker * b.scratch.shape[1])
        block = next_task(address(b.tasks))
        while block < blocks:
            _shift_block(
                residual,
                added,
                w,
                small,
                indices,
                pool,
                layer,
                p,
                b,
                out,
                low_indices,
                low_rank,
                block,
                memory,
            )
            block = next_task(address(b.tasks))


@njit(**PARALLEL)
def add_norm(
    residual: Array, added: Array, w: ShiftWeights, eps: float, out: Array, scratch: Scratch
) -> None:
    """Set out = norm(residual + added); arguments as in `add_norm_shift`, but the residual is not
    changed.

    Args:
        out: (T, D) fp32.
        scratch: D numbers, padded to LANES.
    """
    tokens, width = residual.shape
    small = np.float32(eps)
    workers = scratch.rows.shape[0]
    for worker in prange(workers):
        row = shift(address(scratch.rows), worker * scratch.rows.shape[1])
        for t in range(tokens * worker // workers, tokens * (worker + 1) // workers):
            at = t * width
            norm_token(
                shift(address(residual), at), shift(address(added), at), width, w, small, row, False
            )
            copy_row(row, width, shift(address(out), at))


@njit(**PARALLEL)
def square_relu(x: Array, out: Array, scales: Array, scratch: Scratch) -> None:
    """Set out = max(x, 0)^2 for x (T, F) fp32 or bf16 bits.

    Args:
        out: (T, F) in the dtype of `x`; may be `x`. Or in 8 bits for `int8_matmul.multiply`: (T, G
            Kp) uint8.
        scales: (T, G) fp32, filled with the scales of `out` in 8 bits; else (T, 0).
        scratch: F numbers, padded to LANES.
    """
    tokens, width = x.shape
    groups = scales.shape[1]
    size = width // max(groups, 1)
    padded = out.shape[1] // max(groups, 1)
    in_bytes = numbers_per_word(address(out)) == 4
    workers = scratch.rows.shape[0]
    for worker in prange(workers):
        row = shift(address(scratch.rows), worker * scratch.rows.shape[1])
        for t in range(tokens * worker // workers, tokens * (worker + 1) // workers):
            for c in range(0, width, LANES):
                v = squared_relu(load_up_to(address(x), t * width + c, width - c))
                if in_bytes:
                    store(row, c, v)
                else:
                    store_up_to(address(out), t * width + c, v, width - c)
            for g in range(groups):
                own = shift(address(out), t * out.shape[1] + g * padded)
                scales[t, g] = quantize_row(shift(row, g * size), size, own)
