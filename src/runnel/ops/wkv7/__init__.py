"""The RWKV-7 recurrence (a generalized delta rule) over packed sequences."""

from __future__ import annotations

from torch import Tensor

from runnel.errors import InputError
from runnel.ops.backend import implementation
from runnel.ops.packed import boundaries, expect

_NAME = "wkv7"


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
    """Compute S_t = diag(exp w_t) S_{t-1} + b_t (a_t^T S_{t-1}) + k_t v_t^T and o_t = S_t^T r_t, per head; without scaling.

    Args:
        r: (T, H, K), the receptance, which reads the state.
        w: (T, H, K), the logarithm of the decay, <= 0; preferably fp32 even if the others are bf16.
        k: (T, H, K).
        v: (T, H, V) fp64, fp32 or bf16.
        a: (T, H, K), minus the normalized removal key in RWKV-7; it reads the state before its decay.
        b: (T, H, K), the removal key times its gate in RWKV-7.
        cu_seqlens: (S+1,) cumulative lengths; None: one sequence. Empty sequences are allowed.
        state: (S, H, K, V), keys first; None: zeros.
        backend: "auto" or one of `runnel.ops.backend.BACKENDS`.

    Returns:
        o (T, H, V) in v's dtype and the new state (S, H, K, V) in fp32 (fp64 for fp64 inputs). Inputs are left unchanged.

    Raises:
        InputError: shapes do not fit.
        BackendUnavailable: the backend cannot run here.

    Source: Peng et al. 2025 (arXiv 2503.14456), the weighted key value state and its update.
    Differs: the state of the paper and of the RWKV-LM code is the transpose, (V, K); w is the logarithm of the decay
    itself, neither the argument of the decay's sigmoid nor log(-w).
    """
    if k.ndim != 3 or v.ndim != 3:
        raise InputError(f"{_NAME}: k must be (T, H, K) and v (T, H, V), got {tuple(k.shape)} and {tuple(v.shape)}")
    tokens, heads, key_size = k.shape
    expect(_NAME, (tokens, heads, key_size), r=r, w=w, a=a, b=b)
    expect(_NAME, (tokens, heads, v.shape[2]), v=v)
    cu = boundaries(_NAME, tokens, cu_seqlens, state, (heads, key_size, v.shape[2]))
    out: tuple[Tensor, Tensor] = implementation(_NAME, backend, v)(r, w, k, v, a, b, cu, state)
    return out


__all__ = ["wkv7"]
