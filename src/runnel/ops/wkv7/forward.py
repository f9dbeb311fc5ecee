"""The wkv7 forward kernel: tiles of one head's tokens in fp32, and its state, in cache.

T tokens, S sequences, H heads, K key size, V value size (padded: to a multiple of 16), Q tokens per tile.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit, prange

from runnel.ops.chunks import Shares
from runnel.ops.numba_math import PARALLEL, SERIAL, Array, as_f32, fast_exp, rounded_for
from runnel.ops.simd import round_up
from runnel.ops.wkv7.lanes import advance

# Q. The backward keeps every Q-th state and, for one tile at a time, all Q states, which should fit the second-level cache.
CHUNK = 32


class Inputs(NamedTuple):
    """The inputs of all heads, fp32 or bf16 bits: memory and distance of flat rows (see `flat_rows`)."""

    r: Array  # (T, H, K), as the others but v
    r_row: int
    w: Array
    w_row: int
    k: Array
    k_row: int
    v: Array  # (T, H, V)
    v_row: int
    a: Array
    a_row: int
    b: Array
    b_row: int


@njit(**SERIAL)
def read(line: Array, row: int, at: int, t: int, count: int, size: int, out: Array) -> None:
    """Read columns at .. at + size - 1 of rows t .. t + count - 1 as fp32 into out (Q, >= size)."""
    for j in range(count):
        first = (t + j) * row + at
        source, target = line[first : first + size], out[j]
        for i in range(size):
            target[i] = as_f32(source[i])


@njit(**SERIAL)
def read_decay(line: Array, row: int, at: int, t: int, count: int, size: int, out: Array) -> None:
    """Run `read` and take the exp."""
    for j in range(count):
        first = (t + j) * row + at
        source, target = line[first : first + size], out[j]
        for i in range(size):
            target[i] = fast_exp(as_f32(source[i]))


@njit(**SERIAL)
def write(tile: Array, h: int, t: int, count: int, out: Array) -> None:
    """Write rows of a tile (Q, >= size) into out (T, H, size), rounded to its dtype."""
    for j in range(count):
        source, target = tile[j], out[t + j, h]
        for i in range(target.shape[0]):
            target[i] = rounded_for(target, source[i])


@njit(**SERIAL)
def read_tiles(inputs: Inputs, h: int, t: int, count: int, V: int, keys: Array, values: Array) -> None:
    """Read one tile of all inputs: r, the decay, k, a and b into keys (5, Q, K); v into values (Q, V padded)."""
    r, r_row, w, w_row, k, k_row, v, v_row, a, a_row, b, b_row = inputs
    K = keys.shape[2]
    read(r, r_row, h * K, t, count, K, keys[0])
    read_decay(w, w_row, h * K, t, count, K, keys[1])
    read(k, k_row, h * K, t, count, K, keys[2])
    read(a, a_row, h * K, t, count, K, keys[3])
    read(b, b_row, h * K, t, count, K, keys[4])
    read(v, v_row, h * V, t, count, V, values)


@njit(**SERIAL)
def copy(source: Array, columns: int, out: Array) -> None:
    """Copy the first columns of a matrix to another with as many rows."""
    for i in range(out.shape[0]):  # an assignment of slices would compile for seconds: its messages need strings
        row, target = source[i], out[i]
        for j in range(columns):
            target[j] = row[j]


@njit(**SERIAL)
def start(source: Array, s: int, h: int, out: Array) -> None:
    """Set out (K, V padded) = source[s, h], or zeros if `source` has no rows."""
    out[:] = np.float32(0.0)
    if source.shape[0] > 0:
        copy(source[s, h], source.shape[3], out)


@njit(**PARALLEL)
def scan(inputs: Inputs, cu: Array, shares: Shares, state: Array, o: Array, end: Array) -> None:
    """Run every sequence and head.

    Args:
        cu: (S+1,).   shares: `Shares`.
        state: (S, H, K, V), or (0, ...) for zeros.   o: out, (T, H, V).   end: out, (S, H, K, V).
    """
    _, share_heads, share_first, share_order = shares  # outside the loop, which then takes plain arrays
    _, _, K, V = end.shape
    width = round_up(V)
    for share in prange(share_heads.shape[0]):
        keys, values, out = (
            np.empty((5, CHUNK, K), np.float32),
            np.zeros((CHUNK, width), np.float32),
            np.empty((CHUNK, width), np.float32),
        )
        S = np.empty((K, width), np.float32)
        for i in range(share_first[share], share_first[share + 1]):
            s = share_order[i]
            for h in range(share_heads[share, 0], share_heads[share, 1]):
                start(state, s, h, S)
                for t in range(cu[s], cu[s + 1], CHUNK):
                    count = min(CHUNK, cu[s + 1] - t)
                    read_tiles(inputs, h, t, count, V, keys, values)
                    advance(S, keys[0], keys[1], keys[2], values, keys[3], keys[4], count, out)
                    write(out, h, t, count, o)
                copy(S, V, end[s, h])
