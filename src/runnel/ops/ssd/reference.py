"""ssd as a loop over time: the definition that the other backends are tested against.

T tokens, S sequences, H heads, P head size, G groups, N state size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from runnel.ops.packed import accumulation_dtype


def ssd_reference(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, cu: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """See `runnel.ops.ssd`; cu (S+1,) int64 on the CPU."""
    dtype = accumulation_dtype(x)
    (_, heads, size), (groups, width) = x.shape, B.shape[1:]
    rows, ends = [], []
    for s in range(cu.numel() - 1):
        S = torch.zeros(heads, size, width, dtype=dtype, device=x.device) if state is None else state[s].to(dtype)
        for t in range(int(cu[s]), int(cu[s + 1])):
            step, value = dt[t].to(dtype), x[t].to(dtype)
            key = B[t].to(dtype).repeat_interleave(heads // groups, dim=0)  # (H, N)
            query = C[t].to(dtype).repeat_interleave(heads // groups, dim=0)
            decay = torch.exp(step * A.to(dtype))
            S = decay[:, None, None] * S + (step[:, None] * value)[:, :, None] * key[:, None, :]
            y = (S * query[:, None, :]).sum(2)
            rows.append(y if D is None else y + D.to(dtype)[:, None] * value)
        ends.append(S)
    y = torch.stack(rows) if rows else x.new_zeros(x.shape)
    end = torch.stack(ends) if ends else torch.zeros(0, heads, size, width, dtype=dtype, device=x.device)
    return y.to(x.dtype), end
