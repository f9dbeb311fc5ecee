"""Residual addition and RMSNorm in one pass over the residual stream (CPU inference).

T  tokens      D  width      K  partial sums of squares per token
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from runnel.ops.numba_math import PARALLEL, SERIAL
from runnel.ops.simd import LANES, address, fma, load, load_some, mul, splat, store, store_some, total

_BLOCK = 16  # tokens per task


@njit(**SERIAL)
def _add_rms_norm_token(residual: Any, added: Any, scale: Any, weight: Any, eps: Any, out: Any, t: int, width: int) -> None:
    """One token; the arrays as pointers."""
    whole, rest = width - width % LANES, width % LANES
    row = t * width
    factor, sums = splat(scale), splat(np.float32(0.0))
    for c in range(row, row + whole, LANES):
        v = fma(load(added, c), factor, load(residual, c))
        store(residual, c, v)
        sums = fma(v, v, sums)
    if rest:
        v = fma(load_some(added, row + whole, rest), factor, load_some(residual, row + whole, rest))
        store_some(residual, row + whole, v, rest)
        sums = fma(v, v, sums)
    inverse = splat(np.float32(1.0) / np.sqrt(total(sums) / np.float32(width) + np.float32(eps)))
    for c in range(0, whole, LANES):
        store(out, row + c, mul(mul(load(residual, row + c), inverse), load(weight, c)))
    if rest:
        v = mul(mul(load_some(residual, row + whole, rest), inverse), load_some(weight, whole, rest))
        store_some(out, row + whole, v, rest)


@njit(**PARALLEL)
def add_rms_norm(residual: Any, added: Any, squares: Any, count: Any, weight: Any, eps: Any, out: Any) -> None:
    """residual += scale * added; out = residual / rms(residual) * weight. Call it inside `numba_math.parallel()`.

    Args:
        residual: (T, D) fp32, updated in place.
        added: (T, D) fp32 or bf16 bits (uint16): the block's output.
        squares: (T, K) fp32: scale of token t is 1 / sqrt(sum(squares[t]) / count + eps), the norm that a Mamba-2 block puts off
            until after its output projection. K = 0: scale is 1.
        count: numbers behind the sums of squares.
        weight: (D,) fp32.
        out: (T, D) fp32 or bf16 bits.
    """
    tokens, width, parts = residual.shape[0], residual.shape[1], squares.shape[1]
    for block in prange((tokens + _BLOCK - 1) // _BLOCK):
        for t in range(block * _BLOCK, min(tokens, (block + 1) * _BLOCK)):
            scale = np.float32(1.0)
            if parts:
                sums = np.float32(0.0)
                for k in range(parts):
                    sums += squares[t, k]
                scale = np.float32(1.0) / np.sqrt(sums / np.float32(count) + np.float32(eps))
            _add_rms_norm_token(
                address(residual), address(added), scale, address(weight), np.float32(eps), address(out), t, width
            )
