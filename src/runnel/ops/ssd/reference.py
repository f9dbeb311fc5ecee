"""ssd as a loop over time: the definition that the other backends are tested against.

T tokens, S sequences, H heads, P head size, G groups, N state size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from runnel.ops.packed import accumulation_dtype, over_time


def ssd_reference(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, cu: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """See `runnel.ops.ssd`; cu (S+1,) int64 on the CPU."""
    dtype, per_group = accumulation_dtype(x), x.shape[1] // B.shape[1]

    def step(t: int, S: Tensor) -> tuple[Tensor, Tensor]:
        size, value = dt[t].to(dtype), x[t].to(dtype)
        key, query = (part[t].to(dtype).repeat_interleave(per_group, dim=0) for part in (B, C))  # (H, N)
        decay = torch.exp(size * A.to(dtype))
        S = decay[:, None, None] * S + (size[:, None] * value)[:, :, None] * key[:, None, :]
        y = (S * query[:, None, :]).sum(2)
        return y if D is None else y + D.to(dtype)[:, None] * value, S

    y, end = over_time(step, cu, x, [(*x.shape[1:], B.shape[2])], None if state is None else [state])
    return y, end
