"""The ssd forward kernel: chunk by chunk, with the state of one head in cache.

T tokens, S sequences, H heads, P head size, G groups, N state size, Q tokens per chunk, K chunks.
With c the inclusive sum of dt*A inside a chunk, u = weight*x and S the state before it:
    y_i = exp(c_i) S C_i + sum over j <= i of exp(c_i - c_j) (C_i . B_j) u_j
    S'  = exp(c_Q) S + sum over j of exp(c_Q - c_j) u_j B_j^T                      (the state after it)
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from runnel.ops.chunks import Shares
from runnel.ops.numba_math import PARALLEL, SERIAL, Array, Number, as_f32, fast_exp, rounded_for
from runnel.ops.numba_matmul import LANES, LOWER, ROWS, multiply
from runnel.ops.packed import Chunks
from runnel.ops.simd import round_up


@njit(**SERIAL)
def read_steps(
    x: Array, x_row: int, x_at: int, dt: Array, weight: Array, h: int, A: Number, t: int, size: int, rows: int, P: int, u: Array,
    log: Array,
) -> None:  # fmt: skip
    """Compute u = weight * x and the summed log decay of one chunk of one head; zero and constant in the holes up to `rows`."""
    total = np.float32(0.0)
    for j in range(size):
        factor = weight[t + j, h]
        total += dt[t + j, h] * A
        log[j] = total
        at = (t + j) * x_row + x_at
        source = x[at : at + P]  # a slice, because checking an index of unknown sign prevents vector loads
        for p in range(P):
            u[j, p] = factor * as_f32(source[p])
    for j in range(size, rows):
        log[j] = total
        u[j] = np.float32(0.0)


@njit(**SERIAL)
def decayed(pairs: Array, log: Array, rows: int, out: Array) -> None:
    """Set out[i, j] = exp(log_i - log_j) * pairs[i, j] where j <= i, else 0 (also where the exponential would overflow)."""
    for i in range(rows):
        for j in range(rows):
            factor = fast_exp(min(log[i] - log[j], np.float32(0.0)))
            out[i, j] = factor * pairs[i, j] if j <= i else np.float32(0.0)


@njit(**SERIAL)
def _chunk(
    queries: Array, keys: Array, pairs: Array, size: int, rows: int, N: int, log: Array, u: Array, mix: Array, out: Array,
    state: Array,
) -> None:  # fmt: skip
    """Compute y of one chunk into `out` (without D) and the state (N padded, P padded) after it. Overwrites u."""
    columns = u.shape[1]
    width = keys.shape[1]
    multiply(out, queries, width, 1, state, rows, N, np.float32(0.0))
    for i in range(rows):
        factor = fast_exp(log[i])
        for p in range(columns):
            out[i, p] *= factor
    decayed(pairs, log, rows, mix)
    multiply(out, mix, mix.shape[1], 1, u, rows, rows, np.float32(1.0), LOWER)
    total = log[size - 1]
    for j in range(size):
        factor = fast_exp(total - log[j])
        for p in range(columns):
            u[j, p] *= factor
    multiply(state, keys, 1, width, u, width, size, fast_exp(total))


@njit(**PARALLEL)
def scan(
    x: Array, x_row: int, dt: Array, weight: Array, A: Array, D: Array, queries: Array, keys: Array, pairs: Array, chunks: Chunks,
    shares: Shares, state: Array, y: Array, end: Array,
) -> None:  # fmt: skip
    """Run every sequence and head.

    Args:
        x: flat rows (T, H, P).   dt: (T, H).   weight: (T, H), dt in Mamba-2.   A, D: (H,).
        queries, keys, pairs: as from `grid.spread`.
        chunks: `Chunks`.   shares: `Shares`.
        state: (S, H, P, N), or (0, ...) for zeros.   y: out, (T, H, P).   end: out, (S, H, P, N).
    """
    _, share_heads, share_first, share_order = shares  # outside the loop, which then takes plain arrays
    of_sequence, _, starts, sizes = chunks
    _, H, P, N = end.shape
    chunk, padded_width = keys.shape[2], keys.shape[3]
    padded_size = round_up(P, LANES)
    per_group = H // keys.shape[1]
    for share in prange(share_heads.shape[0]):
        u, out = np.zeros((chunk, padded_size), np.float32), np.zeros((chunk, padded_size), np.float32)
        mix, log = np.zeros((chunk, chunk), np.float32), np.zeros(chunk, np.float32)
        S = np.zeros((padded_width, padded_size), np.float32)
        for i in range(share_first[share], share_first[share + 1]):
            s = share_order[i]
            for h in range(share_heads[share, 0], share_heads[share, 1]):
                g = h // per_group
                S[:] = np.float32(0.0)
                if state.shape[0] > 0:
                    for p in range(P):
                        for n in range(N):
                            S[n, p] = state[s, h, p, n]
                for k in range(of_sequence[s], of_sequence[s + 1]):
                    size, t = sizes[k], starts[k]
                    rows = round_up(size, ROWS)
                    read_steps(x, x_row, h * P, dt, weight, h, A[h], t, size, rows, P, u, log)
                    _chunk(queries[k, g], keys[k, g], pairs[k, g], size, rows, N, log, u, mix, out, S)
                    for j in range(size):
                        at = (t + j) * x_row + h * P
                        source, target = x[at : at + P], y[t + j, h]
                        for p in range(P):
                            target[p] = rounded_for(target, out[j, p] + D[h] * as_f32(source[p]))
                for p in range(P):
                    for n in range(N):
                        end[s, h, p, n] = S[n, p]
