"""The Mamba-2 recurrence (state space duality) over packed sequences."""

from __future__ import annotations

from torch import Tensor

from runnel.errors import InputError
from runnel.ops.backend import implementation
from runnel.ops.packed import boundaries, expect

_NAME = "ssd"


def ssd(
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
    """Compute S_t = exp(dt_t A) S_{t-1} + dt_t x_t B_t^T and y_t = S_t C_t + D x_t, per head; head j uses group j // (H/G).

    Args:
        x: (T, H, P) fp64, fp32 or bf16.
        dt: (T, H), step sizes after softplus, >= 0.
        A: (H,) negative.
        B, C: (T, G, N), G divides H.
        D: (H,) or None.
        cu_seqlens: (S+1,) cumulative lengths; None: one sequence. Empty sequences are allowed.
        state: (S, H, P, N); None: zeros.
        backend: "auto" or one of `runnel.ops.backend.BACKENDS`.

    Returns:
        y (T, H, P) in x's dtype and the new state (S, H, P, N) in fp32 (fp64 for fp64 inputs). Inputs are left unchanged.

    Raises:
        InputError: shapes do not fit.
        BackendUnavailable: the backend cannot run here.

    Source: Dao and Gu 2024 (arXiv 2405.21060), sections 2 and 6.
    """
    if x.ndim != 3 or B.ndim != 3 or B.shape[1] < 1 or x.shape[1] % B.shape[1]:
        raise InputError(
            f"{_NAME}: x must be (T, H, P) and B (T, G, N) with H a multiple of G, got {tuple(x.shape)} and {tuple(B.shape)}"
        )
    tokens, heads, size = x.shape
    expect(_NAME, (tokens, heads), dt=dt)
    expect(_NAME, (heads,), A=A, D=D)
    expect(_NAME, (tokens, *B.shape[1:]), B=B, C=C)
    cu = boundaries(_NAME, tokens, cu_seqlens, state, (heads, size, B.shape[2]))
    out: tuple[Tensor, Tensor] = implementation(_NAME, backend, x)(x, dt, A, B, C, D, cu, state)
    return out


__all__ = ["ssd"]
