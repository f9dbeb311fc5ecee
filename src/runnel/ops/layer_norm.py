"""Add bias and residual and apply LayerNorm in one pass over the residual stream (CPU inference).

T  tokens      D  width      G  groups of 8-bit outputs      Kp  D / G padded to whole words
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from runnel.ops.int8_matmul import quantize_row
from runnel.ops.numba_math import PARALLEL, SERIAL, Array, Number, Pointer
from runnel.ops.simd import (
    LANES,
    add,
    address,
    ceil_div,
    fma,
    keep,
    load,
    load_some,
    mul,
    shift,
    splat,
    store,
    store_some,
    sub,
    total,
)

_BLOCK = 16  # tokens per task


@njit(**SERIAL)
def _add(residual: Pointer, added: Pointer, bias: Pointer, width: int, out: Pointer) -> Any:
    """Set out = residual + added + bias for one token and return its mean. Pointers; `out` may be `residual`."""
    whole, rest = width - width % LANES, width % LANES
    sums = splat(np.float32(0.0))
    for c in range(0, whole, LANES):
        v = add(load(residual, c), add(load(added, c), load(bias, c)))
        store(out, c, v)
        sums = add(sums, v)
    if rest:
        v = add(load_some(residual, whole, rest), add(load_some(added, whole, rest), load_some(bias, whole, rest)))
        store_some(out, whole, v, rest)
        sums = add(sums, v)
    return total(sums) / np.float32(width)


@njit(**SERIAL)
def _deviation(row: Pointer, mean: Number, width: int) -> Any:
    """Return the mean square of row - mean."""
    whole, rest = width - width % LANES, width % LANES
    center, squares = splat(mean), splat(np.float32(0.0))
    for c in range(0, whole, LANES):
        v = sub(load(row, c), center)
        squares = fma(v, v, squares)
    if rest:
        v = keep(sub(load_some(row, whole, rest), center), rest)
        squares = fma(v, v, squares)
    return total(squares) / np.float32(width)


@njit(**SERIAL)
def _normalize(row: Pointer, mean: Number, inverse: Number, weight: Pointer, shift_by: Pointer, width: int) -> None:
    """row = (row - mean) * inverse * weight + shift_by, in place."""
    whole, rest = width - width % LANES, width % LANES
    center, factor = splat(mean), splat(inverse)
    for c in range(0, whole, LANES):
        store(row, c, fma(mul(sub(load(row, c), center), factor), load(weight, c), load(shift_by, c)))
    if rest:
        v = mul(sub(load_some(row, whole, rest), center), factor)
        store_some(row, whole, fma(v, load_some(weight, whole, rest), load_some(shift_by, whole, rest)), rest)


@njit(**SERIAL)
def _copy(row: Pointer, width: int, out: Pointer) -> None:
    whole, rest = width - width % LANES, width % LANES
    for c in range(0, whole, LANES):
        store(out, c, load(row, c))
    if rest:
        store_some(out, whole, load_some(row, whole, rest), rest)


@njit(**PARALLEL)
def add_layer_norm(
    residual: Array, added: Array, bias: Array, weight: Array, shift_by: Array, eps: Number, out: Array, low: Array, scales: Array
) -> None:
    """out = (x - mean(x)) / sqrt(var(x) + eps) * weight + shift_by, x = residual + added + bias. Inside `numba_math.parallel()`.

    Args:
        residual: (T, D) fp32.
        added: (T, D) fp32 or bf16 bits (uint16).
        bias, weight, shift_by: (D,) fp32.
        out: (T, D) fp32; may be `residual`.
        low: a copy of `out` for the next product: (T, D) bf16 bits or (T, G Kp) uint8; (T, 0) fp32 if that uses `out`.
        scales: (T, G) fp32, scales of the bytes; (T, 0) without bytes.
    """
    tokens, width = residual.shape
    groups = scales.shape[1]
    size, padded = width // max(1, groups), low.shape[1] // max(1, groups)
    for block in prange(ceil_div(tokens, _BLOCK)):
        for t in range(block * _BLOCK, min(tokens, (block + 1) * _BLOCK)):
            row, target = shift(address(out), t * width), shift(address(low), t * low.shape[1])
            mean = _add(shift(address(residual), t * width), shift(address(added), t * width), address(bias), width, row)
            inverse = np.float32(1.0) / np.sqrt(_deviation(row, mean, width) + np.float32(eps))
            _normalize(row, mean, inverse, address(weight), address(shift_by), width)
            for g in range(groups):
                scales[t, g] = quantize_row(shift(row, g * size), size, shift(target, g * padded))
            if groups == 0 and low.shape[1]:
                _copy(row, width, target)
