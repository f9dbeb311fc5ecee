"""What the contract test of all operators (tests/contracts/test_ops.py) cannot see: vector functions, tiles, fused kernels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numba import njit
from torch import Tensor
from torch.nn import functional as F

from runnel.backbones.mamba1.kernels import conv_silu, gated_scan
from runnel.errors import InputError
from runnel.ops import causal_conv1d, selective_scan
from runnel.ops.numba_math import SERIAL, parallel
from runnel.ops.selective_scan.lanes import exp2_decay, silu, softplus
from runnel.ops.selective_scan.tiles import from_tiles, rate_tiles, tiles_per_item, to_tiles
from runnel.ops.simd import LANES, address, load, store

_UNCACHED = SERIAL | {"cache": False}


@njit(**_UNCACHED)
def _exp2(x, y):  # type: ignore[no-untyped-def]
    for i in range(0, len(x), LANES):
        store(address(y), i, exp2_decay(load(address(x), i)))


@njit(**_UNCACHED)
def _softplus(x, y):  # type: ignore[no-untyped-def]
    for i in range(0, len(x), LANES):
        store(address(y), i, softplus(load(address(x), i)))


@njit(**_UNCACHED)
def _silu(x, y):  # type: ignore[no-untyped-def]
    for i in range(0, len(x), LANES):
        store(address(y), i, silu(load(address(x), i)))


def _apply(kernel, values):  # type: ignore[no-untyped-def]
    x = np.asarray(values, np.float32)
    x = np.concatenate([x, np.zeros(-len(x) % LANES, np.float32)])
    y = np.empty_like(x)
    kernel(x, y)
    return x[: len(values)].astype(np.float64), y[: len(values)].astype(np.float64)


def test_vector_functions_are_accurate() -> None:
    x, y = _apply(_exp2, np.linspace(-126, 0, 100_001))
    assert np.abs(y / 2.0**x - 1).max() < 2e-7
    x, y = _apply(_softplus, np.linspace(-80, 60, 100_001))
    assert np.abs(y / np.logaddexp(0, x) - 1).max() < 4e-6  # x log2(e) is rounded: at -80 that is half a step of 2^-17
    x, y = _apply(_softplus, np.linspace(-12, 60, 100_001))
    assert np.abs(y / np.logaddexp(0, x) - 1).max() < 1e-6
    x, y = _apply(_silu, np.linspace(-60, 60, 100_001))
    assert np.abs(y - x / (1 + np.exp(-x))).max() < 4e-6
    assert np.abs((y - x / (1 + np.exp(-x)))[np.abs(x) < 4]).max() < 5e-7


def test_vector_functions_at_the_ends() -> None:
    _, y = _apply(_exp2, [0.0, -127.0, -1e30, -np.inf, np.nan])
    assert y[:4].tolist() == [1.0, 0.0, 0.0, 0.0]
    assert np.isnan(y[4])
    _, y = _apply(_softplus, [-1e30, 1e30, np.inf, np.nan])
    assert y[0] == 0
    assert y[1:3].tolist() == [np.float32(1e30), np.inf]
    assert np.isnan(y[3])
    _, y = _apply(_silu, [-1e4, 1e30, np.nan])
    assert abs(y[0]) < 1e-30
    assert y[1] == np.float32(1e30)
    assert np.isnan(y[2])


@pytest.mark.parametrize("channels", [1, 16, 37])
def test_tiles_go_back_to_rows(channels: int) -> None:
    rows = torch.randn(2, channels, 5)
    assert torch.equal(from_tiles(to_tiles(rows), channels), rows)
    assert to_tiles(rows).is_contiguous()


def test_work_items_feed_all_cores() -> None:
    threads = torch.get_num_threads()
    assert tiles_per_item(1, 96 * threads) == 16
    assert tiles_per_item(1, 4 * threads) == 2
    assert tiles_per_item(1, 1) == 1


def test_bad_shapes_are_named() -> None:
    x, A = torch.zeros(4, 6), torch.zeros(6, 3)
    with pytest.raises(InputError, match=r"selective_scan: B must have shape \(4, 3\).*got \(4, 2\)"):
        selective_scan(x, x, A, torch.zeros(4, 2), torch.zeros(4, 3))
    with pytest.raises(InputError, match=r"x must be \(T, Di\) and A \(Di, N\), got \(1, 4, 6\)"):
        selective_scan(x[None], x[None], A, torch.zeros(4, 3), torch.zeros(4, 3))


# ---- the fused kernels against the operators ----------------------------------------------------------------------------

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
