"""gated_rms_norm token by token and group by group: the definition that the other backends are tested against.

T tokens, C channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from runnel.ops.packed import accumulation_dtype


def gated_rms_norm_reference(y: Tensor, z: Tensor, weight: Tensor, eps: float, groups: int) -> Tensor:
    """See `runnel.ops.gated_rms_norm`."""
    dtype = accumulation_dtype(y)
    rows = []
    for t in range(y.shape[0]):
        gate = z[t].to(dtype)
        gated = y[t].to(dtype) * gate * torch.sigmoid(gate)
        parts = [part / torch.sqrt((part * part).mean() + eps) for part in gated.chunk(groups)]
        rows.append(torch.cat(parts) * weight.to(dtype))
    return torch.stack(rows).to(y.dtype) if rows else y.new_zeros(y.shape)
