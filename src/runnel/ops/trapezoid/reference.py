"""trapezoid as a loop over time: the definition that the other backends are tested against.

T tokens, S sequences, H heads, R inputs of a token, P head size, N state size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from runnel.ops.packed import accumulation_dtype, over_time
from runnel.ops.trapezoid import State


def trapezoid_reference(
    q: Tensor, k: Tensor, v: Tensor, dt: Tensor, A: Tensor, trap: Tensor, cu: Tensor, state: State | None
) -> tuple[Tensor, State]:
    """See `runnel.ops.trapezoid`; cu (S+1,) int64 on the CPU."""
    dtype, ((_, heads, rank, width), size) = accumulation_dtype(v), (q.shape, v.shape[3])

    def step(t: int, S: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        size, share, rate = (x[t].to(dtype)[:, None, None] for x in (dt, trap, A))
        decay = torch.exp(size * rate)
        S = decay * S + (1 - share) * size * decay * (value.transpose(1, 2) @ key)
        key, value = k[t].to(dtype), v[t].to(dtype)
        S = S + share * size * (value.transpose(1, 2) @ key)
        return q[t].to(dtype) @ S.transpose(1, 2), S, key, value

    y, S, key, value = over_time(step, cu, v, [(heads, size, width), (heads, rank, width), (heads, rank, size)], state)
    return y, (S, key, value)
