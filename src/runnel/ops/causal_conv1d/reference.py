"""causal_conv1d as a loop over sequences and tokens: the definition that the other backends are tested against.

T tokens, S sequences, C channels, w taps.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from runnel.ops.packed import accumulation_dtype, over_time


def causal_conv1d_reference(
    x: Tensor, weight: Tensor, bias: Tensor | None, cu: Tensor, state: Tensor | None, silu: bool
) -> tuple[Tensor, Tensor]:
    """See `runnel.ops.causal_conv1d`; cu (S+1,) int64 on the CPU."""
    dtype, (channels, width) = accumulation_dtype(x), weight.shape

    def step(t: int, window: Tensor) -> tuple[Tensor, Tensor]:
        window = torch.cat([window, x[t].to(dtype)[:, None]], dim=1)  # (C, w)
        value = (window * weight.to(dtype)).sum(1)
        if bias is not None:
            value = value + bias.to(dtype)
        return F.silu(value) if silu else value, window[:, 1:]

    y, end = over_time(step, cu, x, [(channels, width - 1)], None if state is None else [state])
    return y, end
