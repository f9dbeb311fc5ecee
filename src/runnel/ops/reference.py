"""Every operator as a loop over time, without options: the definitions that all other
implementations are tested against.

T  tokens      S  sequences      The other letters are in the `__init__.py` of each operator's
folder, with the equations. `step` of each function is one step of these.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from runnel.ops.packed import accumulation_dtype

_State = tuple[Tensor, Tensor, Tensor]


def _over_time(
    step: Callable[..., tuple[Tensor, ...]],
    cu: Tensor,
    y: Tensor,
    shapes: Sequence[tuple[int, ...]],
    state: Sequence[Tensor] | None,
) -> tuple[Tensor, ...]:
    """Run a recurrence token by token; return the outputs (T, ...) and the states (S, *shape).

    Args:
        step: maps the index of a token and the states before it to the token's output and the
            states after it.
        cu: (S+1,).
        y: gives only the shape and dtype of the outputs.
        shapes: of one sequence's states.
        state: the states to start from; None: zeros.
    """
    dtype = accumulation_dtype(y)
    rows = []
    start = (
        [y.new_zeros(cu.numel() - 1, *shape, dtype=dtype) for shape in shapes]
        if state is None
        else state
    )
    ends = [[part[:0].to(dtype)] for part in start]
    for s, (first, last) in enumerate(pairwise(cu.tolist())):
        states: Sequence[Tensor] = [part[s].to(dtype) for part in start]
        for t in range(first, last):
            row, *states = step(t, *states)
            rows.append(row)
        for end, part in zip(ends, states, strict=True):
            end.append(part[None])
    return (torch.stack(rows) if rows else y.new_zeros(y.shape)).to(y.dtype), *(
        torch.cat(end) for end in ends
    )


def causal_conv1d_reference(
    x: Tensor, weight: Tensor, bias: Tensor | None, cu: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """See `runnel.ops.causal_conv1d`; cu (S+1,) int64 on the CPU."""
    dtype = accumulation_dtype(x)
    channels, width = weight.shape

    def step(t: int, window: Tensor) -> tuple[Tensor, Tensor]:
        window = torch.cat([window, x[t].to(dtype)[:, None]], dim=1)  # (C, w)
        value = (window * weight.to(dtype)).sum(1)
        if bias is not None:
            value = value + bias.to(dtype)
        return F.silu(value), window[:, 1:]

    y, end = _over_time(step, cu, x, [(channels, width - 1)], None if state is None else [state])
    return y, end


def gated_rms_norm_reference(
    y: Tensor, z: Tensor, weight: Tensor, eps: float, groups: int
) -> Tensor:
    """See `runnel.ops.gated_rms_norm`."""
    dtype = accumulation_dtype(y)
    rows = []
    for t in range(y.shape[0]):
        gate = z[t].to(dtype)
        gated = y[t].to(dtype) * gate * torch.sigmoid(gate)
        parts = [part / torch.sqrt((part * part).mean() + eps) for part in gated.chunk(groups)]
        rows.append(torch.cat(parts) * weight.to(dtype))
    return torch.stack(rows).to(y.dtype) if rows else y.new_zeros(y.shape)


def mlstm_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    cu: Tensor,
    state: _State | None,
    eps: float,
) -> tuple[Tensor, _State]:
    """See `runnel.ops.mlstm`; cu (S+1,) int64 on the CPU."""
    dtype = accumulation_dtype(v)
    _, heads, width = q.shape
    size = v.shape[2]

    def step(t: int, C: Tensor, n: Tensor, m: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        query = q[t].to(dtype) * width**-0.5
        key = k[t].to(dtype)
        value = v[t].to(dtype)
        kept = F.logsigmoid(f[t].to(dtype)) + m
        entering = i[t].to(dtype)
        m = torch.maximum(kept, entering)
        forget = torch.exp(kept - m)[:, None]
        write = torch.exp(entering - m)[:, None]
        C = forget[:, :, None] * C + (write * key)[:, :, None] * value[:, None, :]
        n = forget * n + write * key
        scale = torch.maximum((n * query).sum(1).abs(), torch.exp(-m)) + eps
        return (C * query[:, :, None]).sum(1) / scale[:, None], C, n, m

    h, C, n, m = _over_time(step, cu, v, [(heads, width, size), (heads, width), (heads,)], state)
    return h, (C, n, m)


def selective_scan_reference(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    cu: Tensor,
    state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """See `runnel.ops.selective_scan`; cu (S+1,) int64 on the CPU."""
    dtype = accumulation_dtype(x)
    A = A.to(dtype)

    def step(t: int, h: Tensor) -> tuple[Tensor, Tensor]:  # h (Di, N)
        size = dt[t].to(dtype)
        value = x[t].to(dtype)
        h = torch.exp(size[:, None] * A) * h + (size * value)[:, None] * B[t].to(dtype)
        y = (h * C[t].to(dtype)).sum(1)
        return y if D is None else y + D.to(dtype) * value, h

    y, end = _over_time(step, cu, x, [tuple(A.shape)], None if state is None else [state])
    return y, end


def ssd_reference(
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
    dtype = accumulation_dtype(x)
    per_group = x.shape[1] // B.shape[1]

    def step(t: int, M: Tensor) -> tuple[Tensor, Tensor]:
        size = dt[t].to(dtype)
        value = x[t].to(dtype)
        # (H, N)
        key, query = (part[t].to(dtype).repeat_interleave(per_group, dim=0) for part in (B, C))
        decay = torch.exp(size * A.to(dtype))
        M = decay[:, None, None] * M + (size[:, None] * value)[:, :, None] * key[:, None, :]
        y = (M * query[:, None, :]).sum(2)
        return y if D is None else y + D.to(dtype)[:, None] * value, M

    y, end = _over_time(
        step, cu, x, [(*x.shape[1:], B.shape[2])], None if state is None else [state]
    )
    return y, end


def wkv7_reference(
    r: Tensor,
    w: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    cu: Tensor,
    state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """See `runnel.ops.wkv7`; cu (S+1,) int64 on the CPU."""
    dtype = accumulation_dtype(v)

    def step(t: int, M: Tensor) -> tuple[Tensor, Tensor]:
        query, log_decay, key, value, away, back = (x[t].to(dtype) for x in (r, w, k, v, a, b))
        removed = (away[:, :, None] * M).sum(1)  # (H, V), from the state before its decay
        M = (
            torch.exp(log_decay)[:, :, None] * M
            + back[:, :, None] * removed[:, None]
            + key[:, :, None] * value[:, None]
        )
        return (query[:, :, None] * M).sum(1), M

    o, end = _over_time(
        step, cu, v, [(*k.shape[1:], v.shape[2])], None if state is None else [state]
    )
    return o, end
