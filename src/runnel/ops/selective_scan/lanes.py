"""Arithmetic of the scan on vectors of sixteen fp32 numbers (`runnel.ops.simd`): operators, and functions of bounded arguments.

Multiply-adds may be fused; NaN and infinity propagate. All names are for use inside jitted kernels.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload

from runnel.ops.simd import LANES, f32x16

_F32S = ir.VectorType(ir.FloatType(), LANES)
_I32S = ir.VectorType(ir.IntType(32), LANES)
_FLAGS = ("contract", "nsz")


def _operation(build: Callable[[Any, Any, Any], Any]) -> Any:
    @intrinsic
    def function(typing_context: Any, left: Any, right: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return build(builder, *arguments)

        return f32x16(f32x16, f32x16), generate

    return function


def _constant(value: float) -> Any:
    @intrinsic
    def function(typing_context: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return ir.Constant(_F32S, [float(np.float32(value))] * LANES)

        return f32x16(), generate

    return function


def _add_exponent(builder: Any, p: Any, shifted: Any) -> Any:
    exponent = builder.shl(builder.bitcast(shifted, _I32S), ir.Constant(_I32S, [23] * LANES))
    return builder.bitcast(builder.add(builder.bitcast(p, _I32S), exponent), _F32S)


def _define(symbol: Any, function: Any) -> None:
    @overload(symbol, strict=False)
    def implementation(left: Any, right: Any) -> Any:
        if left is f32x16 and right is f32x16:
            return lambda left, right: function(left, right)
        return None


_define(operator.add, _operation(lambda builder, a, b: builder.fadd(a, b, flags=_FLAGS)))
_define(operator.sub, _operation(lambda builder, a, b: builder.fsub(a, b, flags=_FLAGS)))
_define(operator.mul, _operation(lambda builder, a, b: builder.fmul(a, b, flags=_FLAGS)))
_define(operator.truediv, _operation(lambda builder, a, b: builder.fdiv(a, b, flags=_FLAGS)))
# max(a, b) and min(a, b). If `a` is NaN the comparison is false and `a` is kept.
at_least = _operation(lambda builder, a, b: builder.select(builder.fcmp_ordered("<", a, b), b, a))
at_most = _operation(lambda builder, a, b: builder.select(builder.fcmp_ordered(">", a, b), b, a))
# p * 2^k, where `shifted` is k + 1.5 * 2^23, so that k is in its low bits. With p = 1 and k = -127 the result is exactly 0.
_scale = _operation(_add_exponent)

zero, one, _two = _constant(0.0), _constant(1.0), _constant(2.0)
_log2_e = _constant(1.4426950408889634)
_rounder = _constant(1.5 * 2**23)  # adding it leaves the nearest integer in the low bits
_lowest, _highest = _constant(-127.0), _constant(127.0)
# 2^f = 1 + f p(f) on |f| <= 1/2 with the least relative error (9.2e-8), fitted by reweighted least squares in fp64.
_e1, _e2, _e3 = _constant(0.6931469775930709), _constant(0.24022242078532924), _constant(0.055507337500530246)
_e4, _e5 = _constant(0.009671513044619755), _constant(0.0013264726056424689)
# atanh(s)/s as a polynomial in s*s on 0 <= s <= 1/3 (relative error 4.5e-9).
_a1, _a2 = _constant(0.33333208142798165), _constant(0.20010763621044633)
_a3, _a4 = _constant(0.1400090261599547), _constant(0.14005993499180242)


@intrinsic
def transpose(typing_context: Any, source: Any, at: Any, stride: Any, target: Any, target_at: Any, target_stride: Any) -> Any:
    """Copy 16 rows of 16 fp32 numbers as columns. Pointers, the first element of each block, and the distance between rows."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def row(block: Any, index: int) -> Any:
            pointer, first, distance = block
            place = builder.add(first, builder.mul(distance, ir.Constant(distance.type, index)))
            return builder.bitcast(builder.gep(pointer, [place]), _F32S.as_pointer())

        rows = [builder.load(row(arguments[:3], i), align=4) for i in range(LANES)]
        half = LANES // 2
        while half:  # swap the two off-diagonal blocks, then repeat inside every block
            low = [j if not j & half else LANES + j - half for j in range(LANES)]
            high = [j + half if not j & half else LANES + j for j in range(LANES)]
            for i in (i for i in range(LANES) if not i & half):
                pair = rows[i], rows[i + half]
                rows[i], rows[i + half] = (builder.shuffle_vector(*pair, ir.Constant(_I32S, mask)) for mask in (low, high))
            half //= 2
        for i, value in enumerate(rows):
            builder.store(value, row(arguments[3:], i), align=4)
        return context.get_dummy_value()

    return types.none(source, types.intp, types.intp, target, types.intp, types.intp), generate


@njit(inline="always")
def exp2_decay(v: Any) -> Any:
    """Return 2^v for v < 127.5, relative error below 2e-7; exactly 1 at 0, exactly 0 below -127, NaN for NaN."""
    v = at_least(v, _lowest())
    shifted = v + _rounder()
    f = v - (shifted - _rounder())
    p = ((((_e5() * f + _e4()) * f + _e3()) * f + _e2()) * f + _e1()) * f + one()
    return _scale(p, shifted)


@njit(inline="always")
def silu(x: Any) -> Any:
    """Return x / (1 + exp(-x))."""
    return x / (one() + exp2_decay(at_most(zero() - x * _log2_e(), _highest())))


@njit(inline="always")
def softplus(x: Any) -> Any:
    """Return log(1 + exp(x)), relative error below 1e-6."""
    v = x * _log2_e()
    e = exp2_decay(at_most(v, zero() - v))
    s = e / (_two() + e)  # log(1 + e) = 2 atanh(s)
    q = s * s
    p = (((_a4() * q + _a3()) * q + _a2()) * q + _a1()) * q + one()
    return at_least(x, zero()) + _two() * s * p
