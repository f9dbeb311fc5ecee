"""wkv7 by flash-linear-attention's RWKV-7 kernels. Needs Triton and flash-linear-attention.

T  tokens      S  sequences      H  heads      K  numbers of a key      V  numbers of a value

For each head, with its state M (K, V):

    M_t = diag(exp w_t) M_{t-1} + b_t (a_t^T M_{t-1}) + k_t v_t^T
    o_t = M_t^T r_t

flash-linear-attention has the same state, w (the logarithm of the decay), a and b, so nothing is
converted.

Precision. Up to `_RECURRENT` tokens per sequence its recurrent kernel runs, entirely in fp32; it
has no backward pass. Longer sequences, and inputs with gradients, use its chunked kernel, whose
factors and states between chunks are bf16. The chunked kernel would multiply fp32 in tf32, which
keeps 11 bits: so such fp32 inputs run in plain torch. Its gradient of w is wrong for decays far
below RWKV-7's, whose w is above -0.607: at w = -150 by half of the largest gradient, on an H100.
"""

from typing import Literal

import torch
from torch import Tensor

from runnel.ops.backend import say_once
from runnel.ops.triton_launch import wants_gradients, without_empty
from runnel.ops.wkv7.torch import wkv7_torch

_RECURRENT = 64  # tokens; about where chunks become faster
_LEAST_VALUES = 16  # the smallest value size that the chunked kernel's backward pass compiles for


def wkv7_gpu(
    r: Tensor,
    w: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    cu: Tensor,
    state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """See `runnel.ops.wkv7`: r, w, k, a and b (T, H, K), v (T, H, V), cu (S+1,) int64 on the CPU
    and state (S, H, K, V) -> o (T, H, V) and the new state.
    """
    inputs = (r, w, k, v, a, b)
    form = _form(inputs, cu, state)
    if form == "torch":
        return wkv7_torch(*inputs, cu, state)
    start = (
        v.new_zeros(cu.numel() - 1, *k.shape[1:], v.shape[2], dtype=torch.float32)
        if state is None
        else state.float()
    )
    # the sequences that have tokens, their bounds and their states
    filled, cu, kept = without_empty(cu, start)
    if not filled.numel() or not v.numel():
        return v.clone(), start.clone()
    from fla.ops.rwkv7 import chunk_rwkv7, fused_recurrent_rwkv7

    # The decay stays fp32. Only the chunked kernel needs one dtype for the others and reads the
    # boundaries on the CPU.
    run = fused_recurrent_rwkv7
    more = {}
    if form == "chunk":
        r, k, a, b = (x.to(v.dtype) for x in (r, k, a, b))
        run = chunk_rwkv7
        more = {"cu_seqlens_cpu": cu}
    o, end = run(
        r[None],
        w[None].float(),
        k[None],
        v[None],
        a[None],
        b[None],
        scale=1.0,
        initial_state=kept.contiguous(),
        output_final_state=True,
        cu_seqlens=cu.to(v.device),
        **more,
    )
    return o[0].to(v.dtype), start.index_copy(0, filled.to(v.device), end.float())


def _form(
    inputs: tuple[Tensor, ...], cu: Tensor, state: Tensor | None
) -> Literal["recurrent", "chunk", "torch"]:
    """Return which kernel runs, or "torch" for none; the module's docstring has the rules."""
    gradients = wants_gradients(*inputs, state)
    if not gradients and (cu.numel() < 2 or int(cu.diff().max()) <= _RECURRENT):
        return "recurrent"
    v = inputs[3]
    if v.dtype == torch.bfloat16 and (not gradients or v.shape[2] >= _LEAST_VALUES):
        return "chunk"
    if v.dtype == torch.bfloat16:
        what = f"gradients of heads with values of less than {_LEAST_VALUES} numbers"
        why = "the GPU kernels do not compile for them"
    else:
        what = f"gradients and sequences of more than {_RECURRENT} tokens that are not in bfloat16"
        why = "the GPU kernels round to tf32"
    say_once(f"wkv7: plain torch for {what}, because {why}")
    return "torch"
