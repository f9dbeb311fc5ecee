"""Accuracy of the functions of single numbers and vectors that numba kernels share."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numba import njit
from numba.core.caching import IndexDataCacheFile
from torch import Tensor
from torch.nn import functional as F

from runnel.backbones.encoder.kernels import copy_rows
from runnel.backbones.mamba1.kernels import softplus
from runnel.backbones.rwkv7.kernels import decay, tanh
from runnel.ops import numba_math as math
from runnel.ops.numba_math import SERIAL, parallel
from runnel.ops.simd import (
    LANES,
    TILE_COLUMNS,
    TILE_ROWS,
    address,
    exp2,
    load,
    sigmoid,
    silu,
    store,
)
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


def applied_to_vectors(function: Callable[..., Any], x: np.ndarray) -> np.ndarray:
    """A function of `LANES` numbers at a time."""

    @njit(**SERIAL | {"cache": False})
    def run(x: Any, out: Any) -> None:
        for i in range(0, len(x), LANES):
            store(address(out), i, function(load(address(x), i)))

    padded = np.concatenate([x, np.zeros(-len(x) % LANES, np.float32)])
    out = np.empty_like(padded)
    run(padded, out)
    return out[: len(x)]


@njit(**SERIAL)
def _decay(x: Any) -> Any:
    return decay(sigmoid(x))


@njit(**SERIAL)
def _copy(x: Any, out: Any) -> None:
    for i in range(x.shape[0]):
        out[i] = math.rounded_for(out, math.as_f32(x[i]))


def _silu_grad(x: Tensor) -> Tensor:
    return x.sigmoid() * (1 + x * (1 - x.sigmoid()))


@pytest.mark.parametrize(
    ("apply", "function", "truth", "low", "high", "absolute", "relative"),
    [
        pytest.param(applied, math.fast_exp, torch.exp, -87.3, 88.3, 0, 1.2e-7, id="exp"),
        pytest.param(applied, math.softplus, F.softplus, -80, 50, 0, 4e-7, id="softplus"),
        pytest.param(applied, math.silu, F.silu, -80, 50, 0, 2.5e-7, id="silu"),
        pytest.param(applied, math.silu_grad, _silu_grad, -80, 80, 4e-7, 0, id="silu_grad"),
        pytest.param(applied_to_vectors, exp2, torch.exp2, -126, 0, 0, 2e-7, id="exp2"),
        # x log2(e) is rounded: at -80 that is half a step of 2^-17
        pytest.param(
            applied_to_vectors, softplus, F.softplus, -80, 60, 0, 4e-6, id="softplus of vectors"
        ),
        pytest.param(
            applied_to_vectors,
            softplus,
            F.softplus,
            -12,
            60,
            0,
            1e-6,
            id="softplus of vectors near 0",
        ),
        pytest.param(applied_to_vectors, silu, F.silu, -60, 60, 4e-6, 0, id="silu of vectors"),
        pytest.param(applied_to_vectors, silu, F.silu, -4, 4, 5e-7, 0, id="silu of vectors near 0"),
        pytest.param(applied_to_vectors, tanh, torch.tanh, -100, 100, 3e-7, 0, id="tanh"),
        pytest.param(applied_to_vectors, sigmoid, torch.sigmoid, -100, 100, 3e-7, 0, id="sigmoid"),
        pytest.param(
            applied_to_vectors,
            _decay,
            lambda x: torch.exp(-np.exp(-0.5) * x.sigmoid()),
            -50,
            50,
            3e-7,
            0,
            id="decay",
        ),
    ],
)
def test_functions_are_accurate(
    apply: Any, function: Any, truth: Any, low: float, high: float, absolute: float, relative: float
) -> None:
    x = np.linspace(low, high, 400_001, dtype=np.float32)
    x = x[x != 0]
    exact = truth(torch.from_numpy(x).double()).numpy()
    np.testing.assert_allclose(apply(function, x).astype(np.float64), exact, relative, absolute)


@pytest.mark.parametrize("size", [6, 32])  # as single numbers and as vectors
def test_exp_beyond_its_range(size: int) -> None:
    out = applied(
        math.fast_exp,
        np.array([-1e30, -np.inf, -88.1, 1e30, np.inf, np.nan] + [0.0] * 26, np.float32)[:size],
    )
    assert (out[:3] == 0).all() and np.isnan(out[5])
    assert np.isfinite(out[3:5]).all() and (out[3:5] > 1e38).all()


@pytest.mark.parametrize(
    ("function", "values", "expected"),
    [
        (exp2, [0.0, -127.0, -1e30, -np.inf, np.nan], [1.0, 0.0, 0.0, 0.0, np.nan]),
        (softplus, [-1e30, 1e30, np.inf, np.nan], [0.0, 1e30, np.inf, np.nan]),
        (silu, [-1e4, 1e30, np.nan], [0.0, 1e30, np.nan]),
        (tanh, [-1e30, 1e30, np.nan], [-1.0, 1.0, np.nan]),
        (sigmoid, [-1e30, 1e30, np.nan], [0.0, 1.0, np.nan]),
    ],
)
def test_vector_functions_at_the_ends(
    function: Any, values: list[float], expected: list[float]
) -> None:
    found = applied_to_vectors(function, np.array(values, np.float32))
    np.testing.assert_allclose(found, np.array(expected, np.float32), atol=1e-30)


def test_every_bf16_number_survives_and_rounding_is_torchs() -> None:
    bits = np.arange(65536, dtype=np.uint16)
    wide = np.empty(65536, np.float32)
    back = np.empty(65536, np.uint16)
    _copy(bits, wide)
    _copy(wide, back)
    number = ~np.isnan(wide)
    assert (back[number] == bits[number]).all()
    patterns = (
        np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint64).astype(np.uint32)
    )
    values = (
        np.concatenate([patterns, [0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F7FFFFF]])
        .astype(np.uint32)
        .view(np.float32)
    )
    out = np.empty(values.shape, np.uint16)
    _copy(values, out)
    actual = torch.from_numpy(out).view(torch.bfloat16)
    expected = torch.from_numpy(values).to(torch.bfloat16)
    assert torch.equal(actual.isnan(), expected.isnan())
    assert torch.equal(actual[~expected.isnan()], expected[~expected.isnan()])


def test_parallel_follows_torchs_number_of_threads(set_threads: Callable[[int], None]) -> None:
    """Also where it starts numba's pool, which resets torch's number."""
    out = np.zeros((8, 3), np.uint16)
    set_threads(1)
    with parallel():
        copy_rows(np.ones((8, 3), np.float32), out)
    assert (out == 0x3F80).all() and torch.get_num_threads() == 1


@pytest.mark.parametrize("columns", [TILE_COLUMNS, 3 * TILE_COLUMNS])
@pytest.mark.parametrize(
    ("scale", "triangle"), [(0.0, FULL), (0.5, FULL), (1.0, LOWER), (0.0, UPPER)]
)
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


@pytest.mark.parametrize(
    "missing", ["crunnel.ops.chunks\nFormerPlan\n.", "crunnel.ops.former\nPlan\n."]
)
def test_stored_kernels_of_a_former_version_are_compiled_again(
    tmp_path: Path, missing: str
) -> None:
    stored = IndexDataCacheFile(str(tmp_path), "kernel", (1.0, 2))
    (tmp_path / "kernel.nbi").write_bytes(pickle.dumps(stored._version) + missing.encode())
    assert stored.load("key") is None
    stored.save("key", "code")
    assert stored.load("key") == "code"
