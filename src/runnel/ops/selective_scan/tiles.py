"""The inner loops of the selective scan on one tile: N x 16 states that stay in cache over many tokens.

S sequences, T tokens, Di channels, N state size, G = Di / 16 tiles of channels.

Arithmetic is on vectors of sixteen fp32 numbers (`runnel.ops.simd`). Multiply-adds may be fused; NaN and infinity propagate.
A tile's states and its rates A log2(e) have shape (N, 16), so that one vector instruction processes 16 channels with the same n.
Rows of `coefficients` (T, 2N) contain one token's B, then C.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch
from numba import njit
from numba.extending import overload
from torch import Tensor

from runnel.ops.numba_math import ATANH, Pointer, Vector
from runnel.ops.simd import EXACT, LANES, elementwise, exp2, f32x16, load, splat, store


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
_LOG2_E = 1.4426950408889634
_LOG2_E32 = np.float32(_LOG2_E)
_A1, _A2, _A3, _A4 = (np.float32(c) for c in ATANH[1:])


@njit(inline="always")
def zero() -> Any:
    """Return 0 in all lanes."""
    return splat(_ZERO)


@njit(inline="always")
def softplus(x: Vector) -> Any:
    """Return log(1 + exp(x)), relative error below 1e-6."""
    v = x * splat(_LOG2_E32)
    e = exp2(at_most(v, zero() - v))
    s = e / (splat(_TWO) + e)  # log(1 + e) = 2 atanh(s)
    q = s * s
    p = (((splat(_A4) * q + splat(_A3)) * q + splat(_A2)) * q + splat(_A1)) * q + splat(_ONE)
    return at_least(x, zero()) + splat(_TWO) * s * p


def rate_tiles(A: Tensor) -> Tensor:
    """Convert A (Di, N), Di a multiple of 16, to A log2(e) as contiguous fp32 tiles (G, N, 16)."""
    return (A.float() * _LOG2_E).unflatten(0, (-1, LANES)).transpose(1, 2).contiguous()


def tiles_per_item(sequences: int, tiles: int) -> int:
    """Return the number of tiles per work item.

    At most 16: half a KiB of each row of x, dt and y, so that few pages are open at once, and states fit the first-level
    cache. Fewer if there would be less than two items per core.
    """
    return max(1, min(16, sequences * tiles // (2 * torch.get_num_threads())))


@njit(inline="always")
def advance(states: Pointer, rates: Pointer, coefficients: Pointer, N: int, d: Vector, u: Vector, y: Vector) -> Any:
    """Move one tile over one token.

    Args:
        states, rates: of the tile; states are updated.
        coefficients: the token's row.
        d, u, y: dt, dt x and the output so far.

    Returns:
        y with C h added.
    """
    for n in range(N):
        h = exp2(load(rates, n * LANES) * d) * load(states, n * LANES) + u * splat(coefficients[n])
        store(states, n * LANES, h)
        y = y + h * splat(coefficients[N + n])
    return y


@njit(inline="always")
def advance4(states: Pointer, rates: Pointer, coefficients: Pointer, N: int, d: Any, u: Any, y: Any) -> Any:
    """Run `advance` over four tokens; d, u and y are tuples. States and rates are loaded once, four dependency chains overlap."""
    (d0, d1, d2, d3), (u0, u1, u2, u3), (y0, y1, y2, y3) = d, u, y
    for n in range(N):
        rate = load(rates, n * LANES)
        h = load(states, n * LANES)
        h = exp2(rate * d0) * h + u0 * splat(coefficients[n])
        y0 = y0 + h * splat(coefficients[N + n])
        h = exp2(rate * d1) * h + u1 * splat(coefficients[2 * N + n])
        y1 = y1 + h * splat(coefficients[3 * N + n])
        h = exp2(rate * d2) * h + u2 * splat(coefficients[4 * N + n])
        y2 = y2 + h * splat(coefficients[5 * N + n])
        h = exp2(rate * d3) * h + u3 * splat(coefficients[6 * N + n])
        y3 = y3 + h * splat(coefficients[7 * N + n])
        store(states, n * LANES, h)
    return y0, y1, y2, y3
