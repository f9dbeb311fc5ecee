"""The matrix memory of xLSTM (mLSTM) over packed sequences.

T  tokens of all sequences      S  sequences      H  heads
K  numbers of a key             V  numbers of a value

The implementations are `torch.py`, `cpu.py` and `gpu.py` in this folder and `ops/reference.py`;
`ops/backend.py` chooses one.
"""

from torch import Tensor

from runnel.ops.backend import implementation
from runnel.ops.packed import boundaries

State = tuple[Tensor, Tensor, Tensor]  # C (S, H, K, V), n (S, H, K), m (S, H)


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
    """Run the recurrence. The state of each head is its memory, the matrix C (K, V), the normalizer
    n (K,) of its outputs, and m, the logarithm of the scale of both:

        lf = log sigmoid(f_t)
        m_t = max(lf + m_{t-1}, i_t)
        f' = exp(lf + m_{t-1} - m_t)
        i' = exp(i_t - m_t)
        C_t = f' C_{t-1} + i' k_t v_t^T
        n_t = f' n_{t-1} + i' k_t
        q' = q_t / sqrt(K)
        h_t = C_t^T q' / (max(|n_t . q'|, exp(-m_t)) + eps)

    Args:
        q, k: (T, H, K) fp64, fp32 or bf16.
        v: (T, H, V).
        i, f: (T, H), the gates' arguments (after the soft cap that a model may put on them);
            the forget gate is a sigmoid, the input gate an exp.
        cu_seqlens: (S+1,) cumulative lengths; None: one sequence. Empty sequences are allowed.
        state: C, n and m of each sequence and head, finite; None: zeros, for m too.
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
