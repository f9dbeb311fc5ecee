"""mlstm as a loop over time: the definition that the other backends are tested against.

T tokens, S sequences, H heads, K key size, V value size.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from runnel.ops.packed import accumulation_dtype


def mlstm_reference(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, cu: Tensor, state: tuple[Tensor, Tensor, Tensor] | None, eps: float
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """See `runnel.ops.mlstm`; cu (S+1,) int64 on the CPU."""
    dtype = accumulation_dtype(v)
    (_, heads, width), size = q.shape, v.shape[2]
    shapes = ((heads, width, size), (heads, width), (heads,))
    rows: list[Tensor] = []
    ends: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
    for s in range(cu.numel() - 1):
        start = [torch.zeros(shape, dtype=dtype, device=v.device) for shape in shapes]
        C, n, m = start if state is None else (part[s].to(dtype) for part in state)
        for t in range(int(cu[s]), int(cu[s + 1])):
            query, key, value = q[t].to(dtype) * width**-0.5, k[t].to(dtype), v[t].to(dtype)
            kept, entering = F.logsigmoid(f[t].to(dtype)) + m, i[t].to(dtype)
            m = torch.maximum(kept, entering)
            forget, write = torch.exp(kept - m)[:, None], torch.exp(entering - m)[:, None]
            C = forget[:, :, None] * C + (write * key)[:, :, None] * value[:, None, :]
            n = forget * n + write * key
            scale = torch.maximum((n * query).sum(1).abs(), torch.exp(-m)) + eps
            rows.append((C * query[:, :, None]).sum(1) / scale[:, None])
        for end, part in zip(ends, (C, n, m), strict=True):
            end.append(part)
    h = torch.stack(rows) if rows else v.new_zeros(v.shape)
    C, n, m = (
        torch.stack(end) if end else torch.zeros(0, *shape, dtype=dtype, device=v.device)
        for end, shape in zip(ends, shapes, strict=True)
    )
    return h.to(v.dtype), (C, n, m)
