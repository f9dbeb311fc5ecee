"""Elementwise functions of sixteen fp32 numbers that RWKV-7 has and the other backbones do not. See `ops.simd`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import binding, ir
from numba import njit
from numba.extending import intrinsic

from runnel.ops.numba_math import SERIAL
from runnel.ops.simd import (
    LANES,
    VF32,
    VI32,
    add,
    build_call,
    build_constant,
    build_fma,
    f32x16,
    load,
    load_some,
    splat,
    store,
    store_some,
)

_LOG2_E = 1.44269502162933349609375
# 2^f on |f| <= 1/2, relative error 9e-8, by reweighted least squares in fp64; highest power first.
_EXP2 = (0.0013264726056424689, 0.009671513044619755, 0.055507337500530246, 0.24022242078532924, 0.6931469775930709, 1.0)
# exp(-exp(-1/2) s) on 0 <= s <= 1 likewise (8e-10).
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
_HAS_ESTIMATE = bool(binding.get_host_cpu_features().get("avx512f")) and not numba.config.CPU_NAME


def _elementwise(build: Callable[[Any, Any], Any], doc: str) -> Any:
    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return build(builder, values[0])

    def definition(typing_context: Any, x: Any) -> Any:
        return f32x16(f32x16), generate

    definition.__doc__ = doc
    return intrinsic(definition)


def _polynomial(builder: Any, x: Any, coefficients: tuple[float, ...]) -> Any:
    result = build_constant(VF32, coefficients[0])
    for coefficient in coefficients[1:]:
        result = build_fma(builder, result, x, build_constant(VF32, coefficient))
    return result


def _reciprocal(builder: Any, b: Any) -> Any:
    """1 / b for b in [1, 2^126]; an estimate and a Newton step (relative error 2e-7) where those beat the division."""
    one = build_constant(VF32, 1.0)
    if not _HAS_ESTIMATE:
        return builder.fdiv(one, b)
    unused = [build_constant(VF32, 0.0), ir.Constant(ir.IntType(16), 0xFFFF)]
    estimate = build_call(builder, "llvm.x86.avx512.rcp14.ps.512", VF32, [b, *unused])
    error = build_fma(builder, builder.fsub(build_constant(VF32, -0.0), b), estimate, one)
    return build_fma(builder, estimate, error, estimate)


def _build_sigmoid(builder: Any, x: Any) -> Any:
    t = builder.fmul(x, build_constant(VF32, -_LOG2_E))
    t = builder.select(builder.fcmp_ordered("<", t, build_constant(VF32, -125.0)), build_constant(VF32, -125.0), t)
    t = builder.select(builder.fcmp_ordered(">", t, build_constant(VF32, 125.0)), build_constant(VF32, 125.0), t)
    k = build_call(builder, "llvm.rint.v16f32", VF32, [t])
    power = _polynomial(builder, builder.fsub(t, k), _EXP2)
    exponent = builder.shl(builder.fptosi(k, VI32), build_constant(VI32, 23))
    power = builder.bitcast(builder.add(builder.bitcast(power, VI32), exponent), VF32)
    return _reciprocal(builder, builder.fadd(build_constant(VF32, 1.0), power))


def _build_squared_relu(builder: Any, x: Any) -> Any:
    zero = build_constant(VF32, 0.0)
    x = builder.select(builder.fcmp_ordered("<", x, zero), zero, x)  # NaN stays NaN
    return builder.fmul(x, x)


def _build_rsqrt(builder: Any, x: Any) -> Any:
    return builder.fdiv(build_constant(VF32, 1.0), build_call(builder, "llvm.sqrt.v16f32", VF32, [x]))


sigmoid = _elementwise(_build_sigmoid, "1 / (1 + exp(-x)), absolute error below 2e-7, relative error below 5e-6 where |x| < 86")
decay = _elementwise(
    lambda builder, s: _polynomial(builder, s, _DECAY), "exp(-exp(-1/2) s) for s in [0, 1], relative error below 2e-7"
)
squared_relu = _elementwise(_build_squared_relu, "max(x, 0)^2")
rsqrt = _elementwise(_build_rsqrt, "1 / sqrt(x)")


@njit(**SERIAL)
def tanh(x: Any) -> Any:
    """Hyperbolic tangent, absolute error below 3e-7."""
    s = sigmoid(add(x, x))
    return add(add(s, s), splat(-_ONE))


@njit(**SERIAL)
def read(base: Any, offset: int, count: int) -> Any:
    """`load`, of no more than `count` numbers."""
    return load(base, offset) if count >= LANES else load_some(base, offset, count)


@njit(**SERIAL)
def write(base: Any, offset: int, x: Any, count: int) -> None:
    """`store`, of no more than `count` numbers."""
    if count >= LANES:
        store(base, offset, x)
    else:
        store_some(base, offset, x, count)
