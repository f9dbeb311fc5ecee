"""The ssd backward kernel. It stores no states: one pass forward in time recomputes them, one backward carries the gradient.

T tokens, S sequences, H heads, P head size, G groups, N state size, Q tokens per chunk, K chunks.
With c the inclusive sum of dt*A inside a chunk, u = weight*x, S the state before the chunk, Z the gradient of the state after
it, L_ij = exp(c_i - c_j) for j <= i, W_ij = L_ij (dy_i . u_j) and M_ij = L_ij (C_i . B_j):
    dC_i = exp(c_i) S^T dy_i + sum over j of W_ij B_j                       (first pass, second pass)
    dB_j = exp(c_Q - c_j) Z^T u_j + sum over i of W_ij C_i
    du_j = exp(c_Q - c_j) Z B_j + sum over i of M_ij dy_i                   dx = weight du + D dy
    Z'   = exp(c_Q) Z + sum over i of exp(c_i) dy_i C_i^T                   (before the chunk)
The gradient r_t of the log decay dt_t A needs no state either. With y' = S C (without D), <dS_t, S_t> splits in two ways, by
the inputs of S_t and by its uses: r_t + u_t . du_t = dy_t . y'_t + r_{t+1}. So r is a reverse running sum, kept in fp64
because its terms cancel; after the last token it is <dS_end, S_end>. Then ddt = A r, dweight = x . du and dA = sum of dt r.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from runnel.ops.chunks import Shares
from runnel.ops.numba_math import PARALLEL, SERIAL, Array, Number, as_f32, fast_exp, rounded_for
from runnel.ops.numba_matmul import LANES, LOWER, ROWS, UPPER, multiply
from runnel.ops.packed import Chunks
from runnel.ops.simd import round_up
from runnel.ops.ssd.forward import decayed, read_steps


@njit(**SERIAL)
def _read_gradient(dy: Array, dy_row: int, dy_at: int, t: int, size: int, rows: int, P: int, out: Array) -> None:
    for j in range(size):
        at = (t + j) * dy_row + dy_at
        source = dy[at : at + P]
        for p in range(P):
            out[j, p] = as_f32(source[p])
    for j in range(size, rows):
        out[j] = np.float32(0.0)


@njit(**SERIAL)
def _scale_rows(source: Array, rows: int, from_log: Array, sign: Number, offset: Number, out: Array) -> None:
    """Set out[i] = exp(offset + sign * from_log[i]) * source[i]."""
    for i in range(rows):
        factor = fast_exp(offset + sign * from_log[i])
        for p in range(source.shape[1]):
            out[i, p] = factor * source[i, p]


@njit(**SERIAL)
def _first_chunk_pass(
    queries: Array, keys: Array, size: int, rows: int, P: int, log: Array, u: Array, gradient: Array, wide: Array, S: Array,
    keep: bool, dC: Array, dots: Array,
) -> None:  # fmt: skip
    """Compute dC and dots_i = dy_i . y'_i from the state S (P padded, N padded), and S after the chunk. Scales u, gradient."""
    columns, width = u.shape[1], keys.shape[1]
    zero, one, total = np.float32(0.0), np.float32(1.0), log[size - 1]
    _scale_rows(gradient, rows, log, one, zero, gradient)
    multiply(wide, gradient, columns, 1, S, rows, P, zero)
    for i in range(size):
        dot = zero
        for n in range(width):
            dot += queries[i, n] * wide[i, n]
        dots[i] = dot
        if keep:
            for n in range(width):
                dC[i, n] += wide[i, n]
        else:
            for n in range(width):
                dC[i, n] = wide[i, n]
    for i in range(size, rows):
        if not keep:
            dC[i] = zero
    _scale_rows(u, size, log, -one, total, u)
    multiply(S, u, 1, columns, keys, columns, size, fast_exp(total))


@njit(**SERIAL)
def _second_chunk_pass(
    queries: Array, keys: Array, pairs: Array, size: int, rows: int, P: int, N: int, log: Array, u: Array, gradient: Array,
    turned: Array, mix: Array, weights: Array, scaled: Array, du: Array, Z: Array, Z_turned: Array, keep: bool, dB: Array,
    dC: Array, dots: Array,
) -> None:  # fmt: skip
    """Compute du, dB, the rest of dC and of `dots`, and the gradient Z (also transposed, N by P) before the chunk."""
    columns, width, chunk = u.shape[1], keys.shape[1], mix.shape[1]
    zero, one, total = np.float32(0.0), np.float32(1.0), log[size - 1]
    for j in range(rows):
        for p in range(P):
            turned[p, j] = u[j, p]
    multiply(mix, gradient, columns, 1, turned, rows, P, zero)
    decayed(mix, log, rows, weights)
    decayed(pairs, log, rows, mix)
    for i in range(size):
        dot = zero
        for j in range(rows):  # weights include the decay, pairs do not
            dot += weights[i, j] * pairs[i, j]
        dots[i] += dot

    multiply(du, keys, width, 1, Z_turned, rows, N, zero)
    _scale_rows(du, rows, log, -one, total, du)
    multiply(du, mix, 1, chunk, gradient, rows, rows, one, UPPER)
    _scale_rows(u, rows, log, -one, total, scaled)
    multiply(dB, scaled, columns, 1, Z, rows, P, one if keep else zero)
    multiply(dB, weights, 1, chunk, queries, rows, rows, one, UPPER)
    multiply(dC, weights, chunk, 1, keys, rows, rows, one, LOWER)

    _scale_rows(gradient, rows, log, one, zero, scaled)
    multiply(Z, scaled, 1, columns, queries, columns, size, fast_exp(total))
    multiply(Z_turned, queries, 1, width, scaled, width, size, fast_exp(total))


@njit(**SERIAL)
def _write(
    x: Array, x_row: int, dt: Array, weight: Array, h: int, A: Number, D: Number, t: int, size: int, gradient: Array, du: Array,
    dots: Array, r: float, dx: Array, ddt: Array, dweight: Array,
) -> tuple[float, float, float]:  # fmt: skip
    """Write dx, ddt and dweight of one chunk; return r at its first token, and its contributions to dA and dD."""
    P = dx.shape[2]
    dA, dD = 0.0, 0.0
    for j in range(size - 1, -1, -1):
        step, factor, at = dt[t + j, h], weight[t + j, h], (t + j) * x_row + h * P
        x_du, x_dy = np.float32(0.0), np.float32(0.0)
        source, target = x[at : at + P], dx[t + j, h]
        for p in range(P):
            value = as_f32(source[p])
            x_du += value * du[j, p]
            x_dy += value * gradient[j, p]
        for p in range(P):
            target[p] = rounded_for(target, factor * du[j, p] + D * gradient[j, p])
        r += np.float64(dots[j]) - np.float64(factor) * np.float64(x_du)
        ddt[t + j, h] = A * np.float32(r)
        dweight[t + j, h] = x_du
        dA += np.float64(step) * r
        dD += np.float64(x_dy)
    return r, dA, dD


@njit(**SERIAL)
def _start(source: Array, s: int, h: int, out: Array) -> None:
    """Set out (P padded, N padded) = source[s, h], or zeros if `source` has no rows."""
    out[:] = np.float32(0.0)
    if source.shape[0] > 0:
        for p in range(source.shape[2]):
            for n in range(source.shape[3]):
                out[p, n] = source[s, h, p, n]


# Long: each share's scratch memory has to be made inside the parallel loop, and both passes use all of it.
@njit(**PARALLEL)
def scan(
    x: Array, x_row: int, dy: Array, dy_row: int, dt: Array, weight: Array, A: Array, D: Array, queries: Array, keys: Array,
    pairs: Array, chunks: Chunks, shares: Shares, state: Array, dend: Array, dx: Array, ddt: Array, dweight: Array, dB: Array,
    dC: Array, dstate: Array, dA: Array, dD: Array,
) -> None:  # fmt: skip
    """Compute the gradients of every sequence and head.

    Args:
        x, dy: flat rows (T, H, P).   dt, weight: (T, H).   A, D: (H,).   queries, keys, pairs: as from `grid.spread`.
        chunks: `Chunks`.   shares: `Shares`.
        state, dend: (S, H, P, N), or (0, ...) for zeros.
        dx: out (T, H, P).   ddt, dweight: out (T, H).   dstate: out (S, H, P, N).   dA, dD: (shares, H), zeros, added to.
        dB, dC: out (splits, K, G, Q, N padded), one part per range of heads.
    """
    splits, share_heads, share_first, share_order = shares  # outside the loop, which then takes plain arrays
    of_sequence, _, starts, sizes = chunks
    _, H, P, N = dstate.shape
    chunk, width = keys.shape[2], keys.shape[3]
    columns = round_up(P, LANES)
    per_group = H // keys.shape[1]
    most_chunks = 0
    for s in range(of_sequence.shape[0] - 1):
        most_chunks = max(most_chunks, of_sequence[s + 1] - of_sequence[s])
    for share in prange(share_heads.shape[0]):
        split = share % splits
        rows_of_p = np.zeros((4, chunk, columns), np.float32)
        u, gradient, scaled, du = rows_of_p[0], rows_of_p[1], rows_of_p[2], rows_of_p[3]
        turned, wide = np.zeros((columns, chunk), np.float32), np.zeros((chunk, width), np.float32)
        mix, weights, log = (
            np.zeros((chunk, chunk), np.float32),
            np.zeros((chunk, chunk), np.float32),
            np.zeros(chunk, np.float32),
        )
        dots = np.zeros((most_chunks, chunk), np.float32)
        S, Z, Z_turned = (
            np.zeros((columns, width), np.float32),
            np.zeros((columns, width), np.float32),
            np.zeros((width, columns), np.float32),
        )
        for i in range(share_first[share], share_first[share + 1]):
            s = share_order[i]
            first, last = of_sequence[s], of_sequence[s + 1]
            for h in range(share_heads[share, 0], share_heads[share, 1]):
                g = h // per_group
                keep = h > share_heads[share, 0] and h % per_group > 0  # this range has already written this group's dB and dC
                _start(state, s, h, S)
                for k in range(first, last):
                    t, size = starts[k], sizes[k]
                    rows = round_up(size, ROWS)
                    read_steps(x, x_row, h * P, dt, weight, h, A[h], t, size, rows, P, u, log)
                    _read_gradient(dy, dy_row, h * P, t, size, rows, P, gradient)
                    _first_chunk_pass(
                        queries[k, g],
                        keys[k, g],
                        size,
                        rows,
                        P,
                        log,
                        u,
                        gradient,
                        wide,
                        S,
                        keep,
                        dC[split, k, g],
                        dots[k - first],
                    )
                _start(dend, s, h, Z)
                r = 0.0
                for p in range(P):
                    for n in range(N):
                        r += np.float64(Z[p, n]) * np.float64(S[p, n])
                        Z_turned[n, p] = Z[p, n]
                for k in range(last - 1, first - 1, -1):
                    t, size = starts[k], sizes[k]
                    rows = round_up(size, ROWS)
                    read_steps(x, x_row, h * P, dt, weight, h, A[h], t, size, rows, P, u, log)
                    _read_gradient(dy, dy_row, h * P, t, size, rows, P, gradient)
                    _second_chunk_pass(
                        queries[k, g], keys[k, g], pairs[k, g], size, rows, P, N, log, u, gradient, turned, mix, weights,
                        scaled, du, Z, Z_turned, keep, dB[split, k, g], dC[split, k, g], dots[k - first],
                    )  # fmt: skip
                    r, more_A, more_D = _write(
                        x, x_row, dt, weight, h, A[h], D[h], t, size, gradient, du, dots[k - first], r, dx, ddt, dweight
                    )
                    dA[share, h] += more_A
                    dD[share, h] += more_D
                for p in range(P):
                    for n in range(N):
                        dstate[s, h, p, n] = Z[p, n]
