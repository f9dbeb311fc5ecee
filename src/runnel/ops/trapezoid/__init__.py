"""The Mamba-3 recurrence (state space duality by the trapezoidal rule) over packed sequences."""

from __future__ import annotations

from torch import Tensor

from runnel.errors import InputError
from runnel.ops.backend import implementation
from runnel.ops.packed import boundaries, expect

_NAME = "trapezoid"

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
    """Run a state S with R inputs and R outputs per head and token.

    With W_t = sum over r of v_tr k_tr^T and a_t = exp(dt_t A_t), per head:
        S_t = a_t S_{t-1} + (1 - trap_t) dt_t a_t W_{t-1} + trap_t dt_t W_t      y_tr = S_t q_tr

    Args:
        q, k: (T, H, R, N) fp64, fp32 or bf16, after their rotation.
        v: (T, H, R, P).
        dt: (T, H), step sizes, >= 0.
        A: (T, H), negative.
        trap: (T, H) from 0 to 1, the share of a token's own input; 1: Euler's rule, as in Mamba-2.
        cu_seqlens: (S+1,) cumulative lengths; None: one sequence. Empty sequences are allowed.
        state: (S (S, H, P, N), and k (S, H, R, N) and v (S, H, R, P) of the last token); None: zeros.
        backend: "auto" or one of `runnel.ops.backend.BACKENDS`; there are no GPU kernels.

    Returns:
        y (T, H, R, P) in v's dtype and the new state in fp32 (fp64 for fp64 inputs). Inputs are left unchanged.

    Raises:
        InputError: shapes do not fit.
        BackendUnavailable: the backend cannot run here.

    Source: Lahoti et al. 2026 (arXiv 2603.15569); mamba_ssm/modules/mamba3.py in state-spaces/mamba e9594ce.
    """
    if q.ndim != 4 or v.ndim != 4:
        raise InputError(f"{_NAME}: q must be (T, H, R, N) and v (T, H, R, P), got {tuple(q.shape)} and {tuple(v.shape)}")
    (tokens, heads, rank, width), size = q.shape, v.shape[3]
    expect(_NAME, (tokens, heads, rank, width), k=k)
    expect(_NAME, (tokens, heads, rank, size), v=v)
    expect(_NAME, (tokens, heads), dt=dt, A=A, trap=trap)
    cu = boundaries(_NAME, tokens, cu_seqlens, None if state is None else state[0], (heads, size, width))
    if state is not None:
        expect(_NAME, (cu.numel() - 1, heads, rank, width), state_k=state[1])
        expect(_NAME, (cu.numel() - 1, heads, rank, size), state_v=state[2])
    out: tuple[Tensor, State] = implementation(_NAME, backend, v)(q, k, v, dt, A, trap, cu, state)
    return out


__all__ = ["trapezoid"]
