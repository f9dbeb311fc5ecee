"""The wkv7 backward kernel: tile by tile from the last token, with the states of one tile recomputed and kept in cache.

T tokens, S sequences, H heads, K key size, V value size (padded: to a multiple of 16), Q tokens per tile.

With Z the gradient of the state after a token, S' the state before it, u = S'^T a, d = exp w, a token computes
    Z += r do^T,  dr = S do,  dk = Z v,  db = Z u,  dw = d * (row sums of Z * S'),  dv = Z^T k,  du = Z^T b
    da = S' du,  Z <- d Z + a du^T
Vectors hold 16 columns of the state, as in `lanes`. Results of length V accumulate in registers over the rows; results of length
K are sums over columns: one vector of partial sums per row, whose lanes are added 16 rows at a time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.extending import intrinsic

from runnel.ops.chunks import Shares
from runnel.ops.numba_math import PARALLEL, SERIAL, Array, FlatRows, Pointer
from runnel.ops.simd import (
    I64,
    LANES,
    VF32,
    VI32,
    address,
    build_pointer,
    ceil_div,
    f32x16,
    load,
    round_up,
    shift,
    splat,
    store,
)
from runnel.ops.wkv7.forward import CHUNK, Inputs, copy, read, read_tiles, start, write
from runnel.ops.wkv7.lanes import (
    BLOCK,
    Block,
    Coefficients,
    advance,
    block_dot,
    block_fma,
    block_load,
    block_mul,
    block_store,
    from_element,
    removed,
    token,
)

_ZERO = np.float32(0.0)
_DR, _DW, _DK, _DA, _DB = range(5)  # gradients of length K, in the order of the tile of inputs


class Gradients(NamedTuple):
    """What the kernel writes."""

    dr: Array  # (T, H, K), as the others but dv and dstate
    dw: Array
    dk: Array
    dv: Array  # (T, H, V)
    da: Array
    db: Array
    dstate: Array  # (S, H, K, V)


class _Scratch(NamedTuple):
    """Memory of one share, fp32."""

    keys: Array  # (5, Q, K), as from `forward.read_tiles`
    values: Array  # (Q, V padded), likewise
    gradient: Array  # likewise: do
    removed: Array  # likewise: u
    dv: Array  # likewise
    out: Array  # (5, Q, K padded), in the order of `_DR`
    parts: Array  # (5, K padded, 16), partial sums of one token
    kept: Array  # (tiles + 1, K, V padded), the state before each tile
    history: Array  # (Q + 1, K, V padded), the state before each token of a tile
    Z: Array  # (K, V padded)


class _Values(NamedTuple):
    """The columns of a block of one token."""

    v: Pointer
    u: Pointer
    do: Pointer
    dv: Pointer  # written


@njit(inline="always")
def _allocate(tiles: int, K: int, V: int) -> _Scratch:
    columns, width = round_up(V), round_up(K)
    return _Scratch(
        np.empty((5, CHUNK, K), np.float32), np.zeros((CHUNK, columns), np.float32), np.zeros((CHUNK, columns), np.float32),
        np.empty((CHUNK, columns), np.float32), np.empty((CHUNK, columns), np.float32),
        np.empty((5, CHUNK, width), np.float32), np.zeros((5, width, LANES), np.float32),
        np.empty((tiles + 1, K, columns), np.float32), np.empty((CHUNK + 1, K, columns), np.float32),
        np.empty((K, columns), np.float32),
    )  # fmt: skip


@njit(**SERIAL)
def _coefficients(keys: Array) -> Coefficients:
    r, size = address(keys), keys.shape[1] * keys.shape[2]
    return Coefficients(r, shift(r, size), shift(r, 2 * size), shift(r, 3 * size), shift(r, 4 * size))


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


@njit(inline="always")
def _record_block(S: Pointer, x: Coefficients, v: Pointer, count: int, K: int, V: int, out: Pointer, zero: Block) -> None:
    """Run `_record` on the columns of a block, which the pointers S, v and out start with."""
    u, size = removed(S, V, x.a, K, zero), K * V
    for t in range(count):
        now, after = shift(S, t * size), shift(x.a, min(t + 1, count - 1) * K)
        block_store(out, t * V, u)
        _, u = token(now, shift(now, size), V, from_element(x, t * K), after, K, u, block_load(v, t * V, zero), zero)


@njit(**SERIAL)
def _record(count: int, m: _Scratch) -> None:
    """Compute the states after each token, history[1 : count + 1], from the first, history[0]; and `removed`."""
    _, K, V = m.history.shape
    x, S, values, u, zero = _coefficients(m.keys), address(m.history), address(m.values), address(m.removed), splat(_ZERO)
    column = 0
    while column < V:
        place, v, out = shift(S, column), shift(values, column), shift(u, column)
        if column + BLOCK <= V:
            _record_block(place, x, v, count, K, V, out, (zero, zero, zero, zero))
            column += BLOCK
        else:
            _record_block(place, x, v, count, K, V, out, (zero,))
            column += LANES


@njit(inline="always")
def _add_dot(x: Block, y: Block, out: Pointer, at: int) -> None:
    """Add the products of the vectors of two blocks to the partial sums at element `at`."""
    store(out, at, block_dot(x, y, load(out, at)))


@njit(inline="always")
def _back(
    before: Pointer, Z: Pointer, x: Coefficients, values: _Values, K: int, V: int, parts: Pointer, part: int, zero: Block
) -> None:
    """Process one token backward on the columns of a block.

    Args:
        before: the state before the token; the state after it is the next in memory.
        Z: the gradient of the state after the token; becomes the gradient of the state before it.
        x: of the token.
        parts, part: partial sums (5, part / 16, 16), added to.
        zero: a block of zeros.
    """
    v, u, g = block_load(values.v, 0, zero), block_load(values.u, 0, zero), block_load(values.do, 0, zero)
    dv = du = zero
    behind = shift(before, K * V)
    for i in range(K):
        p, q = i * V, i * LANES
        z = block_fma(splat(x.r[i]), g, block_load(Z, p, zero))
        block_store(Z, p, z)
        dv, du = block_fma(splat(x.k[i]), z, dv), block_fma(splat(x.b[i]), z, du)
        _add_dot(block_load(behind, p, zero), g, parts, _DR * part + q)
        _add_dot(block_load(before, p, zero), z, parts, _DW * part + q)
        _add_dot(v, z, parts, _DK * part + q)
        _add_dot(u, z, parts, _DB * part + q)
    block_store(values.dv, 0, dv)
    for i in range(K):
        p = i * V
        _add_dot(block_load(before, p, zero), du, parts, _DA * part + i * LANES)
        z = block_mul(splat(x.d[i]), block_load(Z, p, zero))
        block_store(Z, p, block_fma(splat(x.a[i]), du, z))


@njit(**SERIAL)
def _tile_back(count: int, m: _Scratch) -> None:
    """Process one tile of `count` tokens backward, after `_record`: `out` and `dv`, and Z before the tile."""
    _, K, V = m.history.shape
    _, chunk, width = m.out.shape
    x, S, Z, parts, out, zero = (
        _coefficients(m.keys), address(m.history), address(m.Z), address(m.parts), address(m.out), splat(_ZERO)
    )  # fmt: skip
    v, u, do, dv = address(m.values), address(m.removed), address(m.gradient), address(m.dv)
    part = width * LANES
    for t in range(count - 1, -1, -1):
        for i in range(0, 5 * part, LANES):
            store(parts, i, splat(_ZERO))
        now = from_element(x, t * K)
        column = 0
        while column < V:
            at = t * V + column
            place, of_Z = shift(S, t * K * V + column), shift(Z, column)
            values = _Values(shift(v, at), shift(u, at), shift(do, at), shift(dv, at))
            if column + BLOCK <= V:
                _back(place, of_Z, now, values, K, V, parts, part, (zero, zero, zero, zero))
                column += BLOCK
            else:
                _back(place, of_Z, now, values, K, V, parts, part, (zero,))
                column += LANES
        for n in range(5):
            for i in range(0, width, LANES):
                store(out, (n * chunk + t) * width + i, _row_totals(parts, n * part + i * LANES))
        target, decay = m.out[_DW, t], m.keys[1, t]
        for i in range(K):
            target[i] *= decay[i]


@njit(**SERIAL)
def _head(
    inputs: Inputs, do: FlatRows, t0: int, t1: int, s: int, h: int, state: Array, dend: Array, m: _Scratch, out: Gradients
) -> None:
    """Process one head of a sequence, tokens t0 .. t1 - 1."""
    keys, values, V = m.keys, m.values, out.dv.shape[2]
    tiles = ceil_div(t1 - t0, CHUNK)
    start(state, s, h, m.kept[0])
    for tile in range(tiles - 1):
        read_tiles(inputs, h, t0 + tile * CHUNK, CHUNK, V, keys, values)
        copy(m.kept[tile], m.Z.shape[1], m.kept[tile + 1])
        advance(m.kept[tile + 1], keys[0], keys[1], keys[2], values, keys[3], keys[4], CHUNK, m.dv)
    start(dend, s, h, m.Z)
    for tile in range(tiles - 1, -1, -1):
        t = t0 + tile * CHUNK
        count = min(CHUNK, t1 - t)
        read_tiles(inputs, h, t, count, V, keys, values)
        read(do.line, do.distance, h * V, t, count, V, m.gradient)
        copy(m.kept[tile], m.Z.shape[1], m.history[0])
        _record(count, m)
        _tile_back(count, m)
        write(m.out[_DR], h, t, count, out.dr)
        write(m.out[_DW], h, t, count, out.dw)
        write(m.out[_DK], h, t, count, out.dk)
        write(m.out[_DA], h, t, count, out.da)
        write(m.out[_DB], h, t, count, out.db)
        write(m.dv, h, t, count, out.dv)
    copy(m.Z, V, out.dstate[s, h])


@njit(**PARALLEL)
def scan(inputs: Inputs, do: FlatRows, cu: Array, shares: Shares, state: Array, dend: Array, out: Gradients) -> None:
    """Compute the gradients of every sequence and head.

    Args:
        inputs, cu, shares, state: as for `forward.scan`.   do: (T, H, V).   dend: (S, H, K, V), or (0, ...) for zeros.
    """
    _, share_heads, share_first, share_order = shares  # outside the loop, which then takes plain arrays
    most = 0
    for s in range(cu.shape[0] - 1):
        most = max(most, ceil_div(cu[s + 1] - cu[s], CHUNK))
    for share in prange(share_heads.shape[0]):
        m = _allocate(most, out.dstate.shape[2], out.dstate.shape[3])
        for i in range(share_first[share], share_first[share + 1]):
            s = share_order[i]
            for h in range(share_heads[share, 0], share_heads[share, 1]):
                _head(inputs, do, cu[s], cu[s + 1], s, h, state, dend, m, out)
