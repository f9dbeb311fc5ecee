"""Everything of a Mamba-3 block between its matrix products, for CPU inference.

    T  tokens           S  sequences        L  layers           A  angles, pairs of channels that are turned
    H  heads            P  head size        G  groups           N  state size
    R  ranks            F  width of the feed-forward layers     Q  CHUNK, rows of a chunk: a token has R
    Pp, Np, Ap          P, N and A padded to whole tiles and vectors

`prepare_tokens` works on what the heads share: norms of B and C, time steps, tanh of the angles. `scan_heads` gives each
(sequence, head) to one core, which walks through its chunks. With the rows of all ranks as rows of one product, a chunk is one
of `ops.chunk_tiles`:

    mixed_ij = exp(c_i - c_j) both_j q_i . k_j for earlier tokens, own_j q_i . k_j for a row's own token
    carried_j = exp(c_last - c_j) both_j                c: sum of dt A in the chunk
    own = trap dt, both = own + (1 - trap) dt of the next token

since a token's input enters the state with its own token and with the next. The next one may be in the next chunk, but not in
the next step: there the last token's key and input, which are part of the state, enter it once more at the start. Angles are
summed in fp64, in full turns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from runnel.backbones.mamba3.kernel_parts import (
    ONE,
    ZERO,
    Buffers,
    Pools,
    Scratch,
    Shape,
    Weights,
    move,
    normalize,
    sum_turns,
    time_steps,
    turn,
    weigh,
    write,
)
from runnel.ops.chunk_tiles import last_seen, load_state, multiply_keys, scan_panel, store_state
from runnel.ops.chunks import CHUNK, ChunkPlan
from runnel.ops.int8_matmul import quantize_row
from runnel.ops.numba_math import PARALLEL, SERIAL, Array, Number, Pointer, tanh
from runnel.ops.simd import (
    LANES,
    TILE_COLUMNS,
    add,
    address,
    ceil_div,
    exp,
    fma,
    keep,
    load,
    load_some,
    mul,
    next_task,
    number,
    round_up,
    shift,
    silu,
    splat,
    store,
    sub,
    total,
)
from runnel.ops.simd_tile import as_kind, fill, numbers_per_word, pack

_HALF = np.float32(0.5)
_TURN = 2 * np.pi
_BLOCK = 16  # tokens per task

# ---- what the heads share ------------------------------------------------------------------------------------------------


@njit(**PARALLEL)
def prepare_tokens(projected: Array, s: Shape, w: Weights, b: Buffers) -> None:
    """Fill `b` with what `scan_heads` needs of the tokens. Call it, and all below, inside `numba_math.parallel()`.

    Args:
        projected: (T, W) fp32 or bf16 bits: z, x, B, C, dt, A, trap, angles of each token.
        s, w, b: shape, weights and buffers.
    """
    tokens, width = projected.shape
    n, padded, count = s.state_size, round_up(s.state_size, 2 * LANES), s.rank * s.groups
    first, gates, room = 2 * s.heads * s.head_size, width - s.angles - 3 * s.heads, b.steps.shape[1]
    for block in prange(ceil_div(tokens, _BLOCK)):
        steps, bias = address(b.steps), address(w.dt_bias)
        for t in range(block * _BLOCK, min(tokens, (block + 1) * _BLOCK)):
            source, turns = shift(address(projected), t * width), shift(address(b.turns), t * s.angles)
            for i in range(2 * count):
                weight, out = shift(address(w.norms), i // count * padded), shift(address(b.keys), (t * 2 * count + i) * padded)
                normalize(shift(source, first + i * n), n, padded, weight, np.float32(s.norm_eps), out)
            dt, log, own = (shift(steps, t * s.heads), shift(steps, (room + t) * s.heads), shift(steps, (2 * room + t) * s.heads))
            time_steps(shift(source, gates), s.heads, bias, np.float32(s.decay_floor), dt, log, own)
            for a in range(s.angles):
                turns[a] = _HALF * tanh(number(source, gates + 3 * s.heads + a))


# ---- one chunk of one head -----------------------------------------------------------------------------------------------


@njit(**SERIAL)
def _divide(b: Buffers, worker: int) -> Any:
    memory, at = shift(address(b.scratch), worker * b.scratch.shape[1]), b.starts
    return Scratch(
        shift(memory, at[0]), shift(memory, at[1]), shift(memory, at[2]), shift(memory, at[3]), shift(memory, at[4]),
        shift(memory, at[5]), shift(memory, at[6]), shift(memory, at[7]), shift(memory, at[8]), shift(memory, at[9]),
        shift(memory, at[10]), shift(memory, at[11]), shift(memory, at[12]), shift(memory, at[13]), shift(memory, at[14]),
        shift(memory, at[15]), shift(memory, at[16]), shift(memory, at[17]),
    )  # fmt: skip


@njit(**SERIAL)
def _read_steps(start: int, tokens: int, last: bool, h: int, s: Shape, b: Buffers, m: Scratch) -> None:
    """The factors of a chunk's rows; `last`: the chunk ends with its sequence."""
    heads, rank, room, rows = s.heads, s.rank, b.steps.shape[1], tokens * s.rank
    dt = shift(address(b.steps), start * heads + h)
    log, own = shift(dt, room * heads), shift(dt, 2 * room * heads)
    running = ZERO
    for t in range(tokens):
        at = t * heads
        running += log[at]
        both = own[at]
        if t + 1 < tokens or not last:
            both += dt[at + heads] - own[at + heads]
        for i in range(t * rank, t * rank + rank):
            m.sums[i], m.own[i], m.both[i] = running, own[at], both
    for i in range(0, rows, LANES):
        store(m.grown, i, exp(load(m.sums, i)))
        store(m.carried, i, mul(load(m.both, i), exp(sub(splat(running), load(m.sums, i)))))


@njit(**SERIAL)
def _turn_row(part: int, t: int, r: int, h: int, place: int, s: Shape, w: Weights, b: Buffers, m: Scratch) -> None:
    """`m.row`: k (part 0) or q (part 1) of token t and rank r, whose angles are at `place` of the chunk."""
    padded, angles = round_up(s.state_size, 2 * LANES), round_up(s.angles)
    key = (((t * 2 + part) * s.rank + r) * s.groups + h // (s.heads // s.groups)) * padded
    bias = ((part * s.heads + h) * s.rank + r) * padded
    cos, sin = shift(m.cos, place * angles), shift(m.sin, place * angles)
    turn(shift(address(b.keys), key), shift(address(w.biases), bias), cos, sin, s, padded, m.row)


@njit(**SERIAL)
def _mix(out: Pointer, rows: int, rank: int, m: Scratch) -> None:
    """`mixed` from `products`, with zeros for the rows that others of a tile see."""
    for i in range(rows):
        first, here, own = i // rank * rank, splat(m.sums[i]), splat(m.own[i])
        for j in range(0, last_seen(i, rank, rows), LANES):
            product = load(m.products, j // TILE_COLUMNS * TILE_COLUMNS * CHUNK + i * TILE_COLUMNS + j % TILE_COLUMNS)
            v = mul(mul(exp(sub(here, load(m.sums, j))), load(m.both, j)), product)
            if j + LANES > first:
                now = mul(own, product)
                v = add(keep(v, first - j), sub(keep(now, first + rank - j), keep(now, first - j)))
            store(out, i * CHUNK + j, v)


@njit(**SERIAL)
def _scan_chunk(
    kind: Pointer, start: int, tokens: int, last: bool, known: bool, wanted: bool, h: int, s: Shape, w: Weights, b: Buffers,
    m: Scratch,
) -> None:  # fmt: skip
    """`m.y` of one chunk from `m.v`, its angles and factors; `m.state` advances if `wanted`. `known`: it is not zero."""
    rank, rows, n, width = s.rank, tokens * s.rank, round_up(s.state_size, 2 * LANES), round_up(s.head_size, TILE_COLUMNS)
    for part in range(2):
        out = as_kind(kind, m.k if part == 0 else m.q)
        for i in range(rows):
            _turn_row(part, start + i // rank, i % rank, h, i // rank, s, w, b, m)
            for c in range(0, n, LANES):
                store(out, i * n + c, load(m.row, c))
    multiply_keys(kind, m.q, m.k, rows, rank, n, CHUNK, shift(m.panel, CHUNK + n), m.products)
    _mix(as_kind(kind, m.mixed), rows, rank, m)
    pack(kind, as_kind(kind, m.k), n, rows, m.panel, m.k_words, n)
    for column in range(0, width, TILE_COLUMNS):
        scan_panel(
            kind, rows, rank, n, known, wanted, m.q, m.k_words, m.mixed, m.grown, m.carried, shift(m.grown, rows - 1),
            shift(m.v, column), width, shift(m.state, column * n), shift(m.y, column * CHUNK), m.panel,
        )  # fmt: skip


@njit(**SERIAL)
def _gate_chunk(z: Pointer, stride: int, gated: Array, scales: Array, s: Shape, w: Weights, start: int, h: int, tokens: int,
    m: Scratch,
) -> None:  # fmt: skip
    """The chunk's part of `gated` and `scales`; z: of its first token."""
    size, width, rank, row = s.head_size, round_up(s.head_size, TILE_COLUMNS), s.rank, gated.shape[1]
    skip, place = splat(w.D[h]), h * rank * width
    z_factors, out_factors = shift(address(w.z), place), shift(address(w.out), place)
    for t in range(tokens):
        for r in range(rank):
            i, sums = t * rank + r, splat(ZERO)
            for c in range(0, width, LANES):
                at = c // TILE_COLUMNS * TILE_COLUMNS * CHUNK + i * TILE_COLUMNS + c % TILE_COLUMNS
                v = fma(skip, load(m.v, i * width + c), load(m.y, at))
                store(m.y, at, v)
                sums = fma(v, v, sums)
            m.inverse[r] = ONE / np.sqrt(total(sums) / np.float32(size) + np.float32(s.norm_eps)) if s.out_norm else ONE
        for c in range(0, width, LANES):
            gate, sums = load_some(z, t * stride + c, size - c), splat(ZERO)
            for r in range(rank):
                v = load(m.y, c // TILE_COLUMNS * TILE_COLUMNS * CHUNK + (t * rank + r) * TILE_COLUMNS + c % TILE_COLUMNS)
                v = mul(mul(v, splat(m.inverse[r])), load(out_factors, r * width + c))
                sums = fma(v, silu(mul(gate, load(z_factors, r * width + c))), sums)
            store(m.row, c, sums)
        out = shift(address(gated), (start + t) * row + h * (row // s.heads))
        if numbers_per_word(address(gated)) == 4:
            scales[start + t, h] = quantize_row(m.row, size, out)
        else:
            write(m.row, size, out)


# ---- one head of one sequence ----------------------------------------------------------------------------------------------


@njit(**SERIAL)
def _enter(old: int, share: Number, h: int, pools: Pools, s: Shape, w: Weights, sums: Pointer, m: Scratch) -> None:
    """The state from its row of the pool, with `share` of the last token's input."""
    size, n, rank, width, padded = (
        s.head_size,
        s.state_size,
        s.rank,
        round_up(s.head_size, TILE_COLUMNS),
        round_up(s.state_size, 2 * LANES),
    )
    load_state(shift(address(pools.ssm), old * size * n), size, n, padded, width // TILE_COLUMNS, m.state)
    weigh(shift(address(pools.v), old * size), 0, 1, size, width, shift(address(w.x), h * rank * width), rank, m.v)
    for r in range(rank):
        key = shift(address(pools.k), (old * rank + r) * n)
        for k in range(n):
            factor = splat(share * key[k])
            for c in range(0, width, LANES):
                at = c // TILE_COLUMNS * TILE_COLUMNS * padded + k * TILE_COLUMNS + c % TILE_COLUMNS
                store(m.state, at, fma(factor, load(m.v, r * width + c), load(m.state, at)))
    angle = shift(address(pools.angle), old * s.angles)
    for a in range(s.angles):
        sums[a] = angle[a] / _TURN


@njit(**SERIAL)
def _leave(
    x: Pointer, last: int, place: int, new: int, h: int, pools: Pools, s: Shape, w: Weights, b: Buffers, sums: Pointer, m: Scratch
) -> None:
    """The state to its row of the pool; x, last: of the last token, whose angles are at `place` of the chunk."""
    size, n = s.head_size, s.state_size
    store_state(m.state, size, n, round_up(n, 2 * LANES), shift(address(pools.ssm), new * size * n))
    for r in range(s.rank):
        _turn_row(0, last, r, h, place, s, w, b, m)
        write(m.row, n, shift(address(pools.k), (new * s.rank + r) * n))
    value, angle = shift(address(pools.v), new * size), shift(address(pools.angle), new * s.angles)
    for c in range(size):
        value[c] = number(x, c)
    for a in range(s.angles):
        angle[a] = np.float32(sums[a] * _TURN)


@njit(**SERIAL)
def _scan_head(
    projected: Array, gated: Array, scales: Array, layer: int, pools: Pools, s: Shape, w: Weights, p: ChunkPlan, b: Buffers,
    task: int, sums: Pointer, m: Scratch,
) -> None:  # fmt: skip
    sequence, h = task // s.heads, task % s.heads
    size, stride, width, layers = s.head_size, projected.shape[1], round_up(s.head_size, TILE_COLUMNS), pools.ssm.shape[1]
    begin, end = p.cu_seqlens[sequence], p.cu_seqlens[sequence + 1]
    read, write = p.read_rows[sequence], p.write_rows[sequence]
    old, new = (max(read, 0) * layers + layer) * s.heads + h, (write * layers + layer) * s.heads + h
    z, known = shift(address(projected), h * size), read >= 0
    x, dt, place = shift(z, s.heads * size), shift(address(b.steps), h), 0
    if begin == end:
        if write >= 0 and (not known or read != write):
            move(address(pools.ssm), size * s.state_size, old, new, known)
            move(address(pools.k), s.rank * s.state_size, old, new, known)
            move(address(pools.v), size, old, new, known)
            move(address(pools.angle), s.angles, old, new, known)
        return
    if known:
        _enter(old, dt[begin * s.heads] - dt[(2 * b.steps.shape[1] + begin) * s.heads], h, pools, s, w, sums, m)
    else:
        for a in range(s.angles):
            sums[a] = 0.0
    for chunk in range(p.first_chunk[sequence], p.first_chunk[sequence + 1]):
        start = p.start[chunk]
        tokens = min(end - start, CHUNK // s.rank)
        last, place = start + tokens == end, tokens - 1
        _read_steps(start, tokens, last, h, s, b, m)
        sum_turns(
            shift(address(b.turns), start * s.angles), s.angles, shift(dt, start * s.heads), s.heads, tokens, sums,
            round_up(s.angles), m.cos, m.sin,
        )  # fmt: skip
        weigh(shift(x, start * stride), stride, tokens, size, width, shift(address(w.x), h * s.rank * width), s.rank, m.v)
        _scan_chunk(z, start, tokens, last, known, write >= 0 or not last, h, s, w, b, m)
        _gate_chunk(shift(z, start * stride), stride, gated, scales, s, w, start, h, tokens, m)
        known = True
    if write >= 0:
        _leave(shift(x, (end - 1) * stride), end - 1, place, new, h, pools, s, w, b, sums, m)


@njit(**PARALLEL)
def scan_heads(
    projected: Array, gated: Array, scales: Array, layer: int, pools: Pools, s: Shape, w: Weights, p: ChunkPlan, b: Buffers
) -> None:
    """The rest of the block, after `prepare_tokens` with the same arguments.

    Args:
        gated: (T, Di), filled with out_proj's input in the dtype of `projected`. Or in 8 bits for `int8_matmul.multiply`, a head
            being a group: (T, H Kp) uint8.
        scales: (T, H) fp32, filled with the scales of `gated` in 8 bits; else not used.
        layer: which layer of the pools, whose rows in `p.write_rows` are updated.
        p: the plan of chunks of at most Q / R tokens.
    """
    tasks = (p.cu_seqlens.shape[0] - 1) * s.heads
    for worker in prange(b.scratch.shape[0]):
        m, sums = _divide(b, worker), shift(address(b.sums), worker * b.sums.shape[1])
        fill(m.panel, CHUNK + round_up(s.state_size, 2 * LANES), ONE)
        while True:
            task = next_task(address(b.tasks))
            if task >= tasks:
                break
            _scan_head(projected, gated, scales, layer, pools, s, w, p, b, task, sums, m)


# ---- the feed-forward layers -----------------------------------------------------------------------------------------------


@njit(**PARALLEL)
def multiply_silu(up: Array, out: Array, scales: Array) -> None:
    """Fill fc2's input with value silu(gate), the halves of fc1's output.

    Args:
        up: (T, 2 F) fp32 or bf16 bits.
        out: (T, F) in the same dtype, or in 8 bits for `int8_matmul.multiply`: (T, groups Kp) uint8.
        scales: (T, groups) fp32, filled with the scales of 8 bits.
    """
    tokens, width = up.shape
    half, groups = width // 2, max(scales.shape[1], 1)
    size, padded = half // groups, out.shape[1] // groups
    for block in prange(ceil_div(tokens, _BLOCK)):
        row = np.empty(round_up(half), np.float32)
        for t in range(block * _BLOCK, min(tokens, (block + 1) * _BLOCK)):
            value, target = shift(address(up), t * width), shift(address(out), t * out.shape[1])
            for c in range(0, half, LANES):
                store(address(row), c, mul(load_some(value, c, half - c), silu(load_some(value, half + c, half - c))))
            if numbers_per_word(target) == 4:
                for g in range(groups):
                    scales[t, g] = quantize_row(shift(address(row), g * size), size, shift(target, g * padded))
            else:
                write(address(row), half, target)
