"""Everything of an RWKV-7 layer between its big matrix products, for CPU inference.

    T  tokens           S  sequences       H  heads           N  head size           D = H N
    R  rows of the state pool              L  layers          F  ffn_size
    Np, Dp  N and D rounded up to whole vectors of LANES numbers
    Rw      all four ranks together, each a whole number of panels (see `LowRank`)
    M       mixes that big products read: 3 in a time mix (r, k, v), 1 in the feed-forward part
    G, Kp   groups of 8-bit inputs, and the bytes of a group

In the kernels, `n` is N, `size` is Np, `width` is D and `padded` is Dp; `t` is a token, `h` a head,
`c` the first column of a vector. A *word* is 32 bits: an fp32 number or two bf16 numbers. A *panel*
is a right factor of a matrix product, TILE_COLUMNS outputs wide, laid out as words.

The equations, as in `model.py`, with a' the a of the recurrence. Each token y of a half of a layer
is normed and mixed with the token y' before it, x_m = y + (y' - y) mixes_m, and then

    r = receptance(x_r)        k = key(x_k)       v = value(x_v)
    v += (v of the first layer - v) sigmoid(v0 + v_up(v_down x_v))        not in the first layer
    decay = exp(-exp(-1/2) sigmoid(w0 + w_up(tanh(w_down x_w))))
    gate = sigmoid(a0 + a_up(a_down x_a))
    g = g_up(sigmoid(g_down x_g))
    removed = k * k_k / |k * k_k|        k *= 1 + (gate - 1) k_a        (|...| of each head)
    a' = -removed        b = removed * gate        u = S^T a'
    S = decay S + b u^T + k v^T        o = S^T r        S: keys by values, in each head
    out = output(g * (group_norm(o) + (sum of r * k * r_k) v))
    and in the feed-forward part: out = value(max(key(x_k), 0)^2)

The order of the work, per layer (the products in brackets are `Product`s of the caller, `cpu.py`):

    add_norm_shift   x_r, x_k, x_v, and the low-rank activations v_down x_v, tanh(w_down x_w),
                     a_down x_a, sigmoid(g_down x_g)
    [receptance, key, value]
    mix_heads        per head and block of tokens:
                         _multiply_up   the low-rank products: v_up, w_up, a_up and g_up of these
                         _prepare       r, k, v, decay, a', b
                         advance        the recurrence (ops.wkv7.lanes)
                         _finish        norm, bonus (the sum of r * k * r_k), gate g
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
# The mixes that a call of `add_norm_shift` makes for the big products, and for the low-rank pairs.
# They are tuples so that its code is made for their number; their numbers are counted from 0.
R_K_V = (0, 1, 2)
FFN_K = (0,)
V_W_A_G = (0, 1, 2, 3)
NO_PAIRS = ()
# the places of the low-rank pairs in `LowRank`
PAIR_V, PAIR_W, PAIR_A, PAIR_G = V_W_A_G


class Shape(NamedTuple):
    """Sizes of a layer, and the eps of the norm of each head's output."""

    heads: int
    head_size: int
    eps: float


class HeadWeights(NamedTuple):
    """Small fp32 weights of one layer's time mix, each (H, Np), every head padded with zeros; named
    as in the equations.
    """

    w0: Floats
    a0: Floats
    v0: Floats  # of any content in the first layer
    k_k: Floats
    k_a: Floats
    r_k: Floats
    norm: Floats  # of the group norm of o
    bias: Floats


class LowRank(NamedTuple):
    """The four low-rank pairs of a layer (v, w, a, g), each a down matrix (rank, D) and an up
    matrix (D, rank), as panels of words (`pack_panels`).

    Ranks are rounded up to whole panels and laid end to end, Rw together; v has rank 0 in the first
    layer.
    """

    down: Floats  # (Rw / TILE_COLUMNS, Dp / numbers per word, TILE_COLUMNS)
    up: Floats  # (H panels per head, Rw / numbers per word, TILE_COLUMNS)
    first_panel: Indices  # (5,) the first panel of each pair in `down`, and the number of panels


class ShiftWeights(NamedTuple):
    """A norm and the mixes that follow it, fp32, padded with zeros to Dp."""

    norm: Floats  # (Dp,)
    bias: Floats  # (Dp,)
    # (M, Dp): of r, k, v, and in a time mix also w, a, g, so that the mixes of the low-rank pairs,
    # v, w, a and g, follow each other; or of k in the feed-forward part
    mixes: Floats


class BlockPlan(NamedTuple):
    """The sequences of a step, and its blocks of ROWS tokens."""

    cu_seqlens: Indices  # (S+1,)
    read_rows: Indices  # (S,), -1: start from zero
    write_rows: Indices  # (S,), -1: the end state is not wanted
    first_sequence: Indices  # (blocks,) the sequence of each block's first token


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


def pad_heads(weight: Floats, shape: Shape) -> Floats:
    """Pad each head with zeros: (D,) or (H, N) -> (H, Np)."""
    out = np.zeros((shape.heads, round_up(shape.head_size)), np.float32)
    out[:, : shape.head_size] = weight.reshape(shape.heads, shape.head_size)
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
    """Lay a matrix (rows, columns) out as words for `multiply_panel`, which multiplies by its
    transpose: (rows / TILE_COLUMNS, words of a row, TILE_COLUMNS). `rows` is a multiple of
    TILE_COLUMNS, `columns` of LANES.
    """
    step = 4 // matrix.dtype.itemsize  # numbers per word
    panels = (
        matrix.unflatten(1, (-1, step))
        .unflatten(0, (-1, TILE_COLUMNS))
        .transpose(1, 2)
        .contiguous()
    )
    return panels.view(torch.float32).squeeze(-1).numpy()


def pack_low_rank(downs: list[Tensor], ups: list[Tensor], shape: Shape) -> LowRank:
    """Lay out the low-rank pairs of v (absent in the first layer), w, a and g, all fp32 or all
    bf16: each has a down matrix (rank, D) and an up matrix (D, rank).
    """
    width = shape.heads * shape.head_size
    panel = TILE_COLUMNS
    down = torch.cat([F.pad(t, (0, -width % LANES, 0, -len(t) % panel)) for t in downs])
    up = torch.cat([F.pad(t, (0, -t.shape[1] % panel)) for t in ups], 1)
    up = F.pad(
        up.unflatten(0, (shape.heads, shape.head_size)), (0, 0, 0, -shape.head_size % panel)
    ).flatten(0, 1)
    sizes = [round_up(len(t), panel) // panel for t in downs]
    # one 0 to begin with, and one more if v is absent
    first_panel = np.cumsum([0] * (5 - len(sizes)) + sizes)
    return LowRank(pack_panels(down), pack_panels(up), first_panel)


def allocate(memory: StepMemory, shape: Shape, rows: int) -> Buffers:
    """Return buffers for a plan whose blocks and sequences are together `rows`."""
    scratch, tasks = memory.scratch("heads", scratch_size(shape))
    before = memory.array("before", rows, round_up(shape.heads * shape.head_size))
    return Buffers(before, scratch, tasks)


def scratch_size(shape: Shape) -> int:
    """Return the fp32 numbers of scratch that one worker needs, for a block of `add_norm_shift` or
    for a head of `mix_heads`.
    """
    padded = round_up(shape.heads * shape.head_size)
    size = round_up(shape.head_size)
    up = len(V_W_A_G) * round_up(shape.head_size, TILE_COLUMNS)
    # `_shift_block`: now, other; mixed; stage; wide
    block = 2 * padded + len(V_W_A_G) * ROWS * padded + ROWS * TILE_COLUMNS + len(R_K_V) * padded
    # `_mix_head`: the state; `_Tiles`: seven of (BLOCK, Np), scale and bonus, up
    head = size * size + BLOCK * (7 * size + 2 + up)
    return round_up(max(block, head), LANES) + LANES  # with a cache line between workers


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
    weights: ShiftWeights,
    eps: Number,
    out: Pointer,
    update: bool,
) -> None:
    """Set out = norm(residual + added) for one token, and residual += added if `update`. The
    pointers are to the token's row; `out` has Dp numbers.
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
        store(out, c, fma(v, load(address(weights.norm), c), load(address(weights.bias), c)))


@njit(**SERIAL)
def carry_token(pool: Array, layer: int, plan: BlockPlan, sequence: int, before: Pointer) -> None:
    """Set `before` (Dp,) to the normed token that a sequence carries from the step before; zeros if
    it starts here. If the sequence is empty, carry that token on.
    """
    read_row = plan.read_rows[sequence]
    write_row = plan.write_rows[sequence]
    width = pool.shape[2]
    old = place_in_pool(pool, max(read_row, 0), layer, 0)
    for c in range(0, width, LANES):
        store(before, c, load_up_to(old, c, width - c) if read_row >= 0 else splat(ZERO))
    if write_row >= 0 and plan.cu_seqlens[sequence + 1] == plan.cu_seqlens[sequence]:
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
    `size` numbers after m. `indices`: any tuple of as many integers as there are mixes (`R_K_V`);
    `width`: the numbers to write; `padded`: the length of a row of `mixes`.
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
    """Compute the low-rank activations of one block (`Mixes.low`, rows `stride` apart) from its
    mixes for v, w, a and g, (4, ROWS, Dp) in the dtype of `out`, which `mixed` holds as words.
    `stage` (ROWS, TILE_COLUMNS) takes the products of one panel.
    """
    depth = padded // numbers_per_word(out)  # words of a mix
    for pair in range(len(V_W_A_G)):
        left = shift(mixed, pair * ROWS * depth)
        for panel in range(low_rank.first_panel[pair], low_rank.first_panel[pair + 1]):
            right = shift(address(low_rank.down), panel * depth * TILE_COLUMNS)
            multiply_panel(out, left, depth, right, tokens, depth, ZERO, stage, TILE_COLUMNS)
            for i in range(0, tokens * TILE_COLUMNS, LANES):
                x = load(stage, i)
                if pair == PAIR_W:
                    x = tanh(x)
                elif pair == PAIR_G:
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
    """Pointers to the scratch of one block of a head, in the order of the memory."""

    # (BLOCK, Np) each; `a` is a' of the equations, `out` is o
    r: Pointer
    decay: Pointer
    k: Pointer
    v: Pointer
    a: Pointer
    b: Pointer
    out: Pointer
    scale: Pointer  # (BLOCK,): 1 / the length of the removal key
    bonus: Pointer  # (BLOCK,): sum of r * k * r_k
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
def _multiply_up(
    low: Pointer, stride: int, count: int, n: int, low_rank: LowRank, h: int, out: Pointer
) -> None:
    """Compute the low-rank products of one block and head, `_Tiles.up`. `low`: the activations of
    the block's first token; the next token is `stride` numbers further.
    """
    step = numbers_per_word(low)
    panels = round_up(n, TILE_COLUMNS) // TILE_COLUMNS  # of a head
    words = stride // step
    length = low_rank.up.shape[1]  # words of a row
    activations = as_kind(out, low)
    for pair in range(len(V_W_A_G)):
        first = low_rank.first_panel[pair] * TILE_COLUMNS // step
        depth = low_rank.first_panel[pair + 1] * TILE_COLUMNS // step - first
        for panel in range(panels if depth else 0):
            right = shift(
                address(low_rank.up), ((h * panels + panel) * length + first) * TILE_COLUMNS
            )
            target = shift(out, (pair * panels + panel) * BLOCK * TILE_COLUMNS)
            left = shift(activations, first)
            multiply_panel(low, left, words, right, count, depth, ZERO, target, TILE_COLUMNS)


@njit(**SERIAL)
def _load_up(tiles: _Tiles, pair: int, t: int, c: int, n: int) -> Vector:
    """Return the numbers c .. c + 15 of token t of the low-rank product of a pair."""
    panel = pair * (round_up(n, TILE_COLUMNS) // TILE_COLUMNS) + c // TILE_COLUMNS
    return load(tiles.up, (panel * BLOCK + t) * TILE_COLUMNS + c % TILE_COLUMNS)


@njit(**SERIAL)
def _lengths(k: Pointer, stride: int, count: int, n: int, k_k: Pointer, tiles: _Tiles) -> None:
    """Fill the tiles k, with the product's k, and scale, 1 / the length of each removal key k *
    k_k.
    """
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
    products: Products,
    at: int,
    stride: int,
    first_layer: bool,
    count: int,
    n: int,
    weights: HeadWeights,
    h: int,
    tiles: _Tiles,
) -> None:
    """Fill the tiles of one block, except `out`, from the products, whose first numbers are at
    `at`, rows `stride` apart, and from the low-rank products in `tiles.up`.
    """
    size = round_up(n)
    place = h * size
    _lengths(
        shift(address(products.k), at), stride, count, n, shift(address(weights.k_k), place), tiles
    )
    unit = splat(ONE)
    for t in range(count):
        scale = splat(tiles.scale[t])
        bonus = splat(ZERO)
        for c in range(0, size, LANES):
            i = at + t * stride + c
            j = t * size + c
            rest = n - c
            m = place + c
            r = load_up_to(address(products.r), i, rest)
            k = load(tiles.k, j)
            gate = sigmoid(add(_load_up(tiles, PAIR_A, t, c, n), load(address(weights.a0), m)))
            removed = mul(mul(k, load(address(weights.k_k), m)), scale)
            k = mul(k, fma(sub(gate, unit), load(address(weights.k_a), m), unit))
            bonus = fma(mul(r, k), load(address(weights.r_k), m), bonus)
            store(tiles.r, j, r)
            store(tiles.k, j, k)
            store(tiles.a, j, sub(splat(ZERO), removed))
            store(tiles.b, j, mul(removed, gate))
            store(
                tiles.decay,
                j,
                decay(sigmoid(add(_load_up(tiles, PAIR_W, t, c, n), load(address(weights.w0), m)))),
            )
            v = load_up_to(address(products.v), i, rest)
            if not first_layer:
                share = sigmoid(add(_load_up(tiles, PAIR_V, t, c, n), load(address(weights.v0), m)))
                v = fma(sub(load_up_to(address(products.v_first), i, rest), v), share, v)
            store(tiles.v, j, v)
        tiles.bonus[t] = total(bonus)


@njit(**SERIAL)
def _finish(
    out: Array,
    scales: Array,
    begin: int,
    count: int,
    shape: Shape,
    weights: HeadWeights,
    h: int,
    tiles: _Tiles,
) -> None:
    """Set out = (norm(tiles.out) + bonus v) g, the input of the product `output`, for `count`
    tokens from `begin` on.
    """
    n = shape.head_size
    stride = out.shape[1]
    own = shift(address(out), begin * stride + h * (stride // shape.heads))
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
        factor = splat(ONE / np.sqrt(total(squares) / np.float32(n) + np.float32(shape.eps)))
        bonus = splat(tiles.bonus[t])
        for c in range(0, size, LANES):
            x = mul(sub(load(tiles.out, row + c), mean), factor)
            x = fma(
                x, load(address(weights.norm), place + c), load(address(weights.bias), place + c)
            )
            x = fma(bonus, load(tiles.v, row + c), x)
            x = mul(x, _load_up(tiles, PAIR_G, t, c, n))
            if in_bytes:
                store(tiles.out, row + c, x)
            else:
                store_up_to(own, t * stride + c, x, n - c)
        if in_bytes:
            scales[begin + t, h] = quantize_row(shift(tiles.out, row), n, shift(own, t * stride))


@njit(**SERIAL)
def _mix_head(
    products: Products,
    out: Array,
    scales: Array,
    layer: int,
    pool: Array,
    shape: Shape,
    weights: HeadWeights,
    low_rank: LowRank,
    plan: BlockPlan,
    task: int,
    memory: Pointer,
) -> None:
    """Compute all tokens of one head of one sequence; `memory`: scratch, for the state (Np, Np) and
    then `_Tiles`.
    """
    sequence = task // shape.heads
    h = task % shape.heads
    n = shape.head_size
    size = round_up(n)
    stride = products.r.shape[1]
    begin = plan.cu_seqlens[sequence]
    end = plan.cu_seqlens[sequence + 1]
    read_row = plan.read_rows[sequence]
    write_row = plan.write_rows[sequence]
    if begin == end and (write_row < 0 or write_row == read_row):
        return
    state = memory
    tiles = _tiles(shift(memory, size * size), size)
    if read_row < 0 or size > n:  # without a state to copy, or with padding around it
        for i in range(0, size * size, LANES):
            store(state, i, splat(ZERO))
    if read_row >= 0:
        old = place_in_pool(pool, read_row, layer, h)
        for i in range(n):
            copy_row(shift(old, i * n), n, shift(state, i * size))
    for t in range(begin, end, BLOCK):
        count = min(BLOCK, end - t)
        ranks = products.low.shape[1]
        _multiply_up(
            shift(address(products.low), t * ranks), ranks, count, n, low_rank, h, tiles.up
        )
        _prepare(products, t * stride + h * n, stride, layer == 0, count, n, weights, h, tiles)
        advance(
            state, tiles.r, tiles.decay, tiles.k, tiles.v, tiles.a, tiles.b, count, size, tiles.out
        )
        _finish(out, scales, t, count, shape, weights, h, tiles)
    if write_row >= 0:
        new = place_in_pool(pool, write_row, layer, h)
        for i in range(n):
            copy_row(shift(state, i * size), n, shift(new, i * n))


@njit(**PARALLEL)
def mix_heads(
    products: Products,
    out: Array,
    scales: Array,
    layer: int,
    pool: Array,
    shape: Shape,
    weights: HeadWeights,
    low_rank: LowRank,
    plan: BlockPlan,
    buffers: Buffers,
) -> None:
    """Compute a layer's recurrence, and everything between it and the matrix products. Call it
    inside `numba_math.parallel()`.

    Args:
        out: (T, D), filled with the output product's input in the dtype of `products`; may be
            `products.r`. Or in 8 bits for `int8_matmul.multiply`, a head being a group: (T, H Kp)
            uint8.
        scales: (T, H) fp32, filled with the scales of `out` in 8 bits; else not used.
        layer: which layer of the pool; 0 has no mixing of v.
        pool: (R, L, H, N, N) fp32, key first; the rows in `plan.write_rows` are updated.
        weights, low_rank: of the layer; `low_rank` in the dtype of `products`.
        plan, buffers: of the step; `buffers.tasks` zero.
    """
    tasks = (plan.cu_seqlens.shape[0] - 1) * shape.heads
    for worker in prange(buffers.scratch.shape[0]):
        memory = shift(address(buffers.scratch), worker * buffers.scratch.shape[1])
        task = next_task(address(buffers.tasks))
        while task < tasks:
            _mix_head(
                products, out, scales, layer, pool, shape, weights, low_rank, plan, task, memory
            )
            task = next_task(address(buffers.tasks))


# A token's mixes need the normed token before it. Tokens are processed in blocks, any block by any
# core, and the residual stream is updated in place, so the token before each block is computed
# first, from the old residual stream.


@njit(**SERIAL)
def _shift_block(
    residual: Array,
    added: Array,
    weights: ShiftWeights,
    eps: Number,
    indices: tuple[int, ...],
    pool: Array,
    layer: int,
    plan: BlockPlan,
    buffers: Buffers,
    out: Mixes,
    low_indices: tuple[int, ...],
    low_rank: LowRank,
    block: int,
    memory: Pointer,
) -> None:
    """Compute the tokens of one block of `add_norm_shift`. `memory`: scratch."""
    tokens, width = residual.shape
    padded = round_up(width)
    sequence = plan.first_sequence[block]
    begin = block * ROWS
    end = min(tokens, begin + ROWS)
    before = shift(address(buffers.before), block * padded)
    now = memory  # (Dp,) the normed token, and in turn with `other` the one before it
    other = shift(memory, padded)
    mixed = shift(memory, 2 * padded)  # (4, ROWS, Dp): the mixes of the low-rank pairs
    stage = shift(mixed, 4 * ROWS * padded)  # (ROWS, TILE_COLUMNS), see `project`
    wide = shift(stage, ROWS * TILE_COLUMNS)  # (3, Dp): mixes on their way to 8 bits
    mixes = address(weights.mixes)
    low = address(out.low)
    low_row = out.low.shape[1]
    for t in range(begin, end):
        while plan.cu_seqlens[sequence + 1] <= t:  # empty sequences too
            sequence += 1
        if t == plan.cu_seqlens[sequence]:
            before = shift(
                address(buffers.before), (plan.first_sequence.shape[0] + sequence) * padded
            )
        at = t * width
        norm_token(
            shift(address(residual), at), shift(address(added), at), width, weights, eps, now, True
        )
        if numbers_per_word(address(out.mixes)) == 4:  # bytes
            mix(now, before, padded, padded, mixes, indices, wide, padded)
            for m in range(len(indices)):
                row = shift(address(out.mixes), (m * tokens + t) * out.mixes.shape[2])
                out.scales[m, t] = quantize_row(shift(wide, m * padded), width, row)
        else:
            first_mix = shift(address(out.mixes), at)
            mix(now, before, width, padded, mixes, indices, first_mix, tokens * width)
        if len(low_indices) > 0:
            tile = shift(as_kind(low, mixed), (t - begin) * padded)
            low_mixes = shift(mixes, 2 * padded)  # after the rows of r and k
            mix(now, before, padded, padded, low_mixes, low_indices, tile, ROWS * padded)
        if t + 1 == plan.cu_seqlens[sequence + 1] and plan.write_rows[sequence] >= 0:
            copy_row(now, width, place_in_pool(pool, plan.write_rows[sequence], layer, 0))
        before, now, other = now, other, now
    if len(low_indices) > 0:
        target = shift(low, begin * low_row)
        project(mixed, end - begin, padded, low_rank, stage, target, low_row)


@njit(**PARALLEL)
def add_norm_shift(
    residual: Array,
    added: Array,
    weights: ShiftWeights,
    eps: float,
    indices: tuple[int, ...],
    pool: Array,
    layer: int,
    plan: BlockPlan,
    buffers: Buffers,
    out: Mixes,
    low_indices: tuple[int, ...],
    low_rank: LowRank,
) -> None:
    """Set residual += added and y = norm(residual), and mix each token with the one before it: x_m
    = y_t + (y_{t-1} - y_t) * mixes[m]. Call it inside `numba_math.parallel()`.

    Args:
        residual: (T, D) fp32, updated in place.
        added: (T, D) fp32 or bf16 bits (uint16).
        eps: of the norm.
        indices: the mixes that go to `out.mixes`: `R_K_V` or `FFN_K`.
        pool: (R, L, D) fp32: y of the token before each sequence; the rows in `plan.write_rows` are
            updated.
        layer: which layer of the pool.
        plan, buffers: of the step; `buffers.tasks` zero.
        out: filled.
        low_indices: `V_W_A_G`, the activations of these go to `out.low`; or `NO_PAIRS`.
        low_rank: `LowRank`, fp32 or bf16.
    """
    blocks = plan.first_sequence.shape[0]
    _, width = residual.shape
    small = np.float32(eps)
    padded = round_up(width)
    for i in prange(blocks + plan.read_rows.shape[0]):
        before = shift(address(buffers.before), i * padded)
        if i >= blocks:  # the token before a sequence; else the token before a block inside one
            carry_token(pool, layer, plan, i - blocks, before)
        elif plan.cu_seqlens[plan.first_sequence[i]] < i * ROWS:
            row = (i * ROWS - 1) * width
            old = shift(address(residual), row)
            norm_token(old, shift(address(added), row), width, weights, small, before, False)
    for worker in prange(buffers.scratch.shape[0]):
        memory = shift(address(buffers.scratch), worker * buffers.scratch.shape[1])
        block = next_task(address(buffers.tasks))
        while block < blocks:
            _shift_block(
                residual,
                added,
                weights,
                small,
                indices,
                pool,
                layer,
                plan,
                buffers,
                out,
                low_indices,
                low_rank,
                block,
                memory,
            )
            block = next_task(address(buffers.tasks))


@njit(**PARALLEL)
def add_norm(
    residual: Array, added: Array, weights: ShiftWeights, eps: float, out: Array, scratch: Scratch
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
                shift(address(residual), at),
                shift(address(added), at),
                width,
                weights,
                small,
                row,
                False,
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
