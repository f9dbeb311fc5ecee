"""Pieces of RWKV-7's kernels whose errors whole steps would hide; steps are compared in tests/contracts/test_backbones.py."""

import pytest
import torch
from torch import Tensor

from runnel.backbones.rwkv7 import kernels
from runnel.ops.int8_matmul import bytes_per_group
from runnel.ops.numba_math import as_array, parallel

TOKENS = kernels.ROWS + 1


def _numbers(x: Tensor, scale: Tensor, width: int) -> Tensor:
    """(T, width) fp32 of bytes x (T, G Kp) and scale (T, G)."""
    groups = scale.shape[1]
    return ((x.float() - 128).unflatten(1, (groups, -1))[..., : width // groups] * scale[..., None]).flatten(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("width", "groups"), [(256, 2), (50, 1), (1, 1), (12, 4)])
def test_squared_relu_in_8_bits(width: int, groups: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(TOKENS, width).to(dtype)
    x[3] = -1
    out = torch.zeros(len(x), groups * bytes_per_group(width, groups), dtype=torch.uint8)
    scales = torch.full((len(x), groups), float("nan"))
    with parallel():
        kernels.square_relu_bytes(as_array(x), out.numpy(), scales.numpy())
    exact = x.float().relu().square()
    largest = exact.unflatten(1, (groups, -1)).amax(-1, keepdim=True).expand(-1, -1, width // groups).flatten(1)
    assert ((_numbers(out, scales, width) - exact).abs() <= largest / 127 * 0.501).all()
