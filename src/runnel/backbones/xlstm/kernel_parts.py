"""The pieces of the fused mLSTM kernels; legend in `kernels`.

Arrays are pointers here (see `simd`); `kind` is the pointer to a projection, whose type chooses bf16 or fp32.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from runnel.ops.chunks import CHUNK
from runnel.ops.numba_math import SERIAL, Number, Pointer, fast_exp, softplus
from runnel.ops.simd import (
    LANES,
    TILE_COLUMNS,
    exp,
    fma,
    keep,
    load,
    load_some,
    mul,
    number,
    sigmoid,
    splat,
    store,
    store_some,
    sub,
    total,
)
from runnel.ops.simd_tile import as_kind

ZERO, ONE = np.float32(0.0), np.float32(1.0)

# ---- gates ---------------------------------------------------------------------------------------------------------------


@njit(**SERIAL)
def cap_gates(
    gates: Pointer, panel: int, x: Pointer, width: int, bias: Pointer, heads: int, cap: Number, eps: Number, t: int
) -> None:
    """Products of one token with the gates' weights -> capped input gates and log sigmoid of capped forget gates, in place.

    x (width,): the token's residual, whose norm's division is made up for here. Panels of gates are `panel` numbers apart.
    """
    sums, whole = splat(ZERO), width - width % LANES
    for c in range(0, whole, LANES):
        sums = fma(load(x, c), load(x, c), sums)
    if whole < width:
        rest = load_some(x, whole, width - whole)
        sums = fma(rest, rest, sums)
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
    whole, rest = size - size % LANES, size % LANES  # apart, because a masked store of bf16 takes many times as long
    sums = splat(ZERO)
    for c in range(0, whole, LANES):
        sums = fma(load(y, c), splat(ONE), sums)
    if rest:
        sums = fma(load_some(y, whole, rest), splat(ONE), sums)
    mean = splat(total(sums) / np.float32(size))
    sums = splat(ZERO)
    for c in range(0, whole, LANES):
        v = sub(load(y, c), mean)
        sums = fma(v, v, sums)
    if rest:
        v = keep(sub(load_some(y, whole, rest), mean), rest)
        sums = fma(v, v, sums)
    inverse = splat(ONE / np.sqrt(total(sums) / np.float32(size) + eps))
    for c in range(0, whole, LANES):
        v = mul(mul(sub(load(y, c), mean), inverse), load(weight, c))
        store(out, c, mul(v, sigmoid(load(o, c))))
    if rest:
        v = mul(mul(sub(load_some(y, whole, rest), mean), inverse), load_some(weight, whole, rest))
        store_some(out, whole, mul(v, sigmoid(load_some(o, whole, rest))), rest)
