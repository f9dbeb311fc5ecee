"""Every operator as a loop over time, without options: the definitions that all other
implementations are tested against.

T  tokens of all sequences, one after another      S  sequences      w  taps of a convolution
H  heads      Di, C  channels      N  numbers of a channel's or head's state, or of a key
V  numbers of a head's value      G  groups of heads that share B and C      P  numbers of a head

The equations are in the `__init__.py` of each operator's folder, with the shape of each argument;
`step` of each function is one step of them. `cu` (S+1,) int64, on the CPU, has the cumulative
lengths of the sequences: sequence s is the tokens cu[s] to cu[s+1].
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from runnel.ops.packed import accumulation_dtype

# of mLSTM: the matrix memory C (S, H, N, V), its normalizer n (S, H, N), and m (S, H), the running
# maximum of the gates' logarithms, by which both are scaled
_MlstmState = tuple[Tensor, Tensor, Tensor]


def _over_time(
    step: Callable[..., tuple[Tensor, ...]],
    cu: Tensor,
    like: Tensor,
    shapes: Sequence[tuple[int, ...]],
    state: Sequence[Tensor] | None,
) -> tuple[Tensor, ...]:
    """Run a recurrence token by token; return the outputs (T, ...) and the states (S, *shape).

    Args:
        step: maps the index of a token and the states before it to the token's output and the
            states after it.
        like: has the shape, dtype and device of the outputs; its values are not read.
        shapes: of one sequence's states.
        state: the states to start from; None: zeros.
    """
    dtype = accumulation_dtype(like)
    rows = []
    start = state
    if start is None:
        start = [like.new_zeros(cu.numel() - 1, *shape, dtype=dtype) for shape in shapes]
    ends = [[part[:0].to(dtype)] for part in start]  # empty, for the shape without a sequence
    for s, (first, last) in enumerate(pairwise(cu.tolist())):
        states: Sequence[Tensor] = [part[s].to(dtype) for part in start]
        for t in range(first, last):
            row, *states = step(t, *states)
            rows.append(row)
        for end, part in zip(ends, states, strict=True):
            end.append(part[None])
    y = torch.stack(rows) if rows else like.new_zeros(like.shape)
    return y.to(like.dtype), *map(torch.cat, ends)


def causal_conv1d_reference(
    x: Tensor, weight: Tensor, bias: Tensor | None, cu: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """See `runnel.ops.causal_conv1d`."""
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
    state: _MlstmState | None,
    eps: float,
) -> tuple[Tensor, _MlstmState]:
    """See `runnel.ops.mlstm`."""
    dtype = accumulation_dtype(v)
    _, heads, key_size = q.shape
    value_size = v.shape[2]

    def step(t: int, C: Tensor, n: Tensor, m: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        query = q[t].to(dtype) * key_size**-0.5
        key = k[t].to(dtype)
        value = v[t].to(dtype)
        kept = F.logsigmoid(f[t].to(dtype)) + m  # logarithms of the gates: kept and entering
        entering = i[t].to(dtype)
        m = torch.maximum(kept, entering)
        forget = torch.exp(kept - m)[:, None]
        write = torch.exp(entering - m)[:, None]
        C = forget[:, :, None] * C + (write * key)[:, :, None] * value[:, None, :]
        n = forget * n + write * key
        scale = torch.maximum((n * query).sum(1).abs(), torch.exp(-m)) + eps
        return (C * query[:, :, None]).sum(1) / scale[:, None], C, n, m

    h, C, n, m = _over_time(
        step, cu, v, [(heads, key_size, value_size), (heads, key_size), (heads,)], state
    )
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
    """See `runnel.ops.selective_scan`."""
    dtype = accumulation_dtype(x)
    A = A.to(dtype)

    def step(t: int, h: Tensor) -> tuple[Tensor, Tensor]:  # h (Di, N)
        step_size = dt[t].to(dtype)
        value = x[t].to(dtype)
        h = torch.exp(step_size[:, None] * A) * h + (step_size * value)[:, None] * B[t].to(dtype)
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
    """See `runnel.ops.ssd`."""
    dtype = accumulation_dtype(x)
    per_group = x.shape[1] // B.shape[1]

    def step(t: int, M: Tensor) -> tuple[Tensor, Tensor]:  # M (H, P, N)
        step_size = dt[t].to(dtype)
        value = x[t].to(dtype)
        # (H, N): B writes, as a key does, and C reads, as a query
        key, query = (part[t].to(dtype).repeat_interleave(per_group, dim=0) for part in (B, C))
        decay = torch.exp(step_size * A.to(dtype))
        M = decay[:, None, None] * M + (step_size[:, None] * value)[:, :, None] * key[:, None, :]
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
    """See `runnel.ops.wkv7`."""
    dtype = accumulation_dtype(v)

    def step(t: int, M: Tensor) -> tuple[Tensor, Tensor]:  # M (H, N, V)
        query, log_decay, key, value, reads, writes = (x[t].to(dtype) for x in (r, w, k, v, a, b))
        # (H, V): what the state, before its decay, has in the direction a; it is written back in
        # the direction b, whose sign makes this a removal
        removed = (reads[:, :, None] * M).sum(1)
        M = (
            torch.exp(log_decay)[:, :, None] * M
            + writes[:, :, None] * removed[:, None]
            + key[:, :, None] * value[:, None]
        )
        return (query[:, :, None] * M).sum(1), M

    o, end = _over_time(
        step, cu, v, [(*k.shape[1:], v.shape[2])], None if state is None else [state]
    )
    return o, end
