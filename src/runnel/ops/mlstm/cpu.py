"""mlstm (the matrix memory of xLSTM) as compiled CPU kernels, for reading: chunk by chunk, the
state of one head in cache; fp32 arithmetic for all inputs.

Training runs in plain torch.

T  tokens         S  sequences      H  heads      K  numbers of a key      V  numbers of a value
Q  CHUNK, tokens of a chunk     `padded`: a size rounded up to TILE_COLUMNS or TILE_ROWS

The recurrence (`ops/mlstm/__init__.py`) has two gates: lf_t = log sigmoid(f_t) forgets, and i_t
lets in, as exp(i_t). m_t = max(lf_t + m_{t-1}, i_t) is the logarithm of the scale of C and n.

Inside a chunk, with C, n, m_0 the state before it, C' and n' after it, s_t = lf_t + m_{t-1} - m_t
(exp(s_t) is the forget gate of the recurrence) and i'_t = exp(i_t - m_t):

    W_tj = i'_j exp(s_{j+1} + ... + s_t) for j <= t
    g_t  = exp(s_1 + ... + s_t)
    M_tj = W_tj (q_t . k_j) / sqrt(K)
    h_t  = (g_t C^T q_t + sum_j M_tj v_j) / (max(|g_t n . q_t + sum_j M_tj|, exp(-m_t)) + eps)
    C'   = g_Q C + sum_j W_Qj k_j v_j^T
    n'   = g_Q n + sum_j W_Qj k_j

n is computed as a column of C whose v is always 1; then the divisor's sum is a column of the
numerator. Columns are processed in panels of TILE_COLUMNS: the last panel of a part has the
columns of C that are left, and in all columns after them n.

How the work is divided:

    item     a head, or some columns of V of a head, if there are few heads: head * splits + split
    share    a thread's work: a range of items, of some sequences (`Shares`)
    _Part    one item of one sequence: `_chunk` runs over its chunks
    panel    TILE_COLUMNS columns of a part

The order of work in `_chunk`, for each chunk: q, k and q . k; `_read_gates`: W, g and m; `_weigh`:
M, and the factors of q and k; then for each panel, the one with n first: h and the next state.

m equals the m of the recurrence at every token. The exponents of W are running sums down each
column, so that exponents near 0, the only ones that matter, are sums of small numbers; differences
of two sums from the chunk's start would lose precision under strong gates.
"""

from typing import NamedTuple

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from runnel.ops.chunks import Shares
from runnel.ops.mlstm import State
from runnel.ops.mlstm.torch import mlstm_torch
from runnel.ops.numba_math import (
    PARALLEL,
    SERIAL,
    Array,
    FlatRows,
    Number,
    as_array,
    fast_exp,
    flat_rows,
    float_array,
    parallel,
    rounded_for,
    softplus,
)
from runnel.ops.simd import LANES, TILE_COLUMNS, TILE_ROWS, address, ceil_div, round_up, shift
from runnel.ops.simd_tile import LOWER, multiply, read_rows, transpose

# Q; a multiple of TILE_COLUMNS. Longer chunks do more work inside, shorter ones access the state
# more often.
CHUNK = 32
_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)


class _States(NamedTuple):
    """The states of all sequences and heads; fp32."""

    C: Array  # (S, H, K, V), or (0, ...) for zeros
    n: Array  # (S, H, K)
    m: Array  # (S, H)


class _Part(NamedTuple):
    """What one task computes: some columns of v, of one head of one sequence."""

    s: int  # the sequence
    head: int
    first: int  # the first column
    width: int  # the number of columns


class _Scratch(NamedTuple):
    """Memory of one share, fp32."""

    queries: Array  # (Q, K padded)
    keys: Array  # (Q, K padded)
    turned: Array  # (K padded, Q): the keys, transposed
    pairs: Array  # (Q, Q)
    mix: Array  # (Q, Q): W, then M
    enter: Array  # (Q,): g
    # (Q,): in `_read_gates` the exponents of the present row of W, after it the last row of W
    leave: Array
    # (Q,): lf_t when `_read_gates` begins, m_t when it ends; in `_chunk`, after the panel with n,
    # 1 / the divisor of h_t
    tops: Array
    values: Array  # (Q, TILE_COLUMNS): columns of v, and ones in the columns of n
    result: Array  # (Q, TILE_COLUMNS): the numerators of h
    state: Array  # (panels, K padded, TILE_COLUMNS): C, then n in all columns that are left


@njit(inline="always")
def _allocate(K: int, panels: int) -> _Scratch:
    columns = round_up(K, TILE_COLUMNS)
    rows = np.zeros((2, CHUNK, columns), np.float32)
    squares = np.zeros((2, CHUNK, CHUNK), np.float32)
    lines = np.zeros((3, CHUNK), np.float32)
    strips = np.zeros((2, CHUNK, TILE_COLUMNS), np.float32)
    return _Scratch(
        rows[0],
        rows[1],
        np.zeros((columns, CHUNK), np.float32),
        squares[0],
        squares[1],
        lines[0],
        lines[1],
        lines[2],
        strips[0],
        strips[1],
        np.zeros((panels, columns, TILE_COLUMNS), np.float32),
    )


@njit(**SERIAL)
def _read_state(states: _States, part: _Part, out: Array) -> Number:
    """Fill `_Scratch.state` (`out`) with a part's columns of C, and n after them; return m."""
    s, head, first, width = part
    if states.C.shape[0] == 0:
        out[:] = _ZERO
        return _ZERO
    for k in range(states.n.shape[2]):
        for c in range(width):
            out[c // TILE_COLUMNS, k, c % TILE_COLUMNS] = states.C[s, head, k, first + c]
        for c in range(width % TILE_COLUMNS, TILE_COLUMNS):
            out[width // TILE_COLUMNS, k, c] = states.n[s, head, k]
    return states.m[s, head]


@njit(**SERIAL)
def _write_state(state: Array, m: Number, part: _Part, out: _States) -> None:
    """Write the part's columns of C, and n and m with the first ones: they are the same in all
    parts.
    """
    s, head, first, width = part
    for k in range(out.n.shape[2]):
        for c in range(width):
            out.C[s, head, k, first + c] = state[c // TILE_COLUMNS, k, c % TILE_COLUMNS]
        if first == 0:
            out.n[s, head, k] = state[width // TILE_COLUMNS, k, width % TILE_COLUMNS]
    if first == 0:
        out.m[s, head] = m


@njit(**SERIAL)
def _read_gates(
    i: Array, f: Array, t: int, head: int, count: int, m: Number, memory: _Scratch
) -> tuple[Number, Number]:
    """Compute W, g and m_t of a chunk from m before it; return m after it and the factor of the old
    state.
    """
    mix, enter, leave, tops = memory.mix, memory.enter, memory.leave, memory.tops
    for j in range(count):
        tops[j] = -softplus(-f[t + j, head])
    # double: m is exact within a chunk. After it, m is rounded to fp32, and the factors take over
    # the rounding error, so that exp(m) C and exp(m) n stay what they were.
    now = np.float64(m)
    kept = 0.0
    for j in range(count):
        before = now + np.float64(tops[j])  # lf_j + m_{j-1}
        entering = np.float64(i[t + j, head])
        # the greater of the two, or NaN if the gate is NaN
        now = entering if entering > before or entering != entering else before
        step = np.float32(before - now)  # s_j
        kept += before - now
        for earlier in range(j):
            leave[earlier] += step
        leave[j] = np.float32(entering - now)
        for other in range(CHUNK):
            mix[j, other] = fast_exp(leave[other]) if other <= j else _ZERO
        enter[j] = fast_exp(np.float32(kept))
        tops[j] = np.float32(now)
    rounded = np.float32(now)  # m after the chunk
    rest = now - np.float64(rounded)
    for j in range(count):
        leave[j] = fast_exp(leave[j] + np.float32(rest))
    return rounded, fast_exp(np.float32(kept + rest))


@njit(**SERIAL)
def _weigh(K: int, count: int, memory: _Scratch) -> None:
    """Turn W into M, and multiply queries by g / sqrt(K) and keys by W of the chunk's end."""
    queries, keys, mix = memory.queries, memory.keys, memory.mix
    scale = np.float32(1.0 / np.sqrt(K))
    for t in range(count):
        for j in range(CHUNK):
            mix[t, j] = mix[t, j] * (scale * memory.pairs[t, j]) if j <= t else _ZERO
        for c in range(K):
            queries[t, c] *= scale * memory.enter[t]
            keys[t, c] *= memory.leave[t]


@njit(**SERIAL)
def _chunk(
    q: FlatRows,
    k: FlatRows,
    v: FlatRows,
    i: Array,
    f: Array,
    t: int,
    count: int,
    K: int,
    part: _Part,
    m: Number,
    eps: Number,
    h: Array,
    memory: _Scratch,
) -> Number:
    """Compute h of `count` tokens, 1 to CHUNK, from token t on, and the state after them; return m
    after them.

    `multiply` takes the output, the left factor with the distances of its rows and columns, the
    right factor, the rows, the depth, and by what the old output is multiplied.
    """
    queries, keys, turned, pairs, mix, _, _, tops, values, result, state = memory
    columns = queries.shape[1]
    rows = round_up(count, TILE_ROWS)
    read_rows(q.line, q.distance, t, count, rows, part.head * K, K, queries)
    read_rows(k.line, k.distance, t, count, rows, part.head * K, K, keys)
    for j in range(0, CHUNK, LANES):
        for c in range(0, columns, LANES):
            transpose(
                shift(address(keys), j * columns + c),
                columns,
                shift(address(turned), c * CHUNK + j),
                CHUNK,
            )
    multiply(pairs, queries, columns, 1, turned, rows, K, _ZERO)
    m, factor = _read_gates(i, f, t, part.head, count, m, memory)
    _weigh(K, count, memory)
    # The panel with n is the last one, and comes first here. It has no columns of C if the part's
    # width is a multiple of TILE_COLUMNS.
    for panel in range(part.width // TILE_COLUMNS, -1, -1):
        first = part.first + panel * TILE_COLUMNS
        width = min(part.first + part.width - first, TILE_COLUMNS)
        read_rows(v.line, v.distance, t, count, rows, part.head * h.shape[2] + first, width, values)
        for j in range(rows):
            for c in range(width, TILE_COLUMNS):
                values[j, c] = _ONE
        multiply(result, queries, columns, 1, state[panel], rows, K, _ZERO)
        multiply(result, mix, CHUNK, 1, values, rows, rows, _ONE, LOWER)
        multiply(state[panel], keys, 1, columns, values, columns, count, factor)
        if width < TILE_COLUMNS:  # the panel with n
            for j in range(count):
                size = abs(result[j, width])
                least = fast_exp(-tops[j])
                tops[j] = _ONE / ((least if least > size else size) + eps)  # NaN stays NaN
        for j in range(count):
            target = h[t + j, part.head, first : first + width]
            for c in range(width):
                target[c] = rounded_for(target, result[j, c] * tops[j])
    return m


@njit(**PARALLEL)
def _scan(
    q: FlatRows,
    k: FlatRows,
    v: FlatRows,
    i: Array,
    f: Array,
    cu: Array,
    splits: int,
    shares: Shares,
    eps: Number,
    states: _States,
    h: Array,
    ends: _States,
) -> None:
    """Run every sequence and head.

    Args:
        q, k: (T, H, K).   v: (T, H, V).   i, f: (T, H).   cu: (S+1,).
        splits: the columns of v of each head are divided into this many items.
        shares: `Shares` of items.
        h: out, (T, H, V).   ends: out.
    """
    # outside the loop, which then takes plain arrays
    _, share_heads, share_first, share_order = shares
    V = h.shape[2]
    K = ends.n.shape[2]
    panels = ceil_div(V, TILE_COLUMNS)
    for share in prange(share_heads.shape[0]):
        memory = _allocate(K, ceil_div(panels, splits) + 1)
        for at in range(share_first[share], share_first[share + 1]):
            s = share_order[at]
            for item in range(share_heads[share, 0], share_heads[share, 1]):
                first = panels * (item % splits) // splits * TILE_COLUMNS
                width = min(panels * (item % splits + 1) // splits * TILE_COLUMNS, V) - first
                part = _Part(s, item // splits, first, width)
                m = _read_state(states, part, memory.state)
                for t in range(cu[s], cu[s + 1], CHUNK):
                    m = _chunk(
                        q, k, v, i, f, t, min(CHUNK, cu[s + 1] - t), K, part, m, eps, h, memory
                    )
                _write_state(memory.state, m, part, ends)


def mlstm_cpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    cu: Tensor,
    state: State | None,
    eps: float,
) -> tuple[Tensor, State]:
    """See `runnel.ops.mlstm`; cu (S+1,) int64 on the CPU."""
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, i, f, *(state or ()))):
        return mlstm_torch(q, k, v, i, f, cu, state, eps)
    sequences = cu.numel() - 1
    heads = v.shape[1]
    width = q.shape[2]  # K
    size = v.shape[2]  # V
    threads = torch.get_num_threads()
    # Long sequences with few heads: the columns of V are divided too. Every part repeats only the
    # work on q and k.
    splits = max(1, min(threads // max(1, heads * sequences), ceil_div(size, TILE_COLUMNS)))
    shares = Shares.of(cu.diff().numpy(), heads * splits, threads, heads * splits)
    shapes = ((heads, width, size), (heads, width), (heads,))
    start = _States(
        *(float_array(state and state[part], 0, *shape) for part, shape in enumerate(shapes))
    )
    h = torch.empty(v.shape, dtype=v.dtype)
    C, n, m = (torch.empty(sequences, *shape) for shape in shapes)
    with parallel():
        _scan(
            flat_rows(q),
            flat_rows(k),
            flat_rows(v),
            float_array(i),
            float_array(f),
            cu.numpy(),
            splits,
            shares,
            np.float32(eps),
            start,
            as_array(h),
            _States(as_array(C), as_array(n), as_array(m)),
        )
    return h, (C, n, m)
