"""ssd (state space duality, the recurrence of Mamba-2) by flash-linear-attention's simple gated
linear attention. Needs Triton and flash-linear-attention.

T  tokens      S  sequences      H  heads      G  groups      P, N  sizes of a head's state

For each head, with its state M (P, N):

    M_t = exp(dt_t A) M_{t-1} + dt_t x_t B_t^T
    y_t = M_t C_t + D x_t

In that package's names, q is C, k is B, v is dt x, and the logarithm of the decay is dt A. Its
state is the transpose of the state here, and it does not add D x. It has no groups: B and C (T, G,
N) are copied for every head.

Precision. Up to `_RECURRENT` tokens per sequence its recurrent kernel runs, entirely in fp32.
Longer sequences use its chunked kernel, whose factors (including dt x) and states between chunks
are bf16. The chunked kernel would multiply fp32 in tf32, which keeps 11 bits: so longer fp32
sequences run in plain torch. So do gradients of longer sequences with Triton 3.4 to 3.7.0 on Hopper
GPUs, where Triton compiles the backward pass wrongly and the package refuses to run it.
"""

import importlib.metadata
import re
from typing import Literal

import torch
from torch import Tensor

from runnel.ops.backend import say_once
from runnel.ops.ssd.torch import ssd_torch
from runnel.ops.triton_launch import wants_gradients, without_empty

_RECURRENT = 64  # tokens; about where chunks become faster


def ssd_gpu(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    cu: Tensor,
    state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """See `runnel.ops.ssd`; cu (S+1,) int64 on the CPU."""
    form = _form(x, cu, wants_gradients(x, dt, A, B, C, D, state))
    if form == "torch":
        return ssd_torch(x, dt, A, B, C, D, cu, state)
    start = (
        x.new_zeros(cu.numel() - 1, *x.shape[1:], B.shape[2], dtype=torch.float32)
        if state is None
        else state.float()
    )
    wide = x.float()
    # the sequences that have tokens, their bounds and their states
    filled, cu, kept = without_empty(cu, start)
    if not filled.numel() or not x.numel():
        return x.clone(), start.clone()
    from fla.ops.simple_gla import chunk_simple_gla, fused_recurrent_simple_gla

    per_group = x.shape[1] // B.shape[1]
    query, key = (
        coefficients[:, :, None].expand(-1, -1, per_group, -1).flatten(1, 2)[None]
        for coefficients in (C, B)
    )
    value = (dt.float()[..., None] * wide)[None]
    decay = (dt.float() * A.float())[None]
    run = fused_recurrent_simple_gla
    more = {}
    if form == "chunk":  # only this kernel needs one dtype and reads the boundaries on the CPU
        value = value.to(key.dtype)
        run = chunk_simple_gla
        more = {"cu_seqlens_cpu": cu}
    y, end = run(
        query, key, value, decay, scale=1.0, initial_state=kept.transpose(2, 3).contiguous(),
        output_final_state=True, cu_seqlens=cu.to(x.device), **more,
    )  # fmt: skip
    y = y[0].float()
    end = start.index_copy(0, filled.to(x.device), end.transpose(2, 3).float())
    if D is not None:
        y = y + D.float()[:, None] * wide
    return y.to(x.dtype), end


def _form(x: Tensor, cu: Tensor, gradients: bool) -> Literal["recurrent", "chunk", "torch"]:
    """Return which kernel runs, or "torch" for none; the module's docstring has the rules."""
    if cu.numel() < 2 or int(cu.diff().max()) <= _RECURRENT:
        return "recurrent"
    what, why = "float32", "the GPU kernels round to tf32"
    if x.dtype == torch.bfloat16:
        if not (gradients and _miscompiled(x)):
            return "chunk"
        what, why = (
            "gradients of",
            "Triton before 3.7.1 compiles the GPU kernels wrongly for this GPU",
        )
    say_once(
        f"ssd: plain torch for {what} sequences of more than {_RECURRENT} tokens, because {why}"
    )
    return "torch"


def _miscompiled(x: Tensor) -> bool:
    """Return whether flash-linear-attention refuses the chunked backward pass on this GPU and
    version of Triton (its issue 640).
    """
    if not x.is_cuda or torch.cuda.get_device_capability(x.device)[0] != 9:
        return False
    version = tuple(map(int, re.findall(r"\d+", importlib.metadata.version("triton"))[:3]))
    return (3, 4) <= version < (3, 7, 1)
