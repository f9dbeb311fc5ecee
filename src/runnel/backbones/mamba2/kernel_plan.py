"""What the fused Mamba-2 kernels are given: shapes, weights and memory. Legend: `kernels`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from runnel.backbones.cpu_step import Memory
from runnel.ops.chunks import CHUNK
from runnel.ops.simd import LANES, TILE_COLUMNS, round_up


class Shape(NamedTuple):
    """Sizes of a block, and the clamp of its time steps."""

    heads: int
    head_size: int
    groups: int
    state_size: int
    dt_min: float
    dt_max: float

    @property
    def inner(self) -> int:
        return self.heads * self.head_size


class Weights(NamedTuple):
    """fp32 weights of one block."""

    conv: NDArray[np.float32]  # (w+1, H Pp + 2 G Np): taps, then the bias; every head and group padded with zeros
    dt_bias: NDArray[np.float32]  # (H,)
    A: NDArray[np.float32]  # (H,), negative
    D: NDArray[np.float32]  # (H,)
    norm: NDArray[np.float32]  # (Di,)


class Buffers(NamedTuple):
    """Memory that the two kernels share; rows are those of `ops.chunks.ChunkPlan.row`."""

    b_words: NDArray[np.float32]  # (rows / numbers per word * G * Np,)
    c_words: NDArray[np.float32]  # (rows * G * Np / numbers per word,)
    products: NDArray[np.float32]  # (rows * G * Q,): C B^T in panels of TILE_COLUMNS
    dt: NDArray[np.float32]  # (H * rows,)
    sums: NDArray[np.float32]  # (H * rows,): c
    scratch: NDArray[np.float32]  # (workers, scratch_size)
    tasks: NDArray[np.int64]  # (2,) the next free task of each kernel; zeroed by the caller


def pad_conv(weight: NDArray[np.float32], bias: NDArray[np.float32], s: Shape) -> NDArray[np.float32]:
    """`Weights.conv` of weight (Cd, w) and bias (Cd,)."""
    width, n, inner = round_up(s.head_size, TILE_COLUMNS), round_up(s.state_size, 2 * LANES), s.heads * s.head_size
    rows = np.concatenate([weight.T, bias[None]])
    out = np.zeros((rows.shape[0], s.heads * width + 2 * s.groups * n), np.float32)
    out[:, : s.heads * width].reshape(-1, s.heads, width)[..., : s.head_size] = rows[:, :inner].reshape(-1, s.heads, s.head_size)
    shared = rows[:, inner:].reshape(-1, 2 * s.groups, s.state_size)
    out[:, s.heads * width :].reshape(-1, 2 * s.groups, n)[..., : s.state_size] = shared
    return out


def allocate(memory: Memory, s: Shape, conv_width: int, rows: int, per_word: int, workers: int) -> Buffers:
    """Return buffers for a plan of `rows` rows."""
    words, steps = rows * s.groups * round_up(s.state_size, 2 * LANES) // per_word, rows * s.heads
    return Buffers(
        b_words=memory.array("b_words", words),
        c_words=memory.array("c_words", words),
        products=memory.array("products", rows * s.groups * CHUNK),
        dt=memory.array("dt", steps),
        sums=memory.array("sums", steps),
        scratch=memory.array("scratch", workers, scratch_size(s, conv_width)),
        tasks=np.zeros(2, np.int64),
    )


def scratch_size(s: Shape, conv_width: int) -> int:
    """fp32 numbers of scratch that one worker needs."""
    width, n, back = round_up(s.head_size, TILE_COLUMNS), round_up(s.state_size, 2 * LANES), conv_width - 1
    prepare = 2 * CHUNK * n + CHUNK + max(back * n + CHUNK * LANES, n * TILE_COLUMNS)
    scan = (
        CHUNK * CHUNK + 3 * CHUNK + n + (CHUNK + n) * TILE_COLUMNS + 2 * CHUNK * width + width * n + back * width + CHUNK * LANES
    )
    return round_up(max(prepare, scan), 16) + 16
