"""trapezoid by the kernels of ssd, forward and backward, in fp32.

A token of R inputs is R tokens of ssd, of which only the first decays. An input enters the state with the sum of its two weights;
what its own token then sees too much or too little is corrected.

T tokens, H heads, R inputs of a token.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from runnel.ops.packed import last_tokens
from runnel.ops.ssd.cpu import ssd_cpu
from runnel.ops.trapezoid.torch import State, start_state, weights


def trapezoid_cpu(
    q: Tensor, k: Tensor, v: Tensor, dt: Tensor, A: Tensor, trap: Tensor, cu: Tensor, state: State | None
) -> tuple[Tensor, State]:
    """See `runnel.ops.trapezoid`; cu (S+1,) int64 on the CPU."""
    tokens, heads, rank = q.shape[:3]
    query, key, value, dt = (x.float() for x in (q, k, v, dt))
    own, again, both = weights(dt, trap.float(), cu)
    S, key_before, value_before = start_state(cu, state, again, (*q.shape[1:], v.shape[3]))
    rows = [x.transpose(1, 2).flatten(0, 1) for x in (value, key, query)]  # (T R, H, ...)
    step = F.pad((-dt * A.float())[:, None], (0, 0, 0, rank - 1)).flatten(0, 1)
    y, S = ssd_cpu(rows[0], step, -torch.ones(heads), rows[1], rows[2], None, cu * rank, S, both.repeat_interleave(rank, 0))
    seen = own[..., None, None] - both[..., None, None] * torch.ones(rank, rank).tril()
    y = y.view(tokens, rank, heads, v.shape[3]).transpose(1, 2) + (query @ key.mT * seen) @ value
    return y.to(v.dtype), (S, last_tokens(key, cu, key_before), last_tokens(value, cu, value_before))
