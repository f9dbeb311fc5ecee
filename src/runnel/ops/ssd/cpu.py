"""ssd as compiled CPU kernels with a hand-written backward; fp32 arithmetic for fp32 and bf16 inputs.

T tokens, S sequences, H heads, P head size, G groups, N state size, K chunks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from runnel.ops.chunks import Shares
from runnel.ops.numba_math import as_array, flat_rows, float_array, parallel
from runnel.ops.packed import Chunks
from runnel.ops.simd import TILE_COLUMNS, round_up
from runnel.ops.ssd import backward as kernels_backward
from runnel.ops.ssd import forward as kernels_forward
from runnel.ops.ssd.backward import Gradients
from runnel.ops.ssd.forward import Inputs
from runnel.ops.ssd.grid import CHUNK, ChunkPairs, gather, spread

# The backward keeps one gradient of B and C per range of heads; more ranges would cost too much memory for the time gained.
_MOST_SPLITS = 8


def ssd_cpu(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, cu: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """See `runnel.ops.ssd`; cu (S+1,) int64 on the CPU."""
    out: tuple[Tensor, Tensor] = _SSD.apply(x, dt, A, B, C, D, cu, state)
    return out


class _SSD(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, cu: Tensor, state: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        heads, size, width = x.shape[1], x.shape[2], B.shape[2]
        chunks = Chunks.of(cu.numpy(), CHUNK)
        y = torch.empty(x.shape, dtype=x.dtype)
        end = torch.empty(cu.numel() - 1, heads, size, width)
        shares = Shares.of(cu.diff().numpy(), heads, torch.get_num_threads(), heads)
        with parallel():
            kernels_forward.scan(
                _inputs(x, dt, A, D), _spread(B, C, chunks), chunks, shares,
                float_array(state, 0, heads, size, width), as_array(y), as_array(end),
            )  # fmt: skip
        ctx.save_for_backward(x, dt, A, B, C, D, cu, state)
        ctx.set_materialize_grads(False)
        return y, end

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor | None, dend: Tensor | None) -> tuple[Tensor | None, ...]:
        x, dt, A, B, C, D, cu, state = ctx.saved_tensors
        heads, size, (groups, width) = x.shape[1], x.shape[2], B.shape[1:]
        sequences = cu.numel() - 1
        chunks = Chunks.of(cu.numpy(), CHUNK)
        shares = Shares.of(cu.diff().numpy(), heads, torch.get_num_threads(), _MOST_SPLITS)
        dx, ddt = torch.empty(x.shape, dtype=x.dtype), torch.empty(dt.shape)
        dB, dC = torch.empty(B.shape, dtype=B.dtype), torch.empty(C.shape, dtype=C.dtype)
        dstate = torch.empty(sequences, heads, size, width)
        sums = np.zeros((2, len(shares.heads), heads))  # dA and dD, one part per share
        by_split = [
            torch.empty(shares.splits, len(chunks.start), groups, CHUNK, round_up(width, TILE_COLUMNS)).numpy() for _ in range(2)
        ]
        out = Gradients(as_array(dx), as_array(ddt), by_split[0], by_split[1], sums[0], sums[1], as_array(dstate))
        with parallel():
            kernels_backward.scan(
                _inputs(x, dt, A, D), flat_rows(torch.zeros_like(x) if dy is None else dy), _spread(B, C, chunks),
                chunks, shares, float_array(state, 0, heads, size, width), float_array(dend, 0, heads, size, width), out,
            )  # fmt: skip
            for part, total in zip(by_split, (dB, dC), strict=True):
                gather(part, chunks, heads // shares.splits, heads // groups, as_array(total))
        dA, dD = (torch.from_numpy(part.sum(0)) for part in sums)
        return (
            dx, ddt.to(dt.dtype), dA.to(A.dtype), dB, dC, None if D is None else dD.to(D.dtype), None,
            None if state is None else dstate.to(state.dtype),
        )  # fmt: skip


def _inputs(x: Tensor, dt: Tensor, A: Tensor, D: Tensor | None) -> Inputs:
    return Inputs(*flat_rows(x), float_array(dt), float_array(A), float_array(D, x.shape[1]))


def _spread(B: Tensor, C: Tensor, chunks: Chunks) -> ChunkPairs:
    """Return B, C and their products on the chunk grid."""
    groups, width = B.shape[1:]
    keys, queries = (torch.empty(len(chunks.start), groups, CHUNK, round_up(width, TILE_COLUMNS)).numpy() for _ in range(2))
    out = ChunkPairs(queries, keys, torch.empty(len(chunks.start), groups, CHUNK, CHUNK).numpy())
    spread(flat_rows(B), flat_rows(C), chunks, width, out)
    return out
