"""The ssd forward kernel: chunk by chunk, with the state of one head in cache.

T tokens, S sequences, H heads, P head size, G groups, N state size, Q tokens per chunk, K chunks.
With c the inclusive sum of dt*A inside a chunk, u = dt*x and S the state before it:
    y_i = exp(c_i) S C_i + sum over j <= i of exp(c_i - c_j) (C_i . B_j) u_j
    S'  = exp(c_Q) S + sum over j of exp(c_Q - c_j) u_j B_j^T                      (the state after it)

For training, and for any caller of `ssd`: fp32, with a backward. Inference of the backbones has kernels of its own
(`ops.chunk_tiles`), because they read the projection's output in its dtype and are fused with the rest of the block.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit, prange

from runnel.ops.chunks import Shares
from runnel.ops.numba_math import PARALLEL, SERIAL, Array, as_f32, fast_exp, rounded_for
from runnel.ops.packed import Chunks
from runnel.ops.simd import TILE_COLUMNS, TILE_ROWS, round_up
from runnel.ops.simd_tile import LOWER, multiply
from runnel.ops.ssd.grid import ChunkPairs, of_chunk


class Inputs(NamedTuple):
    """The inputs of all heads that B and C are not part of; see `ChunkPairs`. fp32, x fp32 or bf16 bits."""

    x: Array  # flat rows (T, H, P), see `flat_rows`
    x_row: int
    dt: Array  # (T, H)
    A: Array  # (H,)
    D: Array  # (H,)


class _Scratch(NamedTuple):
    """Memory of one share, fp32."""

    log: Array  # (Q,) c
    u: Array  # (Q, P padded)
    out: Array  # likewise: y without D
    mix: Array  # (Q, Q)
    state: Array  # (N padded, P padded)


@njit(**SERIAL)
def read_steps(inputs: Inputs, h: int, t: int, size: int, rows: int, P: int, u: Array, log: Array) -> None:
    """Compute u = dt * x and the summed log decay of one chunk of one head; zero and constant in the holes up to `rows`."""
    x, dt, A = inputs.x, inputs.dt, inputs.A[h]
    total = np.float32(0.0)
    for j in range(size):
        factor = dt[t + j, h]
        total += factor * A
        log[j] = total
        at = (t + j) * inputs.x_row + h * P
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
def _chunk(part: ChunkPairs, size: int, rows: int, N: int, m: _Scratch) -> None:
    """Compute y of one chunk into `m.out` and the state after it. Overwrites u."""
    u, out, log = m.u, m.out, m.log
    columns = u.shape[1]
    width = part.keys.shape[1]
    multiply(out, part.queries, width, 1, m.state, rows, N, np.float32(0.0))
    for i in range(rows):
        factor = fast_exp(log[i])
        for p in range(columns):
            out[i, p] *= factor
    decayed(part.pairs, log, rows, m.mix)
    multiply(out, m.mix, m.mix.shape[1], 1, u, rows, rows, np.float32(1.0), LOWER)
    total = log[size - 1]
    for j in range(size):
        factor = fast_exp(total - log[j])
        for p in range(columns):
            u[j, p] *= factor
    multiply(m.state, part.keys, 1, width, u, width, size, fast_exp(total))


@njit(inline="always")
def _allocate(chunk: int, padded_size: int, padded_width: int) -> _Scratch:
    return _Scratch(
        np.zeros(chunk, np.float32),
        np.zeros((chunk, padded_size), np.float32),
        np.zeros((chunk, padded_size), np.float32),
        np.zeros((chunk, chunk), np.float32),
        np.zeros((padded_width, padded_size), np.float32),
    )


@njit(**SERIAL)
def _write(inputs: Inputs, h: int, t: int, size: int, out: Array, y: Array) -> None:
    """Write one chunk of y = out + D x."""
    P, D = y.shape[2], inputs.D[h]
    for j in range(size):
        at = (t + j) * inputs.x_row + h * P
        source, target = inputs.x[at : at + P], y[t + j, h]
        for p in range(P):
            target[p] = rounded_for(target, out[j, p] + D * as_f32(source[p]))


@njit(**SERIAL)
def _start(source: Array, s: int, h: int, out: Array) -> None:
    """Set out (N padded, P padded) to the transpose of source[s, h], or zeros if `source` has no rows."""
    out[:] = np.float32(0.0)
    if source.shape[0] > 0:
        for p in range(source.shape[2]):
            for n in range(source.shape[3]):
                out[n, p] = source[s, h, p, n]


@njit(**PARALLEL)
def scan(inputs: Inputs, grid: ChunkPairs, chunks: Chunks, shares: Shares, state: Array, y: Array, end: Array) -> None:
    """Run every sequence and head.

    Args:
        state: (S, H, P, N), or (0, ...) for zeros.   y: out, (T, H, P).   end: out, (S, H, P, N).
    """
    _, share_heads, share_first, share_order = shares  # outside the loop, which then takes plain arrays
    of_sequence, _, starts, sizes = chunks
    _, H, P, N = end.shape
    per_group = H // grid.keys.shape[1]
    for share in prange(share_heads.shape[0]):
        m = _allocate(grid.keys.shape[2], round_up(P, TILE_COLUMNS), grid.keys.shape[3])
        for i in range(share_first[share], share_first[share + 1]):
            s = share_order[i]
            for h in range(share_heads[share, 0], share_heads[share, 1]):
                _start(state, s, h, m.state)
                for k in range(of_sequence[s], of_sequence[s + 1]):
                    size, t = sizes[k], starts[k]
                    rows = round_up(size, TILE_ROWS)
                    read_steps(inputs, h, t, size, rows, P, m.u, m.log)
                    _chunk(of_chunk(grid, k, h // per_group), size, rows, N, m)
                    _write(inputs, h, t, size, m.out, y)
                for p in range(P):
                    for n in range(N):
                        end[s, h, p, n] = m.state[n, p]
