"""What the RWKV-7 kernels are given (sizes, weights, blocks, memory), and the pieces they are made of. Legend: `kernels`.

The pieces' arrays are pointers or vectors (see `simd`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numba import njit
from torch import Tensor
from torch.nn import functional as F

from runnel.backbones.cpu_step import Floats, Indices, StepMemory
from runnel.ops.numba_math import SERIAL, Array, Number, Pointer, Vector, build_constant
from runnel.ops.simd import (
    LANES,
    TILE_COLUMNS,
    TILE_ROWS,
    VF32,
    add,
    address,
    build_call,
    build_polynomial,
    elementwise,
    fma,
    keep,
    load,
    mul,
    round_up,
    shift,
    sigmoid,
    splat,
    store,
    sub,
    total,
)
from runnel.ops.simd_tile import load_up_to, numbers_per_word, store_up_to, tile_product

BLOCK = 32  # tokens that a head advances at a time: their tiles and the state stay in cache
ROWS = 32  # tokens of one task of the token shift


class Shape(NamedTuple):
    """Sizes of a layer, and the eps of the norm of each head's output."""

    heads: int
    head_size: int
    eps: float


class HeadWeights(NamedTuple):
    """Small fp32 weights of one layer, (H, Np): every head padded with zeros."""

    w0: Floats
    a0: Floats
    v0: Floats  # of any content in the first layer
    k_k: Floats
    k_a: Floats
    r_k: Floats
    norm: Floats
    bias: Floats


class LowRank(NamedTuple):
    """The four low-rank pairs of a layer (v, w, a, g), as words for tile products: panels of TILE_COLUMNS rows of a matrix.

    Ranks are rounded up to whole panels and laid end to end, Rw together; v has rank 0 in the first layer.
    """

    down: Floats  # (Rw / TILE_COLUMNS, Dp / numbers per word, TILE_COLUMNS)
    up: Floats  # (H panels per head, Rw / numbers per word, TILE_COLUMNS)
    first: Indices  # (5,) the first panel of each pair, and their number


class ShiftWeights(NamedTuple):
    """A norm and the mixes that follow it, fp32, padded with zeros to Dp."""

    norm: Floats  # (Dp,)
    bias: Floats  # (Dp,)
    mixes: Floats  # (M, Dp)


class BlockPlan(NamedTuple):
    """A step's sequences, and where its blocks of ROWS tokens are."""

    cu_seqlens: Indices  # (S+1,)
    read_rows: Indices  # (S,), -1: start from zero
    write_rows: Indices  # (S,), -1: the end state is not wanted
    first: Indices  # (blocks,) which sequence a block's first token belongs to


class Buffers(NamedTuple):
    """Memory of the kernels."""

    before: Floats  # (at least blocks of ROWS tokens + S, Dp): the normed token before each block, and before each sequence
    scratch: Floats  # (workers, scratch_size)
    tasks: Indices  # (1,) the next free task; zeroed by the caller of a kernel


def pad_heads(weight: Floats, s: Shape) -> Floats:
    """(D,) or (H, N) -> (H, Np)."""
    out = np.zeros((s.heads, round_up(s.head_size)), np.float32)
    out[:, : s.head_size] = weight.reshape(s.heads, s.head_size)
    return out


def pad_columns(weight: Floats) -> Floats:
    """(..., D) -> (..., Dp)."""
    return np.pad(weight, [(0, 0)] * (weight.ndim - 1) + [(0, round_up(weight.shape[-1]) - weight.shape[-1])])


def plan_blocks(cu_seqlens: Indices, read_rows: Indices, write_rows: Indices) -> BlockPlan:
    """Return the plan of a step."""
    starts = np.arange(0, cu_seqlens[-1], ROWS)
    return BlockPlan(cu_seqlens, read_rows, write_rows, np.searchsorted(cu_seqlens, starts, side="right") - 1)


def pack_panels(matrix: Tensor) -> Floats:
    """(N, K) -> (N / TILE_COLUMNS, words of K, TILE_COLUMNS); N a multiple of TILE_COLUMNS, K of LANES."""
    step = 4 // matrix.dtype.itemsize
    panels = matrix.unflatten(1, (-1, step)).unflatten(0, (-1, TILE_COLUMNS)).transpose(1, 2).contiguous()
    words: Floats = panels.view(torch.float32).squeeze(-1).numpy()
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


def allocate(memory: StepMemory, s: Shape, rows: int, workers: int) -> Buffers:
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


# exp(-exp(-1/2) s) on 0 <= s <= 1 with a relative error of 8e-10, by reweighted least squares in fp64; highest power first.
_DECAY = (
    5.0913065242436106e-05,
    -0.0006597653386948565,
    0.005622414086831645,
    -0.03718246067029107,
    0.18393870495726966,
    -0.6065305930804197,
    0.9999999992704464,
)
ZERO, ONE = np.float32(0.0), np.float32(1.0)


def _build_squared_relu(builder: Any, x: Any) -> Any:
    zero = build_constant(VF32, 0.0)
    x = builder.select(builder.fcmp_ordered("<", x, zero), zero, x)  # NaN stays NaN
    return builder.fmul(x, x)


def _build_rsqrt(builder: Any, x: Any) -> Any:
    return builder.fdiv(build_constant(VF32, 1.0), build_call(builder, "llvm.sqrt.v16f32", VF32, [x]))


decay = elementwise(
    1, lambda builder, s: build_polynomial(builder, s, _DECAY), "exp(-exp(-1/2) s) for s in [0, 1], relative error below 2e-7"
)
squared_relu = elementwise(1, _build_squared_relu, "max(x, 0)^2")
rsqrt = elementwise(1, _build_rsqrt, "1 / sqrt(x)")


@njit(**SERIAL)
def tanh(x: Vector) -> Any:
    """Hyperbolic tangent, absolute error below 3e-7."""
    s = sigmoid(add(x, x))
    return add(add(s, s), splat(-ONE))


@njit(**SERIAL)
def norm_token(residual: Pointer, added: Pointer, width: int, w: ShiftWeights, eps: Number, out: Pointer, update: bool) -> None:
    """out = norm(residual + added); residual += added if `update`. Pointers to one token; `out` has Dp numbers."""
    sums = splat(ZERO)
    for c in range(0, width, LANES):
        v = add(load_up_to(residual, c, width - c), load_up_to(added, c, width - c))
        store(out, c, v)
        sums = add(sums, v)
    mean, squares = splat(total(sums) / np.float32(width)), splat(ZERO)
    for c in range(0, width, LANES):
        v = load(out, c)
        if update:
            store_up_to(residual, c, v, width - c)
        v = sub(v, mean)
        v = v if width - c >= LANES else keep(v, width - c)
        squares = fma(v, v, squares)
    factor = splat(np.float32(1.0) / np.sqrt(total(squares) / np.float32(width) + eps))
    for c in range(0, width, LANES):
        v = mul(sub(load(out, c), mean), factor)
        store(out, c, fma(v, load(address(w.norm), c), load(address(w.bias), c)))


@njit(**SERIAL)
def copy(source: Pointer, width: int, out: Pointer) -> None:
    """One row of fp32."""
    for c in range(0, width, LANES):
        store_up_to(out, c, load_up_to(source, c, width - c), width - c)


@njit(**SERIAL)
def start(pool: Array, layer: int, p: BlockPlan, s: int, before: Pointer) -> None:
    """What comes before a sequence, into the Dp numbers of `before`; an empty sequence's is also its end."""
    read_row, write_row, width = p.read_rows[s], p.write_rows[s], pool.shape[2]
    old = shift(address(pool), (max(read_row, 0) * pool.shape[1] + layer) * width)
    for c in range(0, width, LANES):
        store(before, c, load_up_to(old, c, width - c) if read_row >= 0 else splat(ZERO))
    if write_row >= 0 and p.cu_seqlens[s + 1] == p.cu_seqlens[s]:
        copy(before, width, shift(address(pool), (write_row * pool.shape[1] + layer) * width))


@njit(**SERIAL)
def mix(
    now: Pointer, before: Pointer, width: int, padded: int, mixes: Pointer, indices: tuple[int, ...], out: Pointer, size: int
) -> None:
    """out[m] = now + (before - now) * mixes[m] of one token; `size` numbers from one m to the next."""
    for c in range(0, width, LANES):
        x = load(now, c)
        step = sub(load(before, c), x)
        for m in range(len(indices)):
            store_up_to(out, m * size + c, fma(step, load(mixes, m * padded + c), x), width - c)


@njit(**SERIAL)
def project(mixed: Pointer, tokens: int, padded: int, low_rank: LowRank, stage: Pointer, out: Pointer, stride: int) -> None:
    """The low-rank activations of one block from its mixes for v, w, a and g, (4, ROWS, Dp) in the dtype of `out`."""
    step = numbers_per_word(out)
    depth = padded // step
    for part in range(4):
        left = shift(mixed, part * ROWS * depth)
        for panel in range(low_rank.first[part], low_rank.first[part + 1]):
            right = shift(address(low_rank.down), panel * depth * TILE_COLUMNS)
            for t in range(0, tokens, TILE_ROWS):
                tile_product(out, shift(stage, t * TILE_COLUMNS), stage, -1, shift(left, t * depth), depth, 1, right, depth)
            for i in range(0, tokens * TILE_COLUMNS, LANES):
                x = load(stage, i)
                if part == 1:
                    x = tanh(x)
                elif part == 3:
                    x = sigmoid(x)
                store(out, i // TILE_COLUMNS * stride + panel * TILE_COLUMNS + i % TILE_COLUMNS, x)
