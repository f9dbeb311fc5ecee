"""The matrix memory of xLSTM (mLSTM) over packed sequences."""

from torch import Tensor

from runnel.ops.backend import implementation
from runnel.ops.packed import boundaries

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
    """Run a memory matrix C with one forget and one input gate per head, its normalizer n and the
    logarithm m of their scale.

    With lf = log sigmoid(f), per head:
        m_t = max(lf_t + m_{t-1}, i_t)     f' = exp(lf_t + m_{t-1} - m_t)     i' = exp(i_t - m_t)
        C_t = f' C_{t-1} + i' k_t v_t^T    n_t = f' n_{t-1} + i' k_t
        h_t = C_t^T q_t / (max(|n_t . q_t|, exp(-m_t)) + eps), with q_t scaled by K^-0.5 first

    Args:
        q, k: (T, H, K) fp64, fp32 or bf16.
        v: (T, H, V).
        i, f: (T, H), the gates' arguments (after the model's soft cap); the forget gate is a
            sigmoid, the input gate an exp.
        cu_seqlens: (S+1,) cumulative lengths; None: one sequence. Empty sequences are allowed.
        state: (C (S, H, K, V), n (S, H, K), m (S, H)), finite; None: all zeros, m too.
        eps: added to the denominator.
        backend: "auto" or a `runnel.ops.backend.Backend`.

    Returns:
        h (T, H, V) in v's dtype and the new state in fp32 (fp64 for fp64 inputs). Inputs are left
        unchanged. All outputs are differentiable, including with respect to m.

    Source: Beck et al. 2024 (arXiv 2405.04517), section 2.3; chunkwise form: Beck et al. 2025
        (arXiv 2503.14376), section 2.
    """
    cu = boundaries(len(q), cu_seqlens, state and state[0], *q.shape[1:], v.shape[2])
    return implementation("mlstm", backend, v)(q, k, v, i, f, cu, state, eps)
