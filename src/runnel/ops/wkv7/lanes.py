"""The inner loops of wkv7: a head's state stays in the first-level cache over many tokens, sixteen columns per vector.

K key size, V value size (here a multiple of 16), Q tokens.

With S the state (K, V), d the decay and u = S^T a of the state before the token, a token computes S <- d S + b u^T + k v^T and
o = S^T r. Columns of S are independent. So u, v, o and the next token's u stay in registers, and each row of S is read
and written once: decayed, added to, multiplied with r, and multiplied with the next token's a.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from runnel.ops.numba_math import SERIAL, Array, Pointer, Vector
from runnel.ops.simd import LANES, address, fma, load, mul, splat, store

_ZERO = np.float32(0.0)
_BLOCK = 4 * LANES  # columns processed together: four vectors each of u, v, o and the next u, a row of S, and five factors


@njit(**SERIAL)
def advance(state: Array, r: Array, decay: Array, k: Array, v: Array, a: Array, b: Array, count: int, out: Array) -> None:
    """Move one head over `count` tokens.

    All arrays are fp32 and C-contiguous; V is a multiple of 16, K any number. Callable from jitted code on slices; without
    checks.

    Args:
        state: (K, V), updated.
        r, decay, k, a, b: (>= count, K), of which `count` rows are read; decay = exp(w).
        v: (>= count, V).
        count: tokens; 0 changes nothing.
        out: (>= count, V); o is written to the first `count` rows.
    """
    K, V = state.shape
    S, r_, d_, k_, v_, a_, b_, o_ = (
        address(state), address(r), address(decay), address(k), address(v), address(a), address(b), address(out),
    )  # fmt: skip
    column = 0
    while column < V and count > 0:
        if column + _BLOCK <= V:
            u0, u1, u2, u3 = removed4(S, column, V, a_, K)
            for t in range(count):
                row, after, at = t * K, min(t + 1, count - 1) * K, t * V + column  # the u after the last token is not used
                o0, o1, o2, o3, u0, u1, u2, u3 = token4(
                    S, column, S, column, V, r_, d_, k_, a_, b_, row, after, K, u0, u1, u2, u3,
                    load(v_, at), load(v_, at + LANES), load(v_, at + 2 * LANES), load(v_, at + 3 * LANES),
                )  # fmt: skip
                store(o_, at, o0)
                store(o_, at + LANES, o1)
                store(o_, at + 2 * LANES, o2)
                store(o_, at + 3 * LANES, o3)
            column += _BLOCK
        else:
            u = removed1(S, column, V, a_, K)
            for t in range(count):
                at = t * V + column
                o, u = token1(S, column, S, column, V, r_, d_, k_, a_, b_, t * K, min(t + 1, count - 1) * K, K, u, load(v_, at))
                store(o_, at, o)
            column += LANES


@njit(inline="always")
def removed4(S: Pointer, at: int, stride: int, a: Pointer, K: int) -> Any:
    """Return S^T a for 64 columns. S, a: pointers; at: first element of the block of S; stride: between its rows."""
    u0 = u1 = u2 = u3 = splat(_ZERO)
    for i in range(K):
        p, factor = at + i * stride, splat(a[i])
        u0 = fma(factor, load(S, p), u0)
        u1 = fma(factor, load(S, p + LANES), u1)
        u2 = fma(factor, load(S, p + 2 * LANES), u2)
        u3 = fma(factor, load(S, p + 3 * LANES), u3)
    return u0, u1, u2, u3


@njit(inline="always")
def removed1(S: Pointer, at: int, stride: int, a: Pointer, K: int) -> Any:
    """Run `removed4` on 16 columns."""
    u = splat(_ZERO)
    for i in range(K):
        u = fma(splat(a[i]), load(S, at + i * stride), u)
    return u


@njit(inline="always")
def token4(
    before: Pointer, before_at: int, S: Pointer, S_at: int, stride: int, r: Pointer, d: Pointer, k: Pointer, a: Pointer,
    b: Pointer, row: int, after: int, K: int, u0: Vector, u1: Vector, u2: Vector, u3: Vector, v0: Vector, v1: Vector, v2: Vector,
    v3: Vector,
) -> Any:  # fmt: skip
    """Process one token on 64 columns. Arrays are pointers.

    Args:
        before, S: the block's state before and after the token, from elements before_at and S_at on; may be the same.
        stride: distance between rows of the state.
        r, d, k, a, b: the token's coefficients start at element `row`, the next token's a starts at element `after` of a.
        u0 .. u3, v0 .. v3: u and v of this token.

    Returns:
        o0 .. o3, and u0 .. u3 of the next token.
    """
    o0 = o1 = o2 = o3 = n0 = n1 = n2 = n3 = splat(_ZERO)
    for i in range(K):
        p, q = before_at + i * stride, S_at + i * stride
        decay, back, key = splat(d[row + i]), splat(b[row + i]), splat(k[row + i])
        query, away = splat(r[row + i]), splat(a[after + i])
        s0 = fma(decay, load(before, p), fma(back, u0, mul(key, v0)))
        s1 = fma(decay, load(before, p + LANES), fma(back, u1, mul(key, v1)))
        s2 = fma(decay, load(before, p + 2 * LANES), fma(back, u2, mul(key, v2)))
        s3 = fma(decay, load(before, p + 3 * LANES), fma(back, u3, mul(key, v3)))
        store(S, q, s0)
        store(S, q + LANES, s1)
        store(S, q + 2 * LANES, s2)
        store(S, q + 3 * LANES, s3)
        o0, o1, o2, o3 = fma(query, s0, o0), fma(query, s1, o1), fma(query, s2, o2), fma(query, s3, o3)
        n0, n1, n2, n3 = fma(away, s0, n0), fma(away, s1, n1), fma(away, s2, n2), fma(away, s3, n3)
    return o0, o1, o2, o3, n0, n1, n2, n3


@njit(inline="always")
def token1(
    before: Pointer, before_at: int, S: Pointer, S_at: int, stride: int, r: Pointer, d: Pointer, k: Pointer, a: Pointer,
    b: Pointer, row: int, after: int, K: int, u: Vector, v: Vector,
) -> Any:  # fmt: skip
    """Run `token4` on 16 columns."""
    o = n = splat(_ZERO)
    for i in range(K):
        s = fma(splat(d[row + i]), load(before, before_at + i * stride), fma(splat(b[row + i]), u, mul(splat(k[row + i]), v)))
        store(S, S_at + i * stride, s)
        o, n = fma(splat(r[row + i]), s, o), fma(splat(a[after + i]), s, n)
    return o, n
