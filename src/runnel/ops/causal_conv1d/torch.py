"""causal_conv1d as w shifted sums over all sequences at once; differentiable, any device and dtype.

T  tokens      S  sequences      C  channels      w  taps

    y[t, c] = silu(bias[c] + sum over k < w of weight[c, k] * x[t - (w-1) + k, c])

Before the start of a sequence, x comes from its state (S, C, w-1); `before` is w - 1.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from runnel.ops.packed import accumulation_dtype, sequence_of_token


def causal_conv1d_torch(
    x: Tensor, weight: Tensor, bias: Tensor | None, cu: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """See `runnel.ops.causal_conv1d`; cu (S+1,) int64 on the CPU."""
    dtype = accumulation_dtype(x)
    tokens, channels = x.shape
    sequences = cu.numel() - 1
    before = weight.shape[1] - 1
    # Put each sequence's state rows before its tokens: then every tap reads at a fixed distance.
    row = torch.arange(tokens) + (sequence_of_token(cu) + 1) * before
    first = cu[:-1] + torch.arange(sequences) * before
    state_row = first[:, None] + torch.arange(before)  # (S, w-1)
    extended = torch.zeros(tokens + sequences * before, channels, dtype=dtype, device=x.device)
    extended = extended.index_copy(0, row.to(x.device), x.to(dtype))
    if state is not None:
        extended = extended.index_copy(
            0,
            state_row.flatten().to(x.device),
            state.to(dtype).transpose(1, 2).reshape(-1, channels),
        )

    taps = weight.to(dtype)
    y = extended[row] * taps[:, before]
    for k in range(before):
        y = y + extended[row - before + k] * taps[:, k]
    if bias is not None:
        y = y + bias.to(dtype)
    end_row = state_row + cu.diff()[:, None]
    end = extended[end_row.flatten()].view(sequences, before, channels).transpose(1, 2).contiguous()
    return F.silu(y).to(x.dtype), end
