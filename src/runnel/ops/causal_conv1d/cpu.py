"""causal_conv1d as compiled CPU kernels, fused with SiLU, with a hand-written backward; fp32 arithmetic for fp32 and bf16 inputs.

T tokens, S sequences, C channels, w taps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from runnel.ops.causal_conv1d.kernels import Gradients, Inputs, convolve, convolve_back
from runnel.ops.numba_math import as_array, flat_rows, float_array, parallel


def causal_conv1d_cpu(
    x: Tensor, weight: Tensor, bias: Tensor | None, cu: Tensor, state: Tensor | None, silu: bool
) -> tuple[Tensor, Tensor]:
    """See `runnel.ops.causal_conv1d`; cu (S+1,) int64 on the CPU."""
    out: tuple[Tensor, Tensor] = _Convolution.apply(x, weight, bias, cu, state, silu)
    return out


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, cu: Tensor, state: Tensor | None, silu: bool
    ) -> tuple[Tensor, Tensor]:
        channels, width = weight.shape
        y, end = torch.empty(x.shape, dtype=x.dtype), torch.empty(cu.numel() - 1, channels, width - 1)
        with parallel():
            convolve(_inputs(x, weight, bias, cu, state), silu, as_array(y), as_array(end))
        ctx.save_for_backward(x, weight, bias, cu, state)
        ctx.silu = silu
        ctx.set_materialize_grads(False)
        return y, end

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor | None, dend: Tensor | None) -> tuple[Tensor | None, ...]:
        x, weight, bias, cu, state = ctx.saved_tensors
        channels, width = weight.shape
        dx, dstate = torch.empty(x.shape, dtype=x.dtype), torch.empty(cu.numel() - 1, channels, width - 1)
        dtaps, dbias = torch.empty(width, channels, dtype=torch.float64), torch.empty(channels, dtype=torch.float64)
        out = Gradients(as_array(dx), as_array(dtaps), as_array(dbias), as_array(dstate))
        with parallel():
            convolve_back(
                _inputs(x, weight, bias, cu, state), flat_rows(torch.zeros_like(x) if dy is None else dy),
                float_array(dend, 0, channels, width - 1), ctx.silu, out,
            )  # fmt: skip
        return (
            dx, dtaps.t().to(weight.dtype), None if bias is None else dbias.to(bias.dtype), None,
            None if state is None else dstate.to(state.dtype), None,
        )  # fmt: skip


def _inputs(x: Tensor, weight: Tensor, bias: Tensor | None, cu: Tensor, state: Tensor | None) -> Inputs:
    channels, width = weight.shape
    taps, biases = float_array(weight.t()), float_array(bias, channels)
    return Inputs(*flat_rows(x), taps, biases, cu.numpy(), float_array(state, 0, channels, width - 1))
