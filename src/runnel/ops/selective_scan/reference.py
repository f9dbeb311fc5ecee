"""The selective scan as a loop over time: the definition that every other implementation is tested against.

S sequences, T tokens, Di channels, N state size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from runnel.ops.packed import accumulation_dtype


def selective_scan_reference(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, cu: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """See `runnel.ops.selective_scan`; cu (S+1,) int64 on the CPU."""
    dtype = accumulation_dtype(x)
    A, rows, ends = A.to(dtype), [], []
    for s in range(cu.numel() - 1):
        h = torch.zeros(A.shape, dtype=dtype, device=x.device) if state is None else state[s].to(dtype)  # (Di, N)
        for t in range(int(cu[s]), int(cu[s + 1])):
            step, value = dt[t].to(dtype), x[t].to(dtype)
            h = torch.exp(step[:, None] * A) * h + (step * value)[:, None] * B[t].to(dtype)
            y = (h * C[t].to(dtype)).sum(1)
            rows.append(y if D is None else y + D.to(dtype) * value)
        ends.append(h)
    y = torch.stack(rows) if rows else x.new_zeros(x.shape)
    end = torch.stack(ends) if ends else torch.zeros(0, *A.shape, dtype=dtype, device=x.device)
    return y.to(x.dtype), end
