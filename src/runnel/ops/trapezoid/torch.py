"""trapezoid in its chunked form: batched matrix products inside chunks and one short loop over chunks; differentiable.

T tokens, S sequences, H heads, R inputs of a token, P head size, N state size, Q tokens per chunk, K chunks of all sequences
together. Each sequence starts a new chunk; holes at its end have dt = 0 and change nothing.

A token's input enters the state twice, with its own token and with the next, and decays from its own token on. So later tokens
see it with the sum of both weights, and it is one matrix product, as in ssd; its own token sees the first weight alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from runnel.ops.grid import Grid, States
from runnel.ops.packed import accumulation_dtype, last_tokens, power_of_two

CHUNK = 64  # divided by R

State = tuple[Tensor, Tensor, Tensor]


def trapezoid_torch(
    q: Tensor, k: Tensor, v: Tensor, dt: Tensor, A: Tensor, trap: Tensor, cu: Tensor, state: State | None
) -> tuple[Tensor, State]:
    """See `runnel.ops.trapezoid`; cu (S+1,) int64 on the CPU."""
    dtype, device = accumulation_dtype(v), v.device
    (_, heads, rank, width), size = q.shape, v.shape[3]
    q, k, v_wide, dt, trap = (x.to(dtype) for x in (q, k, v, dt, trap))  # converted once, so that a bf16 gradient is rounded once
    own, again, both = weights(dt, trap, cu)
    S, key_before, value_before = start_state(cu, state, again, (heads, rank, width, size))
    grid = Grid(cu, max(1, CHUNK // power_of_two(rank)), dtype, device)
    query, key, value = grid.put(q), grid.put(k), grid.put(v_wide)
    own_grid, both_grid = (grid.put(x).transpose(1, 2) for x in (own, both))  # (K, H, Q)
    log_decay = grid.put(dt * A.to(dtype)).cumsum(1).transpose(1, 2)  # (K, H, Q), inclusive

    # Within chunks. The mask is applied before exp: above the diagonal the exponent is positive and may overflow.
    square = torch.ones(grid.chunk, grid.chunk, dtype=torch.bool, device=device)
    decay = (log_decay[..., :, None] - log_decay[..., None, :]).masked_fill(square.triu(1), float("-inf")).exp()
    weight = decay * torch.where(square.triu() & square.tril(), own_grid[..., None, :], both_grid[..., None, :])
    mix = torch.einsum("kihrn,kjhsn->khirjs", query, key) * weight[:, :, :, None, :, None]
    y = torch.einsum("khirjs,kjhsp->kihrp", mix, value)

    # Across chunks.
    to_end = (log_decay[..., -1:] - log_decay).exp() * both_grid
    added = torch.einsum("kjhrp,kjhrn->khpn", value * to_end.transpose(1, 2)[..., None, None], key)
    keep = log_decay[..., -1].exp()[..., None, None]

    def advance(index: Tensor, states: States) -> States:
        return (keep[index] * states[0] + added[index],)

    (entering,), (end,) = grid.carry((S,), advance)
    y = y + torch.einsum("kihrn,khpn->kihrp", query * log_decay.exp().transpose(1, 2)[..., None, None], entering)
    return grid.take(y).to(v.dtype), (end, last_tokens(k, cu, key_before), last_tokens(v_wide, cu, value_before))


def weights(dt: Tensor, trap: Tensor, cu: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return (T, H) each: the weight of a token's input at its own token, that of the token before at this one, and the sum of a
    token's two weights; the last token of a sequence has only the first.
    """
    own, again = trap * dt, (1 - trap) * dt
    inside = own.new_ones(len(own), 1)
    inside[cu[1:][cu.diff() > 0] - 1] = 0
    return own, again, own + torch.cat([again[1:], again[:1]]) * inside


def start_state(cu: Tensor, state: State | None, again: Tensor, sizes: tuple[int, int, int, int]) -> State:
    """Return the state before each sequence with the share that its first token gives to the token before, and k and v."""
    heads, rank, width, size = sizes
    count, shapes = cu.numel() - 1, ((heads, size, width), (heads, rank, width), (heads, rank, size))
    if state is None:
        S, key, value = (again.new_zeros(count, *shape) for shape in shapes)
        return S, key, value
    S, key, value = (part.to(again.dtype) for part in state)
    rows = torch.nonzero(cu.diff() > 0).flatten().to(again.device)
    share = again.new_zeros(count, heads).index_copy(0, rows, again[cu[:-1].to(again.device)[rows]])
    return S + share[..., None, None] * (value.transpose(2, 3) @ key), key, value
