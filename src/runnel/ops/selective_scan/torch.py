"""The selective scan in plain torch operations: parallel inside chunks and over sequences,
differentiable.

T  tokens      S  sequences      Di  channels      N  numbers of a channel's state
Q  tokens of a chunk                K  sequences that are long enough to have the chunk

For each channel, with its state h (N,) and its row of A (N,), from x and dt (T, Di), B and C (T, N)
and D (Di,):

    h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t
    y_t = h_t . C_t + D x_t
"""

import torch
from torch import Tensor

from runnel.ops.packed import accumulation_dtype

# Tokens of a chunk. Doubling (see `_scan_chunk`) costs log2(Q) passes over (K, Q, Di, N); longer
# chunks gain little and store more for the backward pass.
CHUNK = 16


def selective_scan_torch(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    cu: Tensor,
    state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """See `runnel.ops.selective_scan`; cu (S+1,) int64 on the CPU.

    Chunks start at the start of each sequence, and the j-th chunks of all sequences run together.
    """
    dtype = accumulation_dtype(x)
    A = A.to(dtype)
    wide = x.to(dtype)
    starts = cu[:-1]
    ends = cu[1:]
    longest = int(cu.diff().max()) if cu.numel() > 1 else 0
    h = (
        torch.zeros(starts.numel(), *A.shape, dtype=dtype, device=x.device)
        if state is None
        else state.to(dtype).clone()
    )
    outputs = []
    places = []
    for first in range(0, longest, CHUNK):
        rows = (ends - starts > first).nonzero().squeeze(1)  # (K,)
        place = starts[rows, None] + first + torch.arange(CHUNK)  # (K, Q)
        inside = place < ends[rows, None]
        index = place.clamp(max=x.shape[0] - 1).to(x.device)
        hole = ~inside.to(x.device)[..., None]
        # Holes read another token's numbers, but a step of 0 keeps the state unchanged; x is also
        # cleared, because it may be NaN.
        step = dt[index].to(dtype).masked_fill(hole, 0.0)
        value = wide[index].masked_fill(hole, 0.0)
        b, c = (coefficient[index].to(dtype).masked_fill(hole, 0.0) for coefficient in (B, C))
        rows = rows.to(x.device)
        y, end = _scan_chunk(value, step, A, b, c, h[rows])
        h = h.index_copy(0, rows, end)
        outputs.append(y[inside.to(x.device)])
        places.append(place[inside])
    if not outputs:
        return x.clone(), h
    # by the places of the tokens: back in their order
    y = torch.cat(outputs)[torch.cat(places).argsort().to(x.device)]
    if D is not None:
        y = y + D.to(dtype) * wide
    return y.to(x.dtype), h


def _scan_chunk(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h: Tensor
) -> tuple[Tensor, Tensor]:
    """Map x, dt (K, Q, Di), A (Di, N), B, C (K, Q, N), h (K, Di, N) to y (K, Q, Di) and h after the
    chunk.

    Doubling: after the pass with distance r, `decay` and `added` of a token span the last 2r
    tokens. Every decay is a product of exponentials of negative numbers, so nothing overflows.
    """
    decay = torch.exp(dt[..., None] * A)  # (K, Q, Di, N)
    added = (dt * x)[..., None] * B[:, :, None, :]
    distance = 1
    while distance < x.shape[1]:
        late = decay[:, distance:]
        added = torch.cat(
            [added[:, :distance], added[:, distance:] + late * added[:, :-distance]], dim=1
        )
        decay = torch.cat([decay[:, :distance], late * decay[:, :-distance]], dim=1)
        distance *= 2
    states = added + decay * h[:, None]
    return torch.einsum("kqdn,kqn->kqd", states, C), states[:, -1]
