"""The selective scan in Triton kernels, forward and backward; fp32 arithmetic for fp32 and bf16 inputs. Needs Triton.

T tokens, S sequences, Di channels, n state size, N chunks of all sequences together.

The recurrence is diagonal, so a chunk maps h0 to exp(A * sum of dt) h0 + added. One pass over all chunks at once computes
`added` and the sum, a short pass over each sequence's chunks the state before each chunk, and a second pass over all
chunks the outputs. The gradients of B and C are sums over channels in no fixed order, so their last bits vary from run to run.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from runnel.ops.packed import copy_state, power_of_two
from runnel.ops.selective_scan import gpu_kernels as kernels
from runnel.ops.triton_launch import GpuChunks, on_device_of, rows

_CHUNK, _CHANNELS = 128, 32  # tokens and channels per program
_SHORT = 32  # tokens per chunk of the backward pass, which holds all states of a chunk, in addition to one state per chunk
_PROGRAMS = 2048  # of the backward pass: enough for any GPU, few enough that their memory is small


def selective_scan_gpu(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, cu: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """See `runnel.ops.selective_scan`; cu (S+1,) int64 on the CPU."""
    out: tuple[Tensor, Tensor] = _Scan.apply(x, dt, A, B, C, D, cu, state)
    return out


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, cu: Tensor, state: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, dt, A, B, C, D, cu, state)
        ctx.set_materialize_grads(False)
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        end = copy_state(state, x.device, cu.numel() - 1, *A.shape)
        if not y.numel():
            return y, end
        chunks = GpuChunks.of(cu, _CHUNK, x.device)
        inputs, sizes = _inputs(x, dt, A, B, C)
        skip = None if D is None else D.detach().float().contiguous()
        with on_device_of(x):
            # If every sequence is one chunk, the states before the chunks are the start states.
            entering = _entering(inputs, sizes, chunks, end) if chunks.most > 1 else None
            grid = chunks.count, triton.cdiv(x.shape[1], _CHANNELS)
            kernels.outputs[grid](
                *inputs, chunks.table, chunks.first, chunks.count, entering, end, skip, y, **sizes,
                CHANNELS=_CHANNELS, HAS_SKIP=skip is not None, HAS_ENTERING=entering is not None, num_warps=1,
            )  # fmt: skip
        return y, end

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor | None, dend: Tensor | None) -> tuple[Tensor | None, ...]:
        x, dt, A, B, C, D, cu, state = ctx.saved_tensors
        sequences, n = cu.numel() - 1, A.shape[1]
        dy = torch.zeros(x.shape, dtype=x.dtype, device=x.device) if dy is None else dy
        dx, ddt = (torch.empty(x.shape, dtype=like.dtype, device=x.device) for like in (x, dt))
        dB, dC = torch.zeros(2, x.shape[0], n, device=x.device)
        dA = torch.zeros(sequences, *A.shape, device=x.device)
        dstate = torch.zeros(dA.shape, device=x.device) if dend is None else dend.detach().float().clone()
        if dx.numel():
            chunks = GpuChunks.of(cu, _SHORT, x.device)
            inputs, sizes = _inputs(x, dt, A, B, C)
            skip = None if D is None else D.detach().float().contiguous()
            programs = min(_PROGRAMS, sequences * triton.cdiv(x.shape[1], _CHANNELS))
            room = torch.empty(programs, _SHORT, _CHANNELS, sizes["BLOCK"], device=x.device)
            with on_device_of(x):
                entering = _entering(inputs, sizes, chunks, copy_state(state, x.device, sequences, *A.shape))
                kernels.backward[(programs,)](
                    *inputs, *rows(dy), chunks.table, chunks.first, chunks.count, sequences, entering, skip, room,
                    dx, ddt, dA, dB, dC, dstate, **sizes, CHANNELS=_CHANNELS, TOKENS=_SHORT, HAS_SKIP=skip is not None,
                    num_warps=1,
                )  # fmt: skip
        dD = None if D is None else (dy.float() * x.float()).sum(0).to(D.dtype)
        dA, dB, dC = dA.sum(0).to(A.dtype), dB.to(B.dtype), dC.to(C.dtype)
        return dx, ddt, dA, dB, dC, dD, None, None if state is None else dstate.to(state.dtype)


def _inputs(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[tuple[Any, ...], dict[str, int]]:
    """Return the first arguments of the kernels, and their sizes."""
    arguments = (*rows(x), *rows(dt), A.detach().float().contiguous(), *rows(B), *rows(C))
    return arguments, {"channels": x.shape[1], "STATES": A.shape[1], "BLOCK": power_of_two(A.shape[1])}


def _entering(inputs: tuple[Any, ...], sizes: dict[str, int], chunks: GpuChunks, start: Tensor) -> Tensor:
    """Return the state (N, Di, n) before each chunk; start (S, Di, n)."""
    channels = sizes["channels"]
    states = torch.empty(chunks.count, *start.shape[1:], device=start.device)
    totals = torch.empty(chunks.count, channels, device=start.device)
    blocks = triton.cdiv(channels, _CHANNELS)
    kernels.chunk_sums[(chunks.count, blocks)](
        *inputs, chunks.table, chunks.count, states, totals, **sizes, CHANNELS=_CHANNELS, num_warps=1
    )  # fmt: skip
    kernels.join[(start.shape[0], blocks)](
        inputs[4], chunks.first, start, states, totals, **sizes, CHANNELS=_CHANNELS, num_warps=1
    )
    return states
