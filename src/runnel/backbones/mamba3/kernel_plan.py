"""What the fused Mamba-3 kernels are given: shapes, weights and memory. Legend: `kernels`."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from runnel.backbones.cpu_step import Memory
from runnel.ops.chunks import CHUNK
from runnel.ops.simd import LANES, TILE_COLUMNS, round_up


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

    dt_bias: NDArray[np.float32]  # (H,)
    D: NDArray[np.float32]  # (H,)
    norms: NDArray[np.float32]  # (2, Np): of B and C
    biases: NDArray[np.float32]  # (2, H, R, Np): of k and q
    x: NDArray[np.float32]  # (H, R, Pp): what x is multiplied with for each rank; 1 without mimo, as the next
    z: NDArray[np.float32]  # (H, R, Pp)
    out: NDArray[np.float32]  # (H, R, Pp): of the outputs of the ranks, times the weight of the norm before it


class Pools(NamedTuple):
    """The pool of states, fp32; Rp rows."""

    ssm: NDArray[np.float32]  # (Rp, L, H, P, N)
    k: NDArray[np.float32]  # (Rp, L, H, R, N)
    v: NDArray[np.float32]  # (Rp, L, H, P)
    angle: NDArray[np.float32]  # (Rp, L, H, A)


class Buffers(NamedTuple):
    """Memory of the kernels."""

    keys: NDArray[np.float32]  # (T, 2, R, G, Np): B and C after their norms
    turns: NDArray[np.float32]  # (T, A): half of tanh(angles)
    steps: NDArray[np.float32]  # (3, T, H): dt, dt A, and the weight of a token's input at its own token
    sums: NDArray[np.float64]  # (workers, A): the turns so far
    scratch: NDArray[np.float32]  # (workers, numbers of all fields of `Scratch`)
    starts: NDArray[np.int64]  # of the fields
    tasks: NDArray[np.int64]  # (1,) the next free head; zeroed by the caller


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
def scratch_starts(s: Shape) -> NDArray[np.int64]:
    """Return the first number of each field of `Scratch` in a worker's scratch, and the end of the last."""
    width, n, angles = round_up(s.head_size, TILE_COLUMNS), round_up(s.state_size, 2 * LANES), round_up(s.angles)
    sizes = [CHUNK * n] * 3 + [CHUNK * CHUNK] * 2 + [CHUNK * width] * 2 + [n * width] + [CHUNK * angles] * 2 + [CHUNK] * 6
    return np.cumsum([0, *sizes, max(n, width), (CHUNK + n) * (1 + TILE_COLUMNS)])


def allocate(memory: Memory, s: Shape, tokens: int, workers: int) -> Buffers:
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
