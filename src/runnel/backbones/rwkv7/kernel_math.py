"""Elementwise functions of sixteen fp32 numbers that RWKV-7 has and the other backbones do not. See `ops.simd`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from runnel.ops.numba_math import SERIAL, Pointer, Vector, build_constant
from runnel.ops.simd import (
    LANES,
    VF32,
    add,
    build_call,
    build_polynomial,
    elementwise,
    load,
    load_some,
    sigmoid,
    splat,
    store,
    store_some,
)

# exp(-exp(-1/2) s) on 0 <= s <= 1 with a relative error of 8e-10, by reweighted least squares in fp64; highest power first.
_DECAY = (
    5.0913065242436106e-05,
    -0.0006597653386948565,
    0.005622414086831645,
    -0.03718246067029107,
    0.18393870495726966,
    -0.6065305930804197,
    0.9999999992704464,
)
_ONE = np.float32(1.0)


def _build_squared_relu(builder: Any, x: Any) -> Any:
    zero = build_constant(VF32, 0.0)
    x = builder.select(builder.fcmp_ordered("<", x, zero), zero, x)  # NaN stays NaN
    return builder.fmul(x, x)


def _build_rsqrt(builder: Any, x: Any) -> Any:
    return builder.fdiv(build_constant(VF32, 1.0), build_call(builder, "llvm.sqrt.v16f32", VF32, [x]))


decay = elementwise(
    1, lambda builder, s: build_polynomial(builder, s, _DECAY), "exp(-exp(-1/2) s) for s in [0, 1], relative error below 2e-7"
)
squared_relu = elementwise(1, _build_squared_relu, "max(x, 0)^2")
rsqrt = elementwise(1, _build_rsqrt, "1 / sqrt(x)")


@njit(**SERIAL)
def tanh(x: Vector) -> Any:
    """Hyperbolic tangent, absolute error below 3e-7."""
    s = sigmoid(add(x, x))
    return add(add(s, s), splat(-_ONE))


@njit(**SERIAL)
def read(base: Pointer, offset: int, count: int) -> Any:
    """`load`, of no more than `count` numbers."""
    return load(base, offset) if count >= LANES else load_some(base, offset, count)


@njit(**SERIAL)
def write(base: Pointer, offset: int, x: Vector, count: int) -> None:
    """`store`, of no more than `count` numbers."""
    if count >= LANES:
        store(base, offset, x)
    else:
        store_some(base, offset, x, count)
