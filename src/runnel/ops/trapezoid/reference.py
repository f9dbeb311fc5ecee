"""trapezoid as a loop over time: the definition that the other backends are tested against.

T tokens, S sequences, H heads, R inputs of a token, P head size, N state size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from runnel.ops.packed import accumulation_dtype

State = tuple[Tensor, Tensor, Tensor]


def trapezoid_reference(
    q: Tensor, k: Tensor, v: Tensor, dt: Tensor, A: Tensor, trap: Tensor, cu: Tensor, state: State | None
) -> tuple[Tensor, State]:
    """See `runnel.ops.trapezoid`; cu (S+1,) int64 on the CPU."""
    dtype = accumulation_dtype(v)
    (_, heads, rank, width), size = q.shape, v.shape[3]
    shapes = ((heads, size, width), (heads, rank, width), (heads, rank, size))
    rows: list[Tensor] = []
    ends: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
    for s in range(cu.numel() - 1):
        start = [torch.zeros(shape, dtype=dtype, device=v.device) for shape in shapes]
        S, key, value = start if state is None else (part[s].to(dtype) for part in state)
        for t in range(int(cu[s]), int(cu[s + 1])):
            step, share = dt[t].to(dtype)[:, None, None], trap[t].to(dtype)[:, None, None]
            decay = torch.exp(step * A[t].to(dtype)[:, None, None])
            S = decay * S + (1 - share) * step * decay * (value.transpose(1, 2) @ key)
            key, value = k[t].to(dtype), v[t].to(dtype)
            S = S + share * step * (value.transpose(1, 2) @ key)
            rows.append(q[t].to(dtype) @ S.transpose(1, 2))
        for end, part in zip(ends, (S, key, value), strict=True):
            end.append(part)
    y = torch.stack(rows) if rows else v.new_zeros(v.shape)
    S, key, value = (
        torch.stack(end) if end else torch.zeros(0, *shape, dtype=dtype, device=v.device)
        for end, shape in zip(ends, shapes, strict=True)
    )
    return y.to(v.dtype), (S, key, value)
