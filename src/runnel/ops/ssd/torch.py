"""ssd (state space duality, the recurrence of Mamba-2) in its chunked form: batched matrix products
inside chunks and one short loop over chunks; differentiable.

T  tokens      S  sequences      H  heads      P  numbers of a head's input (`size`)
G  groups of heads that share B and C          J  heads of a group (`per_group`)
N  numbers of B and C (`width`)                Q  tokens of a chunk
K  chunks of all sequences together

The recurrence, for each head with its state M (P, N), from x (T, H, P), dt (T, H), A (H,), B and C
(T, G, N) and D (H,):

    M_t = exp(dt_t A) M_{t-1} + dt_t x_t B_t^T
    y_t = M_t C_t + D x_t

In a chunk, with c the running sum of dt A up to and with each token, u = dt x, and M the state
before the chunk and M' the state after it:

    y_i = sum over j <= i of exp(c_i - c_j) (C_i . B_j) u_j  +  exp(c_i) M C_i  +  D x_i
    M'  = exp(c_Q) M + sum over j of exp(c_Q - c_j) u_j B_j^T

C is the query of an attention, B its key and u its value. In `einsum`, the letters are k chunk, g
group, h head of the group, i and j tokens of the chunk, n one of N and p one of P numbers.

`Grid` (`ops/packed.py`) holds the chunks: `put` lays tokens (T, ...) out as (K, Q, ...), `carry`
runs the states from chunk to chunk, and `take` returns to (T, ...). Each sequence starts a new
chunk; holes at its end have dt = 0 and change nothing.

Source: Dao and Gu 2024 (arXiv 2405.21060), section 6 (block decomposition).
"""

import torch
from torch import Tensor

from runnel.ops.packed import Grid, States, accumulation_dtype

CHUNK = 64


def ssd_torch(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    cu: Tensor,
    state: Tensor | None,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """See `runnel.ops.ssd`; cu (S+1,) int64 on the CPU."""
    dtype = accumulation_dtype(x)
    _, heads, size = x.shape
    groups, width = B.shape[1:]
    per_group = heads // groups
    grid = Grid(cu, chunk, dtype, x.device)

    def put(tensor: Tensor, *shape: int) -> Tensor:
        return grid.put(tensor).view(-1, grid.chunk, *shape)

    dt_grid = put(dt, groups, per_group)
    wide = x.to(dtype)  # converted once, so that a bf16 gradient is rounded once
    u = put(wide, groups, per_group, size) * dt_grid[..., None]
    key = put(B, groups, width)
    query = put(C, groups, width)
    # (K, G, J, Q): c
    log_decay = (dt_grid * A.to(dtype).view(groups, per_group)).cumsum(1).permute(0, 2, 3, 1)

    # Within chunks. The mask is applied before exp: above the diagonal the exponent is positive and
    # may overflow.
    later = torch.ones(grid.chunk, grid.chunk, dtype=torch.bool, device=x.device).triu(1)
    # (K, G, J, Q, Q): exp(c_i - c_j)
    decay = (
        (log_decay[..., :, None] - log_decay[..., None, :]).masked_fill(later, float("-inf")).exp()
    )
    mix = torch.einsum("kign,kjgn->kgij", query, key)[:, :, None] * decay
    y = torch.einsum("kghij,kjghp->kighp", mix, u)

    # Across chunks.
    to_end = (log_decay[..., -1:] - log_decay).exp()  # exp(c_Q - c_j)
    added = torch.einsum("kghj,kjghp,kjgn->kghpn", to_end, u, key)  # to the state, by each chunk
    start = (
        torch.zeros(cu.numel() - 1, heads, size, width, dtype=dtype, device=x.device)
        if state is None
        else state.to(dtype)
    )
    keep = log_decay[..., -1].exp()[..., None, None]  # exp(c_Q)

    def advance(index: Tensor, states: States) -> States:
        """Return M' of the chunks `index`, from M."""
        return (keep[index] * states[0] + added[index],)

    # heads by group, as `added` has them
    (entering,), (end,) = grid.carry((start.view(-1, *added.shape[1:]),), advance)
    y = y + torch.einsum("kign,kghpn,kghi->kighp", query, entering, log_decay.exp())

    y = grid.take(y.reshape(-1, grid.chunk, heads, size))
    if D is not None:
        y = y + D.to(dtype)[:, None] * wide
    return y.to(x.dtype), end.reshape(-1, heads, size, width)
