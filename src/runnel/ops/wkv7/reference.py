"""wkv7 as a loop over time: the definition that the other backends are tested against.

T tokens, S sequences, H heads, K key size, V value size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from runnel.ops.packed import accumulation_dtype, over_time


def wkv7_reference(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, cu: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """See `runnel.ops.wkv7`; cu (S+1,) int64 on the CPU."""
    dtype = accumulation_dtype(v)

    def step(t: int, S: Tensor) -> tuple[Tensor, Tensor]:
        query, log_decay, key, value, away, back = (x[t].to(dtype) for x in (r, w, k, v, a, b))
        removed = (away[:, :, None] * S).sum(1)  # (H, V), from the state before its decay
        S = torch.exp(log_decay)[:, :, None] * S + back[:, :, None] * removed[:, None] + key[:, :, None] * value[:, None]
        return (query[:, :, None] * S).sum(1), S

    o, end = over_time(step, cu, v, [(*k.shape[1:], v.shape[2])], None if state is None else [state])
    return o, end
