"""Arithmetic of the scan on vectors of sixteen fp32 numbers (`runnel.ops.simd`): operators, and functions of bounded arguments.

Multiply-adds may be fused; NaN and infinity propagate. All names are for use inside jitted kernels.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from numba import njit
from numba.extending import overload

from runnel.ops.numba_math import ATANH, Vector
from runnel.ops.simd import EXACT, elementwise, exp2, f32x16, splat


def _define(symbol: Any, function: Any) -> None:
    @overload(symbol, strict=False)
    def implementation(left: Any, right: Any) -> Any:
        if left is f32x16 and right is f32x16:
            return lambda left, right: function(left, right)
        return None


_define(operator.add, elementwise(2, lambda builder, a, b: builder.fadd(a, b, flags=EXACT)))
_define(operator.sub, elementwise(2, lambda builder, a, b: builder.fsub(a, b, flags=EXACT)))
_define(operator.mul, elementwise(2, lambda builder, a, b: builder.fmul(a, b, flags=EXACT)))
_define(operator.truediv, elementwise(2, lambda builder, a, b: builder.fdiv(a, b, flags=EXACT)))
# max(a, b) and min(a, b). If `a` is NaN the comparison is false and `a` is kept.
at_least = elementwise(2, lambda builder, a, b: builder.select(builder.fcmp_ordered("<", a, b), b, a))
at_most = elementwise(2, lambda builder, a, b: builder.select(builder.fcmp_ordered(">", a, b), b, a))

_ZERO, _ONE, _TWO = np.float32(0.0), np.float32(1.0), np.float32(2.0)
_LOG2_E = np.float32(1.4426950408889634)
_A1, _A2, _A3, _A4 = (np.float32(c) for c in ATANH[1:])


@njit(inline="always")
def zero() -> Any:
    """Return 0 in all lanes."""
    return splat(_ZERO)


@njit(inline="always")
def softplus(x: Vector) -> Any:
    """Return log(1 + exp(x)), relative error below 1e-6."""
    v = x * splat(_LOG2_E)
    e = exp2(at_most(v, zero() - v))
    s = e / (splat(_TWO) + e)  # log(1 + e) = 2 atanh(s)
    q = s * s
    p = (((splat(_A4) * q + splat(_A3)) * q + splat(_A2)) * q + splat(_A1)) * q + splat(_ONE)
    return at_least(x, zero()) + splat(_TWO) * s * p
