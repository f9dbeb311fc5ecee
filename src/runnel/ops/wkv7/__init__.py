"""The RWKV-7 recurrence (a generalized delta rule) over packed sequences.

T  tokens of all sequences      S  sequences      H  heads
K  numbers of a key             V  numbers of a value

The implementations are `torch.py` and `gpu.py` in this folder and `ops/reference.py`;
`ops/backend.py` chooses one. `lanes.py` has the loops of RWKV-7's fast step on the CPU.
"""

from torch import Tensor

from runnel.ops.backend import implementation
from runnel.ops.packed import boundaries


def wkv7(
    r: Tensor,
    w: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    cu_seqlens: Tensor | None = None,
    state: Tensor | None = None,
    *,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Run the recurrence. For each head, with its state, the matrix M (K, V):

        M_t = diag(exp w_t) M_{t-1} + b_t (a_t^T M_{t-1}) + k_t v_t^T
        o_t = M_t^T r_t

    Args:
        r: (T, H, K), the receptance, which reads the state.
        w: (T, H, K), the logarithm of the decay, <= 0; preferably fp32 even if the others are bf16.
        k: (T, H, K).
        v: (T, H, V) fp64, fp32 or bf16.
        a: (T, H, K), minus the normalized removal key in RWKV-7 (the key whose value is taken out
            of the state); it reads the state before its decay.
        b: (T, H, K), the removal key times its gate in RWKV-7.
        cu_seqlens: (S+1,) cumulative lengths; None: one sequence. Empty sequences are allowed.
        state: M of each sequence and head, (S, H, K, V); None: zeros.
        backend: "auto" or a `runnel.ops.backend.Backend`.

    Returns:
        o (T, H, V) in v's dtype and the new state (S, H, K, V) in fp32 (fp64 for fp64 inputs).
        Inputs are left unchanged.

    Source: Peng et al. 2025 (arXiv 2503.14456), the weighted key value state and its update.
    Two conventions differ from the paper and from the code of RWKV-LM. Their state is the
    transpose, (V, K). And w is here the logarithm of the decay itself, neither the argument of the
    decay's sigmoid nor log(-w).
    """
    cu = boundaries(len(k), cu_seqlens, state, *k.shape[1:], v.shape[2])
    return implementation("wkv7", backend, v)(r, w, k, v, a, b, cu, state)
