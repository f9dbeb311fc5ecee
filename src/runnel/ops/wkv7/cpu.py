"""wkv7 as compiled CPU kernels with a hand-written backward; fp32 arithmetic for fp32 and bf16 inputs.

T tokens, S sequences, H heads, K key size, V value size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from runnel.ops.chunks import Shares
from runnel.ops.numba_math import as_array, flat_rows, float_array, parallel
from runnel.ops.wkv7 import backward as kernels_backward
from runnel.ops.wkv7 import forward as kernels_forward
from runnel.ops.wkv7.backward import Gradients
from runnel.ops.wkv7.forward import Inputs


def wkv7_cpu(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, cu: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """See `runnel.ops.wkv7`; cu (S+1,) int64 on the CPU."""
    r, w, k, a, b = (x if x.dtype in (torch.float32, torch.bfloat16) else x.float() for x in (r, w, k, a, b))
    out: tuple[Tensor, Tensor] = _WKV7.apply(r, w, k, v, a, b, cu, state)
    return out


class _WKV7(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, cu: Tensor, state: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        (heads, key_size), value_size = k.shape[1:], v.shape[2]
        o = torch.empty(v.shape, dtype=v.dtype)
        end = torch.empty(cu.numel() - 1, heads, key_size, value_size)
        shares = Shares.of(cu.diff().numpy(), heads, torch.get_num_threads(), heads)
        with parallel():
            kernels_forward.scan(
                _inputs(r, w, k, v, a, b), cu.numpy(), shares,
                float_array(state, 0, heads, key_size, value_size), as_array(o), as_array(end),
            )  # fmt: skip
        ctx.save_for_backward(r, w, k, v, a, b, cu, state)
        ctx.set_materialize_grads(False)
        return o, end

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor | None, dend: Tensor | None) -> tuple[Tensor | None, ...]:
        r, w, k, v, a, b, cu, state = ctx.saved_tensors
        per_token = r, w, k, v, a, b
        shape = (cu.numel() - 1, *k.shape[1:], v.shape[2])
        gradients = [torch.empty(x.shape, dtype=x.dtype) for x in per_token]
        dstate = torch.empty(shape)
        shares = Shares.of(cu.diff().numpy(), shape[1], torch.get_num_threads(), shape[1])
        out = Gradients(*(as_array(gradient) for gradient in (*gradients, dstate)))
        with parallel():
            kernels_backward.scan(
                _inputs(r, w, k, v, a, b), flat_rows(torch.zeros_like(v) if do is None else do), cu.numpy(), shares,
                float_array(state, 0, *shape[1:]), float_array(dend, 0, *shape[1:]), out,
            )  # fmt: skip
        return *gradients, None, None if state is None else dstate.to(state.dtype)


def _inputs(r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor) -> Inputs:
    return Inputs(*flat_rows(r), *flat_rows(w), *flat_rows(k), *flat_rows(v), *flat_rows(a), *flat_rows(b))
