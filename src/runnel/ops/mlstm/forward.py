"""The mlstm forward kernels: chunk by chunk, the state in place.

T tokens, S sequences, H heads, K key size, V value size, Q tokens per chunk (CHUNK).

Inside a chunk, with C, n, m_0 the state before it, s_t = lf_t + m_{t-1} - m_t (exp(s_t) is the forget gate of the recurrence) and
i'_t = exp(i_t - m_t):
    W_tj = i'_j exp(s_{j+1} + ... + s_t) for j <= t       g_t = exp(s_1 + ... + s_t)       M_tj = W_tj (q_t . k_j) / sqrt(K)
    h_t = (g_t C^T q_t + sum_j M_tj v_j) / (max(|g_t n . q_t + sum_j M_tj|, exp(-m_t)) + eps)
    C' = g_Q C + sum_j W_Qj k_j v_j^T                     n' likewise
m equals the recurrence's at every token. The exponents of W are running sums down each column, so that exponents near 0, the only
ones that matter, are sums of small numbers; differences of two sums from the chunk's start would lose precision under strong
gates.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from runnel.ops.chunks import Shares
from runnel.ops.mlstm.tiles import (
    FULL,
    LOWER,
    LOWER_OUT,
    ZERO,
    advance_line,
    fill,
    product,
    read,
    scale_rows,
    turn,
    wide,
    write,
)
from runnel.ops.numba_math import PARALLEL, SERIAL, Array, Number, Pointer, fast_exp, softplus
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
    shift,
    splat,
    store,
    store_some,
    total,
)

CHUNK = 32  # Q; a multiple of TILE_COLUMNS. Longer chunks do more work inside, shorter ones access the state more often.
_ONE = np.float32(1.0)


@njit(**SERIAL)
def read_gates(
    i: Pointer, f: Pointer, stride: int, count: int, m: Number, within: Pointer, enter: Pointer, leave: Pointer, tops: Pointer,
    taken: Pointer, line: Pointer,
) -> tuple[Any, Any]:  # fmt: skip
    """Compute the factors of one chunk, and m after it.

    Args:
        i, f: of the first token, fp32; the others are `stride` numbers apart.
        m: before the chunk, fp32.
        within: out, rows (CHUNK, CHUNK): W, 0 above the diagonal and in the rows up to the next multiple of 16.
        enter: out, (CHUNK,): g.   leave: out, (CHUNK,): W of the chunk's end.   tops: out, (CHUNK,): m_t.
        taken: out, (CHUNK,): 1 where m_t is i_t, 0 where it is lf_t + m_{t-1}.
        line: scratch, (CHUNK,).

    Returns:
        m after the chunk, fp32; the factor of the old state.
    """
    for t in range(count):
        tops[t] = -softplus(-f[t * stride])
    now, kept = np.float64(m), 0.0  # double: m is exact within a chunk, and its rounding at the end goes into the factors
    for t in range(count):
        before = now + np.float64(tops[t])
        entering = np.float64(i[t * stride])
        now, taken[t] = before, ZERO
        if entering > before or entering != entering:
            now, taken[t] = entering, _ONE
        step = np.float32(before - now)
        kept += before - now
        for j in range(0, t, LANES):
            store(line, j, add(load(line, j), splat(step)))
        line[t] = np.float32(entering - now)
        for j in range(0, CHUNK, LANES):
            store(within, t * CHUNK + j, keep(exp(load(line, j)), t + 1 - j))
        enter[t], tops[t] = fast_exp(np.float32(kept)), np.float32(now)
    fill(shift(within, count * CHUNK), (-count % LANES) * CHUNK, ZERO)
    rounded = np.float32(now)
    rest = now - np.float64(rounded)
    for j in range(0, count, LANES):
        store(leave, j, exp(add(load(line, j), splat(np.float32(rest)))))
    return rounded, fast_exp(np.float32(kept + rest))


@njit(**SERIAL)
def weigh(within: Pointer, pairs: Pointer, count: int, out: Pointer) -> None:
    """Compute M, rows (CHUNK, CHUNK): W times the products of queries and keys in panels; `out` may be `within`."""
    for t in range(count):
        for j in range(0, CHUNK, LANES):
            pair = load(pairs, j // TILE_COLUMNS * CHUNK * TILE_COLUMNS + t * TILE_COLUMNS + j % TILE_COLUMNS)
            store(out, t * CHUNK + j, mul(load(within, t * CHUNK + j), keep(pair, t + 1 - j)))


@njit(**SERIAL)
def weight_sums(
    queries: Pointer, columns: int, width: int, n: Pointer, enter: Pointer, mixed: Pointer, count: int, out: Pointer
) -> None:
    """Compute n_t . q_t of every token of a chunk, from n (K,) before the chunk and M."""
    for t in range(count):
        sums = splat(ZERO)
        for c in range(0, width, LANES):
            part = load(n, c) if width - c >= LANES else load_some(n, c, width - c)
            sums = fma(load(queries, t * columns + c), part, sums)
        inside = splat(ZERO)
        for j in range(0, t + 1, LANES):
            inside = add(inside, load(mixed, t * CHUNK + j))
        out[t] = enter[t] * total(sums) + total(inside)


@njit(**SERIAL)
def denominator(weight: Number, top: Number, eps: Number) -> Any:
    """Return max(|n_t . q_t|, exp(-m_t)) + eps; NaN stays NaN."""
    size, least = abs(weight), fast_exp(-top)
    return (least if least > size else size) + eps


@njit(**SERIAL)
def scratch_size(K: int) -> int:
    """Return how many fp32 numbers of scratch `chunk` needs."""
    return (3 * CHUNK + TILE_COLUMNS) * wide(K) + 2 * CHUNK * CHUNK + 2 * CHUNK * TILE_COLUMNS + 7 * CHUNK


@njit(**SERIAL)
def load_panel(source: Pointer, stride: int, rows: int, width: int, out: Pointer) -> None:
    """Load `width` columns of a matrix as one panel (wide(rows), TILE_COLUMNS), zero beyond."""
    for r in range(rows):
        for c in range(0, TILE_COLUMNS, LANES):
            if width - c >= LANES:
                store(out, r * TILE_COLUMNS + c, load(source, r * stride + c))
            else:
                store(out, r * TILE_COLUMNS + c, load_some(source, r * stride + c, width - c))
    fill(shift(out, rows * TILE_COLUMNS), (wide(rows) - rows) * TILE_COLUMNS, ZERO)


@njit(**SERIAL)
def store_panel(panel: Pointer, rows: int, width: int, out: Pointer, stride: int) -> None:
    """Store a panel: the inverse of `load_panel`."""
    for r in range(rows):
        for c in range(0, width, LANES):
            value = load(panel, r * TILE_COLUMNS + c)
            if width - c >= LANES:
                store(out, r * stride + c, value)
            else:
                store_some(out, r * stride + c, value, width - c)


@njit(**SERIAL)
def chunk(
    q: Pointer, q_row: int, k: Pointer, k_row: int, v: Pointer, v_row: int, i: Pointer, f: Pointer, gate_row: int, count: int,
    K: int, V: int, C: Pointer, C_row: int, n: Pointer, m: Pointer, eps: Number, out: Pointer, out_row: int, scratch: Pointer,
) -> None:  # fmt: skip
    """Run one head, or some of its columns of V, over one chunk; the state in place. Serial, allocates nothing.

    All arguments but sizes are pointers (`simd.address`, `simd.shift`); `*_row` is the distance between two tokens in numbers.
    Columns of V are independent of each other, but each call also moves n and m. So if the V of one head is shared between
    calls, every part needs its own copy of n and m (all come to the same values), made before any part writes the shared one.

    Args:
        q, k: (count, K) fp32 or bf16 bits; q is scaled by K^-0.5 in here.
        v: (count, V), the same types.
        i, f: (count,) fp32, what enters the gates.
        count: tokens, 1 to CHUNK.
        K: of the head.   V: how many columns of v, C and out this call treats; any number.
        C: (K, V) fp32, rows C_row apart.   n: (K,) fp32.   m: (1,) fp32. A new sequence starts with zeros everywhere, m too.
        eps: fp32.
        out: (count, V) fp32 or bf16 bits.
        scratch: `scratch_size(K)` fp32 numbers; what is in them does not matter.
    """
    columns, rows = wide(K), (count + LANES - 1) // LANES * LANES
    queries, keys = scratch, shift(scratch, CHUNK * columns)
    turned = shift(keys, CHUNK * columns)
    panel = shift(turned, CHUNK * columns)
    pairs = shift(panel, TILE_COLUMNS * columns)
    mixed = shift(pairs, CHUNK * CHUNK)
    values = shift(mixed, CHUNK * CHUNK)
    result = shift(values, CHUNK * TILE_COLUMNS)
    enter = shift(result, CHUNK * TILE_COLUMNS)
    leave, tops, taken = shift(enter, CHUNK), shift(enter, 2 * CHUNK), shift(enter, 3 * CHUNK)
    line, scales, factor = shift(enter, 4 * CHUNK), shift(enter, 5 * CHUNK), shift(enter, 6 * CHUNK)

    read(q, q_row, count, rows, K, np.float32(1.0 / np.sqrt(K)), queries)
    read(k, k_row, count, rows, K, _ONE, keys)
    turn(keys, columns, rows, columns * TILE_COLUMNS, turned)
    product(
        pairs, CHUNK * TILE_COLUMNS, enter, -1, queries, columns, 1, turned, columns * TILE_COLUMNS, count, K, count, LOWER_OUT
    )
    m[0], factor[0] = read_gates(i, f, gate_row, count, m[0], mixed, enter, leave, tops, taken, line)
    weigh(mixed, pairs, count, mixed)
    weight_sums(queries, columns, K, n, enter, mixed, count, scales)
    for t in range(count):
        scales[t] = _ONE / denominator(scales[t], tops[t], eps)
    scale_rows(keys, columns, count, leave, keys)
    advance_line(n, K, factor[0], keys, columns, count)
    for c in range(0, V, TILE_COLUMNS):
        width = min(V - c, TILE_COLUMNS)
        load_panel(shift(C, c), C_row, K, width, panel)
        read(shift(v, c), v_row, count, rows, width, _ONE, values)
        product(result, 0, enter, -1, queries, columns, 1, panel, 0, count, K, TILE_COLUMNS, FULL)
        product(result, 0, enter, 1, mixed, CHUNK, 1, values, 0, count, rows, TILE_COLUMNS, LOWER)
        write(result, TILE_COLUMNS, count, width, scales, shift(out, c), out_row)
        product(panel, 0, factor, 0, keys, 1, columns, values, 0, K, count, TILE_COLUMNS, FULL)
        store_panel(panel, K, width, shift(C, c), C_row)


@njit(**PARALLEL)
def scan(
    q: Array, q_row: int, k: Array, k_row: int, v: Array, v_row: int, i: Array, f: Array, cu: Array, parts: int, shares: Shares,
    eps: Number, h: Array, C: Array, n: Array, m: Array,
) -> None:  # fmt: skip
    """Run every sequence and head.

    Args:
        q, k: flat rows (T, H, K).   v: flat rows (T, H, V).   i, f: (T, H).   cu: (S+1,).
        parts: the V of each head is treated in this many parts, item = head * parts + part.
        shares: `Shares` of items.
        h: out, (T, H, V).   C: (S, H, K, V), in place.
        n: (S, H, parts, K padded), m: (S, H, parts), in place; the parts of a head are equal at the start and at the end.
    """
    _, share_heads, share_first, share_order = shares  # outside the loop, which then takes plain arrays
    _, H, K, V = C.shape
    panels = ceil_div(V, TILE_COLUMNS)
    for share in prange(share_heads.shape[0]):
        scratch = np.empty(scratch_size(K), np.float32)
        for at in range(share_first[share], share_first[share + 1]):
            s = share_order[at]
            for item in range(share_heads[share, 0], share_heads[share, 1]):
                head, part = item // parts, item % parts
                first = panels * part // parts * TILE_COLUMNS
                width = min(panels * (part + 1) // parts * TILE_COLUMNS, V) - first
                for t in range(cu[s], cu[s + 1], CHUNK):
                    chunk(
                        shift(address(q), t * q_row + head * K), q_row, shift(address(k), t * k_row + head * K), k_row,
                        shift(address(v), t * v_row + head * V + first), v_row, shift(address(i), t * H + head),
                        shift(address(f), t * H + head), H, min(CHUNK, cu[s + 1] - t), K, width,
                        shift(address(C), ((s * H + head) * K) * V + first), V,
                        shift(address(n), ((s * H + head) * parts + part) * n.shape[3]),
                        shift(address(m), (s * H + head) * parts + part), eps,
                        shift(address(h), (t * H + head) * V + first), H * V, address(scratch),
                    )  # fmt: skip
