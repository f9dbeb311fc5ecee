"""The Mamba-3 recurrence (state space duality by the trapezoidal rule) over packed sequences.

T  tokens of all sequences      S  sequences      H  heads
R  pairs of an input and an output that a head has for each token (ranks)
N  numbers of a key, k, and of a query, q         P  numbers of a value, v

The implementations are `torch.py` in this folder and `ops/reference.py`; `ops/backend.py` chooses
one.
"""

from torch import Tensor

from runnel.ops.backend import implementation
from runnel.ops.packed import boundaries

# the matrix M (S, H, P, N), and k (S, H, R, N) and v (S, H, R, P) of the last token
State = tuple[Tensor, Tensor, Tensor]


def trapezoid(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dt: Tensor,
    A: Tensor,
    trap: Tensor,
    cu_seqlens: Tensor | None = None,
    state: State | None = None,
    *,
    backend: str = "auto",
) -> tuple[Tensor, State]:
    """Run the recurrence. For each head, with its state, the matrix M (P, N):

        W_t = sum over r of v_tr k_tr^T
        a_t = exp(dt_t A_t)
        M_t = a_t M_{t-1} + (1 - trap_t) dt_t a_t W_{t-1} + trap_t dt_t W_t
        y_tr = M_t q_tr

    Args:
        q, k: (T, H, R, N) fp64, fp32 or bf16, after their rotation.
        v: (T, H, R, P).
        dt: (T, H), step sizes, >= 0.
        A: (T, H), negative.
        trap: (T, H) from 0 to 1, the share of a token's own input; 1: Euler's rule, as in Mamba-2.
        cu_seqlens: (S+1,) cumulative lengths; None: one sequence. Empty sequences are allowed.
        state: `State`; None: zeros.
        backend: "auto" or a `runnel.ops.backend.Backend`; there are no GPU kernels.

    Returns:
        y (T, H, R, P) in v's dtype and the new state in fp32 (fp64 for fp64 inputs). Inputs are
        left unchanged.

    Source: Lahoti et al. 2026 (arXiv 2603.15569); mamba_ssm/modules/mamba3.py in state-spaces/mamba
        e9594ce.
    """
    cu = boundaries(len(q), cu_seqlens, state and state[0], q.shape[1], v.shape[3], q.shape[3])
    return implementation("trapezoid", backend, v)(q, k, v, dt, A, trap, cu, state)
