"""The encoder's kernels against torch in double precision: attention, LayerNorm and GELU, each with what is fused into it."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from helpers.tiny_backbones import cumulative
from torch import Tensor
from torch.nn import functional as F

from runnel.backbones.encoder.kernels import add_layer_norm, attend, attention_memory, bias_gelu, bias_gelu_bytes
from runnel.ops.int8_matmul import bytes_per_group
from runnel.ops.numba_math import as_array, flat_rows, parallel

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
LENGTHS = (9, 0, 1, 70, 3, 32, 33, 16)


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def from_bytes(read: np.ndarray, scales: np.ndarray, size: int) -> Tensor:
    """What bytes (T, G Kp) and scales (T, G) stand for, (T, G size)."""
    grouped = torch.from_numpy(read).unflatten(1, (scales.shape[1], -1))[..., :size]
    return ((grouped.float() - 128) * torch.from_numpy(scales)[..., None]).flatten(1)


def run_attention(qkv: Tensor, bias: Tensor, cu: Tensor, heads: int, workers: int = 2) -> Tensor:
    out = torch.full((len(qkv), qkv.shape[1] // 3), torch.nan, dtype=qkv.dtype)
    memory = np.empty((workers, attention_memory(qkv.shape[1] // 3 // heads, int(cu.diff().max()))[-1]), np.float32)
    memory.fill(np.nan)  # whatever was there before
    with parallel():
        attend(as_array(qkv), bias.numpy(), cu.numpy(), heads, as_array(out), np.empty((len(out), 0), np.float32), memory)
    return out


def expected_attention(qkv: Tensor, bias: Tensor, cu: Tensor, heads: int) -> Tensor:
    parts = []
    for start, end in pairwise(cu.tolist()):
        q, k, v = (qkv[start:end].double() + bias.double()).unflatten(-1, (3, heads, -1)).permute(1, 2, 0, 3)
        weights = (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).softmax(-1)
        parts.append((weights @ v).transpose(0, 1).flatten(1))
    return torch.cat(parts)


@DTYPES
@pytest.mark.parametrize(("heads", "size"), [(3, 32), (1, 1), (2, 5), (2, 48), (1, 64)])
def test_attention(dtype: torch.dtype, heads: int, size: int) -> None:
    cu = cumulative(LENGTHS)
    qkv, bias = numbers(sum(LENGTHS), 3 * heads * size, dtype=dtype), numbers(3 * heads * size, seed=1)
    out, expected = run_attention(qkv, bias, cu, heads), expected_attention(qkv, bias, cu, heads)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("moved", [-3e4, 300.0, 3e4])
def test_attention_with_large_scores(moved: float) -> None:
    """Those of all keys far from zero, on either side: the largest is taken off first."""
    qkv, cu = numbers(20, 96), torch.tensor([0, 20])
    bias = torch.zeros(96)
    bias[0], bias[32] = moved, 1.0
    expected = expected_attention(qkv, bias, cu, 1)
    torch.testing.assert_close(run_attention(qkv, bias, cu, 1).double(), expected, atol=1e-3, rtol=1e-3)


def test_attention_carries_damage_on() -> None:
    qkv = numbers(20, 96)
    qkv[3, 40] = torch.nan
    assert bool(run_attention(qkv, torch.zeros(96), torch.tensor([0, 12, 20]), 1)[:12].isnan().all())
    assert bool(run_attention(qkv, torch.zeros(96), torch.tensor([0, 12, 20]), 1)[12:].isfinite().all())


@pytest.mark.parametrize(("heads", "size"), [(3, 32), (2, 5)])
def test_attention_in_8_bits(heads: int, size: int) -> None:
    cu = cumulative(LENGTHS)
    qkv, bias = numbers(sum(LENGTHS), 3 * heads * size), numbers(3 * heads * size, seed=1)
    read = np.zeros((len(qkv), heads * bytes_per_group(heads * size, heads)), np.uint8)
    scales = np.zeros((len(qkv), heads), np.float32)
    memory = np.empty((2, attention_memory(size, max(LENGTHS))[-1]), np.float32)
    with parallel():
        attend(as_array(qkv), bias.numpy(), cu.numpy(), heads, read, scales, memory)
    exact = run_attention(qkv, bias, cu, heads)
    assert torch.all(
        (from_bytes(read, scales, size) - exact).abs().view(len(qkv), heads, size).amax(2) <= 0.51 * torch.from_numpy(scales)
    )


@DTYPES
@pytest.mark.parametrize(("tokens", "width"), [(0, 16), (1, 1), (5, 24), (33, 48), (17, 384)])
def test_layer_norm(dtype: torch.dtype, tokens: int, width: int) -> None:
    residual, added = 3 + numbers(tokens, width), numbers(tokens, width, seed=1, dtype=dtype)
    bias, weight, shift = (numbers(width, seed=seed) for seed in (2, 3, 4))
    summed = residual.double() + added.double() + bias.double()
    expected = F.layer_norm(summed, (width,), weight.double(), shift.double(), 1e-5)
    given = (as_array(added), bias.numpy(), weight.numpy(), shift.numpy(), 1e-5)
    kept, none = residual.clone(), np.empty((tokens, 0), np.float32)
    out, half = torch.zeros(tokens, 2 * width)[:, width:], torch.empty(tokens, width, dtype=torch.bfloat16)
    groups = 3 if width % 3 == 0 else 1
    read = np.zeros((tokens, groups * bytes_per_group(width, groups)), np.uint8)
    scales = np.zeros((tokens, groups), np.float32)
    with parallel():
        add_layer_norm(*flat_rows(residual), *given, *flat_rows(out), as_array(half), none)
        assert torch.equal(residual, kept)
        add_layer_norm(*flat_rows(residual), *given, *flat_rows(out), read, scales)
        add_layer_norm(*flat_rows(residual), *given, *flat_rows(residual), none, none)
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(residual, out, atol=1e-6, rtol=1e-6)  # other machine code, which may add in another order
    torch.testing.assert_close(half.float(), out, atol=1e-6, rtol=1.01 * 2**-8)  # half a unit of the last place
    error = (from_bytes(read, scales, width // groups) - out).abs().unflatten(1, (groups, -1))
    assert torch.all(error <= 0.51 * torch.from_numpy(scales)[..., None])


def test_gelu_is_exact_everywhere() -> None:
    x = torch.cat([torch.linspace(-12, 12, 400_001), torch.tensor([0.0, -0.0, 5.5, -5.5, 1e-30, -1e-30, 1e30, -1e30, torch.inf])])
    out = x[None].clone()
    with parallel():
        bias_gelu(out.numpy(), np.zeros(len(x), np.float32))
    expected = F.gelu(x.double())
    assert torch.equal(out[0, -1:], x[-1:])
    assert torch.all((out[0] - expected)[:-1].abs() <= 2e-7 * x.abs().clamp(min=1)[:-1])
    small = x.abs() < 1
    assert torch.all((out[0] - expected)[small].abs() <= 5e-7 * expected[small].abs() + 1e-38)


@DTYPES
@pytest.mark.parametrize(("tokens", "width"), [(0, 16), (1, 1), (5, 24), (33, 256)])
def test_gelu_with_its_bias(dtype: torch.dtype, tokens: int, width: int) -> None:
    x, bias = numbers(tokens, width, dtype=dtype), numbers(width, seed=1)
    expected = F.gelu(x.double() + bias.double())
    groups = 2 if width % 128 == 0 else 1
    read = np.zeros((tokens, groups * bytes_per_group(width, groups)), np.uint8)
    scales = np.zeros((tokens, groups), np.float32)
    with parallel():
        bias_gelu_bytes(as_array(x), bias.numpy(), read, scales)
        bias_gelu(as_array(x), bias.numpy())
    tolerance = 1e-6 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(x.double(), expected, atol=tolerance, rtol=tolerance)
    error = (from_bytes(read, scales, width // groups) - expected).abs().unflatten(1, (groups, -1))
    assert torch.all(error <= 0.51 * torch.from_numpy(scales)[..., None] + 1e-6)


def test_gelu_of_damaged_numbers_stays_so() -> None:
    x = torch.tensor([[1.0, torch.nan, 2.0]])
    with parallel():
        bias_gelu(x.numpy(), np.zeros(3, np.float32))
    assert x.isnan().tolist() == [[False, True, False]]
