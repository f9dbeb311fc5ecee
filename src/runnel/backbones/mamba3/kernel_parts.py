"""What the Mamba-3 kernels are given (sizes, weights, memory), and the pieces they are made of. Legend: `kernels`.

The pieces' arrays are pointers (see `simd`).
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from runnel.backbones.cpu_step import Floats, Indices, StepMemory
from runnel.ops.chunks import CHUNK
from runnel.ops.numba_math import SERIAL, Number, Pointer, cos_sin, sigmoid, softplus
from runnel.ops.simd import LANES, TILE_COLUMNS, add, fma, load, load_some, mul, number, round_up, shift, splat, store, total
from runnel.ops.simd_tile import store_up_to


class Shape(NamedTuple):
    """Sizes of a block, and how it is computed."""

    heads: int
    head_size: int
    groups: int
    state_size: int
    rank: int
    angles: int
    neighbors: bool  # the pairs of channels that are turned together: 2i and 2i + 1, or i and i + N/2
    out_norm: bool
    decay_floor: float
    norm_eps: float


class Weights(NamedTuple):
    """fp32 weights of one block, N padded to Np and P to Pp with zeros."""

    dt_bias: Floats  # (H,)
    D: Floats  # (H,)
    norms: Floats  # (2, Np): of B and C
    biases: Floats  # (2, H, R, Np): of k and q
    x: Floats  # (H, R, Pp): what x is multiplied with for each rank; 1 without mimo, as the next
    z: Floats  # (H, R, Pp)
    out: Floats  # (H, R, Pp): of the outputs of the ranks, times the weight of the norm before it


class Pools(NamedTuple):
    """The pool of states, fp32; Rp rows."""

    ssm: Floats  # (Rp, L, H, P, N)
    k: Floats  # (Rp, L, H, R, N)
    v: Floats  # (Rp, L, H, P)
    angle: Floats  # (Rp, L, H, A)


class Buffers(NamedTuple):
    """Memory of the kernels."""

    keys: Floats  # (T, 2, R, G, Np): B and C after their norms
    turns: Floats  # (T, A): half of tanh(angles)
    steps: Floats  # (3, T, H): dt, dt A, and the weight of a token's input at its own token
    sums: NDArray[np.float64]  # (workers, A): the turns so far
    scratch: Floats  # (workers, numbers of all fields of `Scratch`)
    starts: Indices  # of the fields
    tasks: Indices  # (1,) the next free head; zeroed by the caller


class Scratch(NamedTuple):
    """Pointers into the scratch of one worker; rows are those of one head's chunk."""

    q: Any  # (Q, Np) in the dtype of the projections
    k: Any  # (Q, Np) likewise
    k_words: Any  # (Q, Np) likewise, in words that join two rows
    products: Any  # (Q, Q): q k^T in panels
    mixed: Any  # (Q, Q) in the dtype of the projections
    v: Any  # (Q, Pp)
    y: Any  # (Q, Pp) in panels
    state: Any  # (Np, Pp) in panels
    cos: Any  # (Q, Ap)
    sin: Any  # (Q, Ap)
    sums: Any  # (Q,) of dt A so far in the chunk
    both: Any  # (Q,) the sum of both weights of a row's input
    own: Any  # (Q,) the first of them
    grown: Any  # (Q,)
    carried: Any  # (Q,)
    inverse: Any  # (Q,) of the root mean square of a rank's output
    row: Any  # (Np or Pp,)
    panel: Any  # as `scan_panel` needs it


@cache
def scratch_starts(s: Shape) -> Indices:
    """Return the first number of each field of `Scratch` in a worker's scratch, and the end of the last."""
    width, n, angles = round_up(s.head_size, TILE_COLUMNS), round_up(s.state_size, 2 * LANES), round_up(s.angles)
    sizes = [CHUNK * n] * 3 + [CHUNK * CHUNK] * 2 + [CHUNK * width] * 2 + [n * width] + [CHUNK * angles] * 2 + [CHUNK] * 6
    return np.cumsum([0, *sizes, max(n, width), (CHUNK + n) * (1 + TILE_COLUMNS)])


def allocate(memory: StepMemory, s: Shape, tokens: int, workers: int) -> Buffers:
    """Return buffers for a step of `tokens` tokens."""
    starts = scratch_starts(s)
    return Buffers(
        keys=memory.array("keys", tokens, 2, s.rank, s.groups, round_up(s.state_size, 2 * LANES)),
        turns=memory.array("turns", tokens, s.angles),
        steps=memory.array("steps", 3, tokens, s.heads),
        sums=np.zeros((workers, round_up(s.angles)), np.float64),
        scratch=memory.array("scratch", workers, int(starts[-1])),
        starts=starts,
        tasks=np.zeros(1, np.int64),
    )


ZERO, ONE = np.float32(0.0), np.float32(1.0)


@njit(**SERIAL)
def normalize(source: Pointer, n: int, padded: int, weight: Pointer, eps: Number, out: Pointer) -> None:
    """out (Np,) = source (N,) / rms * weight."""
    sums = splat(ZERO)
    for c in range(0, n, LANES):
        v = load_some(source, c, n - c)
        sums = fma(v, v, sums)
    inverse = splat(ONE / np.sqrt(total(sums) / np.float32(n) + eps))
    for c in range(0, padded, LANES):
        store(out, c, mul(mul(load_some(source, c, n - c), inverse), load(weight, c)))


@njit(**SERIAL)
def time_steps(source: Pointer, heads: int, bias: Pointer, floor: Number, dt: Pointer, log: Pointer, own: Pointer) -> None:
    """dt, dt A and trap dt of one token from its dt, A and trap, of all heads each."""
    for h in range(heads):
        step, a = softplus(number(source, h) + bias[h]), number(source, heads + h)
        dt[h] = step
        log[h] = -step * max(max(a, ZERO) + ONE / (ONE - min(a, ZERO)), floor)
        own[h] = step * sigmoid(number(source, 2 * heads + h))


@njit(**SERIAL)
def sum_turns(
    turns: Pointer, angles: int, dt: Pointer, heads: int, tokens: int, sums: Pointer, padded: int, cos: Pointer, sin: Pointer
) -> None:
    """Advance the sums of a head's turns by each token of a chunk; cosines and sines of all of them."""
    for t in range(tokens):
        step = dt[t * heads]
        for a in range(angles):
            so_far = sums[a] + np.float64(step * turns[t * angles + a])
            so_far -= np.rint(so_far)
            sums[a] = so_far
            cos[t * padded + a], sin[t * padded + a] = cos_sin(np.float32(so_far))


@njit(**SERIAL)
def turn(key: Pointer, bias: Pointer, cos: Pointer, sin: Pointer, s: Shape, padded: int, out: Pointer) -> None:
    """out = key + bias (Np,), with its first pairs of channels turned."""
    for c in range(0, padded, LANES):
        store(out, c, add(load(key, c), load(bias, c)))
    if s.neighbors:
        for i in range(s.angles):
            a, b = out[2 * i], out[2 * i + 1]
            out[2 * i], out[2 * i + 1] = a * cos[i] - b * sin[i], a * sin[i] + b * cos[i]
    else:
        other = shift(out, s.state_size // 2)
        for i in range(s.angles):
            a, b = out[i], other[i]
            out[i], other[i] = a * cos[i] - b * sin[i], a * sin[i] + b * cos[i]


@njit(**SERIAL)
def weigh(x: Pointer, stride: int, tokens: int, size: int, width: int, factors: Pointer, rank: int, out: Pointer) -> None:
    """out[t, r] = x[t] * factors[r], rows of Pp = `width` numbers."""
    for t in range(tokens):
        for c in range(0, width, LANES):
            v = load_some(x, t * stride + c, size - c)
            for r in range(rank):
                store(out, (t * rank + r) * width + c, mul(v, load(factors, r * width + c)))


@njit(**SERIAL)
def write(row: Pointer, size: int, out: Pointer) -> None:
    """Copy `size` numbers of fp32 memory to fp32 or bf16 memory."""
    for c in range(0, size, LANES):
        store_up_to(out, c, load(row, c), size - c)


@njit(**SERIAL)
def move(pool: Pointer, size: int, old: int, new: int, known: bool) -> None:
    """One head's part of a row of the pool, `size` numbers, to another row; zeros if it is not known."""
    source, target = shift(pool, old * size), shift(pool, new * size)
    for i in range(size):
        target[i] = source[i] if known else ZERO
