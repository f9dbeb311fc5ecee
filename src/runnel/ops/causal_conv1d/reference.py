"""causal_conv1d as a loop over sequences and tokens: the definition that the other backends are tested against.

T tokens, S sequences, C channels, w taps.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from runnel.ops.packed import accumulation_dtype


def causal_conv1d_reference(
    x: Tensor, weight: Tensor, bias: Tensor | None, cu: Tensor, state: Tensor | None, silu: bool
) -> tuple[Tensor, Tensor]:
    """See `runnel.ops.causal_conv1d`; cu (S+1,) int64 on the CPU."""
    dtype = accumulation_dtype(x)
    channels, width = weight.shape
    taps = weight.to(dtype)
    rows, ends = [], []
    for s in range(cu.numel() - 1):
        window = torch.zeros(channels, width - 1, dtype=dtype, device=x.device) if state is None else state[s].to(dtype)
        for t in range(int(cu[s]), int(cu[s + 1])):
            window = torch.cat([window, x[t].to(dtype)[:, None]], dim=1)  # (C, w)
            value = (window * taps).sum(1)
            if bias is not None:
                value = value + bias.to(dtype)
            rows.append(F.silu(value) if silu else value)
            window = window[:, 1:]
        ends.append(window)
    y = torch.stack(rows) if rows else x.new_zeros(0, channels)
    end = torch.stack(ends) if ends else torch.zeros(0, channels, width - 1, dtype=dtype, device=x.device)
    return y.to(x.dtype), end
