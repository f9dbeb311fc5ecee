"""Accuracy of the functions that all numba kernels share."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numba import njit, prange
from numba.core.caching import IndexDataCacheFile

from runnel.ops import numba_math as math
from runnel.ops.numba_math import PARALLEL, SERIAL, parallel
from runnel.ops.simd import TILE_COLUMNS, TILE_ROWS
from runnel.ops.simd_tile import FULL, LOWER, UPPER, multiply


def applied(function: Callable[..., float], x: np.ndarray) -> np.ndarray:
    """A function of single numbers, for all of them in a loop that the compiler may vectorize."""

    @njit(**SERIAL | {"cache": False})
    def run(x: Any, out: Any) -> None:
        for i in range(x.shape[0]):
            out[i] = function(x[i])

    out = np.empty_like(x)
    run(x, out)
    return out


@njit(**SERIAL)
def _copy(x: Any, out: Any) -> None:
    for i in range(x.shape[0]):
        out[i] = math.rounded_for(out, math.as_f32(x[i]))


@njit(**PARALLEL)
def _fill(out: Any) -> None:
    for i in prange(out.shape[0]):
        out[i] = np.float32(i)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize(
    ("function", "truth", "low", "high", "relative"),
    [
        pytest.param(math.fast_exp, np.exp, -87.3, 88.3, 1.2e-7, id="exp"),
        pytest.param(math.softplus, lambda x: np.logaddexp(0, x), -80, 50, 4e-7, id="softplus"),
        pytest.param(math.silu, lambda x: x * _sigmoid(x), -80, 50, 2.5e-7, id="silu"),
    ],
)
def test_relative_error(function: Any, truth: Any, low: float, high: float, relative: float) -> None:
    x = np.linspace(low, high, 400_001, dtype=np.float32)
    x = x[x != 0]
    assert np.abs(applied(function, x) / truth(x.astype(np.float64)) - 1).max() < relative


def test_silu_grad() -> None:
    x = np.linspace(-80, 80, 400_001, dtype=np.float32)
    s = _sigmoid(x.astype(np.float64))
    assert np.abs(applied(math.silu_grad, x) - s * (1 + x * (1 - s))).max() < 4e-7


@pytest.mark.parametrize("size", [6, 32])  # as single numbers and as vectors
def test_exp_beyond_its_range(size: int) -> None:
    out = applied(math.fast_exp, np.array([-1e30, -np.inf, -88.1, 1e30, np.inf, np.nan] + [0.0] * 26, np.float32)[:size])
    assert (out[:3] == 0).all() and np.isnan(out[5])
    assert np.isfinite(out[3:5]).all() and (out[3:5] > 1e38).all()


def test_every_bf16_number_survives_and_rounding_is_torchs() -> None:
    bits = np.arange(65536, dtype=np.uint16)
    wide, back = np.empty(65536, np.float32), np.empty(65536, np.uint16)
    _copy(bits, wide)
    _copy(wide, back)
    number = ~np.isnan(wide)
    assert (back[number] == bits[number]).all()
    patterns = np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint64).astype(np.uint32)
    values = np.concatenate([patterns, [0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F7FFFFF]]).astype(np.uint32).view(np.float32)
    out = np.empty(values.shape, np.uint16)
    _copy(values, out)
    actual, expected = torch.from_numpy(out).view(torch.bfloat16), torch.from_numpy(values).to(torch.bfloat16)
    assert torch.equal(actual.isnan(), expected.isnan())
    assert torch.equal(actual[~expected.isnan()], expected[~expected.isnan()])


def test_parallel_follows_torchs_number_of_threads() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        out = np.zeros(8, np.float32)
        with parallel():
            _fill(out)
        assert out.tolist() == list(range(8))
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("columns", [TILE_COLUMNS, 3 * TILE_COLUMNS])
@pytest.mark.parametrize(("scale", "triangle"), [(0.0, FULL), (0.5, FULL), (1.0, LOWER), (0.0, UPPER)])
def test_multiply(columns: int, scale: float, triangle: int) -> None:
    generator = np.random.default_rng(0)
    rows = 2 * TILE_ROWS
    inner = rows if triangle != FULL else 7
    a = generator.standard_normal((rows, inner)).astype(np.float32)
    a = np.tril(a) if triangle == LOWER else np.triu(a) if triangle == UPPER else a
    b = generator.standard_normal((inner, columns)).astype(np.float32)
    start = np.full((rows, columns), np.nan if scale == 0 else 2.0, np.float32)
    expected = a @ b + (scale * start if scale else 0)
    for left, row, step in ((a, inner, 1), (np.ascontiguousarray(a.T), 1, rows)):
        out = start.copy()
        multiply(out, left, row, step, b, rows, inner, np.float32(scale), triangle)
        assert np.abs(out - expected).max() < 1e-5


@pytest.mark.parametrize("missing", ["crunnel.ops.chunks\nFormerPlan\n.", "crunnel.ops.former\nPlan\n."])
def test_stored_kernels_of_a_former_version_are_compiled_again(tmp_path: Path, missing: str) -> None:
    stored = IndexDataCacheFile(str(tmp_path), "kernel", (1.0, 2))
    (tmp_path / "kernel.nbi").write_bytes(pickle.dumps(stored._version) + missing.encode())
    assert stored.load("key") is None
    stored.save("key", "code")
    assert stored.load("key") == "code"
