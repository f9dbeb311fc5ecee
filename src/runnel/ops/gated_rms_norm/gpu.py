"""gated_rms_norm as one Triton kernel; fp32 arithmetic for fp32 and bf16 inputs. Needs Triton.

T tokens, C channels. One program per token and group. The backward pass uses the torch operations.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from runnel.ops.gated_rms_norm.torch import gated_rms_norm_torch
from runnel.ops.packed import power_of_two
from runnel.ops.triton_launch import on_device_of, rows, with_torch_backward
from runnel.ops.triton_math import silu


def gated_rms_norm_gpu(y: Tensor, z: Tensor, weight: Tensor, eps: float, groups: int) -> Tensor:
    """See `runnel.ops.gated_rms_norm`."""

    def run(y: Tensor, z: Tensor, weight: Tensor) -> tuple[Tensor]:
        out = torch.empty(y.shape, dtype=y.dtype, device=y.device)
        (y, y_row), (z, z_row), size = rows(y), rows(z), y.shape[1] // groups
        if out.numel():
            with on_device_of(y):
                _normalize[(y.shape[0], groups)](
                    y, y_row, z, z_row, weight.detach().float().contiguous(), out, out.shape[1], eps,
                    SIZE=size, BLOCK=power_of_two(size), num_warps=4 if size <= 2048 else 8,
                )  # fmt: skip
        return (out,)

    def path(y: Tensor, z: Tensor, weight: Tensor) -> tuple[Tensor]:
        return (gated_rms_norm_torch(y, z, weight, eps, groups),)

    return with_torch_backward(run, path, y, z, weight)[0]


@triton.jit
def _normalize(
    y: tensor, y_row: tensor, z: tensor, z_row: tensor, weight: tensor, out: tensor, channels: tensor, eps: tensor,
    SIZE: constexpr, BLOCK: constexpr,
) -> None:  # fmt: skip
    token, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place = tl.arange(0, BLOCK)
    channel, mask = group * SIZE + place, place < SIZE
    gate = tl.load(z + token * z_row + channel, mask=mask, other=0.0).to(tl.float32)
    value = tl.load(y + token * y_row + channel, mask=mask, other=0.0).to(tl.float32) * silu(gate)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, 0) / SIZE + eps)
    value = value * scale * tl.load(weight + channel, mask=mask, other=0.0)
    tl.store(out + token * channels + channel, value.to(out.dtype.element_ty), mask=mask)
