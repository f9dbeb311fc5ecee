"""Pieces of RWKV-7's kernels whose errors whole steps would hide; steps are compared in tests/contracts/test_backbones.py."""

import numpy as np
import pytest
import torch
from numba import njit
from torch import Tensor

from runnel.backbones.rwkv7 import kernels
from runnel.ops.int8_matmul import bytes_per_group
from runnel.ops.numba_math import SERIAL, as_array, parallel
from runnel.ops.simd import address, sigmoid
from runnel.ops.simd_tile import load_up_to, store_up_to

DTYPES = [torch.float32, torch.bfloat16]
TOKENS = kernels.ROWS + 1


def _numbers(x: Tensor, scale: Tensor, width: int) -> Tensor:
    """(T, width) fp32 of bytes x (T, G Kp) and scale (T, G)."""
    groups = scale.shape[1]
    return ((x.float() - 128).unflatten(1, (groups, -1))[..., : width // groups] * scale[..., None]).flatten(1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_squared_relu_equals_torch(dtype: torch.dtype) -> None:
    values = torch.cat([torch.linspace(-100, 100, 5000), torch.tensor([0.0, -1e30, 1e15, float("nan")])]).to(dtype)
    squared = values.clone()
    with parallel():
        kernels.square_relu(as_array(squared))
    assert torch.equal(squared.nan_to_num(-1), values.relu().square().nan_to_num(-1))


@pytest.mark.parametrize("dtype", DTYPES)
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


@njit(**SERIAL)
def _sixteen(x: np.ndarray, squashed: np.ndarray, gate: np.ndarray, decayed: np.ndarray) -> None:
    for i in range(0, len(x), 16):
        v = load_up_to(address(x), i, len(x) - i)
        store_up_to(address(squashed), i, kernels.tanh(v), len(x) - i)
        store_up_to(address(gate), i, sigmoid(v), len(x) - i)
        store_up_to(address(decayed), i, kernels.decay(sigmoid(v)), len(x) - i)


def test_functions_are_accurate() -> None:
    x = torch.cat([torch.linspace(-100, 100, 5001), torch.linspace(-1, 1, 5001), torch.tensor([-1e30, 1e30, float("nan")])])
    results = torch.empty(3, len(x))
    _sixteen(x.numpy(), *(row.numpy() for row in results))
    gate = x.double().sigmoid()
    for result, expected in zip(results, (x.double().tanh(), gate, (-np.exp(-0.5) * gate).exp()), strict=True):
        torch.testing.assert_close(result.double(), expected, atol=3e-7, rtol=0, equal_nan=True)
