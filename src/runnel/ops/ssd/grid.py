"""Copy B and C to the chunks of the ssd kernels, and gather their gradients.

T tokens, H heads, G groups, N state size, Q tokens per chunk, K chunks of all sequences together.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit, prange

from runnel.ops.numba_math import PARALLEL, Array, FlatRows, read_rows, rounded_for
from runnel.ops.packed import Chunks
from runnel.ops.simd import TILE_COLUMNS, TILE_ROWS, round_up
from runnel.ops.simd_tile import multiply

CHUNK = TILE_COLUMNS  # Q; a multiple of it. Longer chunks do more work inside, shorter ones access the state more often.


class ChunkPairs(NamedTuple):
    """B, C and their products on the chunk grid, fp32; without (K, G) of one chunk and group."""

    queries: Array  # (K, G, Q, N padded)
    keys: Array  # likewise
    pairs: Array  # (K, G, Q, Q), pairs[i, j] = C_i . B_j


@njit(inline="always")
def of_chunk(grid: ChunkPairs, k: int, g: int) -> ChunkPairs:
    """Return the part of chunk k and group g."""
    return ChunkPairs(grid.queries[k, g], grid.keys[k, g], grid.pairs[k, g])


@njit(**PARALLEL)
def spread(B: FlatRows, C: FlatRows, chunks: Chunks, width: int, out: ChunkPairs) -> None:
    """Put B, C and all products of a chunk's queries and keys on the chunk grid, with zeros in holes.

    Args:
        B, C: (T, G, N).   width: N.
    """
    (b_line, b_row), (c_line, c_row), (queries, keys, pairs) = B, C, out  # outside the loop, which then takes plain arrays
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
            multiply(pairs[k, g], queries[k, g], padded_width, 1, turned, rows, width, np.float32(0.0))


@njit(**PARALLEL)
def gather(by_split: Array, chunks: Chunks, heads_per_split: int, heads_per_group: int, out: Array) -> None:
    """Sum the contributions of the ranges of heads to each group and copy them from the grid. Overwrites by_split.

    Args:
        by_split: (splits, K, G, Q, N padded); a split's part of a group without heads of the split is not read.
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
