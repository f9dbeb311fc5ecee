"""Cut a step's sequences into chunks, for the CPU kernels of Mamba-2's and xLSTM's blocks.

S  sequences    C  chunks, of at most CHUNK tokens of one sequence
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from runnel.ops.simd import LANES

CHUNK = 64


class Plan(NamedTuple):
    """The positions of a step's chunks."""

    cu_seqlens: NDArray[np.int64]  # (S+1,)
    read_rows: NDArray[np.int64]  # (S,), -1: start from zero
    write_rows: NDArray[np.int64]  # (S,), -1: the end state is not kept
    first_chunk: NDArray[np.int64]  # (S+1,)
    sequence: NDArray[np.int64]  # (C,) the sequence of each chunk
    start: NDArray[np.int64]  # (C,) the first token of each chunk
    row: NDArray[np.int64]  # (C+1,) the first row of each chunk in the buffers, a multiple of 16


def plan_chunks(cu_seqlens: NDArray[np.int64], read_rows: NDArray[np.int64], write_rows: NDArray[np.int64]) -> Plan:
    """Return the chunks of the sequences of `cu_seqlens`."""
    lengths = np.diff(cu_seqlens)
    counts = -(-lengths // CHUNK)
    first = np.concatenate([[0], np.cumsum(counts)])
    sequence = np.repeat(np.arange(lengths.size), counts)
    offset = (np.arange(first[-1]) - first[sequence]) * CHUNK
    rows = -(-np.minimum(lengths[sequence] - offset, CHUNK) // LANES) * LANES
    row = np.concatenate([[0], np.cumsum(rows)])
    return Plan(cu_seqlens, read_rows, write_rows, first, sequence, cu_seqlens[sequence] + offset, row)
