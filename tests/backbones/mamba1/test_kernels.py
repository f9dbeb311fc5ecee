"""Mamba-1's fused kernels give what the operators give, with states in a pool."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from runnel.backbones.mamba1.kernels import conv_silu, gated_scan
from runnel.ops import causal_conv1d, selective_scan
from runnel.ops.numba_math import parallel
from runnel.ops.selective_scan.tiles import rate_tiles

LENGTHS = (7, 0, 1, 21, 4)
READS, WRITES = (3, 4, -1, 3, -1), (0, 4, 1, -1, 2)  # a fork of row 3; row 4 in place; starts from nothing; an end not wanted
CHANNELS, ROWS, LAYERS = 48, 6, 2


def _array(tensor: Tensor):  # type: ignore[no-untyped-def]
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _start(pool: Tensor, layer: int) -> Tensor:
    return torch.stack([pool[r, layer] if r >= 0 else torch.zeros_like(pool[0, 0]) for r in READS])


def _assert_pool(pool: Tensor, before: Tensor, ends: Tensor, layer: int) -> None:
    expected = before.clone()
    for s, row in enumerate(WRITES):
        if row >= 0:
            expected[row, layer] = ends[s]
    torch.testing.assert_close(pool, expected, atol=1e-5, rtol=1e-5)


def _sequences() -> tuple[Tensor, list[np.ndarray]]:  # type: ignore[type-arg]
    cu = torch.tensor([0, *LENGTHS]).cumsum(0)
    return cu, [np.array(READS), np.array(WRITES), cu.numpy()]


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("group", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_convolution(width: int, group: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    cu, rows = _sequences()
    projection = torch.randn(sum(LENGTHS), 2 * CHANNELS).to(dtype)
    weight, bias, pool = torch.randn(CHANNELS, width), torch.randn(CHANNELS), torch.randn(ROWS, LAYERS, CHANNELS, width - 1)
    out, before = torch.full((sum(LENGTHS), CHANNELS), float("nan"), dtype=dtype), pool.clone()
    x = projection[:, CHANNELS:].float()
    expected, ends = causal_conv1d(x, weight, bias, cu, _start(pool, 1), activation="silu", backend="reference")
    with parallel():
        taps = weight.t().contiguous().numpy()
        conv_silu(_array(projection), CHANNELS, taps, bias.numpy(), pool.numpy(), 1, *rows, _array(out), group)
    torch.testing.assert_close(out.float(), expected, atol=1e-5, rtol=1e-5 if dtype == torch.float32 else 4e-3)
    _assert_pool(pool, before, ends, 1)


@pytest.mark.parametrize(("group", "state_size"), [(1, 5), (2, 16), (3, 35)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_scan(group: int, state_size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    cu, rows = _sequences()
    tokens = sum(LENGTHS)
    x, dt, projection = (torch.randn(tokens, columns).to(dtype) for columns in (CHANNELS, CHANNELS, CHANNELS + 3))
    bias, A, D = torch.randn(CHANNELS), -torch.rand(CHANNELS, state_size) * 8, torch.randn(CHANNELS)
    B, C, pool = torch.randn(tokens, state_size), torch.randn(tokens, state_size), torch.randn(ROWS, LAYERS, CHANNELS, state_size)
    out, before = torch.full((tokens, CHANNELS), float("nan"), dtype=dtype), pool.clone()
    step = F.softplus(dt.float() + bias)
    expected, ends = selective_scan(x.float(), step, A, B, C, D, cu, _start(pool, 0), backend="reference")
    expected = expected * F.silu(projection[:, 3:].float())
    with parallel():
        gated_scan(
            _array(x), _array(dt), bias.numpy(), rate_tiles(A).numpy(), torch.cat([B, C], 1).numpy(), D.numpy(),
            _array(projection), 3, pool.numpy(), 0, *rows, _array(out), group,
        )  # fmt: skip
    torch.testing.assert_close(out.float(), expected, atol=2e-5, rtol=1e-4 if dtype == torch.float32 else 4e-3)
    _assert_pool(pool, before, ends, 0)
