"""What the xLSTM kernels are given (sizes, weights, memory), and the pieces they are made of. Legend: `kernels`.

The pieces' arrays are pointers (see `simd`); `kind` is the pointer to a projection, whose type chooses bf16 or fp32.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from runnel.backbones.cpu_step import Floats, Indices, StepMemory
from runnel.ops.chunks import CHUNK
from runnel.ops.numba_math import SERIAL, Number, Pointer, fast_exp, softplus
from runnel.ops.simd import (
    LANES,
    TILE_COLUMNS,
    TILE_ROWS,
    ceil_div,
    exp,
    fma,
    keep,
    load,
    load_some,
    mul,
    number,
    round_up,
    sigmoid,
    splat,
    store,
    store_some,
    sub,
    total,
)
from runnel.ops.simd_tile import as_kind, load_up_to, store_up_to

KERNELS = 2  # that take their tasks from a counter


class Shape(NamedTuple):
    """Sizes of a block, the gates' cap, and what the divisors of the output and of its norm get added."""

    heads: int
    key_size: int
    value_size: int
    gate_cap: float
    cell_eps: float
    norm_eps: float


class Weights(NamedTuple):
    """fp32 weights of one block."""

    gates: Floats  # (panels, D, TILE_COLUMNS): input gates of all heads, then forget gates, times the norm's weight
    gate_bias: Floats  # (2 H,)
    head_norm: Floats  # (H V,)


class Buffers(NamedTuple):
    """Memory that the kernels share; rows are those of `ops.chunks.ChunkPlan.row`, with those of one head together."""

    gates: Floats  # (panels, tokens rounded up, TILE_COLUMNS): capped input gates, then log sigmoid of forget gates
    q_words: Floats  # (H * rows * Kp / numbers per word,): q, padded
    k_words: Floats  # the same size: k, pairs of tokens in a word
    mixed: Floats  # (H * rows * Q / numbers per word,): how much of v_j is in y_i
    grown: Floats  # (H * rows,): how much of the state that enters a chunk is in y_i
    carried: Floats  # (H * rows,): how much of k_j v_j^T is in the state that leaves the chunk
    inverse: Floats  # (H * rows,): 1 / divisor of y_i
    decay: Floats  # (H * rows / 16,): how much of the state that enters a chunk leaves it
    scratch: Floats  # (workers, scratch_size)
    tasks: Indices  # (KERNELS,) the next free task of each; zeroed by the caller


def gate_panels(heads: int) -> int:
    """Panels of TILE_COLUMNS columns that both gates of all heads take."""
    return ceil_div(2 * heads, TILE_COLUMNS)


def pack_gates(weight: Floats, norm: Floats) -> Floats:
    """`Weights.gates` of weight (2 H, D) and the norm's weight (D,)."""
    panels = gate_panels(weight.shape[0] // 2)
    out = np.zeros((panels * TILE_COLUMNS, weight.shape[1]), np.float32)
    out[: weight.shape[0]] = weight * norm
    return np.ascontiguousarray(out.reshape(panels, TILE_COLUMNS, -1).transpose(0, 2, 1))


def allocate(memory: StepMemory, s: Shape, tokens: int, rows: int, per_word: int, workers: int) -> Buffers:
    """Return buffers for a step of `tokens` tokens whose plan has `rows` rows."""
    padded, steps = round_up(s.key_size, 2 * LANES), rows * s.heads
    return Buffers(
        gates=memory.array("gates", gate_panels(s.heads), round_up(tokens, TILE_ROWS), TILE_COLUMNS),
        q_words=memory.array("q_words", steps * padded // per_word),
        k_words=memory.array("k_words", steps * padded // per_word),
        mixed=memory.array("mixed", steps * CHUNK // per_word),
        grown=memory.array("grown", steps),
        carried=memory.array("carried", steps),
        inverse=memory.array("inverse", steps),
        decay=memory.array("decay", steps // LANES),
        scratch=memory.array("scratch", workers, scratch_size(s)),
        tasks=np.zeros(KERNELS, np.int64),
    )


def scratch_size(s: Shape) -> int:
    """fp32 numbers of scratch that one worker needs."""
    padded = round_up(s.key_size, 2 * LANES)
    prepare = 3 * CHUNK + padded + CHUNK * padded + padded * TILE_COLUMNS + CHUNK * CHUNK
    scan = CHUNK + padded + 3 * CHUNK * TILE_COLUMNS + 2 * padded * TILE_COLUMNS
    return round_up(max(prepare, scan), LANES) + LANES


ZERO, ONE = np.float32(0.0), np.float32(1.0)

# ---- gates ---------------------------------------------------------------------------------------------------------------


@njit(**SERIAL)
def cap_gates(
    gates: Pointer, panel: int, x: Pointer, width: int, bias: Pointer, heads: int, cap: Number, eps: Number, t: int
) -> None:
    """Products of one token with the gates' weights -> capped input gates and log sigmoid of capped forget gates, in place.

    x (width,): the token's residual, whose norm's division is made up for here. Panels of gates are `panel` numbers apart.
    """
    sums = splat(ZERO)
    for c in range(0, width, LANES):
        v = load_up_to(x, c, width - c)
        sums = fma(v, v, sums)
    inverse = ONE / np.sqrt(total(sums) / np.float32(width) + eps)
    for g in range(2 * heads):
        place = g // TILE_COLUMNS * panel + t * TILE_COLUMNS + g % TILE_COLUMNS
        capped = cap * np.float32(math.tanh((gates[place] * inverse + bias[g]) / cap))
        gates[place] = capped if g < heads else -softplus(-capped)


@njit(**SERIAL)
def read_gates(
    gates: Pointer, panel: int, start: int, tokens: int, h: int, heads: int, m: Number, u: Pointer, most: Pointer, m_out: Pointer
) -> Any:
    """The gates of one head and chunk in log space, relative to the sum b of log forget gates so far.

    u_j = i_j - b_j is the weight of token j and `most`_i = max(m, u_0 .. u_i) what all weights of output i are divided by, so
    that m_i = b_i + most_i; with them no factor is above 1. Returns the last m_i; m_out: all of them.
    """
    log_sum = 0.0  # in fp64: what is small between two tokens of a chunk may be the difference of large sums
    f = heads + h
    i_at = h // TILE_COLUMNS * panel + h % TILE_COLUMNS
    f_at = f // TILE_COLUMNS * panel + f % TILE_COLUMNS
    highest = m
    for t in range(tokens):
        log_sum += gates[f_at + (start + t) * TILE_COLUMNS]
        u[t] = np.float32(gates[i_at + (start + t) * TILE_COLUMNS] - log_sum)
        highest = max(highest, u[t])
        most[t] = highest
        m_out[t] = np.float32(log_sum + highest)
    return m_out[tokens - 1]


# ---- products of queries and keys ------------------------------------------------------------------------------------------


@njit(**SERIAL)
def copy_rows(kind: Pointer, source: Pointer, stride: int, width: int, padded: int, tokens: int, out: Pointer) -> None:
    """Rows of `width` numbers into rows of `padded`, with zeros behind."""
    target = as_kind(kind, out)
    for t in range(tokens):
        for c in range(0, padded, LANES):
            store(target, t * padded + c, load_some(source, t * stride + c, width - c))


@njit(**SERIAL)
def mix(
    kind: Pointer, products: Pointer, u: Pointer, most: Pointer, scale: Number, tokens: int, sums: Pointer, out: Pointer
) -> None:
    """out[i, j] = q_i . k_j scale exp(u_j - most_i) for j <= i, 0 above up to the next multiple of 16; their sums over j."""
    target = as_kind(kind, out)
    factor = splat(scale)
    for i in range(tokens):
        own, added = splat(most[i]), splat(ZERO)
        for j in range(0, i + 1, LANES):
            v = mul(exp(sub(load(u, j), own)), factor)
            v = mul(v, load(products, j // TILE_COLUMNS * TILE_COLUMNS * CHUNK + i * TILE_COLUMNS + j % TILE_COLUMNS))
            v = keep(v, i - j + 1) if i - j < LANES else v
            store(target, i * CHUNK + j, v)
            added = fma(v, splat(ONE), added)
        sums[i] = total(added)


@njit(**SERIAL)
def divisors(
    kind: Pointer, q_words: Pointer, padded: int, n: Pointer, grown: Pointer, sums: Pointer, m: Pointer, eps: Number, tokens: int,
    inverse: Pointer,
) -> None:  # fmt: skip
    """inverse_i = 1 / (max(|grown_i q_i . n + sums_i|, exp(-m_i)) + eps)."""
    q = as_kind(kind, q_words)
    for i in range(tokens):
        dot = splat(ZERO)
        for c in range(0, padded, LANES):
            dot = fma(load(q, i * padded + c), load(n, c), dot)
        inverse[i] = ONE / (max(abs(grown[i] * total(dot) + sums[i]), fast_exp(-m[i])) + eps)


@njit(**SERIAL)
def advance_n(kind: Pointer, k_rows: Pointer, padded: int, carried: Pointer, decay: Number, tokens: int, n: Pointer) -> None:
    """n = decay n + sum over j of carried_j k_j. padded is a multiple of 2 LANES."""
    k = as_kind(kind, k_rows)
    for c in range(0, padded, 2 * LANES):
        low, high = mul(splat(decay), load(n, c)), mul(splat(decay), load(n, c + LANES))
        for t in range(tokens):
            factor = splat(carried[t])
            low = fma(factor, load(k, t * padded + c), low)
            high = fma(factor, load(k, t * padded + c + LANES), high)
        store(n, c, low)
        store(n, c + LANES, high)


# ---- columns of the state -----------------------------------------------------------------------------------------------


@njit(**SERIAL)
def load_columns(source: Pointer, stride: int, rows: int, columns: int, out: Pointer) -> None:
    """Up to TILE_COLUMNS columns of a matrix into rows of TILE_COLUMNS, with zeros behind."""
    for r in range(rows):
        for c in range(0, TILE_COLUMNS, LANES):
            store(out, r * TILE_COLUMNS + c, load_some(source, r * stride + c, columns - c))


@njit(**SERIAL)
def store_columns(
    source: Pointer, rows: int, columns: int, factors: Pointer, factors_stride: int, out: Pointer, stride: int
) -> None:
    """Inverse of `load_columns`; each row times its factor."""
    for r in range(rows):
        factor = splat(number(factors, r * factors_stride))
        for c in range(0, columns, LANES):
            store_some(out, r * stride + c, mul(factor, load(source, r * TILE_COLUMNS + c)), columns - c)


# ---- behind the recurrence ------------------------------------------------------------------------------------------------


@njit(**SERIAL)
def normalize_head(y: Pointer, size: int, weight: Pointer, eps: Number, o: Pointer, out: Pointer) -> None:
    """out = sigmoid(o) (y - mean) / deviation * weight, over the `size` numbers of one token and head."""
    sums = splat(ZERO)
    for c in range(0, size, LANES):
        sums = fma(load_up_to(y, c, size - c), splat(ONE), sums)
    mean = splat(total(sums) / np.float32(size))
    sums = splat(ZERO)
    for c in range(0, size, LANES):
        v = sub(load_up_to(y, c, size - c), mean)
        v = v if size - c >= LANES else keep(v, size - c)
        sums = fma(v, v, sums)
    inverse = splat(ONE / np.sqrt(total(sums) / np.float32(size) + eps))
    for c in range(0, size, LANES):
        v = mul(mul(sub(load_up_to(y, c, size - c), mean), inverse), load_up_to(weight, c, size - c))
        store_up_to(out, c, mul(v, sigmoid(load_up_to(o, c, size - c))), size - c)
