"""The mlstm backward kernel. It stores no states: one pass forward in time recomputes them, one backward carries the gradient.

T tokens, S sequences, H heads, K key size, V value size, Q tokens per chunk. With the names of `forward`, q already scaled,
d_t the denominator of h, s_t = n_t . q_t, Z and z the gradients of the C and n after the chunk, and

    dN_t = dh_t / d_t        A_tj = W_tj (dN_t . v_j + ds_t)
    ds_t = -(dh_t . h_t) sign(s_t) / d_t where |s_t| > exp(-m_t), else 0

    dq_t = g_t (C dN_t + ds_t n) + sum over j <= t of A_tj k_j                        (first pass; C, n: before the chunk)
    dk_j = W_Qj (Z v_j + z) + sum over t >= j of A_tj q_t                             (second pass)
    dv_j = W_Qj Z^T k_j + sum over t >= j of M_tj dN_t
    Z'   = g_Q Z + sum over t of g_t q_t dN_t^T        z' = g_Q z + sum over t of g_t ds_t q_t

The gradients of the gates need no state either. exp(m_t) C_t and exp(m_t) n_t do not depend on m, so at that scale the gates act
independently: i_t gets k_t . dk_t, and lf_t gets r_t = <Z_t, f' C_{t-1}> + <z_t, f' n_{t-1}>. The sum <Z_t, C_t> + <z_t, n_t>
splits in two ways, by the inputs of C_t and n_t and by their uses: r_t + k_t . dk_t = q_t . dq_t + r_{t+1}; after
the last token r is <Z, C> + <z, n>. q_t . dq_t is dh_t . h_t, times eps / d_t where |s_t| is the larger (there h does not depend
on the scale of the state). The rest of m's gradient: h_t depends on m through eps, -(dh_t . h_t) eps / d_t, and the end state is
exp(-m) times the above, which gives dm - <dC, C> - <dn, n>. This flows back through the maximum, to i_t or to lf_t and m_{t-1},
whichever was larger. r and the gradient of m are sums over all later tokens in fp64, because their terms cancel.

Unlike in forward, threads do not divide a head: dq and dk are sums over all columns of V.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit, prange

from runnel.ops.chunks import Shares
from runnel.ops.mlstm.forward import (
    CHUNK,
    Factors,
    Gates,
    HeadInputs,
    HeadState,
    Inputs,
    States,
    denominator,
    from_token,
    head_inputs,
    head_rows,
    load_panel,
    read_gates,
    store_panel,
    weigh,
    weight_sums,
)
from runnel.ops.mlstm.tiles import (
    LOWER_OUT,
    ZERO,
    Matrix,
    Panels,
    Rows,
    add_outer,
    advance_line,
    dot_panels,
    fill,
    from_row,
    product,
    read,
    scale_rows,
    to_panels,
    turn,
    turn_panels,
    wide,
    write_panels,
)
from runnel.ops.numba_math import PARALLEL, SERIAL, Array, FlatRows, Number, Pointer, fast_exp, sigmoid
from runnel.ops.simd import LANES, TILE_COLUMNS, address, ceil_div, fma, keep, load, mul, shift, splat, store, total
from runnel.ops.simd_tile import FULL, LOWER, UPPER

_ONE = np.float32(1.0)
_STRIP = CHUNK * TILE_COLUMNS  # one panel of a chunk's rows
_SQUARE = CHUNK * CHUNK
_SAVED = 5 * CHUNK  # numbers of `_Saved`


class _Shape(NamedTuple):
    """Sizes of a head, and what its denominators are kept from zero by."""

    K: int
    V: int
    eps: Number


class _Saved(NamedTuple):
    """What the first pass saves of a chunk for the second, lines of CHUNK."""

    inverse: Pointer  # 1 / d
    ds: Pointer
    q_dq: Pointer
    dm: Pointer  # the gradient of m through eps
    m: Pointer  # (1,) at the start


class _Scratch(NamedTuple):
    """Memory of one head, fp32. Rows and panels of a chunk have CHUNK rows, squares CHUNK columns too, lines CHUNK numbers."""

    queries: Pointer  # rows of wide(K), scaled; as the next
    keys: Pointer
    turned_keys: Pointer  # panels (K, CHUNK)
    key_panels: Pointer  # panels of wide(K): the keys in the first pass, the queries in the second
    out_k: Pointer  # likewise: dq in the first pass, dk in the second
    values: Pointer  # rows of wide(V), as the next
    grads: Pointer  # dh
    turned_values: Pointer  # panels (V, CHUNK)
    grad_panels: Pointer  # panels of wide(V): dN
    out_v: Pointer  # likewise: dv
    pairs: Pointer  # square, in panels: q_t . k_j
    crosses: Pointer  # likewise: dh_t . v_j
    mixed: Pointer  # square, rows: M
    weights: Pointer  # likewise: A
    factors: Factors
    scales: Pointer  # line
    factor: Pointer  # (1,) of the state or the gradient in the other chunks
    dots: Pointer  # line: k_t . dk_t
    C_turned: Pointer  # panels (V, K): C in the first pass
    Z: Pointer  # panels (K, V)
    Z_turned: Pointer  # panels (V, K)
    n: Pointer  # (wide(K),)
    z: Pointer  # likewise
    saved: Pointer  # `_Saved` of each chunk


@njit(**SERIAL)
def _scratch_size(shape: _Shape, chunks: int) -> int:
    """Return how many fp32 numbers of scratch a head of so many chunks needs."""
    wk, wv = wide(shape.K), wide(shape.V)
    return 5 * CHUNK * (wk + wv + CHUNK) + 8 * CHUNK + 3 * wk * wv + 2 * wk + chunks * _SAVED


@njit(**SERIAL)
def _divide(memory: Pointer, shape: _Shape) -> Any:
    """Return `_Scratch` of `_scratch_size` numbers."""
    wk, wv = wide(shape.K), wide(shape.V)
    valued = shift(memory, 5 * CHUNK * wk)
    squares = shift(valued, 5 * CHUNK * wv)
    lines = shift(squares, 5 * _SQUARE)
    states = shift(lines, 8 * CHUNK)
    n = shift(states, 3 * wk * wv)
    factors = Factors(
        shift(squares, 2 * _SQUARE), lines, shift(lines, CHUNK), shift(lines, 2 * CHUNK), shift(lines, 3 * CHUNK),
        shift(lines, 4 * CHUNK),
    )  # fmt: skip
    return _Scratch(
        memory, shift(memory, CHUNK * wk), shift(memory, 2 * CHUNK * wk), shift(memory, 3 * CHUNK * wk),
        shift(memory, 4 * CHUNK * wk),
        valued, shift(valued, CHUNK * wv), shift(valued, 2 * CHUNK * wv), shift(valued, 3 * CHUNK * wv),
        shift(valued, 4 * CHUNK * wv),
        squares, shift(squares, _SQUARE), shift(squares, 3 * _SQUARE), shift(squares, 4 * _SQUARE),
        factors, shift(lines, 5 * CHUNK), shift(lines, 6 * CHUNK), shift(lines, 7 * CHUNK),
        states, shift(states, wk * wv), shift(states, 2 * wk * wv), n, shift(n, wk), shift(n, 2 * wk),
    )  # fmt: skip


@njit(**SERIAL)
def _saved(memory: Pointer, t: int) -> Any:
    """Return the part of `_Scratch.saved` of the chunk that starts with token t."""
    at = shift(memory, t // CHUNK * _SAVED)
    return _Saved(at, shift(at, CHUNK), shift(at, 2 * CHUNK), shift(at, 3 * CHUNK), shift(at, 4 * CHUNK))


@njit(**SERIAL)
def _read_chunk(inputs: HeadInputs, dh: Rows, count: int, shape: _Shape, m: _Scratch) -> None:
    """Read q, k, v and dh, and compute the transposed panels and the products of q and k, and of v and dh."""
    K, V, _ = shape
    rows, wk, wv, fresh = (count + LANES - 1) // LANES * LANES, wide(K), wide(V), Rows(m.dots, -1)
    turned_keys, turned_values = Panels(m.turned_keys, wk * TILE_COLUMNS), Panels(m.turned_values, wv * TILE_COLUMNS)
    read(inputs.q, count, rows, K, np.float32(1.0 / np.sqrt(K)), m.queries)
    read(inputs.k, count, rows, K, _ONE, m.keys)
    read(inputs.v, count, rows, V, _ONE, m.values)
    read(dh, count, rows, V, _ONE, m.grads)
    turn(m.keys, wk, rows, turned_keys)
    turn(m.values, wv, rows, turned_values)
    product(Panels(m.pairs, _STRIP), fresh, Matrix(m.queries, wk, 1), turned_keys, count, K, count, LOWER_OUT)
    product(Panels(m.crosses, _STRIP), fresh, Matrix(m.grads, wv, 1), turned_values, count, V, count, LOWER_OUT)


@njit(**SERIAL)
def _weigh_gradients(within: Pointer, crosses: Pointer, saved: _Saved, count: int, out: Pointer) -> None:
    """Compute A, rows (CHUNK, CHUNK), from the products dh_t . v_j in panels."""
    for t in range(count):
        scale, more = splat(saved.inverse[t]), splat(saved.ds[t])
        for j in range(0, CHUNK, LANES):
            cross = load(crosses, j // TILE_COLUMNS * _STRIP + t * TILE_COLUMNS + j % TILE_COLUMNS)
            store(out, t * CHUNK + j, mul(load(within, t * CHUNK + j), keep(fma(scale, cross, more), t + 1 - j)))


@njit(**SERIAL)
def _differentiate_denominator(m: _Scratch, wk: int, count: int, eps: Number, out: _Saved) -> None:
    """Compute what `_Saved` has of the tokens from C dh_t in `out_k`, M, and n_t . q_t in `scales`."""
    for t in range(count):
        sums, weight, top = splat(ZERO), m.scales[t], m.factors.tops[t]
        for j in range(0, t + 1, LANES):
            cross = load(m.crosses, j // TILE_COLUMNS * _STRIP + t * TILE_COLUMNS + j % TILE_COLUMNS)
            sums = fma(load(m.mixed, t * CHUNK + j), keep(cross, t + 1 - j), sums)
        read_out = dot_panels(shift(m.queries, t * wk), wk, Panels(m.out_k, _STRIP), t)
        inverse = _ONE / denominator(weight, top, eps)
        dh_h = inverse * (m.factors.enter[t] * read_out + total(sums))
        out.inverse[t] = inverse
        if abs(weight) > fast_exp(-top):
            out.ds[t] = -dh_h * inverse if weight > ZERO else dh_h * inverse
            out.q_dq[t] = dh_h * (eps * inverse)
        else:
            out.ds[t] = ZERO
            out.q_dq[t] = dh_h
        out.dm[t] = -dh_h * (eps * inverse)


@njit(**SERIAL)
def _first_chunk_pass(gates: Gates, count: int, shape: _Shape, dq: Rows, saved: _Saved, m: _Scratch) -> Any:
    """Compute dq, `saved` and the state after the chunk: C and n in place, m returned. `saved` has m. After `_read_chunk`."""
    K, V, eps = shape
    wk, wv, g = wide(K), wide(V), m.factors
    out, panels, C = Panels(m.out_k, _STRIP), Panels(m.key_panels, _STRIP), Panels(m.C_turned, wv * TILE_COLUMNS)

    top, m.factor[0] = read_gates(gates, count, saved.m[0], g)
    weigh(g.within, m.pairs, count, m.mixed)
    weight_sums(m.queries, wk, K, m.n, g.enter, m.mixed, count, m.scales)
    product(out, Rows(m.dots, -1), Matrix(m.grads, wv, 1), C, count, V, wk, FULL)
    _differentiate_denominator(m, wk, count, eps, saved)

    for t in range(count):
        m.scales[t] = g.enter[t] * saved.inverse[t]
        g.line[t] = g.enter[t] * saved.ds[t]
    _weigh_gradients(g.within, m.crosses, saved, count, m.weights)
    to_panels(m.keys, wk, count, panels)
    product(out, Rows(m.scales, 1), Matrix(m.weights, CHUNK, 1), panels, count, count, wk, LOWER)
    add_outer(g.line, m.n, wk, count, out)
    fill(m.scales, CHUNK, np.float32(1.0 / np.sqrt(K)))
    write_panels(out, count, K, m.scales, dq)

    scale_rows(m.keys, wk, count, g.leave, m.keys)
    to_panels(m.keys, wk, count, panels)
    product(C, Rows(m.factor, 0), Matrix(m.values, 1, wv), panels, V, count, wk, FULL)
    advance_line(m.n, wk, m.factor[0], m.keys, wk, count)
    return top


@njit(**SERIAL)
def _second_chunk_pass(gates: Gates, count: int, shape: _Shape, saved: _Saved, dk: Rows, dv: Rows, m: _Scratch) -> None:
    """Compute dk, dv, `dots` and the gradients before the chunk, Z and z. After `_read_chunk`."""
    K, V, _ = shape
    wk, wv, g, fresh = wide(K), wide(V), m.factors, Rows(m.dots, -1)
    leave, Z, Z_turned = Rows(g.leave, 1), Panels(m.Z, wk * TILE_COLUMNS), Panels(m.Z_turned, wv * TILE_COLUMNS)
    grads, queries = Panels(m.grad_panels, _STRIP), Panels(m.key_panels, _STRIP)
    out_k, out_v = Panels(m.out_k, _STRIP), Panels(m.out_v, _STRIP)

    _, m.factor[0] = read_gates(gates, count, saved.m[0], g)
    weigh(g.within, m.pairs, count, m.mixed)
    _weigh_gradients(g.within, m.crosses, saved, count, m.weights)
    scale_rows(m.grads, wv, count, saved.inverse, m.grads)
    to_panels(m.grads, wv, count, grads)
    fill(m.scales, CHUNK, _ONE)

    product(out_v, fresh, Matrix(m.keys, wk, 1), Z, count, K, wv, FULL)
    product(out_v, leave, Matrix(m.mixed, 1, CHUNK), grads, count, count, wv, UPPER)
    write_panels(out_v, count, V, m.scales, dv)

    to_panels(m.queries, wk, count, queries)
    product(out_k, fresh, Matrix(m.values, wv, 1), Z_turned, count, V, wk, FULL)
    product(out_k, leave, Matrix(m.weights, 1, CHUNK), queries, count, count, wk, UPPER)
    add_outer(g.leave, m.z, wk, count, out_k)
    write_panels(out_k, count, K, m.scales, dk)
    for t in range(count):
        m.dots[t] = dot_panels(shift(m.keys, t * wk), wk, out_k, t)

    scale_rows(m.queries, wk, count, g.enter, m.queries)
    product(Z, Rows(m.factor, 0), Matrix(m.queries, 1, wk), grads, K, count, wv, FULL)
    scale_rows(m.queries, wk, count, saved.ds, m.queries)
    advance_line(m.z, wk, m.factor[0], m.queries, wk, count)


@njit(**SERIAL)
def _gate_gradients(gates: Gates, count: int, saved: _Saved, m: _Scratch, r: float, dm: float, out: Gates) -> tuple[float, float]:
    """Compute di and df of one chunk from r and the gradient of m after it; return both before it."""
    f, stride = gates.f, gates.stride
    for t in range(count - 1, -1, -1):
        r += np.float64(saved.q_dq[t]) - np.float64(m.dots[t])
        dm += np.float64(saved.dm[t])
        by_i, by_f = np.float64(m.dots[t]), r
        if m.factors.taken[t] > ZERO:
            by_i += dm
            dm = 0.0
        else:
            by_f += dm
        out.i[t * out.stride] = np.float32(by_i)
        out.f[t * out.stride] = np.float32(by_f) * sigmoid(-f[t * stride])
    return r, dm


@njit(**SERIAL)
def _load_state(state: HeadState, known: bool, K: int, V: int, out: Pointer, line: Pointer) -> None:
    """Load C as panels and n, zero beyond their sizes; zeros if not `known`."""
    wk, wv = wide(K), wide(V)
    fill(line, wk, ZERO)
    if known:
        for c in range(0, V, TILE_COLUMNS):
            load_panel(Rows(shift(state.C.first, c), V), K, min(V - c, TILE_COLUMNS), shift(out, c * wk))
        for c in range(K):
            line[c] = state.n[c]
    else:
        fill(out, wk * wv, ZERO)


@njit(**SERIAL)
def _inner(a: Pointer, b: Pointer, size: int) -> float:
    """Return the dot product in fp64: the difference of two such sums over all of C may be as small as one term."""
    sums = 0.0
    for c in range(size):
        sums += np.float64(a[c]) * np.float64(b[c])
    return sums


@njit(**SERIAL)
def _head(
    inputs: HeadInputs, dh: Rows, tokens: int, shape: _Shape, known: bool, start: HeadState, ended: bool, end: HeadState,
    out: HeadInputs, dstart: HeadState, m: _Scratch,
) -> None:  # fmt: skip
    """Process a head of a sequence from its first token on: the gradients of `inputs` and of `start`.

    The start state is zero unless `known`, its gradient at the end, `end`, is zero unless `ended`.
    """
    K, V, _ = shape
    wk, state_size = wide(K), wide(K) * wide(V)

    _load_state(start, known, K, V, m.Z, m.n)
    turn_panels(m.Z, K, V, m.C_turned)
    top = start.m[0] if known else ZERO
    for t in range(0, tokens, CHUNK):
        count, now, saved = min(CHUNK, tokens - t), from_token(inputs, t), _saved(m.saved, t)
        saved.m[0] = top
        _read_chunk(now, from_row(dh, t), count, shape, m)
        top = _first_chunk_pass(now.gates, count, shape, from_row(out.q, t), saved, m)

    _load_state(end, ended, K, V, m.Z, m.z)
    turn_panels(m.Z, K, V, m.Z_turned)
    r = _inner(m.C_turned, m.Z_turned, state_size) + _inner(m.n, m.z, wk)
    of_m = (np.float64(end.m[0]) if ended else 0.0) - r
    for t in range((tokens - 1) // CHUNK * CHUNK, -1, -CHUNK):
        count, now, saved, out_now = min(CHUNK, tokens - t), from_token(inputs, t), _saved(m.saved, t), from_token(out, t)
        _read_chunk(now, from_row(dh, t), count, shape, m)
        _second_chunk_pass(now.gates, count, shape, saved, out_now.k, out_now.v, m)
        r, of_m = _gate_gradients(now.gates, count, saved, m, r, of_m, out_now.gates)
        if t > 0:
            turn_panels(m.Z, K, V, m.Z_turned)
    _load_state(start, known, K, V, m.Z_turned, m.n)
    # Recomputed, because r has accumulated rounding errors.
    dstart.m[0] = np.float32(_inner(m.Z, m.Z_turned, state_size) + _inner(m.z, m.n, wk) + of_m)
    for c in range(0, V, TILE_COLUMNS):
        store_panel(shift(m.Z, c * wk), K, min(V - c, TILE_COLUMNS), Rows(shift(dstart.C.first, c), V))
    for c in range(K):
        dstart.n[c] = m.z[c]


@njit(**SERIAL)
def _head_state(states: States, own: int, K: int, V: int) -> HeadState:
    return HeadState(
        Rows(shift(address(states.C), own * K * V), V), shift(address(states.n), own * K), shift(address(states.m), own)
    )


@njit(**PARALLEL)
def scan(
    inputs: Inputs, dh: FlatRows, cu: Array, shares: Shares, start: States, end: States, eps: Number, out: Inputs, dstart: States
) -> None:
    """Compute the gradients of every sequence and head.

    Args:
        dh: (T, H, V).   cu: (S+1,).   shares: `Shares`.
        start: the start states, or no rows for zeros.   end: gradients of the end states, likewise.
        out: gradients of the inputs.   dstart: gradients of the start states.
    """
    _, share_heads, share_first, share_order = shares  # outside the loop, which then takes plain arrays
    _, H, K, V = dstart.C.shape
    known, ended = start.C.shape[0] > 0, end.C.shape[0] > 0
    longest = 0
    for s in range(cu.shape[0] - 1):
        longest = max(longest, cu[s + 1] - cu[s])
    for share in prange(share_heads.shape[0]):
        shape = _Shape(K, V, eps)
        memory = np.empty(_scratch_size(shape, ceil_div(longest, CHUNK)), np.float32)
        for at in range(share_first[share], share_first[share + 1]):
            s = share_order[at]
            for head in range(share_heads[share, 0], share_heads[share, 1]):
                own = s * H + head
                _head(
                    head_inputs(inputs, cu[s], head, K, V, 0), head_rows(dh.line, dh.distance, cu[s], head * V),
                    cu[s + 1] - cu[s], shape, known, _head_state(start, own if known else 0, K, V), ended,
                    _head_state(end, own if ended else 0, K, V), head_inputs(out, cu[s], head, K, V, 0),
                    _head_state(dstart, own, K, V), _divide(address(memory), shape),
                )  # fmt: skip
