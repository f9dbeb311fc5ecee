"""Functions on tiles that the Triton kernels of several operators share. Needs Triton."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language import tensor


@triton.jit
def sigmoid(x: tensor) -> tensor:
    """1 / (1 + exp(-x)), without an exp of a positive number, which may overflow."""
    small = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0 / (1.0 + small), small / (1.0 + small))


@triton.jit
def silu(x: tensor) -> tensor:
    """x sigmoid(x)."""
    return x * sigmoid(x)


@triton.jit
def silu_grad(x: tensor) -> tensor:
    """The derivative of silu."""
    gate = sigmoid(x)
    return gate * (1.0 + x * (1.0 - gate))


@triton.jit
def log_sigmoid(x: tensor) -> tensor:
    """The logarithm of sigmoid(x)."""
    return tl.minimum(x, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(x)))
