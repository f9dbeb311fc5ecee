"""The wkv7 backward kernel: tile by tile from the last token, with the states of one tile recomputed and kept in cache.

T tokens, S sequences, H heads, K key size, V value size (padded: to a multiple of 16), Q tokens per tile.

With Z the gradient of the state after a token, S' the state before it, u = S'^T a, d = exp w, a token computes
    Z += r do^T,  dr = S do,  dk = Z v,  db = Z u,  dw = d * (row sums of Z * S'),  dv = Z^T k,  du = Z^T b
    da = S' du,  Z <- d Z + a du^T
Vectors hold 16 columns of the state, as in `lanes`. Results of length V accumulate in registers over the rows; results of length
K are sums over columns: one vector of partial sums per row, whose lanes are added 16 rows at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.extending import intrinsic

from runnel.ops.chunks import Shares
from runnel.ops.numba_math import PARALLEL, SERIAL, Array, Pointer, Vector
from runnel.ops.simd import (
    I64,
    LANES,
    VF32,
    VI32,
    address,
    build_pointer,
    ceil_div,
    f32x16,
    fma,
    load,
    mul,
    round_up,
    splat,
    store,
)
from runnel.ops.wkv7.forward import CHUNK, read, read_tiles, start, write
from runnel.ops.wkv7.lanes import advance, removed1, removed4, token1, token4

_ZERO = np.float32(0.0)
_BLOCK = 4 * LANES
_DR, _DW, _DK, _DA, _DB = range(5)  # gradients of length K, in the order of the tile of inputs


@intrinsic
def _row_totals(typing_context: Any, base: Any, offset: Any) -> Any:
    """Return a vector whose lane i is the sum of elements offset + 16 i .. offset + 16 i + 15."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        places = [builder.add(values[1], ir.Constant(I64, row * LANES)) for row in range(LANES)]
        rows = [builder.load(build_pointer(builder, values[0], place, VF32), align=4) for place in places]
        width = LANES // 2
        while width:  # merge rows i and i + width into one vector, each in half of its lanes
            low = ir.Constant(VI32, [lane if not lane & width else lane - width + LANES for lane in range(LANES)])
            high = ir.Constant(VI32, [lane + width if not lane & width else lane + LANES for lane in range(LANES)])
            pairs = [(rows[i], rows[i + width]) for i in range(width)]
            rows = [builder.fadd(builder.shuffle_vector(*pair, low), builder.shuffle_vector(*pair, high)) for pair in pairs]
            width //= 2
        return rows[0]

    return f32x16(base, types.intp), generate


@njit(**SERIAL)
def _record(tile: Array, values: Array, count: int, history: Array, removed: Array) -> None:
    """Compute the states after each token, history[1 : count + 1], from the first, history[0]; and u into `removed`."""
    _, K, V = history.shape
    r_, d_, k_, a_, b_ = address(tile[0]), address(tile[1]), address(tile[2]), address(tile[3]), address(tile[4])
    S, v_, u_ = address(history), address(values), address(removed)
    column = 0
    while column < V:
        if column + _BLOCK <= V:
            u0, u1, u2, u3 = removed4(S, column, V, a_, K)
            for t in range(count):
                row, after, at, place = t * K, min(t + 1, count - 1) * K, t * V + column, t * K * V + column
                store(u_, at, u0)
                store(u_, at + LANES, u1)
                store(u_, at + 2 * LANES, u2)
                store(u_, at + 3 * LANES, u3)
                _, _, _, _, u0, u1, u2, u3 = token4(
                    S, place, S, place + K * V, V, r_, d_, k_, a_, b_, row, after, K, u0, u1, u2, u3,
                    load(v_, at), load(v_, at + LANES), load(v_, at + 2 * LANES), load(v_, at + 3 * LANES),
                )  # fmt: skip
            column += _BLOCK
        else:
            u = removed1(S, column, V, a_, K)
            for t in range(count):
                row, after, at, place = t * K, min(t + 1, count - 1) * K, t * V + column, t * K * V + column
                store(u_, at, u)
                _, u = token1(S, place, S, place + K * V, V, r_, d_, k_, a_, b_, row, after, K, u, load(v_, at))
            column += LANES


@njit(inline="always")
def _sum4(
    out: Pointer, at: int, x0: Vector, x1: Vector, x2: Vector, x3: Vector, y0: Vector, y1: Vector, y2: Vector, y3: Vector
) -> None:
    """Add the products of four pairs of vectors to the partial sums at element `at`."""
    store(out, at, fma(x3, y3, fma(x2, y2, fma(x1, y1, fma(x0, y0, load(out, at))))))


@njit(inline="always")
def _back4(
    S: Pointer, before: int, behind: int, Z: Pointer, column: int, stride: int, r: Pointer, d: Pointer, k: Pointer, a: Pointer,
    b: Pointer, row: int, K: int, v: Pointer, u: Pointer, do: Pointer, dv: Pointer, at: int, part: int, parts: Pointer,
) -> None:  # fmt: skip
    """Process one token backward on 64 columns. Arrays are pointers.

    Args:
        S: the states before and after the token start at elements `before` and `behind`.
        Z: the gradient of the state after the token; becomes the gradient of the state before it.
        column, stride: the block's first column, and the distance between rows of states and of Z.
        r, d, k, a, b: the token's coefficients start at element `row`.
        v, u, do, dv: the block's part of the token's rows starts at element `at`; dv is written.
        part, parts: partial sums (5, part / 16, 16), added to.
    """
    v0, v1, v2, v3 = load(v, at), load(v, at + LANES), load(v, at + 2 * LANES), load(v, at + 3 * LANES)
    u0, u1, u2, u3 = load(u, at), load(u, at + LANES), load(u, at + 2 * LANES), load(u, at + 3 * LANES)
    g0, g1, g2, g3 = load(do, at), load(do, at + LANES), load(do, at + 2 * LANES), load(do, at + 3 * LANES)
    dv0 = dv1 = dv2 = dv3 = du0 = du1 = du2 = du3 = splat(_ZERO)
    for i in range(K):
        p, q = column + i * stride, i * LANES
        query, key, back = splat(r[row + i]), splat(k[row + i]), splat(b[row + i])
        z0, z1 = fma(query, g0, load(Z, p)), fma(query, g1, load(Z, p + LANES))
        z2, z3 = fma(query, g2, load(Z, p + 2 * LANES)), fma(query, g3, load(Z, p + 3 * LANES))
        store(Z, p, z0)
        store(Z, p + LANES, z1)
        store(Z, p + 2 * LANES, z2)
        store(Z, p + 3 * LANES, z3)
        dv0, dv1, dv2, dv3 = fma(key, z0, dv0), fma(key, z1, dv1), fma(key, z2, dv2), fma(key, z3, dv3)
        du0, du1, du2, du3 = fma(back, z0, du0), fma(back, z1, du1), fma(back, z2, du2), fma(back, z3, du3)
        s, old = behind + p, before + p
        _sum4(
            parts, _DR * part + q,
            load(S, s), load(S, s + LANES), load(S, s + 2 * LANES), load(S, s + 3 * LANES), g0, g1, g2, g3,
        )  # fmt: skip
        _sum4(
            parts, _DW * part + q,
            load(S, old), load(S, old + LANES), load(S, old + 2 * LANES), load(S, old + 3 * LANES), z0, z1, z2, z3,
        )  # fmt: skip
        _sum4(parts, _DK * part + q, v0, v1, v2, v3, z0, z1, z2, z3)
        _sum4(parts, _DB * part + q, u0, u1, u2, u3, z0, z1, z2, z3)
    store(dv, at, dv0)
    store(dv, at + LANES, dv1)
    store(dv, at + 2 * LANES, dv2)
    store(dv, at + 3 * LANES, dv3)
    for i in range(K):
        p, old = column + i * stride, before + column + i * stride
        decay, away = splat(d[row + i]), splat(a[row + i])
        _sum4(
            parts, _DA * part + i * LANES,
            load(S, old), load(S, old + LANES), load(S, old + 2 * LANES), load(S, old + 3 * LANES), du0, du1, du2, du3,
        )  # fmt: skip
        store(Z, p, fma(away, du0, mul(decay, load(Z, p))))
        store(Z, p + LANES, fma(away, du1, mul(decay, load(Z, p + LANES))))
        store(Z, p + 2 * LANES, fma(away, du2, mul(decay, load(Z, p + 2 * LANES))))
        store(Z, p + 3 * LANES, fma(away, du3, mul(decay, load(Z, p + 3 * LANES))))


@njit(inline="always")
def _back1(
    S: Pointer, before: int, behind: int, Z: Pointer, column: int, stride: int, r: Pointer, d: Pointer, k: Pointer, a: Pointer,
    b: Pointer, row: int, K: int, v: Pointer, u: Pointer, do: Pointer, dv: Pointer, at: int, part: int, parts: Pointer,
) -> None:  # fmt: skip
    """Run `_back4` on 16 columns."""
    v0, u0, g0, dv0, du0 = load(v, at), load(u, at), load(do, at), splat(_ZERO), splat(_ZERO)
    for i in range(K):
        p, q = column + i * stride, i * LANES
        z0 = fma(splat(r[row + i]), g0, load(Z, p))
        store(Z, p, z0)
        dv0, du0 = fma(splat(k[row + i]), z0, dv0), fma(splat(b[row + i]), z0, du0)
        store(parts, _DR * part + q, fma(load(S, behind + p), g0, load(parts, _DR * part + q)))
        store(parts, _DW * part + q, fma(load(S, before + p), z0, load(parts, _DW * part + q)))
        store(parts, _DK * part + q, fma(v0, z0, load(parts, _DK * part + q)))
        store(parts, _DB * part + q, fma(u0, z0, load(parts, _DB * part + q)))
    store(dv, at, dv0)
    for i in range(K):
        p, q = column + i * stride, _DA * part + i * LANES
        store(parts, q, fma(load(S, before + p), du0, load(parts, q)))
        store(Z, p, fma(splat(a[row + i]), du0, mul(splat(d[row + i]), load(Z, p))))


@njit(**SERIAL)
def _tile_back(
    tile: Array, values: Array, removed: Array, gradient: Array, count: int, history: Array, Z: Array, parts: Array, out: Array,
    dv: Array,
) -> None:  # fmt: skip
    """Process one tile backward.

    Args:
        tile, values: as from `forward.read_tiles`.   removed, history: as from `_record`.
        gradient: do (Q, V padded).   count: tokens in the tile.   Z: (K, V padded), updated.   parts: scratch (5, K padded, 16).
        out: gradients (5, Q, K padded) of r, w, k, a, b.   dv: out (Q, V padded).
    """
    _, K, V = history.shape
    _, chunk, width = out.shape
    r_, d_, k_, a_, b_ = address(tile[0]), address(tile[1]), address(tile[2]), address(tile[3]), address(tile[4])
    S, Z_, v_, u_, g_, dv_, parts_, out_ = (
        address(history), address(Z), address(values), address(removed), address(gradient), address(dv), address(parts),
        address(out),
    )  # fmt: skip
    part = width * LANES
    for t in range(count - 1, -1, -1):
        for i in range(0, 5 * part, LANES):
            store(parts_, i, splat(_ZERO))
        row, before, behind = t * K, t * K * V, (t + 1) * K * V
        column = 0
        while column < V:
            at = t * V + column
            if column + _BLOCK <= V:
                _back4(S, before, behind, Z_, column, V, r_, d_, k_, a_, b_, row, K, v_, u_, g_, dv_, at, part, parts_)
                column += _BLOCK
            else:
                _back1(S, before, behind, Z_, column, V, r_, d_, k_, a_, b_, row, K, v_, u_, g_, dv_, at, part, parts_)
                column += LANES
        for x in range(5):
            for i in range(0, width, LANES):
                store(out_, (x * chunk + t) * width + i, _row_totals(parts_, x * part + i * LANES))
        target, decay = out[_DW, t], tile[1, t]
        for i in range(K):
            target[i] *= decay[i]


@njit(**PARALLEL)
def scan(
    inputs: Any, do: Array, do_row: int, cu: Array, shares: Shares, state: Array, dend: Array,
    dr: Array, dw: Array, dk: Array, dv: Array, da: Array, db: Array, dstate: Array,
) -> None:  # fmt: skip
    """Compute the gradients of every sequence and head.

    Args:
        inputs, cu, shares, state: as for `forward.scan`.   do: flat rows (T, H, V).   dend: (S, H, K, V), or (0, ...) for zeros.
        dr, dw, dk, da, db: out (T, H, K).   dv: out (T, H, V).   dstate: out (S, H, K, V).
    """
    _, share_heads, share_first, share_order = shares  # outside the loop, which then takes plain arrays
    _, _, K, V = dstate.shape
    columns, width = round_up(V), round_up(K)
    most = 0
    for s in range(cu.shape[0] - 1):
        most = max(most, ceil_div(cu[s + 1] - cu[s], CHUNK))
    for share in prange(share_heads.shape[0]):
        keys, out, parts = (
            np.empty((5, CHUNK, K), np.float32),
            np.empty((5, CHUNK, width), np.float32),
            np.zeros((5, width, LANES), np.float32),
        )
        values, gradient = np.zeros((CHUNK, columns), np.float32), np.zeros((CHUNK, columns), np.float32)
        removed, d_values = np.empty((CHUNK, columns), np.float32), np.empty((CHUNK, columns), np.float32)
        kept = np.empty((most + 1, K, columns), np.float32)  # the state before each tile
        history = np.empty((CHUNK + 1, K, columns), np.float32)  # the state before each token of a tile
        Z = np.empty((K, columns), np.float32)
        for i in range(share_first[share], share_first[share + 1]):
            s = share_order[i]
            tiles = ceil_div(cu[s + 1] - cu[s], CHUNK)
            for h in range(share_heads[share, 0], share_heads[share, 1]):
                start(state, s, h, kept[0])
                for tile in range(tiles - 1):
                    read_tiles(inputs, h, cu[s] + tile * CHUNK, CHUNK, V, keys, values)
                    kept[tile + 1] = kept[tile]
                    advance(kept[tile + 1], keys[0], keys[1], keys[2], values, keys[3], keys[4], CHUNK, d_values)
                start(dend, s, h, Z)
                for tile in range(tiles - 1, -1, -1):
                    t = cu[s] + tile * CHUNK
                    count = min(CHUNK, cu[s + 1] - t)
                    read_tiles(inputs, h, t, count, V, keys, values)
                    read(do, do_row, h * V, t, count, V, gradient)
                    history[0] = kept[tile]
                    _record(keys, values, count, history, removed)
                    _tile_back(keys, values, removed, gradient, count, history, Z, parts, out, d_values)
                    write(out[_DR], h, t, count, dr)
                    write(out[_DW], h, t, count, dw)
                    write(out[_DK], h, t, count, dk)
                    write(out[_DA], h, t, count, da)
                    write(out[_DB], h, t, count, db)
                    write(d_values, h, t, count, dv)
                dstate[s, h] = Z[:, :V]
