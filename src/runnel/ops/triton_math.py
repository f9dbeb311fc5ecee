"""Functions on tiles for the Triton kernels of several operators. Needs Triton."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language import tensor


@triton.jit
def sigmoid(x: tensor) -> tensor:
    """Return 1 / (1 + exp(-x)), without the exp of a positive number, which may overflow."""
    small = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0 / (1.0 + small), small / (1.0 + small))


@triton.jit
def silu(x: tensor) -> tensor:
    """Return x sigmoid(x)."""
    return x * sigmoid(x)


@triton.jit
def silu_grad(x: tensor) -> tensor:
    """Return the derivative of silu."""
    gate = sigmoid(x)
    return gate * (1.0 + x * (1.0 - gate))


@triton.jit
def log_sigmoid(x: tensor) -> tensor:
    """Return the logarithm of sigmoid(x)."""
    return tl.minimum(x, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(x)))
