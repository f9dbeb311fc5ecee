"""What the fused RWKV-7 kernels are given: sizes, small weights, a step's sequences and blocks, and memory. Legend: `kernels`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from runnel.backbones.cpu_step import Memory
from runnel.ops.simd import LANES, TILE_COLUMNS, round_up

BLOCK = 32  # tokens that a head advances at a time: their tiles and the state stay in cache
ROWS = 32  # tokens of one task of the token shift

_Floats = NDArray[np.float32]


class Shape(NamedTuple):
    """Sizes of a layer, and the eps of the norm of each head's output."""

    heads: int
    head_size: int
    eps: float


class HeadWeights(NamedTuple):
    """Small fp32 weights of one layer, (H, Np): every head padded with zeros."""

    w0: _Floats
    a0: _Floats
    v0: _Floats  # of any content in the first layer
    k_k: _Floats
    k_a: _Floats
    r_k: _Floats
    norm: _Floats
    bias: _Floats


class LowRank(NamedTuple):
    """The four low-rank pairs of a layer (v, w, a, g), as words for tile products: panels of TILE_COLUMNS rows of a matrix.

    Ranks are rounded up to whole panels and laid end to end, Rw together; v has rank 0 in the first layer.
    """

    down: _Floats  # (Rw / TILE_COLUMNS, Dp / numbers per word, TILE_COLUMNS)
    up: _Floats  # (H panels per head, Rw / numbers per word, TILE_COLUMNS)
    first: NDArray[np.int64]  # (5,) the first panel of each pair, and their number


class ShiftWeights(NamedTuple):
    """A norm and the mixes that follow it, fp32, padded with zeros to Dp."""

    norm: _Floats  # (Dp,)
    bias: _Floats  # (Dp,)
    mixes: _Floats  # (M, Dp)


class BlockPlan(NamedTuple):
    """A step's sequences."""

    cu_seqlens: NDArray[np.int64]  # (S+1,)
    read_rows: NDArray[np.int64]  # (S,), -1: start from zero
    write_rows: NDArray[np.int64]  # (S,), -1: the end state is not wanted
    first: NDArray[np.int64]  # (blocks of ROWS tokens,) which sequence a block's first token belongs to


class Buffers(NamedTuple):
    """Memory of the kernels."""

    before: _Floats  # (at least blocks of ROWS tokens + S, Dp): the normed token before each block, and before each sequence
    scratch: _Floats  # (workers, scratch_size)
    tasks: NDArray[np.int64]  # (1,) the next free task; zeroed by the caller of a kernel


def pad_heads(weight: _Floats, s: Shape) -> _Floats:
    """(D,) or (H, N) -> (H, Np)."""
    out = np.zeros((s.heads, round_up(s.head_size)), np.float32)
    out[:, : s.head_size] = weight.reshape(s.heads, s.head_size)
    return out


def pad_columns(weight: _Floats) -> _Floats:
    """(..., D) -> (..., Dp)."""
    return np.pad(weight, [(0, 0)] * (weight.ndim - 1) + [(0, round_up(weight.shape[-1]) - weight.shape[-1])])


def plan_step(cu_seqlens: NDArray[np.int64], read_rows: NDArray[np.int64], write_rows: NDArray[np.int64]) -> BlockPlan:
    """The plan of a step."""
    starts = np.arange(0, cu_seqlens[-1], ROWS)
    return BlockPlan(cu_seqlens, read_rows, write_rows, np.searchsorted(cu_seqlens, starts, side="right") - 1)


def pack_panels(matrix: Tensor) -> _Floats:
    """(N, K) -> (N / TILE_COLUMNS, words of K, TILE_COLUMNS); N a multiple of TILE_COLUMNS, K of LANES."""
    step = 4 // matrix.dtype.itemsize
    panels = matrix.unflatten(1, (-1, step)).unflatten(0, (-1, TILE_COLUMNS)).transpose(1, 2).contiguous()
    words: _Floats = panels.view(torch.float32).squeeze(-1).numpy()
    return words


def pack_low_rank(downs: list[Tensor], ups: list[Tensor], s: Shape) -> LowRank:
    """Of downs (rank, D) and ups (D, rank), all fp32 or all bf16, of v (absent in the first layer), w, a and g."""
    width, panel = s.heads * s.head_size, TILE_COLUMNS
    down = torch.cat([F.pad(t, (0, -width % LANES, 0, -len(t) % panel)) for t in downs])
    up = torch.cat([F.pad(t, (0, -t.shape[1] % panel)) for t in ups], 1)
    up = F.pad(up.unflatten(0, (s.heads, s.head_size)), (0, 0, 0, -s.head_size % panel)).flatten(0, 1)
    sizes = [round_up(len(t), panel) // panel for t in downs]
    first = np.cumsum([0] * (5 - len(sizes)) + sizes)
    return LowRank(pack_panels(down), pack_panels(up), first)


def allocate(memory: Memory, s: Shape, rows: int, workers: int) -> Buffers:
    """Return buffers for a plan whose blocks and sequences are together `rows`."""
    return Buffers(
        before=memory.array("before", rows, round_up(s.heads * s.head_size)),
        scratch=memory.array("scratch", workers, scratch_size(s)),
        tasks=np.zeros(1, np.int64),
    )


def scratch_size(s: Shape) -> int:
    """fp32 numbers of scratch that one worker needs, for a block of the shift or for a head."""
    width, size, wide = round_up(s.heads * s.head_size), round_up(s.head_size), round_up(s.head_size, TILE_COLUMNS)
    block = 5 * width + 4 * ROWS * width + ROWS * TILE_COLUMNS
    return round_up(max(block, size * size + BLOCK * (7 * size + 4 * wide + 2)), 16) + 16
