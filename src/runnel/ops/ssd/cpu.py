"""ssd (state space duality, the recurrence of Mamba-2) as compiled CPU kernels with a hand-written
backward; fp32 arithmetic for fp32 and bf16 inputs.

For training, and for any caller of `ssd`. Inference of the backbones has kernels of its own
(`ops.chunk_tiles`), because they read the projection's output in its dtype and are fused with the
rest of the block.

    T  tokens      Sq sequences      H  heads      P  head size      G  groups      N  state size
    Q  tokens of a chunk             K  chunks of all sequences together
    `padded`: a size rounded up to TILE_COLUMNS (`simd`)

In the code: `s` a sequence, `h` a head, `g` a group, `k` a chunk, `t` its first token, `size` its
tokens and `rows` these rounded up to TILE_ROWS; i and j tokens of a chunk; `m` the memory of a
share, `grid` the `ChunkPairs` of all chunks. `line` and `row` of
`FlatRows` are its memory and the distance between its rows.

The order of work, for both passes:

    spread      B, C and C B^T of all chunks -> `ChunkPairs`
    scan        forward: for each share, sequence, head and chunk `read_steps`, `_chunk`, `_write`
    scan_back   backward: for each share, sequence and head `_head`: `_first_chunk_pass` over the
                chunks in order, `_second_chunk_pass` and `_write_back` over the chunks from the
                last
    gather      sums the gradients of B and C of the ranges of heads

Forward. With c the inclusive sum of dt A inside a chunk, u = dt x, S the state before the chunk,
and S' the state after it:

    y_i = exp(c_i) S C_i + sum over j <= i of exp(c_i - c_j) (C_i . B_j) u_j
    S'  = exp(c_Q) S + sum over j of exp(c_Q - c_j) u_j B_j^T

Backward. No states are stored: a first pass, forward in time, recomputes them, and a second pass,
backward in time, carries the gradient. With Z the gradient of the state after the chunk, Z' the
gradient of the state before it, L_ij = exp(c_i - c_j) for j <= i, W_ij = L_ij (dy_i . u_j) and
M_ij = L_ij (C_i . B_j):

    dC_i = exp(c_i) S^T dy_i                      in the first pass
           + sum over j of W_ij B_j               added in the second pass
    dB_j = exp(c_Q - c_j) Z^T u_j + sum over i of W_ij C_i
    du_j = exp(c_Q - c_j) Z B_j + sum over i of M_ij dy_i
    dx   = dt du + D dy
    Z'   = exp(c_Q) Z + sum over i of exp(c_i) dy_i C_i^T

The gradient r_t of the log decay dt_t A needs no state either. With y' = S C (y without D x), the
product <dS_t, S_t> splits in two ways, by the inputs of S_t and by its uses: r_t + u_t . du_t =
dy_t . y'_t + r_{t+1}. So r is a reverse running sum, kept in fp64 because its terms cancel; after
the last token it is <dS_end, S_end>. Then ddt = A r + x . du and dA = sum of dt r.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor
from torch.autograd.function import once_differentiable

from runnel.ops.chunks import Chunks, Shares
from runnel.ops.numba_math import (
    PARALLEL,
    SERIAL,
    Array,
    FlatRows,
    Number,
    as_array,
    as_f32,
    fast_exp,
    flat_rows,
    float_array,
    parallel,
    rounded_for,
)
from runnel.ops.simd import TILE_COLUMNS, TILE_ROWS, round_up
from runnel.ops.simd_tile import LOWER, UPPER, multiply, read_rows

# Q, a multiple of TILE_COLUMNS. Longer chunks do more work inside, shorter ones access the state
# more often.
CHUNK = TILE_COLUMNS
# The backward keeps one gradient of B and C per range of heads; more ranges would cost too much
# memory for the time gained.
_MOST_SPLITS = 8


class ChunkPairs(NamedTuple):
    """C, B and their products in chunks, fp32, zero in the holes of a sequence's last chunk. Of one
    chunk and group (`of_chunk`) the arrays have no dimensions K and G.
    """

    queries: Array  # (K, G, Q, N padded), C
    keys: Array  # (K, G, Q, N padded), B
    pairs: Array  # (K, G, Q, Q), pairs[i, j] = C_i . B_j


@njit(inline="always")
def of_chunk(grid: ChunkPairs, k: int, g: int) -> ChunkPairs:
    """Return the part of chunk k and group g."""
    return ChunkPairs(grid.queries[k, g], grid.keys[k, g], grid.pairs[k, g])


@njit(**PARALLEL)
def spread(B: FlatRows, C: FlatRows, chunks: Chunks, width: int, out: ChunkPairs) -> None:
    """Put B, C and all products of a chunk's queries and keys on the chunk grid, with zeros in
    holes.

    Args:
        B, C: (T, G, N).   width: N.
    """
    # outside the loop, which then takes plain arrays
    b_line, b_row = B
    c_line, c_row = C
    queries, keys, pairs = out
    _, groups, chunk, padded_width = keys.shape
    _, _, start, size = chunks
    for k in prange(start.shape[0]):
        turned = np.zeros((padded_width, chunk), np.float32)
        rows = round_up(size[k], TILE_ROWS)
        for g in range(groups):
            keys[k, g] = np.float32(0.0)
            queries[k, g] = np.float32(0.0)
            turned[:] = np.float32(0.0)
            read_rows(b_line, b_row, start[k], size[k], size[k], g * width, width, keys[k, g])
            read_rows(c_line, c_row, start[k], size[k], size[k], g * width, width, queries[k, g])
            for j in range(size[k]):
                for n in range(width):
                    turned[n, j] = keys[k, g, j, n]
            multiply(
                pairs[k, g], queries[k, g], padded_width, 1, turned, rows, width, np.float32(0.0)
            )


@njit(**PARALLEL)
def gather(
    by_split: Array, chunks: Chunks, heads_per_split: int, heads_per_group: int, out: Array
) -> None:
    """Sum the contributions of the ranges of heads to each group and copy them from the grid.
    Overwrites by_split.

    Args:
        by_split: (splits, K, G, Q, N padded); a split's part of a group without heads of the split
            is not read.
        out: (T, G, N) fp32 or bf16 bits.
    """
    _, groups, width = out.shape
    _, _, start, size = chunks
    for k in prange(start.shape[0]):
        for g in range(groups):
            from_split = (g * heads_per_group) // heads_per_split
            to_split = ((g + 1) * heads_per_group - 1) // heads_per_split + 1
            for j in range(size[k]):
                total = by_split[from_split, k, g, j]
                for split in range(from_split + 1, to_split):
                    for n in range(width):
                        total[n] += by_split[split, k, g, j, n]
                target = out[start[k] + j, g]
                for n in range(width):
                    target[n] = rounded_for(target, total[n])


class Inputs(NamedTuple):
    """The inputs other than B and C, which are in `ChunkPairs`. fp32, x fp32 or bf16 bits."""

    x: Array  # flat rows (T, H, P), see `flat_rows`
    x_row: int
    dt: Array  # (T, H)
    A: Array  # (H,)
    D: Array  # (H,)


class _Scratch(NamedTuple):
    """Memory of one share, fp32."""

    log: Array  # (Q,) c
    u: Array  # (Q, P padded)
    out: Array  # (Q, P padded): y without D x
    mix: Array  # (Q, Q)
    state: Array  # (N padded, P padded)


@njit(**SERIAL)
def read_steps(
    inputs: Inputs, h: int, t: int, size: int, rows: int, P: int, u: Array, log: Array
) -> None:
    """Compute u = dt * x and the summed log decay of one chunk of one head; zero and constant in
    the holes up to `rows`.
    """
    x, dt = inputs.x, inputs.dt
    A = inputs.A[h]
    total = np.float32(0.0)
    for j in range(size):
        factor = dt[t + j, h]
        total += factor * A
        log[j] = total
        at = (t + j) * inputs.x_row + h * P
        # a slice, because checking an index of unknown sign prevents vector loads
        source = x[at : at + P]
        for p in range(P):
            u[j, p] = factor * as_f32(source[p])
    for j in range(size, rows):
        log[j] = total
        u[j] = np.float32(0.0)


@njit(**SERIAL)
def decayed(pairs: Array, log: Array, rows: int, out: Array) -> None:
    """Set out[i, j] = exp(log_i - log_j) * pairs[i, j] where j <= i, else 0 (also where the
    exponential would overflow).
    """
    for i in range(rows):
        for j in range(rows):
            factor = fast_exp(min(log[i] - log[j], np.float32(0.0)))
            out[i, j] = factor * pairs[i, j] if j <= i else np.float32(0.0)


@njit(**SERIAL)
def _scale_rows(
    source: Array, rows: int, from_log: Array, sign: Number, offset: Number, out: Array
) -> None:
    """Set out[i] = exp(offset + sign * from_log[i]) * source[i]: with sign 1 and offset 0 decayed
    from the chunk's start, with sign -1 and offset c_Q decayed to its end.
    """
    for i in range(rows):
        factor = fast_exp(offset + sign * from_log[i])
        for p in range(source.shape[1]):
            out[i, p] = factor * source[i, p]


@njit(**SERIAL)
def _chunk(part: ChunkPairs, size: int, rows: int, N: int, m: _Scratch) -> None:
    """Compute y of one chunk into `m.out` and the state after it. Overwrites u.

    `multiply` takes the output, the left factor with the distances of its rows and columns, the
    right factor, the rows, the depth, and by what the old output is multiplied.
    """
    u, out, log = m.u, m.out, m.log
    width = part.keys.shape[1]
    zero = np.float32(0.0)
    unit = np.float32(1.0)
    total = log[size - 1]  # c_Q
    multiply(out, part.queries, width, 1, m.state, rows, N, zero)
    _scale_rows(out, rows, log, unit, zero, out)
    decayed(part.pairs, log, rows, m.mix)
    multiply(out, m.mix, m.mix.shape[1], 1, u, rows, rows, unit, LOWER)
    _scale_rows(u, size, log, -unit, total, u)
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
    P = y.shape[2]
    D = inputs.D[h]
    for j in range(size):
        at = (t + j) * inputs.x_row + h * P
        source = inputs.x[at : at + P]
        target = y[t + j, h]
        for p in range(P):
            target[p] = rounded_for(target, out[j, p] + D * as_f32(source[p]))


@njit(**SERIAL)
def start(source: Array, s: int, h: int, out: Array) -> None:
    """Set out (P padded, N padded) = source[s, h], or zeros if `source` has no rows. The forward
    pass keeps its state transposed and gives `out` as a transposed view.
    """
    out[:] = np.float32(0.0)
    if source.shape[0] > 0:
        for p in range(source.shape[2]):
            for n in range(source.shape[3]):
                out[p, n] = source[s, h, p, n]


@njit(**PARALLEL)
def scan(
    inputs: Inputs,
    grid: ChunkPairs,
    chunks: Chunks,
    shares: Shares,
    state: Array,
    y: Array,
    end: Array,
) -> None:
    """Run every sequence and head.

    Args:
        state: (Sq, H, P, N), or (0, ...) for zeros.
        y: (T, H, P), to be filled.
        end: (Sq, H, P, N), to be filled.
    """
    # outside the loop, which then takes plain arrays
    _, share_heads, share_first, share_order = shares
    of_sequence, _, starts, sizes = chunks
    _, H, P, N = end.shape
    per_group = H // grid.keys.shape[1]
    for share in prange(share_heads.shape[0]):
        m = _allocate(grid.keys.shape[2], round_up(P, TILE_COLUMNS), grid.keys.shape[3])
        for i in range(share_first[share], share_first[share + 1]):
            s = share_order[i]
            for h in range(share_heads[share, 0], share_heads[share, 1]):
                start(state, s, h, m.state.T)
                for k in range(of_sequence[s], of_sequence[s + 1]):
                    size = sizes[k]
                    t = starts[k]
                    rows = round_up(size, TILE_ROWS)
                    read_steps(inputs, h, t, size, rows, P, m.u, m.log)
                    _chunk(of_chunk(grid, k, h // per_group), size, rows, N, m)
                    _write(inputs, h, t, size, m.out, y)
                for p in range(P):
                    for n in range(N):
                        end[s, h, p, n] = m.state[n, p]


class Gradients(NamedTuple):
    """The gradients that `scan_back` writes; dB and dC as parts that `gather` sums."""

    dx: Array  # (T, H, P)
    ddt: Array  # (T, H)
    # (splits, K, G, Q, N padded), one part per range of heads; for a share without `splits`
    dB: Array
    dC: Array  # as dB
    dA: Array  # (shares, H), zeros at first, added to; for a share without `shares`
    dD: Array  # as dA
    dstate: Array  # (Sq, H, P, N)


class _Back(NamedTuple):
    """Memory of one share of the backward, fp32."""

    log: Array  # (Q,) c
    dots: Array  # (chunks of a sequence, Q): dy_i . y'_i
    u: Array  # (Q, P padded)
    gradient: Array  # (Q, P padded): dy
    scaled: Array  # (Q, P padded): u or dy times its decay
    du: Array  # (Q, P padded)
    turned: Array  # (P padded, Q): u
    wide: Array  # (Q, N padded): exp(c_i) S^T dy_i
    mix: Array  # (Q, Q): dy_i . u_j, then M
    weights: Array  # (Q, Q): W
    S: Array  # (P padded, N padded)
    Z: Array  # (P padded, N padded)
    Z_turned: Array  # (N padded, P padded): Z^T


@njit(inline="always")
def _allocate_back(chunks: int, chunk: int, columns: int, width: int) -> _Back:
    rows = np.zeros((4, chunk, columns), np.float32)
    states = np.zeros((2, columns, width), np.float32)
    squares = np.zeros((2, chunk, chunk), np.float32)
    return _Back(
        np.zeros(chunk, np.float32),
        np.zeros((chunks, chunk), np.float32),
        rows[0],
        rows[1],
        rows[2],
        rows[3],
        np.zeros((columns, chunk), np.float32),
        np.zeros((chunk, width), np.float32),
        squares[0],
        squares[1],
        states[0],
        states[1],
        np.zeros((width, columns), np.float32),
    )


@njit(**SERIAL)
def _read_chunk(inputs: Inputs, dy: FlatRows, h: int, t: int, size: int, P: int, m: _Back) -> int:
    """Read u, log and dy of one chunk of one head; return the number of its rows, with holes."""
    rows = round_up(size, TILE_ROWS)
    read_steps(inputs, h, t, size, rows, P, m.u, m.log)
    read_rows(dy.line, dy.distance, t, size, rows, h * P, P, m.gradient)
    return rows


@njit(**SERIAL)
def _first_chunk_pass(
    part: ChunkPairs, size: int, rows: int, P: int, keep: bool, dC: Array, dots: Array, m: _Back
) -> None:
    """Compute the first part of dC, dots_i = dy_i . y'_i of that part, and the state S after the
    chunk. Multiplies `u` and `gradient` by their decays. `keep`: add to dC, otherwise overwrite it.
    """
    queries, log, u, gradient, wide = part.queries, m.log, m.u, m.gradient, m.wide
    columns = u.shape[1]
    width = queries.shape[1]
    zero = np.float32(0.0)
    unit = np.float32(1.0)
    total = log[size - 1]
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
    part: ChunkPairs,
    size: int,
    rows: int,
    P: int,
    N: int,
    keep: bool,
    dB: Array,
    dC: Array,
    dots: Array,
    m: _Back,
) -> None:
    """Compute du, dB, the rest of dC and of `dots`, and the gradient Z, also transposed, of the
    state before the chunk. `keep`: add to dB, otherwise overwrite it.
    """
    (queries, keys, pairs), log, u, gradient = part, m.log, m.u, m.gradient
    turned, mix, weights, scaled, du = m.turned, m.mix, m.weights, m.scaled, m.du
    columns = u.shape[1]
    width = keys.shape[1]
    chunk = mix.shape[1]
    zero = np.float32(0.0)
    unit = np.float32(1.0)
    total = log[size - 1]
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
def _write_back(
    inputs: Inputs, h: int, t: int, size: int, dots: Array, r: float, m: _Back, out: Gradients
) -> tuple[float, float, float]:
    """Write dx and ddt of one chunk; return r at its first token, and its contributions to dA and
    dD.
    """
    (x, x_row, dt, _, _), dx, du, gradient = inputs, out.dx, m.du, m.gradient
    P = dx.shape[2]
    A = inputs.A[h]
    D = inputs.D[h]
    dA, dD = 0.0, 0.0
    for j in range(size - 1, -1, -1):
        step = dt[t + j, h]
        at = (t + j) * x_row + h * P
        x_du = np.float32(0.0)
        x_dy = np.float32(0.0)
        source = x[at : at + P]
        target = dx[t + j, h]
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
def _head(
    inputs: Inputs,
    dy: FlatRows,
    grid: ChunkPairs,
    chunks: Chunks,
    s: int,
    h: int,
    keep: bool,
    state: Array,
    dend: Array,
    out: Gradients,
    m: _Back,
) -> None:
    """Process one head of a sequence. `keep`: dB and dC have gradients of another head of the
    group, to which the gradients of this head are added.

    1. Recompute the states, forward in time (`_first_chunk_pass`).
    2. Begin with the gradient Z of the end state, and with r = <dS_end, S_end>.
    3. Carry Z and r backward in time, and write the gradients (`_second_chunk_pass`).
    """
    _, H, P, N = out.dstate.shape
    first = chunks.first[s]
    last = chunks.first[s + 1]
    g = h // (H // grid.keys.shape[1])
    S, Z, Z_turned = m.S, m.Z, m.Z_turned
    start(state, s, h, S)
    for k in range(first, last):
        size = chunks.size[k]
        rows = _read_chunk(inputs, dy, h, chunks.start[k], size, P, m)
        _first_chunk_pass(
            of_chunk(grid, k, g), size, rows, P, keep, out.dC[k, g], m.dots[k - first], m
        )
    start(dend, s, h, Z)
    r = 0.0
    for p in range(P):
        for n in range(N):
            r += np.float64(Z[p, n]) * np.float64(S[p, n])
            Z_turned[n, p] = Z[p, n]
    for k in range(last - 1, first - 1, -1):
        t = chunks.start[k]
        size = chunks.size[k]
        dots = m.dots[k - first]
        rows = _read_chunk(inputs, dy, h, t, size, P, m)
        _second_chunk_pass(
            of_chunk(grid, k, g), size, rows, P, N, keep, out.dB[k, g], out.dC[k, g], dots, m
        )
        r, more_A, more_D = _write_back(inputs, h, t, size, dots, r, m, out)
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
def scan_back(
    inputs: Inputs,
    dy: FlatRows,
    grid: ChunkPairs,
    chunks: Chunks,
    shares: Shares,
    state: Array,
    dend: Array,
    out: Gradients,
) -> None:
    """Compute the gradients of every sequence and head.

    Args:
        dy: (T, H, P).
        state, dend: (Sq, H, P, N), or (0, ...) for zeros.
    """
    # outside the loop, which then takes plain arrays
    splits, share_heads, share_first, share_order = shares
    per_group = out.dstate.shape[1] // grid.keys.shape[1]
    most_chunks = 0
    for s in range(chunks.first.shape[0] - 1):
        most_chunks = max(most_chunks, chunks.first[s + 1] - chunks.first[s])
    for share in prange(share_heads.shape[0]):
        m = _allocate_back(
            most_chunks,
            grid.keys.shape[2],
            round_up(out.dx.shape[2], TILE_COLUMNS),
            grid.keys.shape[3],
        )
        of_share = _of_share(out, share % splits, share)
        for i in range(share_first[share], share_first[share + 1]):
            s = share_order[i]
            for h in range(share_heads[share, 0], share_heads[share, 1]):
                # whether this range has already written this group's dB and dC: not at its own
                # first head, nor at the first head of a group
                keep = h > share_heads[share, 0] and h % per_group > 0
                _head(inputs, dy, grid, chunks, s, h, keep, state, dend, of_share, m)


class _SSD(torch.autograd.Function):
    """See `runnel.ops.ssd`; cu (Sq+1,) int64 on the CPU."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None,
        cu: Tensor,
        state: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        heads = x.shape[1]
        size = x.shape[2]
        width = B.shape[2]
        chunks = Chunks.of(cu.numpy(), CHUNK)
        y = torch.empty(x.shape, dtype=x.dtype)
        end = torch.empty(cu.numel() - 1, heads, size, width)
        shares = Shares.of(cu.diff().numpy(), heads, torch.get_num_threads(), heads)
        with parallel():
            scan(
                _inputs(x, dt, A, D), _spread(B, C, chunks), chunks, shares,
                float_array(state, 0, heads, size, width), as_array(y), as_array(end),
            )  # fmt: skip
        ctx.save_for_backward(x, dt, A, B, C, D, cu, state)
        ctx.set_materialize_grads(False)
        return y, end

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor | None, dend: Tensor | None) -> tuple[Tensor | None, ...]:
        x, dt, A, B, C, D, cu, state = ctx.saved_tensors
        heads = x.shape[1]
        size = x.shape[2]
        groups, width = B.shape[1:]
        sequences = cu.numel() - 1
        chunks = Chunks.of(cu.numpy(), CHUNK)
        shares = Shares.of(cu.diff().numpy(), heads, torch.get_num_threads(), _MOST_SPLITS)
        dx = torch.empty(x.shape, dtype=x.dtype)
        ddt = torch.empty(dt.shape)
        dB = torch.empty(B.shape, dtype=B.dtype)
        dC = torch.empty(C.shape, dtype=C.dtype)
        dstate = torch.empty(sequences, heads, size, width)
        sums = np.zeros((2, len(shares.heads), heads))  # dA and dD, one part per share
        by_split = [
            torch.empty(
                shares.splits, len(chunks.start), groups, CHUNK, round_up(width, TILE_COLUMNS)
            ).numpy()
            for _ in range(2)
        ]
        out = Gradients(
            as_array(dx),
            as_array(ddt),
            by_split[0],
            by_split[1],
            sums[0],
            sums[1],
            as_array(dstate),
        )
        with parallel():
            scan_back(
                _inputs(x, dt, A, D),
                flat_rows(torch.zeros_like(x) if dy is None else dy),
                _spread(B, C, chunks),
                chunks,
                shares,
                float_array(state, 0, heads, size, width),
                float_array(dend, 0, heads, size, width),
                out,
            )
            for part, total in zip(by_split, (dB, dC), strict=True):
                gather(part, chunks, heads // shares.splits, heads // groups, as_array(total))
        dA, dD = (torch.from_numpy(part.sum(0)) for part in sums)
        return (
            dx,
            ddt.to(dt.dtype),
            dA.to(A.dtype),
            dB,
            dC,
            None if D is None else dD.to(D.dtype),
            None,
            None if state is None else dstate.to(state.dtype),
        )


ssd_cpu = _SSD.apply


def _inputs(x: Tensor, dt: Tensor, A: Tensor, D: Tensor | None) -> Inputs:
    return Inputs(*flat_rows(x), float_array(dt), float_array(A), float_array(D, x.shape[1]))


def _spread(B: Tensor, C: Tensor, chunks: Chunks) -> ChunkPairs:
    """Return B, C and their products on the chunk grid."""
    groups, width = B.shape[1:]
    keys, queries = (
        torch.empty(len(chunks.start), groups, CHUNK, round_up(width, TILE_COLUMNS)).numpy()
        for _ in range(2)
    )
    out = ChunkPairs(queries, keys, torch.empty(len(chunks.start), groups, CHUNK, CHUNK).numpy())
    spread(flat_rows(B), flat_rows(C), chunks, width, out)
    return out
