"""Add the bias and apply exact GELU in a feed-forward layer, in one pass (CPU inference).

T  tokens      F  width      G  groups of 8-bit outputs      Kp  F / G padded to whole words
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from runnel.ops.int8_matmul import quantize_row
from runnel.ops.numba_math import PARALLEL, SERIAL, Array, Pointer, build_constant
from runnel.ops.simd import (
    LANES,
    VF32,
    add,
    address,
    build_divide,
    build_fma,
    build_polynomial,
    ceil_div,
    elementwise,
    load,
    load_some,
    shift,
    store,
    store_some,
)

_BLOCK = 16  # tokens per task
# Half of erf(x / sqrt 2) is x P(x^2) / Q(x^2) within 7.7e-9 for |x| <= _END, and within 2e-8 of a half beyond; fitted by
# reweighted least squares in fp64. Highest powers first. In fp32 the result has an error of at most 2e-7 max(1, |x|).
_END = 5.5
_P = (
    2.282993395499275e-08,
    6.3268574862180675e-06,
    1.667907649267483e-4,
    4.664966695949949e-3,
    3.366523478850658e-2,
    0.39894225854283266,
)
_Q = (1.1979583582935856e-06, 7.29323578524655e-05, 1.8730919496306097e-3, 2.8536430754691915e-2, 0.25105241647376714, 1.0)


def _build_gelu(builder: Any, x: Any) -> Any:
    zero, half, one = (build_constant(VF32, value) for value in (0.0, 0.5, 1.0))
    square = builder.fmul(x, x)
    large = builder.fcmp_ordered(">", square, build_constant(VF32, _END * _END))
    square = builder.select(large, zero, square)  # keeps polynomials of large numbers finite
    ratio = build_divide(builder, build_polynomial(builder, square, _P), build_polynomial(builder, square, _Q))
    inside = build_fma(builder, x, ratio, half)
    outside = builder.select(builder.fcmp_ordered(">", x, zero), one, zero)
    phi = builder.select(large, outside, inside)
    return builder.fmul(x, phi)


_gelu = elementwise(1, _build_gelu, "x Phi(x), with Phi the normal distribution; exactly 0 or x beyond 5.5")


@njit(**SERIAL)
def _row(x: Pointer, bias: Pointer, width: int, out: Pointer) -> None:
    """Set out = gelu(x + bias) for one token. Pointers; `out` may be `x`."""
    whole, rest = width - width % LANES, width % LANES
    for c in range(0, whole, LANES):
        store(out, c, _gelu(add(load(x, c), load(bias, c))))
    if rest:
        store_some(out, whole, _gelu(add(load_some(x, whole, rest), load_some(bias, whole, rest))), rest)


@njit(**PARALLEL)
def bias_gelu(x: Array, bias: Array) -> None:
    """Set x = gelu(x + bias), in place. Call it inside `numba_math.parallel()`.

    Args:
        x: (T, F) fp32 or bf16 bits (uint16).
        bias: (F,) fp32.
    """
    tokens, width = x.shape
    for block in prange(ceil_div(tokens, _BLOCK)):
        for t in range(block * _BLOCK, min(tokens, (block + 1) * _BLOCK)):
            row = shift(address(x), t * width)
            _row(row, address(bias), width, row)


@njit(**PARALLEL)
def bias_gelu_bytes(x: Array, bias: Array, out: Array, scales: Array) -> None:
    """Run `bias_gelu` with an 8-bit result for `int8_matmul.multiply`: out (T, G Kp) uint8, scales (T, G) fp32; keep x."""
    tokens, width = x.shape
    groups = scales.shape[1]
    size, padded = width // groups, out.shape[1] // groups
    for block in prange(ceil_div(tokens, _BLOCK)):
        middle = np.empty(width, np.float32)
        for t in range(block * _BLOCK, min(tokens, (block + 1) * _BLOCK)):
            _row(shift(address(x), t * width), address(bias), width, address(middle))
            for g in range(groups):
                target = shift(address(out), t * out.shape[1] + g * padded)
                scales[t, g] = quantize_row(shift(address(middle), g * size), size, target)
