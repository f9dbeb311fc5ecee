"""Copy B and C to the chunks of the ssd kernels, and gather their gradients.

T tokens, H heads, G groups, N state size, Q tokens per chunk, K chunks of all sequences together.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from runnel.ops.numba_math import PARALLEL, Array, as_f32, rounded_for
from runnel.ops.numba_matmul import LANES, ROWS, multiply
from runnel.ops.packed import Chunks
from runnel.ops.simd import round_up

CHUNK = 2 * LANES  # Q; a multiple of LANES. Longer chunks do more work inside, shorter ones access the state more often.


@njit(**PARALLEL)
def spread(
    B: Array, B_row: int, C: Array, C_row: int, chunks: Chunks, width: int, keys: Array, queries: Array, pairs: Array
) -> None:
    """Put B, C and all products of a chunk's queries and keys on the chunk grid in fp32.

    Args:
        B, C: flat rows (T, G, N).   chunks: `Chunks`.   width: N.
        keys, queries: out, (K, G, Q, N padded), zero in holes.   pairs: out, (K, G, Q, Q), pairs[i, j] = C_i . B_j.
    """
    _, groups, chunk, padded_width = keys.shape
    _, _, start, size = chunks
    for k in prange(start.shape[0]):
        turned = np.zeros((padded_width, chunk), np.float32)
        rows = round_up(size[k], ROWS)
        for g in range(groups):
            keys[k, g] = np.float32(0.0)
            queries[k, g] = np.float32(0.0)
            turned[:] = np.float32(0.0)
            for j in range(size[k]):
                b_at, c_at = (start[k] + j) * B_row + g * width, (start[k] + j) * C_row + g * width
                key, query = B[b_at : b_at + width], C[c_at : c_at + width]
                for n in range(width):
                    keys[k, g, j, n] = as_f32(key[n])
                    queries[k, g, j, n] = as_f32(query[n])
                for n in range(width):
                    turned[n, j] = keys[k, g, j, n]
            multiply(pairs[k, g], queries[k, g], padded_width, 1, turned, rows, width, np.float32(0.0))


@njit(**PARALLEL)
def gather(parts: Array, chunks: Chunks, heads_per_split: int, heads_per_group: int, out: Array) -> None:
    """Sum the contributions of the ranges of heads to each group and copy them from the grid. Overwrites parts.

    Args:
        parts: (splits, K, G, Q, N padded); a split's part of a group without heads of the split is not read.
        out: (T, G, N) fp32 or bf16 bits.
    """
    _, groups, width = out.shape
    _, _, start, size = chunks
    for k in prange(start.shape[0]):
        for g in range(groups):
            from_split = (g * heads_per_group) // heads_per_split
            to_split = ((g + 1) * heads_per_group - 1) // heads_per_split + 1
            for j in range(size[k]):
                total = parts[from_split, k, g, j]
                for split in range(from_split + 1, to_split):
                    for n in range(width):
                        total[n] += parts[split, k, g, j, n]
                target = out[start[k] + j, g]
                for n in range(width):
                    target[n] = rounded_for(target, total[n])
