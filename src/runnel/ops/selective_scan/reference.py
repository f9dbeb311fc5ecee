"""The selective scan as a loop over time: the definition that every other implementation is tested against.

S sequences, T tokens, Di channels, N state size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from runnel.ops.packed import accumulation_dtype, over_time


def selective_scan_reference(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, cu: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """See `runnel.ops.selective_scan`; cu (S+1,) int64 on the CPU."""
    dtype = accumulation_dtype(x)
    A = A.to(dtype)

    def step(t: int, h: Tensor) -> tuple[Tensor, Tensor]:  # h (Di, N)
        size, value = dt[t].to(dtype), x[t].to(dtype)
        h = torch.exp(size[:, None] * A) * h + (size * value)[:, None] * B[t].to(dtype)
        y = (h * C[t].to(dtype)).sum(1)
        return y if D is None else y + D.to(dtype) * value, h

    y, end = over_time(step, cu, x, [tuple(A.shape)], None if state is None else [state])
    return y, end
