"""Points, checks and failures that all measurements share."""

import numpy as np
import pytest
from helpers.bench_workers import HIDDEN

from benchmarks.measure import answer, compare
from runnel.errors import BackendUnavailable, InputError


def vectors(cosine):
    """HIDDEN turned by as much."""
    other = np.roll(HIDDEN, 1, axis=1)
    other -= HIDDEN * (other * HIDDEN).sum(1, keepdims=True) / np.square(HIDDEN).sum(1, keepdims=True)
    other *= np.linalg.norm(HIDDEN, axis=1, keepdims=True) / np.linalg.norm(other, axis=1, keepdims=True)
    return cosine * HIDDEN + (1 - cosine**2) ** 0.5 * other


@pytest.mark.parametrize(
    ("dtype", "cosine", "passed"),
    [("int8", 0.996, True), ("int8", 0.994, False), ("q8_0", 0.985, True), ("q8_0", 0.97, False), ("fp32", 0.9999, False)],
)
def test_how_close_is_the_same(dtype, cosine, passed):
    assert compare("runnel", "m", dtype, vectors(cosine), HIDDEN).passed is passed


def test_other_shapes_and_infinite_numbers_are_wrong():
    names = ("runnel", "m", "bf16")
    assert not compare(*names, HIDDEN[:-1], HIDDEN).passed
    assert not compare(*names, HIDDEN * np.float32(np.nan), HIDDEN).passed
    assert compare("runnel", "m", "fp32", HIDDEN + np.float32(1e-6), HIDDEN).passed
    assert not compare("runnel", "m", "fp32", HIDDEN + np.float32(1e-2), HIDDEN).passed


@pytest.mark.parametrize(
    ("error", "key"),
    [
        (MemoryError("m"), "out_of_memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "out_of_memory"),
        (BackendUnavailable("m"), "missing"),
        (InputError("m"), "refused"),
        (ValueError("m"), "error"),
    ],
)
def test_failures_are_answers(error, key):
    def fail():
        raise error

    assert key in answer(fail)
