"""The recurrence of Mamba-2 over packed sequences; ssd is short for state space duality.

T  tokens of all sequences      S  sequences      H  heads      P  numbers of a head's input
G  groups of heads that share B and C             N  numbers of B and of C

The implementations are `torch.py`, `cpu.py` and `gpu.py` in this folder and `ops/reference.py`;
`ops/backend.py` chooses one.
"""

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
    """Run the recurrence. For each head, with its state, the matrix M (P, N):

        M_t = exp(dt_t A) M_{t-1} + dt_t x_t B_t^T
        y_t = M_t C_t + D x_t

    Head j uses the B and C of group j // (H / G).

    Args:
        x: (T, H, P) fp64, fp32 or bf16.
        dt: (T, H), step sizes after softplus, >= 0.
        A: (H,) negative.
        B, C: (T, G, N), G divides H.
        D: (H,), the weight of x in y; None: zeros.
        cu_seqlens: (S+1,) cumulative lengths; None: one sequence. Empty sequences are allowed.
        state: M of each sequence and head, (S, H, P, N); None: zeros.
        backend: "auto" or a `runnel.ops.backend.Backend`.

    Returns:
        y (T, H, P) in x's dtype and the new state (S, H, P, N) in fp32 (fp64 for fp64 inputs).
        Inputs are left unchanged.

    Source: Dao and Gu 2024 (arXiv 2405.21060), sections 2 and 6.
    """
    cu = boundaries(len(x), cu_seqlens, state, *x.shape[1:], B.shape[2])
    return implementation("ssd", backend, x)(x, dt, A, B, C, D, cu, state)
