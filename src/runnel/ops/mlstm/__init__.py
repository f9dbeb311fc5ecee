"""The matrix memory of xLSTM (mLSTM) over packed sequences."""

from __future__ import annotations

from torch import Tensor

from runnel.errors import InputError
from runnel.ops.backend import implementation
from runnel.ops.packed import boundaries, expect

_NAME = "mlstm"

State = tuple[Tensor, Tensor, Tensor]


def mlstm(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    cu_seqlens: Tensor | None = None,
    state: State | None = None,
    *,
    eps: float = 1e-6,
    backend: str = "auto",
) -> tuple[Tensor, State]:
    """Run a memory matrix C with one forget and one input gate per head, its normalizer n and the logarithm m of their scale.

    With lf = log sigmoid(f), per head:
        m_t = max(lf_t + m_{t-1}, i_t)     f' = exp(lf_t + m_{t-1} - m_t)     i' = exp(i_t - m_t)
        C_t = f' C_{t-1} + i' k_t v_t^T    n_t = f' n_{t-1} + i' k_t
        h_t = C_t^T q_t / (max(|n_t . q_t|, exp(-m_t)) + eps), with q_t scaled by K^-0.5 first

    Args:
        q, k: (T, H, K) fp64, fp32 or bf16.
        v: (T, H, V).
        i, f: (T, H), the gates' arguments (after the model's soft cap); the forget gate is a sigmoid, the input gate an exp.
        cu_seqlens: (S+1,) cumulative lengths; None: one sequence. Empty sequences are allowed.
        state: (C (S, H, K, V), n (S, H, K), m (S, H)), finite; None: all zeros, m too.
        eps: added to the denominator.
        backend: "auto" or one of `runnel.ops.backend.BACKENDS`.

    Returns:
        h (T, H, V) in v's dtype and the new state in fp32 (fp64 for fp64 inputs). Inputs are left unchanged. All outputs are
        differentiable, including with respect to m.

    Raises:
        InputError: shapes do not fit, or q, k and v differ in dtype.
        BackendUnavailable: the backend cannot run here.

    Source: Beck et al. 2024 (arXiv 2405.04517), section 2.3; chunkwise form: Beck et al. 2025 (arXiv 2503.14376), section 2.
    """
    if q.ndim != 3 or v.ndim != 3:
        raise InputError(f"{_NAME}: q must be (T, H, K) and v (T, H, V), got {tuple(q.shape)} and {tuple(v.shape)}")
    (tokens, heads, width), size = q.shape, v.shape[2]
    expect(_NAME, (tokens, heads, width), k=k)
    expect(_NAME, (tokens, heads, size), v=v)
    expect(_NAME, (tokens, heads), i=i, f=f)
    if not q.dtype == k.dtype == v.dtype:
        found = [str(x.dtype).removeprefix("torch.") for x in (q, k, v)]
        raise InputError(f"{_NAME}: q, k and v must have one dtype, got {found[0]}, {found[1]} and {found[2]}")
    cu = boundaries(_NAME, tokens, cu_seqlens, None if state is None else state[0], (heads, width, size))
    if state is not None:
        expect(_NAME, (cu.numel() - 1, heads, width), state_n=state[1])
        expect(_NAME, (cu.numel() - 1, heads), state_m=state[2])
    out: tuple[Tensor, State] = implementation(_NAME, backend, v)(q, k, v, i, f, cu, state, eps)
    return out


__all__ = ["mlstm"]
