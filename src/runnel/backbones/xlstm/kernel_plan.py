"""What the fused mLSTM kernels are given: shapes, weights and memory. Legend: `kernels`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from runnel.backbones.cpu_step import Memory
from runnel.ops.chunks import CHUNK
from runnel.ops.simd import LANES, TILE_COLUMNS, TILE_ROWS, round_up

KERNELS = 2  # that take their tasks from a counter


class Shape(NamedTuple):
    """Sizes of a block, the gates' cap, and what the divisors of the output and of its norm get added."""

    heads: int
    key_size: int
    value_size: int
    gate_cap: float
    cell_eps: float
    norm_eps: float


class Weights(NamedTuple):
    """fp32 weights of one block."""

    gates: NDArray[np.float32]  # (panels, D, TILE_COLUMNS): input gates of all heads, then forget gates, times the norm's weight
    gate_bias: NDArray[np.float32]  # (2 H,)
    head_norm: NDArray[np.float32]  # (H V,)


class Buffers(NamedTuple):
    """Memory that the kernels share; rows are those of `ops.chunks.ChunkPlan.row`, with those of one head together."""

    gates: NDArray[np.float32]  # (panels, tokens rounded up, TILE_COLUMNS): capped input gates, then log sigmoid of forget gates
    q_words: NDArray[np.float32]  # (H * rows * Kp / numbers per word,): q, padded
    k_words: NDArray[np.float32]  # the same size: k, pairs of tokens in a word
    mixed: NDArray[np.float32]  # (H * rows * Q / numbers per word,): how much of v_j is in y_i
    grown: NDArray[np.float32]  # (H * rows,): how much of the state that enters a chunk is in y_i
    carried: NDArray[np.float32]  # (H * rows,): how much of k_j v_j^T is in the state that leaves the chunk
    inverse: NDArray[np.float32]  # (H * rows,): 1 / divisor of y_i
    decay: NDArray[np.float32]  # (H * rows / 16,): how much of the state that enters a chunk leaves it
    scratch: NDArray[np.float32]  # (workers, scratch_size)
    tasks: NDArray[np.int64]  # (KERNELS,) the next free task of each; zeroed by the caller


def gate_panels(heads: int) -> int:
    """Panels of TILE_COLUMNS columns that both gates of all heads take."""
    return -(-2 * heads // TILE_COLUMNS)


def pack_gates(weight: NDArray[np.float32], norm: NDArray[np.float32]) -> NDArray[np.float32]:
    """`Weights.gates` of weight (2 H, D) and the norm's weight (D,)."""
    panels = gate_panels(weight.shape[0] // 2)
    out = np.zeros((panels * TILE_COLUMNS, weight.shape[1]), np.float32)
    out[: weight.shape[0]] = weight * norm
    return np.ascontiguousarray(out.reshape(panels, TILE_COLUMNS, -1).transpose(0, 2, 1))


def allocate(memory: Memory, s: Shape, tokens: int, rows: int, per_word: int, workers: int) -> Buffers:
    """Return buffers for a step of `tokens` tokens whose plan has `rows` rows."""
    padded, steps = round_up(s.key_size, 2 * LANES), rows * s.heads
    return Buffers(
        gates=memory.array("gates", gate_panels(s.heads), round_up(tokens, TILE_ROWS), TILE_COLUMNS),
        q_words=memory.array("q_words", steps * padded // per_word),
        k_words=memory.array("k_words", steps * padded // per_word),
        mixed=memory.array("mixed", steps * CHUNK // per_word),
        grown=memory.array("grown", steps),
        carried=memory.array("carried", steps),
        inverse=memory.array("inverse", steps),
        decay=memory.array("decay", steps // LANES),
        scratch=memory.array("scratch", workers, scratch_size(s)),
        tasks=np.zeros(KERNELS, np.int64),
    )


def scratch_size(s: Shape) -> int:
    """fp32 numbers of scratch that one worker needs."""
    padded = round_up(s.key_size, 2 * LANES)
    prepare = 3 * CHUNK + padded + CHUNK * padded + padded * TILE_COLUMNS + CHUNK * CHUNK
    scan = CHUNK + padded + 3 * CHUNK * TILE_COLUMNS + 2 * padded * TILE_COLUMNS
    return round_up(max(prepare, scan), LANES) + LANES
