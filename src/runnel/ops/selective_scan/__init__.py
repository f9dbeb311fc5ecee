"""The Mamba-1 recurrence (selective scan) over packed sequences."""

from __future__ import annotations

from torch import Tensor

from runnel.errors import InputError
from runnel.ops.backend import implementation
from runnel.ops.packed import boundaries, expect

_NAME = "selective_scan"


def selective_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    state: Tensor | None = None,
    *,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Compute h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t and y_t = h_t C_t + D x_t, per channel.

    Args:
        x: (T, Di) fp64, fp32 or bf16.
        dt: (T, Di), step sizes after softplus, >= 0.
        A: (Di, N) negative.
        B, C: (T, N).
        D: (Di,) or None.
        cu_seqlens: (S+1,) cumulative lengths; None: one sequence. Empty sequences are allowed.
        state: (S, Di, N); None: zeros.
        backend: "auto" or one of `runnel.ops.backend.BACKENDS`.

    Returns:
        y (T, Di) in x's dtype and the new state (S, Di, N) in fp32 (fp64 for fp64 inputs). Inputs are left unchanged.

    Raises:
        InputError: shapes do not fit.
        BackendUnavailable: the backend cannot run here.

    Source: Gu and Dao 2023 (arXiv 2312.00752), algorithm 2; B is scaled by dt (Euler), as in the published models.
    """
    if x.ndim != 2 or A.ndim != 2:
        raise InputError(f"{_NAME}: x must be (T, Di) and A (Di, N), got {tuple(x.shape)} and {tuple(A.shape)}")
    tokens, channels = x.shape
    expect(_NAME, (tokens, channels), dt=dt)
    expect(_NAME, (channels, A.shape[1]), A=A)
    expect(_NAME, (tokens, A.shape[1]), B=B, C=C)
    expect(_NAME, (channels,), D=D)
    cu = boundaries(_NAME, tokens, cu_seqlens, state, tuple(A.shape))
    out: tuple[Tensor, Tensor] = implementation(_NAME, backend, x)(x, dt, A, B, C, D, cu, state)
    return out


__all__ = ["selective_scan"]
