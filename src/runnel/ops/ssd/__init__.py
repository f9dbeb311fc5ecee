"""The Mamba-2 recurrence (state space duality) over packed sequences."""

from torch import Tensor

from runnel.ops.backend import implementation
from runnel.ops.packed import boundaries


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
    """Compute S_t = exp(dt_t A) S_{t-1} + dt_t x_t B_t^T and y_t = S_t C_t + D x_t, per head; head
    j uses group j // (H/G).

    Args:
        x: (T, H, P) fp64, fp32 or bf16.
        dt: (T, H), step sizes after softplus, >= 0.
        A: (H,) negative.
        B, C: (T, G, N), G divides H.
        D: (H,) or None.
        cu_seqlens: (S+1,) cumulative lengths; None: one sequence. Empty sequences are allowed.
        state: (S, H, P, N); None: zeros.
        backend: "auto" or a `runnel.ops.backend.Backend`.

    Returns:
        y (T, H, P) in x's dtype and the new state (S, H, P, N) in fp32 (fp64 for fp64 inputs).
        Inputs are left unchanged.

    Source: Dao and Gu 2024 (arXiv 2405.21060), sections 2 and 6.
    """
    cu = boundaries(len(x), cu_seqlens, state, *x.shape[1:], B.shape[2])
    return implementation("ssd", backend, x)(x, dt, A, B, C, D, cu, state)
