"""gated_rms_norm over all tokens at once; differentiable, any device and dtype.

For each group of channels of a token, with v = y silu(z): v / sqrt(mean of v * v + eps) * weight.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from runnel.ops.packed import accumulation_dtype


def gated_rms_norm_torch(y: Tensor, z: Tensor, weight: Tensor, eps: float, groups: int) -> Tensor:
    """See `runnel.ops.gated_rms_norm`."""
    dtype = accumulation_dtype(y)
    tokens, channels = y.shape
    gated = (y.to(dtype) * F.silu(z.to(dtype))).view(tokens, groups, channels // groups)
    scale = torch.rsqrt(gated.square().mean(2, keepdim=True) + eps)
    return ((gated * scale).view(tokens, channels) * weight.to(dtype)).to(y.dtype)
