"""The Mamba-1 recurrence (selective scan) over packed sequences.

T  tokens of all sequences      S  sequences      Di  channels      N  numbers of a channel's state

The implementations are `torch.py` and `gpu.py` in this folder and `ops/reference.py`;
`ops/backend.py` chooses one.
"""

from torch import Tensor

from runnel.ops.backend import implementation
from runnel.ops.packed import boundaries


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
    """Run the recurrence. For each channel, with its state h (N,) and its row of A (N,):

        h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t
        y_t = h_t . C_t + D x_t

    Args:
        x: (T, Di) fp64, fp32 or bf16.
        dt: (T, Di), step sizes after softplus, >= 0.
        A: (Di, N) negative.
        B, C: (T, N).
        D: (Di,), the weight of x in y; None: zeros.
        cu_seqlens: (S+1,) cumulative lengths; None: one sequence. Empty sequences are allowed.
        state: h of each sequence, (S, Di, N); None: zeros.
        backend: "auto" or a `runnel.ops.backend.Backend`.

    Returns:
        y (T, Di) in x's dtype and the new state (S, Di, N) in fp32 (fp64 for fp64 inputs). Inputs
        are left unchanged.

    Source: Gu and Dao 2023 (arXiv 2312.00752), algorithm 2; B is scaled by dt (Euler), as in the
        published models.
    """
    cu = boundaries(len(x), cu_seqlens, state, *A.shape)
    return implementation("selective_scan", backend, x)(x, dt, A, B, C, D, cu, state)
