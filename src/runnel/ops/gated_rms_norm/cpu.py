"""gated_rms_norm as compiled CPU kernels with a hand-written backward; fp32 arithmetic for fp32 and
bf16 inputs.

T  tokens      C  channels

For each group of channels of a token, with v = y silu(z) and s = 1 / sqrt(mean of v^2 + eps), the
output is v s weight. The gradients, with dout the gradient of the output and n = dout weight:

    dv = s (n - v s^2 mean(n v))
    dy = dv silu(z)
    dz = dv y silu'(z)
    dweight = sum over tokens of dout v s
"""

from typing import Any

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor
from torch.autograd.function import once_differentiable

from runnel.ops.numba_math import (
    PARALLEL,
    SERIAL,
    Array,
    FlatRows,
    Number,
    as_array,
    as_f32,
    flat_rows,
    float_array,
    parallel,
    rounded_for,
    silu,
    silu_grad,
)
from runnel.ops.simd import ceil_div

_ROWS = 32  # tokens per task: enough to outweigh its overhead, few enough for an even load


# Inner loops run over slices with plain indices: numba checks an index of unknown sign, which
# prevents vector loads.
@njit(**SERIAL)
def _gate(y: Array, z: Array, eps: Number, v: Array) -> Number:
    """Set v = y silu(z) for one group of one token; return 1 / rms."""
    size = v.shape[0]
    for c in range(size):
        v[c] = as_f32(y[c]) * silu(as_f32(z[c]))
    total = np.float32(0.0)
    for c in range(size):
        total += v[c] * v[c]
    return np.float32(1.0) / np.sqrt(total / np.float32(size) + eps)


@njit(**SERIAL)
def _group(rows: FlatRows, t: int, g: int, size: int) -> Array:
    """Return group g of token t."""
    at = t * rows.distance
    return rows.line[at + g * size : at + (g + 1) * size]


@njit(**PARALLEL)
def _normalize(
    y: FlatRows, z: FlatRows, weight: Array, eps: Number, groups: int, out: Array
) -> None:
    """Compute the norm. y, z, out: (T, C)."""
    tokens, channels = out.shape
    size = channels // groups
    for share in prange(ceil_div(tokens, _ROWS)):
        v = np.empty(size, np.float32)
        for t in range(share * _ROWS, min(tokens, (share + 1) * _ROWS)):
            for g in range(groups):
                scale = _gate(_group(y, t, g, size), _group(z, t, g, size), eps, v)
                weights = weight[g * size : (g + 1) * size]
                target = out[t, g * size : (g + 1) * size]
                for c in range(size):
                    target[c] = rounded_for(target, v[c] * scale * weights[c])


@njit(**SERIAL)
def _group_back(
    y: Array,
    z: Array,
    weight: Array,
    eps: Number,
    dout: Array,
    v: Array,
    dy: Array,
    dz: Array,
    dweight: Array,
) -> None:
    """Compute the gradients of one group of one token; add to dweight. v: scratch, the gated y."""
    size = v.shape[0]
    scale = _gate(y, z, eps, v)
    dot = np.float32(0.0)
    for c in range(size):
        dot += as_f32(dout[c]) * weight[c] * v[c]
    dot *= scale * scale / np.float32(size)  # for the gradient through the rms
    for c in range(size):
        dweight[c] += as_f32(dout[c]) * v[c] * scale
    for c in range(size):
        dv = scale * (as_f32(dout[c]) * weight[c] - v[c] * dot)
        gate = as_f32(z[c])
        dy[c] = rounded_for(dy, dv * silu(gate))
        dz[c] = rounded_for(dz, dv * as_f32(y[c]) * silu_grad(gate))


@njit(**PARALLEL)
def _normalize_back(
    y: FlatRows,
    z: FlatRows,
    weight: Array,
    eps: Number,
    groups: int,
    dout: FlatRows,
    dy: Array,
    dz: Array,
    dweight: Array,
) -> None:
    """Compute the gradients dy, dz (T, C), and dweight (shares, C), which is to be summed over
    shares, from y, z and dout (T, C).
    """
    tokens, channels = dy.shape
    size = channels // groups
    for share in prange(dweight.shape[0]):
        v = np.empty(size, np.float32)
        dweight[share] = np.float32(0.0)
        for t in range(share * _ROWS, min(tokens, (share + 1) * _ROWS)):
            for g in range(groups):
                at = g * size
                to = (g + 1) * size
                _group_back(
                    _group(y, t, g, size),
                    _group(z, t, g, size),
                    weight[at:to],
                    eps,
                    _group(dout, t, g, size),
                    v,
                    dy[t, at:to],
                    dz[t, at:to],
                    dweight[share, at:to],
                )


class _GatedNorm(torch.autograd.Function):
    """See `runnel.ops.gated_rms_norm`."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, z: Tensor, weight: Tensor, eps: float, groups: int) -> Tensor:
        out = torch.empty(y.shape, dtype=y.dtype)
        with parallel():
            _normalize(
                flat_rows(y),
                flat_rows(z),
                float_array(weight),
                np.float32(eps),
                groups,
                as_array(out),
            )
        ctx.save_for_backward(y, z, weight)
        ctx.eps, ctx.groups = eps, groups
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        y, z, weight = ctx.saved_tensors
        tokens, channels = y.shape
        dy = torch.empty(y.shape, dtype=y.dtype)
        dz = torch.empty(z.shape, dtype=z.dtype)
        dweight = torch.empty(ceil_div(tokens, _ROWS), channels)
        with parallel():
            _normalize_back(
                flat_rows(y),
                flat_rows(z),
                float_array(weight),
                np.float32(ctx.eps),
                ctx.groups,
                flat_rows(dout),
                as_array(dy),
                as_array(dz),
                as_array(dweight),
            )
        return dy, dz, dweight.sum(0, dtype=torch.float64).to(weight.dtype), None, None


gated_rms_norm_cpu = _GatedNorm.apply
