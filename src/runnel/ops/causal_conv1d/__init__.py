"""Causal depthwise convolution and SiLU over packed sequences.

T  tokens of all sequences      S  sequences      C  channels      w  taps

The implementations are `torch.py`, `cpu.py` and `gpu.py` in this folder and `ops/reference.py`;
`ops/backend.py` chooses one. `fused.py` has other kernels, for the steps of Mamba-1 and Mamba-2.
"""

from torch import Tensor

from runnel.ops.backend import implementation
from runnel.ops.packed import boundaries


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    state: Tensor | None = None,
    *,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Compute y[t, c] = silu(bias[c] + sum over k < w of weight[c, k] * x[t - (w-1) + k, c]).

    Before a sequence's start, x comes from its state.

    Args:
        x: (T, C) fp64, fp32 or bf16; it may be some columns of a wider matrix (any row stride),
            which the kernels read without a copy.
        weight: (C, w); the last tap multiplies the current token.
        bias: (C,); None: zeros.
        cu_seqlens: (S+1,) cumulative lengths; None: one sequence. Empty sequences are allowed.
        state: (S, C, w-1) the last w-1 inputs of each sequence, newest last; None: zeros.
        backend: "auto" or a `runnel.ops.backend.Backend`.

    Returns:
        y (T, C) in x's dtype and the new state (S, C, w-1) in fp32 (fp64 for fp64 inputs). Inputs
        are left unchanged.
    """
    cu = boundaries(len(x), cu_seqlens, state, weight.shape[0], weight.shape[1] - 1)
    return implementation("causal_conv1d", backend, x)(x, weight, bias, cu, state)
