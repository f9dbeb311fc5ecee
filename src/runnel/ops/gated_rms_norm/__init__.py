"""RMS norm of a gated input, by groups (Mamba-2's norm before the output projection)."""

from __future__ import annotations

from torch import Tensor

from runnel.errors import InputError
from runnel.ops.backend import implementation
from runnel.ops.packed import expect

_NAME = "gated_rms_norm"


def gated_rms_norm(y: Tensor, z: Tensor, weight: Tensor, eps: float, groups: int = 1, *, backend: str = "auto") -> Tensor:
    """t = y * silu(z); t / sqrt(mean of t*t over each group of C/groups channels + eps) * weight. The gate comes before the norm.

    Args:
        y: (T, C) fp64, fp32 or bf16.
        z: (T, C), the gate; rows may be columns of a wider matrix.
        weight: (C,).
        eps: added to the mean square.
        groups: number of groups of neighboring channels; divides C.
        backend: "auto" or one of `runnel.ops.backend.BACKENDS`.

    Returns:
        (T, C) in y's dtype. Inputs are left unchanged.

    Raises:
        InputError: shapes do not fit.
        BackendUnavailable: the backend cannot run here.
    """
    if y.ndim != 2:
        raise InputError(f"{_NAME}: y must be (T, C), got {tuple(y.shape)}")
    expect(_NAME, tuple(y.shape), z=z)
    expect(_NAME, (y.shape[1],), weight=weight)
    if groups < 1 or y.shape[1] % groups:
        raise InputError(f"{_NAME}: groups must divide the {y.shape[1]} channels, got {groups}")
    out: Tensor = implementation(_NAME, backend, y)(y, z, weight, eps, groups)
    return out


__all__ = ["gated_rms_norm"]
