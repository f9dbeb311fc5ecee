"""mlstm as compiled CPU kernels with a hand-written backward; fp32 arithmetic for fp32 and bf16 inputs.

T tokens, S sequences, H heads, K key size, V value size.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from runnel.ops.chunks import Shares
from runnel.ops.mlstm import backward as kernels_backward
from runnel.ops.mlstm import forward as kernels_forward
from runnel.ops.mlstm.forward import Inputs, States
from runnel.ops.numba_math import as_array, flat_rows, float_array, parallel
from runnel.ops.simd import TILE_COLUMNS, ceil_div

State = tuple[Tensor, Tensor, Tensor]


def mlstm_cpu(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, cu: Tensor, state: State | None, eps: float
) -> tuple[Tensor, State]:
    """See `runnel.ops.mlstm`; cu (S+1,) int64 on the CPU."""
    h, C, n, m = _MLSTM.apply(q, k, v, i, f, cu, *((None,) * 3 if state is None else state), eps)
    return h, (C, n, m)


class _MLSTM(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, cu: Tensor, C: Tensor | None, n: Tensor | None,
        m: Tensor | None, eps: float,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        sequences, heads, width, size = cu.numel() - 1, v.shape[1], q.shape[2], v.shape[2]
        h = torch.empty(v.shape, dtype=v.dtype)
        end = _start(C, sequences, heads, width, size)
        threads = torch.get_num_threads()
        # Long sequences with few heads: the columns of V are divided too. Every part repeats only the work on q and k.
        parts = max(1, min(threads // max(1, heads * sequences), ceil_div(size, TILE_COLUMNS)))
        shares = Shares.of(cu.diff().numpy(), heads * parts, threads, heads * parts)
        end_n = _start(n, sequences, heads, width)[:, :, None].expand(-1, -1, parts, -1).contiguous()
        end_m = _start(m, sequences, heads)[:, :, None].expand(-1, -1, parts).contiguous()
        states = States(as_array(end), as_array(end_n), as_array(end_m))
        with parallel():
            kernels_forward.scan(_inputs(q, k, v, i, f), cu.numpy(), parts, shares, np.float32(eps), as_array(h), states)
        ctx.save_for_backward(q, k, v, i, f, cu, C, n, m)
        ctx.eps = eps
        ctx.set_materialize_grads(False)
        return h, end, end_n[:, :, 0].contiguous(), end_m[:, :, 0].contiguous()

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, dh: Tensor | None, dC: Tensor | None, dn: Tensor | None, dm: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        q, k, v, i, f, cu, *state = ctx.saved_tensors
        heads, width, size = v.shape[1], q.shape[2], v.shape[2]
        shares = Shares.of(cu.diff().numpy(), heads, torch.get_num_threads(), heads)
        grads = [torch.empty(x.shape, dtype=x.dtype) for x in (q, k, v)] + [torch.empty(i.shape) for _ in range(2)]
        shapes = [(cu.numel() - 1, heads, *rest) for rest in ((width, size), (width,), ())]
        of_state = [torch.empty(shape) for shape in shapes]
        ends = [None] * 3 if dC is None and dn is None and dm is None else [
            torch.zeros(shape) if part is None else part for part, shape in zip((dC, dn, dm), shapes, strict=True)
        ]  # fmt: skip
        start, end = (
            States(*(float_array(part, 0, *shape[1:]) for part, shape in zip(parts, shapes, strict=True)))
            for parts in (state, ends)
        )
        with parallel():
            kernels_backward.scan(
                _inputs(q, k, v, i, f), flat_rows(torch.zeros_like(v) if dh is None else dh), cu.numpy(), shares,
                start, end, np.float32(ctx.eps), _inputs(*grads), States(*(as_array(x) for x in of_state)),
            )  # fmt: skip
        dq, dk, dv, di, df = grads
        of_start = (None if part is None else x.to(part.dtype) for part, x in zip(state, of_state, strict=True))
        return dq, dk, dv, di.to(i.dtype), df.to(f.dtype), None, *of_start, None


def _start(source: Tensor | None, *shape: int) -> Tensor:
    """Return a contiguous fp32 copy of a state, zeros for None."""
    if source is None:
        return torch.zeros(shape)
    return source.detach().to(torch.float32, copy=True, memory_format=torch.contiguous_format)


def _inputs(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor) -> Inputs:
    """Return inputs or gradients for the kernels; contiguous tensors are not copied."""
    return Inputs(*flat_rows(q), *flat_rows(k), *flat_rows(v), float_array(i), float_array(f))
