"""trapezoid in its chunked form: batched matrix products inside chunks and one short loop over
chunks; differentiable.

T  tokens      S  sequences      H  heads      R  inputs of a head for each token (`rank`)
P  numbers of a value (`size`)                 N  numbers of a key (`width`)
Q  tokens of a chunk                           K  chunks of all sequences together
In `einsum`, the letters are k chunk, i and j tokens, h head, r and s inputs, n one of N and p one
of P numbers.

The recurrence (of Mamba-3), for each head with its state M (P, N), from q and k (T, H, R, N), v (T,
H, R, P), and dt, A and trap (T, H):

    W_t = sum over r of v_tr k_tr^T
    a_t = exp(dt_t A_t)
    M_t = a_t M_{t-1} + (1 - trap_t) dt_t a_t W_{t-1} + trap_t dt_t W_t
    y_tr = M_t q_tr

`Grid` (`ops/packed.py`) holds the chunks: `put` lays tokens (T, ...) out as (K, Q, ...), `carry`
runs the states from chunk to chunk, and `take` returns to (T, ...). Each sequence starts a new
chunk; holes at its end have dt = 0 and change nothing.

A token's input enters the state twice, with its own token and with the next, and decays from its
own token on. So later tokens see it with the sum of both weights, and it is one matrix product, as
in ssd; its own token sees the first weight alone.
"""

import torch
from torch import Tensor

from runnel.ops.packed import Grid, States, accumulation_dtype, last_tokens, power_of_two
from runnel.ops.trapezoid import State

CHUNK = 64  # tokens of a chunk times R


def trapezoid_torch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dt: Tensor,
    A: Tensor,
    trap: Tensor,
    cu: Tensor,
    state: State | None,
) -> tuple[Tensor, State]:
    """See `runnel.ops.trapezoid`; cu (S+1,) int64 on the CPU."""
    dtype = accumulation_dtype(v)
    device = v.device
    _, heads, rank, width = q.shape
    size = v.shape[3]
    # converted once, so that a bf16 gradient is rounded once
    q, k, v_wide, dt, trap = (x.to(dtype) for x in (q, k, v, dt, trap))
    own = trap * dt  # the weight of a token's input at its own token
    again = (1 - trap) * dt  # the weight of the input of the token before it
    filled = cu.diff() > 0
    # (T, H): the weight of a token's input at the next token of its sequence
    after = torch.cat([again[1:], again[:1]])
    after[(cu[1:][filled] - 1).to(device)] = 0
    shapes = ((heads, size, width), (heads, rank, width), (heads, rank, size))
    zero = tuple(own.new_zeros(cu.numel() - 1, *shape) for shape in shapes)
    M, key_before, value_before = zero if state is None else (part.to(dtype) for part in state)
    # The input of the last token before this call enters the state a second time now, with the
    # weight `again` of the sequence's first token.
    share = again.new_zeros(M.shape[:2])
    share[filled.to(device)] = again[cu[:-1][filled].to(device)]
    M = M + share[..., None, None] * (value_before.transpose(2, 3) @ key_before)
    grid = Grid(cu, max(1, CHUNK // power_of_two(rank)), dtype, device)
    query = grid.put(q)
    key = grid.put(k)
    value = grid.put(v_wide)
    own_grid, both_grid = (grid.put(x).transpose(1, 2) for x in (own, own + after))  # (K, H, Q)
    log_decay = grid.put(dt * A.to(dtype)).cumsum(1).transpose(1, 2)  # (K, H, Q), inclusive

    # Within chunks. The mask is applied before exp: above the diagonal the exponent is positive and
    # may overflow.
    # `triu & tril` is the diagonal, where a token reads its own input.
    square = torch.ones(grid.chunk, grid.chunk, dtype=torch.bool, device=device)
    decay = (
        (log_decay[..., :, None] - log_decay[..., None, :])
        .masked_fill(square.triu(1), float("-inf"))
        .exp()
    )
    weight = decay * torch.where(
        square.triu() & square.tril(), own_grid[..., None, :], both_grid[..., None, :]
    )
    mix = torch.einsum("kihrn,kjhsn->khirjs", query, key) * weight[:, :, :, None, :, None]
    y = torch.einsum("khirjs,kjhsp->kihrp", mix, value)

    # Across chunks.
    # each input's weight in the state after the chunk, and what the chunk adds to the state
    to_end = (log_decay[..., -1:] - log_decay).exp() * both_grid
    added = torch.einsum("kjhrp,kjhrn->khpn", value * to_end.transpose(1, 2)[..., None, None], key)
    keep = log_decay[..., -1].exp()[..., None, None]

    def advance(index: Tensor, states: States) -> States:
        return (keep[index] * states[0] + added[index],)

    (entering,), (end,) = grid.carry((M,), advance)
    y = y + torch.einsum(
        "kihrn,khpn->kihrp", query * log_decay.exp().transpose(1, 2)[..., None, None], entering
    )
    return grid.take(y).to(v.dtype), (
        end,
        last_tokens(k, cu, key_before),
        last_tokens(v_wide, cu, value_before),
    )
