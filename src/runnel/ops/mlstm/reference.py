"""mlstm as a loop over time: the definition that the other backends are tested against.

T tokens, S sequences, H heads, K key size, V value size.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from runnel.ops.packed import accumulation_dtype, over_time


def mlstm_reference(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, cu: Tensor, state: tuple[Tensor, Tensor, Tensor] | None, eps: float
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """See `runnel.ops.mlstm`; cu (S+1,) int64 on the CPU."""
    dtype, ((_, heads, width), size) = accumulation_dtype(v), (q.shape, v.shape[2])

    def step(t: int, C: Tensor, n: Tensor, m: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        query, key, value = q[t].to(dtype) * width**-0.5, k[t].to(dtype), v[t].to(dtype)
        kept, entering = F.logsigmoid(f[t].to(dtype)) + m, i[t].to(dtype)
        m = torch.maximum(kept, entering)
        forget, write = torch.exp(kept - m)[:, None], torch.exp(entering - m)[:, None]
        C = forget[:, :, None] * C + (write * key)[:, :, None] * value[:, None, :]
        n = forget * n + write * key
        scale = torch.maximum((n * query).sum(1).abs(), torch.exp(-m)) + eps
        return (C * query[:, :, None]).sum(1) / scale[:, None], C, n, m

    h, C, n, m = over_time(step, cu, v, [(heads, width, size), (heads, width), (heads,)], state)
    return h, (C, n, m)
