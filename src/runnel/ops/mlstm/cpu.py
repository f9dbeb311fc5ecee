"""mlstm as compiled CPU kernels, for reading: chunk by chunk, the state in place; fp32 arithmetic for fp32 and bf16 inputs.

Training runs in plain torch.

T tokens, S sequences, H heads, K key size, V value size, Q tokens per chunk (CHUNK).

Inside a chunk, with C, n, m_0 the state before it, s_t = lf_t + m_{t-1} - m_t (exp(s_t) is the forget gate of the recurrence) and
i'_t = exp(i_t - m_t):
    W_tj = i'_j exp(s_{j+1} + ... + s_t) for j <= t       g_t = exp(s_1 + ... + s_t)       M_tj = W_tj (q_t . k_j) / sqrt(K)
    h_t = (g_t C^T q_t + sum_j M_tj v_j) / (max(|g_t n . q_t + sum_j M_tj|, exp(-m_t)) + eps)
    C' = g_Q C + sum_j W_Qj k_j v_j^T                     n' likewise
m equals the recurrence's at every token. The exponents of W are running sums down each column, so that exponents near 0, the only
ones that matter, are sums of small numbers; differences of two sums from the chunk's start would lose precision under strong
gates.

Arrays are pointers (see `simd`). *Rows*: a row-major matrix. *Panels*: the same matrix cut into vertical strips of TILE_COLUMNS
columns, each strip a separate matrix, the layout of `tile_product`'s right side and result. Widths are rounded up by `wide`, with
zeros beyond the true width.
"""

from __future__ import annotations

from typing import Any, NamedTuple

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
    Number,
    Pointer,
    as_array,
    fast_exp,
    flat_rows,
    float_array,
    parallel,
    softplus,
)
from runnel.ops.packed import copy_state
from runnel.ops.simd import (
    LANES,
    TILE_COLUMNS,
    TILE_ROWS,
    add,
    address,
    ceil_div,
    exp,
    fma,
    keep,
    load,
    mul,
    shift,
    splat,
    store,
    total,
)
from runnel.ops.simd_tile import FULL, LOWER, load_up_to, store_up_to, tile_product, transpose

ZERO = np.float32(0.0)
LOWER_OUT = 3  # besides FULL and LOWER: a product skips tiles of the result with columns > row


class Rows(NamedTuple):
    """Rows of any width, such as one head's part of consecutive tokens."""

    first: Pointer  # fp32 or bf16 bits
    stride: int  # numbers from row to row


class Panels(NamedTuple):
    """Panels of fp32, of any height."""

    first: Pointer
    stride: int  # numbers from panel to panel


class Matrix(NamedTuple):
    """The left side of a product, fp32: element (r, d) is at r * row + d * depth."""

    first: Pointer
    row: int
    depth: int


@njit(**SERIAL)
def from_row(rows: Rows, row: int) -> Rows:
    """Return the rows from number `row` on."""
    return Rows(shift(rows.first, row * rows.stride), rows.stride)


@njit(**SERIAL)
def wide(size: int) -> int:
    """Round `size` up to whole panels, which are also whole vectors and whole tiles."""
    return (size + TILE_COLUMNS - 1) // TILE_COLUMNS * TILE_COLUMNS  # not `round_up`: the compiled code would be longer


@njit(**SERIAL)
def fill(out: Pointer, count: int, value: Number) -> None:
    """Set the first `count` elements, a multiple of 16, to a value."""
    for c in range(0, count, LANES):
        store(out, c, splat(value))


@njit(**SERIAL)
def read(source: Rows, count: int, rows: int, width: int, factor: Number, out: Pointer) -> None:
    """Read rows (rows, wide(width)) of fp32: `count` rows of `source` times the factor, then zeros."""
    columns, scale = wide(width), splat(factor)
    for j in range(count):
        for c in range(0, columns, LANES):
            store(out, j * columns + c, mul(scale, load_up_to(source.first, j * source.stride + c, width - c)))
    fill(shift(out, count * columns), (rows - count) * columns, ZERO)


@njit(**SERIAL)
def write(source: Pointer, columns: int, count: int, width: int, factors: Pointer, out: Rows) -> None:
    """Write `count` rows of `source` (rows of `columns`), each times its factor."""
    for j in range(count):
        factor = splat(factors[j])
        for c in range(0, width, LANES):
            store_up_to(out.first, j * out.stride + c, mul(factor, load(source, j * columns + c)), width - c)


@njit(**SERIAL)
def scale_rows(source: Pointer, columns: int, rows: int, factors: Pointer, out: Pointer) -> None:
    """Multiply each row by its factor; `out` may be `source`."""
    for j in range(rows):
        factor = splat(factors[j])
        for c in range(j * columns, (j + 1) * columns, LANES):
            store(out, c, mul(factor, load(source, c)))


@njit(**SERIAL)
def turn(source: Pointer, columns: int, rows: int, out: Panels) -> None:
    """Convert rows (rows, columns) to panels of the transposed matrix (columns, rows), in blocks of 16 x 16."""
    for j in range(0, rows, LANES):
        strip = j // TILE_COLUMNS * out.stride + j % TILE_COLUMNS
        for c in range(0, columns, LANES):
            transpose(shift(source, j * columns + c), columns, shift(out.first, strip + c * TILE_COLUMNS), TILE_COLUMNS)


@njit(**SERIAL)
def product(out: Panels, factors: Rows, left: Matrix, right: Panels, rows: int, depth: int, columns: int, zeros: int) -> None:
    """Set out[r, :] = factors[r] * out[r, :] + left[r, :] @ right.

    Args:
        factors: rows of one fp32 number; with a stride of 0 all rows have the same factor, with stride < 0 `out` is only written.
        rows, columns: rounded up to whole tiles.   depth: any; with LOWER it equals `rows`.
        zeros: FULL, LOWER or LOWER_OUT.
    """
    for c in range(0, columns, TILE_COLUMNS):
        panel = c // TILE_COLUMNS
        target, source = shift(out.first, panel * out.stride), shift(right.first, panel * right.stride)
        for r in range(0, rows, TILE_ROWS):
            if zeros == LOWER_OUT and c >= r + TILE_ROWS:
                continue
            count = min(r + TILE_ROWS, depth) if zeros == LOWER else depth
            tile_product(
                out.first, shift(target, r * TILE_COLUMNS), shift(factors.first, r * max(factors.stride, 0)), factors.stride,
                shift(left.first, r * left.row), left.row, left.depth, source, count,
            )  # fmt: skip


@njit(**SERIAL)
def advance_line(line: Pointer, size: int, factor: Number, rows: Pointer, columns: int, count: int) -> None:
    """Set line = factor * line + the sum of `count` rows, in place; `line` has `size` fp32 numbers, of any length."""
    for c in range(0, size, LANES):
        sums = splat(ZERO)
        for j in range(count):
            sums = add(sums, load(rows, j * columns + c))
        store_up_to(line, c, fma(splat(factor), load_up_to(line, c, size - c), sums), size - c)


CHUNK = 32  # Q; a multiple of TILE_COLUMNS. Longer chunks do more work inside, shorter ones access the state more often.
_ONE = np.float32(1.0)


class Inputs(NamedTuple):
    """The inputs of all heads, memory and distance of flat rows (see `flat_rows`), and fp32 arrays."""

    q: Array  # (T, H, K)
    q_row: int
    k: Array  # (T, H, K)
    k_row: int
    v: Array  # (T, H, V)
    v_row: int
    i: Array  # (T, H)
    f: Array  # (T, H)


class States(NamedTuple):
    """The states of all sequences and heads; fp32."""

    C: Array  # (S, H, K, V)
    n: Array  # (S, H, K)
    m: Array  # (S, H)


class HeadInputs(NamedTuple):
    """`Inputs` of consecutive tokens of a head; v may have fewer columns."""

    q: Rows
    k: Rows
    v: Rows
    i: Pointer
    f: Pointer
    stride: int  # numbers from token to token of i and f


class HeadState(NamedTuple):
    """The state of a head; C may have fewer columns."""

    C: Rows  # (K, V)
    n: Pointer  # (K,)
    m: Pointer  # (1,)


class Factors(NamedTuple):
    """Factors of a chunk, which follow from its gates. A line: (CHUNK,) fp32."""

    within: Pointer  # rows (CHUNK, CHUNK): W, 0 above the diagonal and in the rows up to the next multiple of 16
    enter: Pointer  # line: g
    leave: Pointer  # line: W of the chunk's end
    tops: Pointer  # line: m_t
    line: Pointer  # scratch


class _Scratch(NamedTuple):
    """Memory of one chunk, fp32."""

    queries: Pointer  # rows (CHUNK, wide(K))
    keys: Pointer  # likewise
    turned: Pointer  # panels (wide(K), CHUNK): keys
    panel: Pointer  # (wide(K), TILE_COLUMNS) of C
    pairs: Pointer  # panels (CHUNK, CHUNK)
    values: Pointer  # (CHUNK, TILE_COLUMNS)
    result: Pointer  # likewise
    factors: Factors  # `within` becomes M
    scales: Pointer  # line
    factor: Pointer  # (1,) of the old state


@njit(**SERIAL)
def head_inputs(x: Inputs, start: int, head: int, K: int, V: int, column: int) -> HeadInputs:
    """Return the inputs of a head from token `start` and from `column` of its v on."""
    heads = x.i.shape[1]
    at = start * heads + head
    return HeadInputs(
        Rows(shift(address(x.q), start * x.q_row + head * K), x.q_row),
        Rows(shift(address(x.k), start * x.k_row + head * K), x.k_row),
        Rows(shift(address(x.v), start * x.v_row + head * V + column), x.v_row),
        shift(address(x.i), at),
        shift(address(x.f), at),
        heads,
    )


@njit(**SERIAL)
def read_gates(x: HeadInputs, count: int, m: Number, out: Factors) -> tuple[Any, Any]:
    """Compute the factors of one chunk of `count` tokens from m before it; return m after it and the factor of the old state."""
    _, _, _, i, f, stride = x
    within, enter, leave, tops, line = out
    for t in range(count):
        tops[t] = -softplus(-f[t * stride])
    now, kept = np.float64(m), 0.0  # double: m is exact within a chunk, and its rounding at the end goes into the factors
    for t in range(count):
        before = now + np.float64(tops[t])
        entering = np.float64(i[t * stride])
        now = entering if entering > before or entering != entering else before
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
            sums = fma(load(queries, t * columns + c), load_up_to(n, c, width - c), sums)
        inside = splat(ZERO)
        for j in range(0, t + 1, LANES):
            inside = add(inside, load(mixed, t * CHUNK + j))
        out[t] = enter[t] * total(sums) + total(inside)


@njit(**SERIAL)
def scratch_size(K: int) -> int:
    """Return how many fp32 numbers of scratch `chunk` needs."""
    return (3 * CHUNK + TILE_COLUMNS) * wide(K) + 2 * CHUNK * CHUNK + 2 * CHUNK * TILE_COLUMNS + 6 * CHUNK


@njit(**SERIAL)
def load_panel(source: Rows, rows: int, width: int, out: Pointer) -> None:
    """Load `width` columns of a matrix as one panel (wide(rows), TILE_COLUMNS), zero beyond."""
    for r in range(rows):
        for c in range(0, TILE_COLUMNS, LANES):
            store(out, r * TILE_COLUMNS + c, load_up_to(source.first, r * source.stride + c, width - c))
    fill(shift(out, rows * TILE_COLUMNS), (wide(rows) - rows) * TILE_COLUMNS, ZERO)


@njit(**SERIAL)
def store_panel(panel: Pointer, rows: int, width: int, out: Rows) -> None:
    """Store a panel: the inverse of `load_panel`."""
    for r in range(rows):
        for c in range(0, width, LANES):
            store_up_to(out.first, r * out.stride + c, load(panel, r * TILE_COLUMNS + c), width - c)


@njit(**SERIAL)
def _divide(memory: Pointer, K: int) -> Any:
    """Return `_Scratch` of `scratch_size(K)` numbers."""
    columns = CHUNK * wide(K)
    panel = shift(memory, 3 * columns)
    pairs = shift(panel, TILE_COLUMNS * wide(K))
    within = shift(pairs, CHUNK * CHUNK)
    values = shift(within, CHUNK * CHUNK)
    result = shift(values, CHUNK * TILE_COLUMNS)
    lines = shift(result, CHUNK * TILE_COLUMNS)
    factors = Factors(within, lines, shift(lines, CHUNK), shift(lines, 2 * CHUNK), shift(lines, 3 * CHUNK))
    return _Scratch(
        memory, shift(memory, columns), shift(memory, 2 * columns), panel, pairs, values, result, factors,
        shift(lines, 4 * CHUNK), shift(lines, 5 * CHUNK),
    )  # fmt: skip


@njit(**SERIAL)
def chunk(inputs: HeadInputs, count: int, K: int, V: int, state: HeadState, eps: Number, out: Rows, memory: Pointer) -> None:
    """Run one head, or some of its columns of V, over one chunk; the state in place. Serial, allocates nothing.

    Columns of V are independent of each other, but each call also moves n and m. So if the V of one head is shared between
    calls, every part needs its own copy of n and m (all come to the same values), made before any part writes the shared one.

    Args:
        inputs: q is scaled by K^-0.5 in here.
        count: tokens, 1 to CHUNK.
        K: of the head.   V: how many columns of v, C and out this call treats; any number.
        state: a new sequence starts with zeros everywhere, m too.
        eps: fp32.
        out: (count, V) fp32 or bf16 bits.
        memory: `scratch_size(K)` fp32 numbers; what is in them does not matter.
    """
    columns, rows, fresh = wide(K), (count + LANES - 1) // LANES * LANES, Rows(memory, -1)
    C, n, m = state
    scratch = _divide(memory, K)
    factors, turned = scratch.factors, Panels(scratch.turned, columns * TILE_COLUMNS)
    queries, mixed, scales, factor = Matrix(scratch.queries, columns, 1), factors.within, scratch.scales, scratch.factor
    panel, values, result = Panels(scratch.panel, 0), Panels(scratch.values, 0), Panels(scratch.result, 0)

    read(inputs.q, count, rows, K, np.float32(1.0 / np.sqrt(K)), scratch.queries)
    read(inputs.k, count, rows, K, _ONE, scratch.keys)
    turn(scratch.keys, columns, rows, turned)
    product(Panels(scratch.pairs, CHUNK * TILE_COLUMNS), fresh, queries, turned, count, K, count, LOWER_OUT)
    m[0], factor[0] = read_gates(inputs, count, m[0], factors)
    weigh(factors.within, scratch.pairs, count, mixed)
    weight_sums(scratch.queries, columns, K, n, factors.enter, mixed, count, scales)
    for t in range(count):
        size, least = abs(scales[t]), fast_exp(-factors.tops[t])
        scales[t] = _ONE / ((least if least > size else size) + eps)  # NaN stays NaN
    scale_rows(scratch.keys, columns, count, factors.leave, scratch.keys)
    advance_line(n, K, factor[0], scratch.keys, columns, count)
    for c in range(0, V, TILE_COLUMNS):
        width, C_part = min(V - c, TILE_COLUMNS), Rows(shift(C.first, c), C.stride)
        load_panel(C_part, K, width, scratch.panel)
        read(Rows(shift(inputs.v.first, c), inputs.v.stride), count, rows, width, _ONE, scratch.values)
        product(result, fresh, queries, panel, count, K, TILE_COLUMNS, FULL)
        product(result, Rows(factors.enter, 1), Matrix(mixed, CHUNK, 1), values, count, rows, TILE_COLUMNS, LOWER)
        write(scratch.result, TILE_COLUMNS, count, width, scales, Rows(shift(out.first, c), out.stride))
        product(panel, Rows(factor, 0), Matrix(scratch.keys, 1, columns), values, K, count, TILE_COLUMNS, FULL)
        store_panel(scratch.panel, K, width, C_part)


@njit(**PARALLEL)
def scan(inputs: Inputs, cu: Array, splits: int, shares: Shares, eps: Number, h: Array, states: States) -> None:
    """Run every sequence and head.

    Args:
        cu: (S+1,).
        splits: the V of each head is treated in this many parts, item = head * splits + part.
        shares: `Shares` of items.
        h: out, (T, H, V).
        states: in place, with n (S, H, splits, K) and m (S, H, splits); those of a head are equal at the start and at the end.
    """
    _, share_heads, share_first, share_order = shares  # outside the loop, which then takes plain arrays
    _, H, K, V = states.C.shape
    panels = ceil_div(V, TILE_COLUMNS)
    for share in prange(share_heads.shape[0]):
        memory = np.empty(scratch_size(K), np.float32)
        for at in range(share_first[share], share_first[share + 1]):
            s = share_order[at]
            for item in range(share_heads[share, 0], share_heads[share, 1]):
                head, part = item // splits, item % splits
                first = panels * part // splits * TILE_COLUMNS
                width = min(panels * (part + 1) // splits * TILE_COLUMNS, V) - first
                own = (s * H + head) * splits + part
                state = HeadState(
                    Rows(shift(address(states.C), (s * H + head) * K * V + first), V),
                    shift(address(states.n), own * K),
                    shift(address(states.m), own),
                )
                out = Rows(shift(address(h), (cu[s] * H + head) * V + first), H * V)
                tokens = cu[s + 1] - cu[s]
                for t in range(0, tokens, CHUNK):
                    count = min(CHUNK, tokens - t)
                    of_head = head_inputs(inputs, cu[s] + t, head, K, V, first)
                    chunk(of_head, count, K, width, state, eps, from_row(out, t), address(memory))


def mlstm_cpu(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, cu: Tensor, state: State | None, eps: float
) -> tuple[Tensor, State]:
    """See `runnel.ops.mlstm`; cu (S+1,) int64 on the CPU."""
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, i, f, *(state or ()))):
        return mlstm_torch(q, k, v, i, f, cu, state, eps)
    sequences, heads, width, size = cu.numel() - 1, v.shape[1], q.shape[2], v.shape[2]
    C, n, m = (None,) * 3 if state is None else state
    h, end = torch.empty(v.shape, dtype=v.dtype), copy_state(C, v.device, sequences, heads, width, size)
    threads = torch.get_num_threads()
    # Long sequences with few heads: the columns of V are divided too. Every part repeats only the work on q and k.
    splits = max(1, min(threads // max(1, heads * sequences), ceil_div(size, TILE_COLUMNS)))
    shares = Shares.of(cu.diff().numpy(), heads * splits, threads, heads * splits)
    end_n = copy_state(n, v.device, sequences, heads, width)[:, :, None].expand(-1, -1, splits, -1).contiguous()
    end_m = copy_state(m, v.device, sequences, heads)[:, :, None].expand(-1, -1, splits).contiguous()
    inputs = Inputs(*flat_rows(q), *flat_rows(k), *flat_rows(v), float_array(i), float_array(f))
    with parallel():
        scan(inputs, cu.numpy(), splits, shares, np.float32(eps), as_array(h), States(*map(as_array, (end, end_n, end_m))))
    return h, (end, end_n[:, :, 0].contiguous(), end_m[:, :, 0].contiguous())
