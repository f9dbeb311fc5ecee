"""mlstm in its chunkwise form: batched matrix products inside chunks and one short loop over chunks; differentiable.

T tokens, S sequences, H heads, K key size, V value size, Q tokens per chunk, N chunks of all sequences together.
Each sequence starts a new chunk; holes at its end forget nothing and add nothing.

exp(m) C and exp(m) n do not depend on m. So everything is computed at a scale that is a constant for autograd, and m
itself is used only where it remains: with eps, in the end state and in the start state. A gradient through the scale would
be a small difference of terms as large as C.

Source: Beck et al. 2025 (arXiv 2503.14376), section 2 (chunkwise form).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from runnel.ops.packed import accumulation_dtype, sequence_of_token, shortened

CHUNK = 64
_HOLE = -1e30  # the input gate in a hole: its exp is 0, and differences of two are finite

State = tuple[Tensor, Tensor, Tensor]


def mlstm_torch(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, cu: Tensor, state: State | None, eps: float, chunk: int = CHUNK
) -> tuple[Tensor, State]:
    """See `runnel.ops.mlstm`; cu (S+1,) int64 on the CPU."""
    dtype = accumulation_dtype(v)
    (_, heads, width), size = q.shape, v.shape[2]
    chunk = shortened(chunk, cu)
    counts = (cu.diff() + chunk - 1) // chunk  # (S,) chunks of each sequence
    first = counts.cumsum(0) - counts
    sequence = sequence_of_token(cu)
    slot = (first[sequence] * chunk + torch.arange(v.shape[0]) - cu[sequence]).to(v.device)

    def on_grid(tensor: Tensor, hole: float = 0.0) -> Tensor:
        grid = torch.full((int(counts.sum()) * chunk, *tensor.shape[1:]), hole, dtype=dtype, device=v.device)
        return grid.index_copy(0, slot, tensor.to(dtype)).unflatten(0, (-1, chunk)).transpose(1, 2)  # (N, H, Q, ...)

    query, key, value = on_grid(q) * width**-0.5, on_grid(k), on_grid(v)
    forget, enter = on_grid(F.logsigmoid(f.to(dtype))), on_grid(i, _HOLE)  # (N, H, Q)

    # log_weight[i, j] = i_j + the sum of lf over j+1 .. i. Differences of sums from the chunk's start would cancel.
    later = torch.ones(chunk, chunk, dtype=torch.bool, device=v.device).triu(1)
    steps = forget[..., :, None].expand(*forget.shape, chunk).masked_fill(~later.T, 0.0).cumsum(2)
    log_weight = (steps + enter[..., None, :]).masked_fill(later, float("-inf"))  # (N, H, Q, Q)
    kept = forget.cumsum(2)
    top = log_weight.amax(3)  # m without the state before the chunk
    local = top[..., -1].detach()
    to_end = (log_weight[..., -1, :] - local[..., None]).exp()
    added_C = (key * to_end[..., None]).transpose(2, 3) @ value
    added_n = (key * to_end[..., None]).sum(2)

    sequences = cu.numel() - 1
    shapes = ((sequences, heads, width, size), (sequences, heads, width), (sequences, heads))
    start = [torch.zeros(shape, dtype=dtype, device=v.device) for shape in shapes]
    C, n, m = start if state is None else (part.to(dtype) for part in state)
    before, end = _pass_states((added_C, added_n, top[..., -1]), kept[..., -1], (C, n, m, m), counts, first)
    C, n, scale, m = before

    m_token = torch.maximum(kept + m[..., None], top)  # (N, H, Q), equal to the recurrence's
    fixed = m_token.detach()
    mix = query @ key.transpose(2, 3) * (log_weight - fixed[..., None]).exp()
    entering = query * (kept + (scale[..., None] - fixed)).exp()[..., None]
    weight = (entering @ n[..., None]).squeeze(3) + mix.sum(3)
    denominator = torch.maximum(weight.abs(), (-fixed).exp()) + eps * (m_token - fixed).exp()
    h = (entering @ C + mix @ value) / denominator[..., None]
    h = h.transpose(1, 2).reshape(-1, heads, size)[slot]

    C, n, scale, m = end
    back = (scale - m).exp()  # 1, and the gradient of m
    return h.to(v.dtype), (C * back[..., None, None], n * back[..., None], m)


def _pass_states(
    added: State, kept: Tensor, start: tuple[Tensor, ...], counts: Tensor, first: Tensor
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Carry states over chunks: all sequences advance together, one chunk per turn, longest first.

    Args:
        added: each chunk's addition to C (N, H, K, V) and n (N, H, K) at the scale of its own m, and that m (N, H).
        kept: (N, H) logarithm of the factor of the state before the chunk.
        start: C (S, H, K, V), n (S, H, K), the logarithm of their scale (S, H) and m (S, H), which equals it.
        counts, first: (S,) number of chunks and first chunk of each sequence.

    Returns:
        the four tensors of `start` before each chunk (N, ...), and after each sequence (S, ...). The scale is a constant for
        autograd except where it is the start's m.
    """
    order = counts.argsort(descending=True, stable=True)
    carried = tuple(part[order] for part in start)
    entering, chunks, ended = [], [], []
    for turn in range(int(counts.max()) if counts.numel() else 0):
        active = int((counts > turn).sum())
        ended.append(tuple(part[active:] for part in carried))
        C, n, scale, m = (part[:active] for part in carried)
        index = first[order[:active]] + turn
        entering.append((C, n, scale, m))
        chunks.append(index)
        new_C, new_n, top = (part[index] for part in added)
        m = torch.maximum(kept[index] + m, top)
        fixed = m.detach()
        old = (kept[index] + (scale - fixed)).exp()  # the difference first: it contains m's rounding error
        new = (top.detach() - fixed).exp()
        C = old[..., None, None] * C + new[..., None, None] * new_C
        n = old[..., None] * n + new[..., None] * new_n
        carried = (C, n, fixed, m)
    back = order.argsort()
    end = tuple(torch.cat(parts)[back] for parts in zip(carried, *reversed(ended), strict=True))
    if not entering:
        return (*added[:2], added[2], added[2]), end
    place = torch.cat(chunks).argsort()
    return tuple(torch.cat(parts)[place] for parts in zip(*entering, strict=True)), end
