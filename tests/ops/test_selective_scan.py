"""What the contract test of all operators (tests/contracts/test_ops.py) cannot see: vector functions, tiles."""

import numpy as np
import torch
from numba import njit

from runnel.ops.numba_math import SERIAL
from runnel.ops.selective_scan.tiles import softplus, tiles_per_item
from runnel.ops.simd import LANES, address, exp2, load, silu, store


def _apply(function, values):  # type: ignore[no-untyped-def]
    @njit(**SERIAL | {"cache": False})
    def run(x, y):  # type: ignore[no-untyped-def]
        for i in range(0, len(x), LANES):
            store(address(y), i, function(load(address(x), i)))

    x = np.asarray(values, np.float32)
    x = np.concatenate([x, np.zeros(-len(x) % LANES, np.float32)])
    y = np.empty_like(x)
    run(x, y)
    return x[: len(values)].astype(np.float64), y[: len(values)].astype(np.float64)


def test_vector_functions_are_accurate() -> None:
    x, y = _apply(exp2, np.linspace(-126, 0, 100_001))
    assert np.abs(y / 2.0**x - 1).max() < 2e-7
    x, y = _apply(softplus, np.linspace(-80, 60, 100_001))
    assert np.abs(y / np.logaddexp(0, x) - 1).max() < 4e-6  # x log2(e) is rounded: at -80 that is half a step of 2^-17
    x, y = _apply(softplus, np.linspace(-12, 60, 100_001))
    assert np.abs(y / np.logaddexp(0, x) - 1).max() < 1e-6
    x, y = _apply(silu, np.linspace(-60, 60, 100_001))
    assert np.abs(y - x / (1 + np.exp(-x))).max() < 4e-6
    assert np.abs((y - x / (1 + np.exp(-x)))[np.abs(x) < 4]).max() < 5e-7


def test_vector_functions_at_the_ends() -> None:
    _, y = _apply(exp2, [0.0, -127.0, -1e30, -np.inf, np.nan])
    assert y[:4].tolist() == [1.0, 0.0, 0.0, 0.0] and np.isnan(y[4])
    _, y = _apply(softplus, [-1e30, 1e30, np.inf, np.nan])
    assert y[:3].tolist() == [0.0, np.float32(1e30), np.inf] and np.isnan(y[3])
    _, y = _apply(silu, [-1e4, 1e30, np.nan])
    assert abs(y[0]) < 1e-30 and y[1] == np.float32(1e30) and np.isnan(y[2])


def test_work_items_feed_all_cores() -> None:
    threads = torch.get_num_threads()
    assert tiles_per_item(1, 96 * threads) == 16
    assert tiles_per_item(1, 4 * threads) == 2
    assert tiles_per_item(1, 1) == 1
