"""Pieces of kernels whose errors whole steps would hide; for steps see
tests/contracts/test_backbones.py.
"""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from runnel.backbones.encoder.kernels import (
    add_layer_norm,
    attend,
    attention_memory,
    bias_gelu,
    bias_gelu_bytes,
)
from runnel.backbones.rwkv7.kernels import ROWS, square_relu
from runnel.ops.int8_matmul import bytes_per_group
from runnel.ops.numba_math import Scratch, StepMemory, as_array, flat_rows, parallel
from runnel.ops.rms_norm import add_rms_norm


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def scratch(size: int) -> Scratch:
    """Return scratch whose content is not a number: whatever was there before must not matter."""
    made = StepMemory().scratch("test", size)
    made.rows.fill(np.nan)
    return made


def assert_rounded(read: np.ndarray, scales: np.ndarray, exact: Tensor) -> None:
    """Bytes (T, G Kp) with scales (T, G) stand for these numbers (T, K), and the largest of each
    group is 127 steps.
    """
    groups = scales.shape[1]
    steps = torch.from_numpy(scales)[..., None]
    exact = exact.float().unflatten(1, (groups, -1))
    found = (
        torch.from_numpy(read).unflatten(1, (groups, -1))[..., : exact.shape[2]].float() - 128
    ) * steps
    torch.testing.assert_close(steps, exact.abs().amax(-1, keepdim=True) / 127)
    assert ((found - exact).abs() <= 0.501 * steps + 1e-6).all()


def run_attention(qkv: Tensor, bias: Tensor, cu: Tensor, heads: int) -> Tensor:
    out = torch.full((len(qkv), qkv.shape[1] // 3), torch.nan)
    memory = scratch(attention_memory(qkv.shape[1] // 3 // heads, int(cu.diff().max()))[-1])
    with parallel():
        attend(
            as_array(qkv),
            bias.numpy(),
            cu.numpy(),
            heads,
            as_array(out),
            np.empty((len(out), 0), np.float32),
            memory,
        )
    return out


def expected_attention(qkv: Tensor, bias: Tensor, cu: Tensor, heads: int) -> Tensor:
    parts = []
    for start, end in pairwise(cu.tolist()):
        q, k, v = (
            (qkv[start:end].double() + bias.double())
            .unflatten(-1, (3, heads, -1))
            .permute(1, 2, 0, 3)
        )
        weights = (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).softmax(-1)
        parts.append((weights @ v).transpose(0, 1).flatten(1))
    return torch.cat(parts)


@pytest.mark.parametrize("moved", [0.0, -3e4, 300.0, 3e4])
@pytest.mark.parametrize(("heads", "size"), [(1, 32), (2, 5), (2, 48), (1, 64)])
def test_attention_also_with_large_scores(heads: int, size: int, moved: float) -> None:
    """Those of all keys far from zero, on either side: the largest is taken off first. NaN stays in
    its sequence.
    """
    cu = torch.tensor([0, 9, 9, 10, 80, 112, 145])
    width = 3 * heads * size
    qkv = numbers(145, width)
    bias = torch.zeros(width)
    bias[0] = moved
    bias[heads * size] = float(moved != 0)
    out = run_attention(qkv, bias, cu, heads)
    tolerance = 1e-3 if moved else 1e-6
    torch.testing.assert_close(
        out.double(), expected_attention(qkv, bias, cu, heads), atol=tolerance, rtol=tolerance
    )
    qkv[3, -size:] = torch.nan
    spoiled = run_attention(qkv, bias, cu, heads)
    assert spoiled[:9, -size:].isnan().all() and torch.equal(spoiled[9:], out[9:])


@pytest.mark.parametrize(
    ("tokens", "width", "parts"), [(40, 32, 3), (3, 37, 0), (0, 16, 1), (1, 5, 2)]
)
def test_residual_and_rms_norm_also_in_8_bits(tokens: int, width: int, parts: int) -> None:
    residual = numbers(tokens, width)
    added = numbers(tokens, width, seed=1)
    weight = numbers(width, seed=2)
    squares = numbers(tokens, parts, seed=3).square()
    scale = torch.rsqrt(squares.double().sum(1, keepdim=True) / 9 + 1e-5) if parts else 1.0
    expected = residual.double() + scale * added.double()
    again = residual.clone()
    whole = torch.empty(tokens, width)
    read = np.zeros((tokens, bytes_per_group(width, 1)), np.uint8)
    scales = np.full((tokens, 1), np.nan, np.float32)
    given = (added.numpy(), squares.numpy(), 9, weight.numpy(), 1e-5)
    with parallel():
        add_rms_norm(residual.numpy(), *given, whole.numpy(), scales, scratch(width))
        add_rms_norm(again.numpy(), *given, read, scales, scratch(width))
    torch.testing.assert_close(residual.double(), expected, atol=2e-6, rtol=1e-6)
    torch.testing.assert_close(
        whole.double(), F.rms_norm(expected, (width,), weight.double(), 1e-5), atol=2e-6, rtol=1e-6
    )
    assert torch.equal(again, residual)
    assert_rounded(read, scales, whole)


@pytest.mark.parametrize(("tokens", "width"), [(0, 16), (1, 1), (33, 48), (17, 384)])
def test_layer_norm_and_gelu_in_8_bits(tokens: int, width: int) -> None:
    residual = 3 + numbers(tokens, width)
    added = numbers(tokens, width, seed=1)
    bias, weight, shift = (numbers(width, seed=seed) for seed in (2, 3, 4))
    groups = 3 if width % 3 == 0 else 1
    read = np.zeros((tokens, groups * bytes_per_group(width, groups)), np.uint8)
    scales = np.zeros((tokens, groups), np.float32)
    out = torch.zeros(tokens, 2 * width)[:, width:]
    expected = F.layer_norm(
        (residual + added + bias).double(), (width,), weight.double(), shift.double(), 1e-5
    )
    with parallel():
        given = (as_array(added), bias.numpy(), weight.numpy(), shift.numpy(), 1e-5)
        add_layer_norm(*flat_rows(residual), *given, *flat_rows(out), read, scales)
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)
    assert_rounded(read, scales, out)
    with parallel():
        bias_gelu_bytes(as_array(added), bias.numpy(), read, scales, scratch(width))
    assert_rounded(read, scales, F.gelu(added.double() + bias.double()))


def test_gelu_is_exact_everywhere() -> None:
    x = torch.cat(
        [
            torch.linspace(-12, 12, 400_001),
            torch.tensor([0.0, -0.0, 5.5, -5.5, 1e-30, -1e-30, 1e30, -1e30, torch.inf]),
        ]
    )
    out = x[None].clone()
    damaged = torch.tensor([[1.0, torch.nan, 2.0]])
    with parallel():
        bias_gelu(out.numpy(), np.zeros(len(x), np.float32))
        bias_gelu(damaged.numpy(), np.zeros(3, np.float32))
    expected = F.gelu(x.double())
    assert torch.equal(out[0, -1:], x[-1:])
    assert torch.all((out[0] - expected)[:-1].abs() <= 2e-7 * x.abs().clamp(min=1)[:-1])
    small = x.abs() < 1
    assert torch.all((out[0] - expected)[small].abs() <= 5e-7 * expected[small].abs() + 1e-38)
    assert damaged.isnan().tolist() == [[False, True, False]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("width", "groups"), [(256, 2), (50, 1), (1, 1), (12, 4)])
def test_squared_relu_in_8_bits(width: int, groups: int, dtype: torch.dtype) -> None:
    x = numbers(ROWS + 1, width).to(dtype)
    x[3] = -1
    out = np.zeros((len(x), groups * bytes_per_group(width, groups)), np.uint8)
    scales = np.full((len(x), groups), np.nan, np.float32)
    with parallel():
        square_relu(as_array(x), out, scales, scratch(width))
    assert_rounded(out, scales, x.float().relu().square())
