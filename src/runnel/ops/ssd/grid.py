"""Cut packed sequences into chunks and distribute them to threads, for the ssd kernels.

T tokens, S sequences, H heads, G groups, N state size, Q tokens per chunk, K chunks of all sequences together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit, prange

from runnel.ops.numba_math import PARALLEL, load, rounded_for
from runnel.ops.numba_matmul import LANES, ROWS, multiply

CHUNK = 2 * LANES  # Q; a multiple of LANES. Longer chunks do more work inside, shorter ones access the state more often.


@dataclass(frozen=True)
class Grid:
    """Chunks of packed sequences. None crosses a sequence's start, so a sequence has the same result in any packing."""

    start: np.ndarray  # (K,) first token of each chunk
    size: np.ndarray  # (K,) tokens of each chunk, 1 to Q
    of_sequence: np.ndarray  # (S+1,) first chunk of each sequence

    @staticmethod
    def of(cu: np.ndarray) -> Grid:
        """Return the chunks of sequences with cumulative lengths cu (S+1,)."""
        lengths = np.diff(cu)
        counts = -(-lengths // CHUNK)
        of_sequence = np.concatenate([[0], np.cumsum(counts)])
        within = np.arange(of_sequence[-1]) - np.repeat(of_sequence[:-1], counts)
        start = np.repeat(cu[:-1], counts) + within * CHUNK
        size = np.minimum(np.repeat(cu[1:], counts) - start, CHUNK)
        return Grid(start, size, of_sequence)


@dataclass(frozen=True)
class Shares:
    """The threads' shares: share i processes heads heads[i] of sequences order[first[i] : first[i+1]]."""

    splits: int  # ranges of heads; share i has range i % splits
    heads: np.ndarray  # (shares, 2) from, to
    first: np.ndarray  # (shares + 1,)
    order: np.ndarray  # sequences, once for every range of heads

    @staticmethod
    def of(lengths: np.ndarray, heads: int, threads: int, most_splits: int) -> Shares:
        """Divide the work equally among `threads`: first by heads, which is always even, then by sequences, longest first."""
        splits = max(d for d in range(1, min(heads, threads, most_splits) + 1) if heads % d == 0)
        parts = max(1, min(len(lengths), -(-threads // splits)))
        members: list[list[int]] = [[] for _ in range(parts)]
        load_of = np.zeros(parts, np.int64)
        for sequence in np.argsort(-lengths, kind="stable"):
            lightest = int(load_of.argmin())
            members[lightest].append(int(sequence))
            load_of[lightest] += lengths[sequence]
        order = [s for part in members for _ in range(splits) for s in part]
        counts = [len(part) for part in members for _ in range(splits)]
        size = heads // splits
        ranges = [(i * size, (i + 1) * size) for _ in members for i in range(splits)]
        return Shares(splits, np.array(ranges), np.concatenate([[0], np.cumsum(counts)]), np.array(order, np.int64))


@njit(**PARALLEL)
def spread(
    B: Any, B_row: int, C: Any, C_row: int, start: Any, size: Any, width: int, keys: Any, queries: Any, pairs: Any
) -> None:
    """Put B, C and all products of a chunk's queries and keys on the chunk grid in fp32.

    Args:
        B, C: flat rows (T, G, N).   width: N.
        keys, queries: out, (K, G, Q, N padded), zero in holes.   pairs: out, (K, G, Q, Q), pairs[i, j] = C_i . B_j.
    """
    _, groups, chunk, padded_width = keys.shape
    for k in prange(start.shape[0]):
        turned = np.zeros((padded_width, chunk), np.float32)
        rows = -(-size[k] // ROWS) * ROWS
        for g in range(groups):
            keys[k, g] = np.float32(0.0)
            queries[k, g] = np.float32(0.0)
            turned[:] = np.float32(0.0)
            for j in range(size[k]):
                b_at, c_at = (start[k] + j) * B_row + g * width, (start[k] + j) * C_row + g * width
                key, query = B[b_at : b_at + width], C[c_at : c_at + width]
                for n in range(width):
                    keys[k, g, j, n] = load(key[n])
                    queries[k, g, j, n] = load(query[n])
                for n in range(width):
                    turned[n, j] = keys[k, g, j, n]
            multiply(pairs[k, g], queries[k, g], padded_width, 1, turned, rows, width, np.float32(0.0))


@njit(**PARALLEL)
def gather(parts: Any, start: Any, size: Any, heads_per_split: int, heads_per_group: int, out: Any) -> None:
    """Sum the contributions of the ranges of heads to each group and copy them from the grid. Overwrites parts.

    Args:
        parts: (splits, K, G, Q, N padded); a split's part of a group without heads of the split is not read.
        out: (T, G, N) fp32 or bf16 bits.
    """
    _, groups, width = out.shape
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
