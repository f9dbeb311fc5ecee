"""How packed sequences are divided. Arrays only: imports neither torch nor numba.

    Chunks                  sequences cut into chunks, for kernels and for torch versions
    ChunkPlan, plan_chunks  the chunks of an engine's step (the next tokens of several texts), for
                            the fused kernels of Mamba-2 (`backbones/mamba2/kernels.py`)
    Shares                  the work of training kernels (`ssd`, `mlstm`), divided among threads

S  sequences      N  chunks of all sequences together

`cu` are cumulative lengths (S+1,): sequence s has the tokens cu[s] to cu[s + 1] - 1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

CHUNK = 64  # the most tokens of a chunk in CPU kernels; others give `Chunks.of` a number of theirs
# The products of a chunk read and write whole blocks of ROWS rows: `simd.BLOCK`, which needs
# numba.
ROWS = 32


class Chunks(NamedTuple):
    """Packed sequences cut into chunks. Each sequence starts a new chunk, so it gives the same
    result in any packing.
    """

    first: NDArray[np.int64]  # (S+1,) the first chunk of each sequence, and N
    sequence: NDArray[np.int64]  # (N,)
    start: NDArray[np.int64]  # (N,) the first token
    size: NDArray[np.int64]  # (N,) the number of tokens

    @classmethod
    def of(cls, cu: NDArray[np.int64], most: int) -> Chunks:
        """Cut sequences with cumulative lengths cu (S+1,) every `most` tokens."""
        counts = (np.diff(cu) + most - 1) // most
        first = np.concatenate([[0], np.cumsum(counts)])
        sequence = np.repeat(np.arange(counts.size), counts)
        start = cu[sequence] + (np.arange(first[-1]) - first[sequence]) * most
        return cls(first, sequence, start, np.minimum(cu[sequence + 1] - start, most))


class ChunkPlan(NamedTuple):
    """The chunks of a step: where their tokens are, where their sequences find states, and which
    rows of the kernels' buffers are theirs.
    """

    cu_seqlens: NDArray[np.int64]  # (S+1,)
    # (S,) the row of the state pool that a sequence starts from; -1: from zero
    read_rows: NDArray[np.int64]
    # (S,) the row of the state pool that its end state goes to; -1: it is not kept
    write_rows: NDArray[np.int64]
    first_chunk: NDArray[np.int64]  # (S+1,)
    sequence: NDArray[np.int64]  # (N,) the sequence of each chunk
    start: NDArray[np.int64]  # (N,) the first token of each chunk
    # (N+1,) the first row of each chunk in the kernels' buffers, which have a row for each token; a
    # multiple of `ROWS`, so that whole blocks fit
    row: NDArray[np.int64]


def plan_chunks(
    cu_seqlens: NDArray[np.int64], read_rows: NDArray[np.int64], write_rows: NDArray[np.int64]
) -> ChunkPlan:
    """Return the chunks of the sequences of `cu_seqlens`, with their states' rows (`ChunkPlan`)."""
    chunks = Chunks.of(cu_seqlens, CHUNK)
    row = np.concatenate([[0], np.cumsum((chunks.size + ROWS - 1) // ROWS * ROWS)])
    return ChunkPlan(
        cu_seqlens, read_rows, write_rows, chunks.first, chunks.sequence, chunks.start, row
    )


class Shares(NamedTuple):
    """The threads' shares of the pairs of a sequence and a head. Share i has the heads from
    heads[i, 0] to heads[i, 1] - 1 of the sequences order[first[i] : first[i + 1]].

    The heads are in `splits` equal ranges, the sequences in parts; a share is a range of a part. So
    4 heads, 3 sequences and 8 threads give 4 ranges of one head, 2 parts and 8 shares.
    """

    splits: int  # the number of ranges of heads; share i has range i % splits
    heads: np.ndarray  # (shares, 2)
    first: np.ndarray  # (shares + 1,)
    order: np.ndarray  # the sequences of each share; each sequence is in `splits` shares

    @staticmethod
    def of(lengths: np.ndarray, heads: int, threads: int, most_splits: int) -> Shares:
        """Divide the work equally among `threads`: first by heads, which is always even, then by
        sequences, longest first.

        Args:
            lengths: (S,) tokens of each sequence.
            heads: the number of heads.
            most_splits: the most ranges of heads.
        """
        # as many ranges as possible, then as many parts as give each thread a share
        splits = max(d for d in range(1, min(heads, threads, most_splits) + 1) if heads % d == 0)
        parts = max(1, min(len(lengths), (threads + splits - 1) // splits))
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
        return Shares(
            splits,
            np.array(ranges),
            np.concatenate([[0], np.cumsum(counts)]),
            np.array(order, np.int64),
        )
