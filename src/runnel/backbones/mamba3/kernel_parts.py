"""The pieces of the fused Mamba-3 kernels; legend in `kernels`.

Arrays are pointers here (see `simd`).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from runnel.backbones.mamba3.kernel_plan import Shape
from runnel.ops.numba_math import SERIAL, Number, Pointer, cos_sin, sigmoid, softplus
from runnel.ops.simd import LANES, add, fma, load, load_some, mul, number, shift, splat, store, store_some, total

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
    whole = size - size % LANES  # apart, because a masked store of bf16 takes many times as long
    for c in range(0, whole, LANES):
        store(out, c, load(row, c))
    if whole < size:
        store_some(out, whole, load(row, whole), size - whole)


@njit(**SERIAL)
def move(pool: Pointer, size: int, old: int, new: int, known: bool) -> None:
    """One head's part of a row of the pool, `size` numbers, to another row; zeros if it is not known."""
    source, target = shift(pool, old * size), shift(pool, new * size)
    for i in range(size):
        target[i] = source[i] if known else ZERO
