"""ssd in its chunked form: batched matrix products inside chunks and one short loop over chunks; differentiable.

T tokens, S sequences, H heads, P head size, G groups, J = H/G heads per group, N state size, Q tokens per chunk,
K chunks of all sequences together. Each sequence starts a new chunk; holes at its end have dt = 0 and change nothing.

Source: Dao and Gu 2024 (arXiv 2405.21060), section 6 (block decomposition).
"""

from __future__ import annotations

import torch
from torch import Tensor

from runnel.ops.packed import accumulation_dtype, sequence_of_token, shortened

CHUNK = 64


def ssd_torch(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, cu: Tensor, state: Tensor | None, chunk: int = CHUNK
) -> tuple[Tensor, Tensor]:
    """See `runnel.ops.ssd`; cu (S+1,) int64 on the CPU."""
    dtype = accumulation_dtype(x)
    (tokens, heads, size), (groups, width) = x.shape, B.shape[1:]
    per_group = heads // groups
    chunk = shortened(chunk, cu)
    counts = (cu.diff() + chunk - 1) // chunk  # (S,) chunks of each sequence
    first = counts.cumsum(0) - counts
    sequence = sequence_of_token(cu)
    slot = (first[sequence] * chunk + torch.arange(tokens) - cu[sequence]).to(x.device)

    def on_grid(tensor: Tensor, *shape: int) -> Tensor:
        grid = torch.zeros(int(counts.sum()) * chunk, *tensor.shape[1:], dtype=dtype, device=x.device)
        return grid.index_copy(0, slot, tensor.to(dtype)).view(-1, chunk, *shape)

    dt_grid = on_grid(dt, groups, per_group)
    wide = x.to(dtype)  # converted once, so that a bf16 gradient is rounded once
    u = on_grid(wide, groups, per_group, size) * dt_grid[..., None]
    key, query = on_grid(B, groups, width), on_grid(C, groups, width)
    log_decay = (dt_grid * A.to(dtype).view(groups, per_group)).cumsum(1).permute(0, 2, 3, 1)  # (K, G, J, Q), inclusive

    # Within chunks. The mask is applied before exp: above the diagonal the exponent is positive and may overflow.
    later = torch.ones(chunk, chunk, dtype=torch.bool, device=x.device).triu(1)
    decay = (log_decay[..., :, None] - log_decay[..., None, :]).masked_fill(later, float("-inf")).exp()  # (K, G, J, Q, Q)
    mix = torch.einsum("kign,kjgn->kgij", query, key)[:, :, None] * decay
    y = torch.einsum("kghij,kjghp->kighp", mix, u)

    # Across chunks.
    to_end = (log_decay[..., -1:] - log_decay).exp()
    added = torch.einsum("kghj,kjghp,kjgn->kghpn", to_end, u, key)
    start = torch.zeros(cu.numel() - 1, heads, size, width, dtype=dtype, device=x.device) if state is None else state.to(dtype)
    entering, end = _pass_states(added, log_decay[..., -1].exp(), start.view(-1, *added.shape[1:]), counts, first)
    y = y + torch.einsum("kign,kghpn,kghi->kighp", query, entering, log_decay.exp())

    y = y.reshape(-1, heads, size)[slot]
    if D is not None:
        y = y + D.to(dtype)[:, None] * wide
    return y.to(x.dtype), end.reshape(-1, heads, size, width)


def _pass_states(added: Tensor, decay: Tensor, start: Tensor, counts: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """Carry states over chunks: all sequences advance together, one chunk per turn, longest first.

    Args:
        added: (K, G, J, P, N) each chunk's addition.   decay: (K, G, J) the factor of the state before the chunk.
        start: (S, G, J, P, N).   counts, first: (S,) number of chunks and first chunk of each sequence.

    Returns:
        the state before each chunk (K, G, J, P, N), the state after each sequence (S, G, J, P, N).
    """
    order = counts.argsort(descending=True, stable=True)
    carried = start[order]
    entering, chunks, ended = [], [], []
    for turn in range(int(counts.max()) if counts.numel() else 0):
        active = int((counts > turn).sum())
        ended.append(carried[active:])
        carried = carried[:active]
        index = first[order[:active]] + turn
        entering.append(carried)
        chunks.append(index)
        carried = decay[index][..., None, None] * carried + added[index]
    end = torch.cat([carried, *reversed(ended)])[order.argsort()]
    if not entering:
        return added, end
    return torch.cat(entering)[torch.cat(chunks).argsort()], end
