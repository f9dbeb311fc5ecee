"""wkv7 as a loop over time: the definition that the other backends are tested against.

T tokens, S sequences, H heads, K key size, V value size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from runnel.ops.packed import accumulation_dtype


def wkv7_reference(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, cu: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """See `runnel.ops.wkv7`; cu (S+1,) int64 on the CPU."""
    dtype = accumulation_dtype(v)
    (_, heads, key_size), value_size = k.shape, v.shape[2]
    rows, ends = [], []
    for s in range(cu.numel() - 1):
        S = torch.zeros(heads, key_size, value_size, dtype=dtype, device=v.device) if state is None else state[s].to(dtype)
        for t in range(int(cu[s]), int(cu[s + 1])):
            query, log_decay, key, value, away, back = (x[t].to(dtype) for x in (r, w, k, v, a, b))
            removed = (away[:, :, None] * S).sum(1)  # (H, V), from the state before its decay
            S = torch.exp(log_decay)[:, :, None] * S + back[:, :, None] * removed[:, None] + key[:, :, None] * value[:, None]
            rows.append((query[:, :, None] * S).sum(1))
        ends.append(S)
    o = torch.stack(rows) if rows else v.new_zeros(v.shape)
    end = torch.stack(ends) if ends else torch.zeros(0, heads, key_size, value_size, dtype=dtype, device=v.device)
    return o.to(v.dtype), end
