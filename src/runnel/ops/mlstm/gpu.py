"""mlstm in Triton kernels, chunkwise; fp32 arithmetic for fp32 and bf16 inputs. Needs Triton.

T tokens, S sequences, H heads, K key size, V value size, N chunks of all sequences together.

One pass over each sequence's chunks writes the state before every chunk, in parallel over sequences, heads and tiles of the
matrix C; a second pass computes the outputs of all chunks at once. The passes exchange N H (K V + K + 1) fp32 numbers.
The backward pass reruns the torch operations.

Source: Beck et al. 2025 (arXiv 2503.14376), section 2 (chunkwise form).
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from runnel.ops.mlstm import State
from runnel.ops.mlstm import gpu_kernels as kernels
from runnel.ops.mlstm.torch import mlstm_torch
from runnel.ops.packed import power_of_two
from runnel.ops.triton_launch import GpuChunks, on_device_of, rows, with_torch_backward

_CHUNK = 64
_TILE_K, _TILE_V = (16, 32), (32, 64)  # the smallest and the largest tile of C in a program; 64 of K spill registers
# With 16 columns a program that Triton 3.6 compiled for Hopper read beyond its shared memory.


def mlstm_gpu(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, cu: Tensor, state: State | None, eps: float
) -> tuple[Tensor, State]:
    """See `runnel.ops.mlstm`; cu (S+1,) int64 on the CPU."""

    def run(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        return _forward(q, k, v, i, f, cu, state, eps)

    def path(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        start = (state[0], state[1], state[2]) if state else None
        h, end = mlstm_torch(q, k, v, i, f, cu, start, eps)
        return h, *end

    h, C, n, m = with_torch_backward(run, path, q, k, v, i, f, *(state or ()))
    return h, (C, n, m)


def _forward(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, cu: Tensor, state: tuple[Tensor, ...], eps: float
) -> tuple[Tensor, ...]:
    """Return h and the end state. `state`: C, n and m, or nothing."""
    (_, heads, width), size, sequences, device = q.shape, v.shape[2], cu.numel() - 1, v.device
    h = torch.empty(v.shape, dtype=v.dtype, device=device)
    shapes = ((heads, width, size), (heads, width), (heads,))
    start = [part.detach().float().contiguous() for part in state] or [
        torch.zeros(sequences, *shape, device=device) for shape in shapes
    ]
    if not h.numel():
        return h, *(part.clone() for part in start)
    # A copy, because programs of other tiles may still read the start.
    end = [torch.empty(sequences, *shape, device=device) for shape in shapes]
    chunks = GpuChunks.of(cu, _CHUNK, device)
    entering = [torch.empty(chunks.count, *shape, device=device) for shape in shapes]
    bounds = ((_TILE_K, width), (_TILE_V, size))
    tile_k, tile_v = (min(most, power_of_two(length, least=least)) for (least, most), length in bounds)
    tiles = {"K": width, "V": size, "CHUNK": _CHUNK, "TILE_K": tile_k, "TILE_V": tile_v}
    gates = (*rows(i), *rows(f), chunks.table)
    with on_device_of(v):
        kernels.pass_states[(sequences * heads, triton.cdiv(width, tile_k), triton.cdiv(size, tile_v))](
            *rows(k), *rows(v), *gates, chunks.first, chunks.count, *start, *end, *entering, heads, **tiles,
            num_warps=8, num_stages=2,
        )  # fmt: skip
        # bf16 numbers fit into tf32, so their products are exact; other products take three tf32 products each.
        exact = "tf32" if v.dtype == torch.bfloat16 else "tf32x3"
        kernels.outputs[(chunks.count, heads, triton.cdiv(size, tile_v))](
            *rows(q), *rows(k), *rows(v), *gates, chunks.count, *entering, h, heads, eps, width**-0.5, **tiles,
            EXACT=exact, num_warps=8, num_stages=2,
        )  # fmt: skip
    return h, *end
