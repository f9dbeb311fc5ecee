"""The ssd backward kernel. It stores no states: one pass forward in time recomputes them, one backward carries the gradient.

T tokens, S sequences, H heads, P head size, G groups, N state size, Q tokens per chunk, K chunks.
With c the inclusive sum of dt*A inside a chunk, u = dt*x, S the state before the chunk, Z the gradient of the state after
it, L_ij = exp(c_i - c_j) for j <= i, W_ij = L_ij (dy_i . u_j) and M_ij = L_ij (C_i . B_j):
    dC_i = exp(c_i) S^T dy_i + sum over j of W_ij B_j                       (first pass, second pass)
    dB_j = exp(c_Q - c_j) Z^T u_j + sum over i of W_ij C_i
    du_j = exp(c_Q - c_j) Z B_j + sum over i of M_ij dy_i                   dx = dt du + D dy
    Z'   = exp(c_Q) Z + sum over i of exp(c_i) dy_i C_i^T                   (before the chunk)
The gradient r_t of the log decay dt_t A needs no state either. With y' = S C (without D), <dS_t, S_t> splits in two ways, by
the inputs of S_t and by its uses: r_t + u_t . du_t = dy_t . y'_t + r_{t+1}. So r is a reverse running sum, kept in fp64
because its terms cancel; after the last token it is <dS_end, S_end>. Then ddt = A r + x . du and dA = sum of dt r.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit, prange

from runnel.ops.chunks import Shares
from runnel.ops.numba_math import PARALLEL, SERIAL, Array, FlatRows, Number, as_f32, fast_exp, read_rows, rounded_for
from runnel.ops.packed import Chunks
from runnel.ops.simd import TILE_COLUMNS, TILE_ROWS, round_up
from runnel.ops.simd_tile import LOWER, UPPER, multiply
from runnel.ops.ssd.forward import Inputs, decayed, read_steps
from runnel.ops.ssd.grid import ChunkPairs, of_chunk


class Gradients(NamedTuple):
    """What the kernel writes."""

    dx: Array  # (T, H, P)
    ddt: Array  # (T, H)
    dB: Array  # (splits, K, G, Q, N padded), one part per range of heads; for a share without `splits`
    dC: Array  # likewise
    dA: Array  # (shares, H), zeros, added to; for a share without `shares`
    dD: Array  # likewise
    dstate: Array  # (S, H, P, N)


class _Scratch(NamedTuple):
    """Memory of one share, fp32."""

    log: Array  # (Q,) c
    dots: Array  # (chunks of a sequence, Q)
    u: Array  # (Q, P padded)
    gradient: Array  # likewise: dy
    scaled: Array  # likewise
    du: Array  # likewise
    turned: Array  # (P padded, Q): u
    wide: Array  # (Q, N padded)
    mix: Array  # (Q, Q)
    weights: Array  # (Q, Q): W
    S: Array  # (P padded, N padded)
    Z: Array  # likewise
    Z_turned: Array  # (N padded, P padded)


@njit(inline="always")
def _allocate(chunks: int, chunk: int, columns: int, width: int) -> _Scratch:
    rows = np.zeros((4, chunk, columns), np.float32)
    states, squares = np.zeros((2, columns, width), np.float32), np.zeros((2, chunk, chunk), np.float32)
    return _Scratch(
        np.zeros(chunk, np.float32), np.zeros((chunks, chunk), np.float32), rows[0], rows[1], rows[2], rows[3],
        np.zeros((columns, chunk), np.float32), np.zeros((chunk, width), np.float32), squares[0], squares[1],
        states[0], states[1], np.zeros((width, columns), np.float32),
    )  # fmt: skip


@njit(**SERIAL)
def _read_chunk(inputs: Inputs, dy: FlatRows, h: int, t: int, size: int, P: int, m: _Scratch) -> int:
    """Read u, log and dy of one chunk of one head; return the number of rows with holes."""
    rows = round_up(size, TILE_ROWS)
    read_steps(inputs, h, t, size, rows, P, m.u, m.log)
    read_rows(dy.line, dy.distance, t, size, rows, h * P, P, m.gradient)
    return rows


@njit(**SERIAL)
def _scale_rows(source: Array, rows: int, from_log: Array, sign: Number, offset: Number, out: Array) -> None:
    """Set out[i] = exp(offset + sign * from_log[i]) * source[i]."""
    for i in range(rows):
        factor = fast_exp(offset + sign * from_log[i])
        for p in range(source.shape[1]):
            out[i, p] = factor * source[i, p]


@njit(**SERIAL)
def _first_chunk_pass(part: ChunkPairs, size: int, rows: int, P: int, keep: bool, dC: Array, dots: Array, m: _Scratch) -> None:
    """Compute dC and dots_i = dy_i . y'_i from the state S, and S after the chunk. Scales u, gradient."""
    queries, log, u, gradient, wide = part.queries, m.log, m.u, m.gradient, m.wide
    columns, width = u.shape[1], queries.shape[1]
    zero, unit, total = np.float32(0.0), np.float32(1.0), log[size - 1]
    _scale_rows(gradient, rows, log, unit, zero, gradient)
    multiply(wide, gradient, columns, 1, m.S, rows, P, zero)
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
    _scale_rows(u, size, log, -unit, total, u)
    multiply(m.S, u, 1, columns, part.keys, columns, size, fast_exp(total))


@njit(**SERIAL)
def _second_chunk_pass(
    part: ChunkPairs, size: int, rows: int, P: int, N: int, keep: bool, dB: Array, dC: Array, dots: Array, m: _Scratch
) -> None:
    """Compute du, dB, the rest of dC and of `dots`, and the gradient Z (also transposed, N by P) before the chunk."""
    (queries, keys, pairs), log, u, gradient = part, m.log, m.u, m.gradient
    turned, mix, weights, scaled, du = m.turned, m.mix, m.weights, m.scaled, m.du
    columns, width, chunk = u.shape[1], keys.shape[1], mix.shape[1]
    zero, unit, total = np.float32(0.0), np.float32(1.0), log[size - 1]
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

    multiply(du, keys, width, 1, m.Z_turned, rows, N, zero)
    _scale_rows(du, rows, log, -unit, total, du)
    multiply(du, mix, 1, chunk, gradient, rows, rows, unit, UPPER)
    _scale_rows(u, rows, log, -unit, total, scaled)
    multiply(dB, scaled, columns, 1, m.Z, rows, P, unit if keep else zero)
    multiply(dB, weights, 1, chunk, queries, rows, rows, unit, UPPER)
    multiply(dC, weights, chunk, 1, keys, rows, rows, unit, LOWER)

    _scale_rows(gradient, rows, log, unit, zero, scaled)
    multiply(m.Z, scaled, 1, columns, queries, columns, size, fast_exp(total))
    multiply(m.Z_turned, queries, 1, width, scaled, width, size, fast_exp(total))


@njit(**SERIAL)
def _write(
    inputs: Inputs, h: int, t: int, size: int, dots: Array, r: float, m: _Scratch, out: Gradients
) -> tuple[float, float, float]:
    """Write dx and ddt of one chunk; return r at its first token, and its contributions to dA and dD."""
    (x, x_row, dt, _, _), dx, du, gradient = inputs, out.dx, m.du, m.gradient
    P, A, D = dx.shape[2], inputs.A[h], inputs.D[h]
    dA, dD = 0.0, 0.0
    for j in range(size - 1, -1, -1):
        step, at = dt[t + j, h], (t + j) * x_row + h * P
        x_du, x_dy = np.float32(0.0), np.float32(0.0)
        source, target = x[at : at + P], dx[t + j, h]
        for p in range(P):
            value = as_f32(source[p])
            x_du += value * du[j, p]
            x_dy += value * gradient[j, p]
        for p in range(P):
            target[p] = rounded_for(target, step * du[j, p] + D * gradient[j, p])
        r += np.float64(dots[j]) - np.float64(step) * np.float64(x_du)
        out.ddt[t + j, h] = A * np.float32(r) + x_du
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


@njit(**SERIAL)
def _head(
    inputs: Inputs, dy: FlatRows, grid: ChunkPairs, chunks: Chunks, s: int, h: int, keep: bool, state: Array, dend: Array,
    out: Gradients, m: _Scratch,
) -> None:  # fmt: skip
    """Process one head of a sequence; `keep`: dB and dC contain another head of the group."""
    _, H, P, N = out.dstate.shape
    first, last, g = chunks.first[s], chunks.first[s + 1], h // (H // grid.keys.shape[1])
    S, Z, Z_turned = m.S, m.Z, m.Z_turned
    _start(state, s, h, S)
    for k in range(first, last):
        size = chunks.size[k]
        rows = _read_chunk(inputs, dy, h, chunks.start[k], size, P, m)
        _first_chunk_pass(of_chunk(grid, k, g), size, rows, P, keep, out.dC[k, g], m.dots[k - first], m)
    _start(dend, s, h, Z)
    r = 0.0
    for p in range(P):
        for n in range(N):
            r += np.float64(Z[p, n]) * np.float64(S[p, n])
            Z_turned[n, p] = Z[p, n]
    for k in range(last - 1, first - 1, -1):
        t, size, dots = chunks.start[k], chunks.size[k], m.dots[k - first]
        rows = _read_chunk(inputs, dy, h, t, size, P, m)
        _second_chunk_pass(of_chunk(grid, k, g), size, rows, P, N, keep, out.dB[k, g], out.dC[k, g], dots, m)
        r, more_A, more_D = _write(inputs, h, t, size, dots, r, m, out)
        out.dA[h] += more_A
        out.dD[h] += more_D
    for p in range(P):
        for n in range(N):
            out.dstate[s, h, p, n] = Z[p, n]


@njit(inline="always")
def _of_share(out: Gradients, split: int, share: int) -> Gradients:
    dx, ddt, dB, dC, dA, dD, dstate = out
    return Gradients(dx, ddt, dB[split], dC[split], dA[share], dD[share], dstate)


@njit(**PARALLEL)
def scan(
    inputs: Inputs, dy: FlatRows, grid: ChunkPairs, chunks: Chunks, shares: Shares, state: Array, dend: Array, out: Gradients
) -> None:
    """Compute the gradients of every sequence and head.

    Args:
        dy: (T, H, P).   state, dend: (S, H, P, N), or (0, ...) for zeros.
    """
    splits, share_heads, share_first, share_order = shares  # outside the loop, which then takes plain arrays
    per_group = out.dstate.shape[1] // grid.keys.shape[1]
    most_chunks = 0
    for s in range(chunks.first.shape[0] - 1):
        most_chunks = max(most_chunks, chunks.first[s + 1] - chunks.first[s])
    for share in prange(share_heads.shape[0]):
        m = _allocate(most_chunks, grid.keys.shape[2], round_up(out.dx.shape[2], TILE_COLUMNS), grid.keys.shape[3])
        of_share = _of_share(out, share % splits, share)
        for i in range(share_first[share], share_first[share + 1]):
            s = share_order[i]
            for h in range(share_heads[share, 0], share_heads[share, 1]):
                keep = h > share_heads[share, 0] and h % per_group > 0  # this range has already written this group's dB and dC
                _head(inputs, dy, grid, chunks, s, h, keep, state, dend, of_share, m)
