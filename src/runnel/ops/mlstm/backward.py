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

from typing import Any

import numpy as np
from numba import njit, prange

from runnel.ops.chunks import Shares
from runnel.ops.mlstm.forward import CHUNK, denominator, load_panel, read_gates, store_panel, weigh, weight_sums
from runnel.ops.mlstm.tiles import (
    FULL,
    LOWER,
    LOWER_OUT,
    UPPER,
    ZERO,
    advance_line,
    fill,
    product,
    read,
    scale_rows,
    to_panels,
    turn,
    wide,
    write,
)
from runnel.ops.numba_math import PARALLEL, SERIAL, Array, Number, Pointer, fast_exp, sigmoid
from runnel.ops.simd import LANES, TILE_COLUMNS, address, ceil_div, fma, keep, load, mul, shift, splat, store, total

_ONE = np.float32(1.0)
_STRIP = CHUNK * TILE_COLUMNS  # one panel of a chunk's rows
_SQUARE = CHUNK * CHUNK
# Results of the first pass for the second, a line of CHUNK each: 1 / d, ds, q . dq, the gradient of m through eps, m at the
# start.
_SAVED = 5 * CHUNK


@njit(**SERIAL)
def _scratch_size(K: int, V: int) -> int:
    """Return the size of a chunk's five matrices of K columns, five of V columns, five squares and eight lines."""
    return 5 * CHUNK * (wide(K) + wide(V) + CHUNK) + 8 * CHUNK


@njit(**SERIAL)
def _split(scratch: Pointer, K: int, V: int) -> tuple[Any, Any, Any, Any]:
    """Return where the matrices of K columns, the matrices of V columns, the squares and the lines begin."""
    valued = shift(scratch, 5 * CHUNK * wide(K))
    squares = shift(valued, 5 * CHUNK * wide(V))
    return scratch, valued, squares, shift(squares, 5 * _SQUARE)


@njit(**SERIAL)
def _read_chunk(
    q: Pointer, q_row: int, k: Pointer, k_row: int, v: Pointer, v_row: int, dh: Pointer, dh_row: int, count: int, K: int, V: int,
    scratch: Pointer,
) -> None:  # fmt: skip
    """Read q, k, their transposed panels and products (q_t . k_j), likewise v, dh, into their parts of the scratch."""
    keyed, valued, squares, lines = _split(scratch, K, V)
    rows, wk, wv = (count + LANES - 1) // LANES * LANES, wide(K), wide(V)
    queries, keys, turned_keys = keyed, shift(keyed, CHUNK * wk), shift(keyed, 2 * CHUNK * wk)
    values, grads, turned_values = valued, shift(valued, CHUNK * wv), shift(valued, 2 * CHUNK * wv)
    read(q, q_row, count, rows, K, np.float32(1.0 / np.sqrt(K)), queries)
    read(k, k_row, count, rows, K, _ONE, keys)
    read(v, v_row, count, rows, V, _ONE, values)
    read(dh, dh_row, count, rows, V, _ONE, grads)
    turn(keys, wk, rows, wk * TILE_COLUMNS, turned_keys)
    turn(values, wv, rows, wv * TILE_COLUMNS, turned_values)
    product(squares, _STRIP, lines, -1, queries, wk, 1, turned_keys, wk * TILE_COLUMNS, count, K, count, LOWER_OUT)
    crosses = shift(squares, _SQUARE)
    product(crosses, _STRIP, lines, -1, grads, wv, 1, turned_values, wv * TILE_COLUMNS, count, V, count, LOWER_OUT)


@njit(**SERIAL)
def _weigh_gradients(within: Pointer, crosses: Pointer, inverse: Pointer, ds: Pointer, count: int, out: Pointer) -> None:
    """Compute A, rows (CHUNK, CHUNK), from the products dh_t . v_j in panels."""
    for t in range(count):
        scale, more = splat(inverse[t]), splat(ds[t])
        for j in range(0, CHUNK, LANES):
            cross = load(crosses, j // TILE_COLUMNS * _STRIP + t * TILE_COLUMNS + j % TILE_COLUMNS)
            store(out, t * CHUNK + j, mul(load(within, t * CHUNK + j), keep(fma(scale, cross, more), t + 1 - j)))


@njit(**SERIAL)
def _dot_panels(row: Pointer, columns: int, panels: Pointer, panel: int) -> Any:
    """Return the dot product of a row and a row of panels."""
    sums = splat(ZERO)
    for c in range(0, columns, LANES):
        sums = fma(load(row, c), load(panels, c // TILE_COLUMNS * panel + c % TILE_COLUMNS), sums)
    return total(sums)


@njit(**SERIAL)
def _add_outer(factors: Pointer, line: Pointer, columns: int, count: int, panels: Pointer) -> None:
    """Add factors[t] * line to panels[t]."""
    for c in range(0, columns, LANES):
        part, at = load(line, c), c // TILE_COLUMNS * _STRIP + c % TILE_COLUMNS
        for t in range(count):
            store(panels, at + t * TILE_COLUMNS, fma(splat(factors[t]), part, load(panels, at + t * TILE_COLUMNS)))


@njit(**SERIAL)
def _write_panels(panels: Pointer, count: int, width: int, factors: Pointer, out: Pointer, stride: int) -> None:
    for c in range(0, width, TILE_COLUMNS):
        strip = shift(panels, c // TILE_COLUMNS * _STRIP)
        write(strip, TILE_COLUMNS, count, min(width - c, TILE_COLUMNS), factors, shift(out, c), stride)


@njit(**SERIAL)
def _differentiate_denominator(
    queries: Pointer, wk: int, memory: Pointer, mixed: Pointer, crosses: Pointer, enter: Pointer, tops: Pointer, weights: Pointer,
    count: int, eps: Number, saved: Pointer,
) -> None:  # fmt: skip
    """Compute the values of `_SAVED` from C dh_t (`memory`, panels) and n_t . q_t (`weights`)."""
    for t in range(count):
        sums = splat(ZERO)
        for j in range(0, t + 1, LANES):
            cross = load(crosses, j // TILE_COLUMNS * _STRIP + t * TILE_COLUMNS + j % TILE_COLUMNS)
            sums = fma(load(mixed, t * CHUNK + j), keep(cross, t + 1 - j), sums)
        read_out = _dot_panels(shift(queries, t * wk), wk, shift(memory, t * TILE_COLUMNS), _STRIP)
        inverse = _ONE / denominator(weights[t], tops[t], eps)
        dh_h = inverse * (enter[t] * read_out + total(sums))
        saved[t] = inverse
        if abs(weights[t]) > fast_exp(-tops[t]):
            saved[CHUNK + t] = -dh_h * inverse if weights[t] > ZERO else dh_h * inverse
            saved[2 * CHUNK + t] = dh_h * (eps * inverse)
        else:
            saved[CHUNK + t] = ZERO
            saved[2 * CHUNK + t] = dh_h
        saved[3 * CHUNK + t] = -dh_h * (eps * inverse)


@njit(**SERIAL)
def _first_chunk_pass(
    i: Pointer, f: Pointer, gate_row: int, count: int, K: int, V: int, C: Pointer, n: Pointer, m: Number, eps: Number,
    dq: Pointer, dq_row: int, saved: Pointer, scratch: Pointer,
) -> Any:  # fmt: skip
    """Compute dq, `saved` and the state after the chunk: C as panels (V, K) and n in place, m returned. After `_read_chunk`."""
    keyed, valued, squares, lines = _split(scratch, K, V)
    wk, wv = wide(K), wide(V)
    queries, keys, panels, out = keyed, shift(keyed, CHUNK * wk), shift(keyed, 3 * CHUNK * wk), shift(keyed, 4 * CHUNK * wk)
    values, grads = valued, shift(valued, CHUNK * wv)
    pairs, crosses, within, mixed = squares, shift(squares, _SQUARE), shift(squares, 2 * _SQUARE), shift(squares, 3 * _SQUARE)
    enter, leave, tops, taken = lines, shift(lines, CHUNK), shift(lines, 2 * CHUNK), shift(lines, 3 * CHUNK)
    line, factors, factor = shift(lines, 4 * CHUNK), shift(lines, 5 * CHUNK), shift(lines, 6 * CHUNK)
    inverse, ds = saved, shift(saved, CHUNK)

    saved[4 * CHUNK] = m
    m, factor[0] = read_gates(i, f, gate_row, count, m, within, enter, leave, tops, taken, line)
    weigh(within, pairs, count, mixed)
    weight_sums(queries, wk, K, n, enter, mixed, count, line)
    product(out, _STRIP, lines, -1, grads, wv, 1, C, wv * TILE_COLUMNS, count, V, wk, FULL)
    _differentiate_denominator(queries, wk, out, mixed, crosses, enter, tops, line, count, eps, saved)

    for t in range(count):
        factors[t] = enter[t] * inverse[t]
        line[t] = enter[t] * ds[t]
    _weigh_gradients(within, crosses, inverse, ds, count, mixed)
    to_panels(keys, wk, count, _STRIP, panels)
    product(out, _STRIP, factors, 1, mixed, CHUNK, 1, panels, _STRIP, count, count, wk, LOWER)
    _add_outer(line, n, wk, count, out)
    fill(line, CHUNK, np.float32(1.0 / np.sqrt(K)))
    _write_panels(out, count, K, line, dq, dq_row)

    scale_rows(keys, wk, count, leave, keys)
    to_panels(keys, wk, count, _STRIP, panels)
    product(C, wv * TILE_COLUMNS, factor, 0, values, 1, wv, panels, _STRIP, V, count, wk, FULL)
    advance_line(n, wk, factor[0], keys, wk, count)
    return m


@njit(**SERIAL)
def _second_chunk_pass(
    i: Pointer, f: Pointer, gate_row: int, count: int, K: int, V: int, Z: Pointer, Z_turned: Pointer, z: Pointer, saved: Pointer,
    dk: Pointer, dk_row: int, dv: Pointer, dv_row: int, dots: Pointer, taken: Pointer, scratch: Pointer,
) -> None:  # fmt: skip
    """Compute dk, dv, dots_t = k_t . dk_t and the gradients before the chunk: Z as panels (K, V), z. After `_read_chunk`."""
    keyed, valued, squares, lines = _split(scratch, K, V)
    wk, wv = wide(K), wide(V)
    queries, keys, panels, out = keyed, shift(keyed, CHUNK * wk), shift(keyed, 3 * CHUNK * wk), shift(keyed, 4 * CHUNK * wk)
    values, grads = valued, shift(valued, CHUNK * wv)
    grad_panels, out_v = shift(valued, 3 * CHUNK * wv), shift(valued, 4 * CHUNK * wv)
    pairs, crosses, within, mixed = squares, shift(squares, _SQUARE), shift(squares, 2 * _SQUARE), shift(squares, 3 * _SQUARE)
    weights = shift(squares, 4 * _SQUARE)
    enter, leave, tops, line = lines, shift(lines, CHUNK), shift(lines, 2 * CHUNK), shift(lines, 3 * CHUNK)
    ones, factor = shift(lines, 4 * CHUNK), shift(lines, 5 * CHUNK)
    inverse, ds = saved, shift(saved, CHUNK)

    _, factor[0] = read_gates(i, f, gate_row, count, saved[4 * CHUNK], within, enter, leave, tops, taken, line)
    weigh(within, pairs, count, mixed)
    _weigh_gradients(within, crosses, inverse, ds, count, weights)
    scale_rows(grads, wv, count, inverse, grads)
    to_panels(grads, wv, count, _STRIP, grad_panels)
    fill(ones, CHUNK, _ONE)

    product(out_v, _STRIP, lines, -1, keys, wk, 1, Z, wk * TILE_COLUMNS, count, K, wv, FULL)
    product(out_v, _STRIP, leave, 1, mixed, 1, CHUNK, grad_panels, _STRIP, count, count, wv, UPPER)
    _write_panels(out_v, count, V, ones, dv, dv_row)

    to_panels(queries, wk, count, _STRIP, panels)
    product(out, _STRIP, lines, -1, values, wv, 1, Z_turned, wv * TILE_COLUMNS, count, V, wk, FULL)
    product(out, _STRIP, leave, 1, weights, 1, CHUNK, panels, _STRIP, count, count, wk, UPPER)
    _add_outer(leave, z, wk, count, out)
    _write_panels(out, count, K, ones, dk, dk_row)
    for t in range(count):
        dots[t] = _dot_panels(shift(keys, t * wk), wk, shift(out, t * TILE_COLUMNS), _STRIP)

    scale_rows(queries, wk, count, enter, queries)
    product(Z, wk * TILE_COLUMNS, factor, 0, queries, 1, wk, grad_panels, _STRIP, K, count, wv, FULL)
    scale_rows(queries, wk, count, ds, queries)
    advance_line(z, wk, factor[0], queries, wk, count)


@njit(**SERIAL)
def _gate_gradients(
    f: Pointer, stride: int, count: int, saved: Pointer, dots: Pointer, taken: Pointer, r: float, dm: float, di: Pointer,
    df: Pointer,
) -> tuple[float, float]:  # fmt: skip
    """Compute di and df of one chunk from r and the gradient of m after it; return both before it."""
    for t in range(count - 1, -1, -1):
        r += np.float64(saved[2 * CHUNK + t]) - np.float64(dots[t])
        dm += np.float64(saved[3 * CHUNK + t])
        by_i, by_f = np.float64(dots[t]), r
        if taken[t] > ZERO:
            by_i += dm
            dm = 0.0
        else:
            by_f += dm
        di[t * stride] = np.float32(by_i)
        df[t * stride] = np.float32(by_f) * sigmoid(-f[t * stride])
    return r, dm


@njit(**SERIAL)
def _turn_panels(source: Pointer, K: int, V: int, out: Pointer) -> None:
    """Transpose panels of (K, V) to panels of (V, K)."""
    wk, wv = wide(K), wide(V)
    for c in range(0, wv, TILE_COLUMNS):
        turn(shift(source, c * wk), TILE_COLUMNS, wk, wv * TILE_COLUMNS, shift(out, c * TILE_COLUMNS))


@njit(**SERIAL)
def _load_state(C: Pointer, n: Pointer, known: bool, K: int, V: int, out: Pointer, line: Pointer) -> None:
    """Load C (K, V) as panels and n, zero beyond their sizes; zeros if not `known`."""
    wk, wv = wide(K), wide(V)
    fill(line, wk, ZERO)
    if known:
        for c in range(0, V, TILE_COLUMNS):
            load_panel(shift(C, c), V, K, min(V - c, TILE_COLUMNS), shift(out, c * wk))
        for c in range(K):
            line[c] = n[c]
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
    q: Pointer, q_row: int, k: Pointer, k_row: int, v: Pointer, v_row: int, dh: Pointer, dh_row: int, i: Pointer, f: Pointer,
    gate_row: int, tokens: int, K: int, V: int, known: bool, C: Pointer, n: Pointer, m: Pointer, ended: bool, dC: Pointer,
    dn: Pointer, dm: Pointer, eps: Number, dq: Pointer, dk: Pointer, qk_row: int, dv: Pointer, dv_row: int, di: Pointer,
    df: Pointer, dC_start: Pointer, dn_start: Pointer, dm_start: Pointer, memory: Pointer, saved: Pointer, scratch: Pointer,
) -> None:  # fmt: skip
    """Process a head of a sequence; pointers to first token and states. C, n, m are 0 unless `known`, dC, dn, dm unless `ended`.

    `memory`: three states and four lines; `saved`: _SAVED for each chunk.
    """
    wk, state_size = wide(K), wide(K) * wide(V)
    turned, Z, Z_turned = memory, shift(memory, state_size), shift(memory, 2 * state_size)
    n_now = shift(memory, 3 * state_size)
    z, dots, taken = shift(n_now, wk), shift(n_now, 2 * wk), shift(n_now, 2 * wk + CHUNK)

    _load_state(C, n, known, K, V, Z, n_now)
    _turn_panels(Z, K, V, turned)
    now = m[0] if known else ZERO
    for t in range(0, tokens, CHUNK):
        count = min(CHUNK, tokens - t)
        _read_chunk(
            shift(q, t * q_row), q_row, shift(k, t * k_row), k_row, shift(v, t * v_row), v_row, shift(dh, t * dh_row), dh_row,
            count, K, V, scratch,
        )  # fmt: skip
        now = _first_chunk_pass(
            shift(i, t * gate_row), shift(f, t * gate_row), gate_row, count, K, V, turned, n_now, now, eps,
            shift(dq, t * qk_row), qk_row, shift(saved, t // CHUNK * _SAVED), scratch,
        )  # fmt: skip

    _load_state(dC, dn, ended, K, V, Z, z)
    _turn_panels(Z, K, V, Z_turned)
    r = _inner(turned, Z_turned, state_size) + _inner(n_now, z, wk)
    of_m = (np.float64(dm[0]) if ended else 0.0) - r
    for t in range((tokens - 1) // CHUNK * CHUNK, -1, -CHUNK):
        count = min(CHUNK, tokens - t)
        before = shift(saved, t // CHUNK * _SAVED)
        _read_chunk(
            shift(q, t * q_row), q_row, shift(k, t * k_row), k_row, shift(v, t * v_row), v_row, shift(dh, t * dh_row), dh_row,
            count, K, V, scratch,
        )  # fmt: skip
        _second_chunk_pass(
            shift(i, t * gate_row), shift(f, t * gate_row), gate_row, count, K, V, Z, Z_turned, z, before,
            shift(dk, t * qk_row), qk_row, shift(dv, t * dv_row), dv_row, dots, taken, scratch,
        )  # fmt: skip
        r, of_m = _gate_gradients(
            shift(f, t * gate_row), gate_row, count, before, dots, taken, r, of_m,
            shift(di, t * gate_row), shift(df, t * gate_row),
        )  # fmt: skip
        if t > 0:
            _turn_panels(Z, K, V, Z_turned)
    _load_state(C, n, known, K, V, Z_turned, n_now)
    # Recomputed, because r has accumulated rounding errors.
    dm_start[0] = np.float32(_inner(Z, Z_turned, state_size) + _inner(z, n_now, wk) + of_m)
    for c in range(0, V, TILE_COLUMNS):
        store_panel(shift(Z, c * wk), K, min(V - c, TILE_COLUMNS), shift(dC_start, c), V)
    for c in range(K):
        dn_start[c] = z[c]


@njit(**PARALLEL)
def scan(
    q: Array, q_row: int, k: Array, k_row: int, v: Array, v_row: int, dh: Array, dh_row: int, i: Array, f: Array, cu: Array,
    shares: Shares, C: Array, n: Array, m: Array, dC: Array, dn: Array, dm: Array, eps: Number, dq: Array, dk: Array, dv: Array,
    di: Array, df: Array, dC_start: Array, dn_start: Array, dm_start: Array,
) -> None:  # fmt: skip
    """Compute the gradients of every sequence and head.

    Args:
        q, k: flat rows (T, H, K).   v, dh: flat rows (T, H, V).   i, f: (T, H).   cu: (S+1,).   shares: `Shares`.
        C, n, m: the start state (S, H, ...), or no rows for zeros.   dC, dn, dm: gradients of the end state, likewise.
        dq, dk: out (T, H, K).   dv: out (T, H, V).   di, df: out (T, H).   *_start: out, gradients of the start state.
    """
    _, share_heads, share_first, share_order = shares  # outside the loop, which then takes plain arrays
    _, H, K, V = dC_start.shape
    known, ended = C.shape[0] > 0, dC.shape[0] > 0
    longest = 0
    for s in range(cu.shape[0] - 1):
        longest = max(longest, cu[s + 1] - cu[s])
    for share in prange(share_heads.shape[0]):
        memory = np.empty(3 * wide(K) * wide(V) + 2 * wide(K) + 2 * CHUNK, np.float32)
        saved = np.empty(ceil_div(longest, CHUNK) * _SAVED, np.float32)
        scratch = np.empty(_scratch_size(K, V), np.float32)
        for at in range(share_first[share], share_first[share + 1]):
            s = share_order[at]
            start = cu[s]
            for head in range(share_heads[share, 0], share_heads[share, 1]):
                own = s * H + head
                there, asked = own if known else 0, own if ended else 0
                _head(
                    shift(address(q), start * q_row + head * K), q_row, shift(address(k), start * k_row + head * K), k_row,
                    shift(address(v), start * v_row + head * V), v_row, shift(address(dh), start * dh_row + head * V), dh_row,
                    shift(address(i), start * H + head), shift(address(f), start * H + head), H, cu[s + 1] - start, K, V,
                    known, shift(address(C), there * K * V), shift(address(n), there * K), shift(address(m), there),
                    ended, shift(address(dC), asked * K * V), shift(address(dn), asked * K), shift(address(dm), asked), eps,
                    shift(address(dq), (start * H + head) * K), shift(address(dk), (start * H + head) * K), H * K,
                    shift(address(dv), (start * H + head) * V), H * V,
                    shift(address(di), start * H + head), shift(address(df), start * H + head),
                    shift(address(dC_start), own * K * V), shift(address(dn_start), own * K), shift(address(dm_start), own),
                    address(memory), address(saved), address(scratch),
                )  # fmt: skip
