"""wkv7 in its chunked form: batched matrix products inside chunks and one short loop over chunks;
differentiable.

T  tokens      S  sequences      H  heads      K  numbers of a key      V  numbers of a value
Q  tokens of a chunk             N  chunks of all sequences together    B  = N H

The recurrence, for each head with its state M (K, V), from r, w, k, a and b (T, H, K) and v (T, H,
V):

    M_t = diag(exp w_t) M_{t-1} + b_t (a_t^T M_{t-1}) + k_t v_t^T
    o_t = M_t^T r_t

`Grid` (`ops/packed.py`) holds the chunks: `put` lays tokens (T, ...) out as (N, Q, ...), `carry`
runs the states from chunk to chunk, and `take` returns to (T, ...). Each sequence starts a new
chunk; holes at its end are zeros, which change nothing.

a and r read the state (the readers), b and k write it (the writers). With h the state before a
chunk, M_i the state after its token i, D(i, j) the decay from token j to token i, and u_i =
M_{i-1}^T a_i:

    u_i = (a_i D(i-1, start))^T h
          + sum over j < i of (a_i D(i-1, j) b_j) u_j + (a_i D(i-1, j) k_j) v_j
    o_i = (r_i D(i, start))^T h
          + sum over j <= i of (r_i D(i, j) b_j) u_j + (r_i D(i, j) k_j) v_j

The first equation is a unit triangular system in the rows u_i. It is solved twice: for the factor
of h, and for the rest. Then the outputs and the state after the chunk are affine in h.
"""

import torch
from torch import Tensor

from runnel.ops.packed import Grid, States, accumulation_dtype

# Tokens of a chunk, a power of two. Each chunk has a (K, K) matrix, so shorter chunks cost memory;
# longer chunks do more work inside.
CHUNK = 32


def wkv7_torch(
    r: Tensor,
    w: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    cu: Tensor,
    state: Tensor | None,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """See `runnel.ops.wkv7`; cu (S+1,) int64 on the CPU."""
    dtype = accumulation_dtype(v)
    device = v.device
    _, heads, key_size = k.shape
    value_size = v.shape[2]
    grid = Grid(cu, chunk, dtype, device)

    def put(tensor: Tensor) -> Tensor:  # (T, H, size) -> (B, Q, size)
        return grid.put(tensor).transpose(1, 2).flatten(0, 1)

    def by_head(tensor: Tensor) -> Tensor:  # (B, ...) -> (N, H, ...)
        return tensor.unflatten(0, (grid.count, heads))

    value = put(v)
    # (B, 2, Q, K)
    readers = torch.stack([put(a), put(r)], 1)
    writers = torch.stack([put(b), put(k)], 1)
    mix, from_start, to_end, decay = _decayed_products(readers, writers, put(w))

    # Affine in the state h: u = u_h h + u_0, o = o_h h + o_0, state after the chunk = keep h +
    # added. mix[:, 0, 0] is a with b, [:, 0, 1] a with k, [:, 1, 0] r with b, [:, 1, 1] r with k.
    # `right` and `solved` have the K columns of u_h, then the V columns of u_0.
    right = torch.cat([from_start[:, 0], mix[:, 0, 1] @ value], 2)
    # `unitriangular` takes 1 for each number on the diagonal, whatever is stored there
    solved = torch.linalg.solve_triangular(-mix[:, 0, 0], right, upper=False, unitriangular=True)
    o_h, o_0 = (mix[:, 1, 0] @ solved).split([key_size, value_size], 2)
    o_h = o_h + from_start[:, 1]
    o_0 = o_0 + mix[:, 1, 1] @ value
    keep, added = (to_end[:, 0].transpose(1, 2) @ solved).split([key_size, value_size], 2)
    keep = keep + torch.diag_embed(decay)
    added = added + to_end[:, 1].transpose(1, 2) @ value

    start = torch.zeros(cu.numel() - 1, heads, key_size, value_size, dtype=dtype, device=device)
    start = start if state is None else state.to(dtype)
    keep = by_head(keep)
    added = by_head(added)

    def advance(index: Tensor, states: States) -> States:
        return (keep[index] @ states[0] + added[index],)

    (entering,), (end,) = grid.carry((start,), advance)
    o = grid.take(by_head(o_0 + o_h @ entering.flatten(0, 1)).transpose(1, 2))
    return o.to(v.dtype), end


def _decayed_products(
    readers: Tensor, writers: Tensor, w: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return all products of readers and writers within a chunk, decayed between them.

    Blocks of one token are joined to blocks of two, four, ... When the later half of a block reads
    from the earlier half, the decay is split at the boundary: from the writer to the boundary times
    from the boundary to the reader. So every exponent is a sum of log decays and never a
    difference: nothing overflows, and nothing cancels, whatever the decays.

    Args:
        readers: (B, 2, Q, K): a, which reads the state before its token's decay, and r, which reads
            it after its token.
        writers: (B, 2, Q, K): b and k.
        w: (B, Q, K), the logarithms of the decays.

    Returns:
        The products of reader i with writer j, (B, 2, 2, Q, Q), zero where j > i, and for a also
        where j = i; the readers, decayed from the chunk's start; the writers, decayed to its end;
        the decay of the whole chunk (B, K).
    """
    batch, _, chunk, _ = readers.shape
    at_token = (readers[:, 1:, None] * writers[:, None]).sum(-1)  # (B, 1, 2, Q)
    # (B, Q / size, readers, writers, size, size): the products inside blocks, first of one token
    mix = torch.cat([torch.zeros_like(at_token), at_token], 1).permute(0, 3, 1, 2)[..., None, None]
    # Logarithms of decays. (B, 2, Q / size, size, K), from the block's start
    before = torch.stack([torch.zeros_like(w), w], 1)[:, :, :, None]
    after = torch.zeros_like(w)[:, None, :, None]  # (B, 1, Q / size, size, K), to the block's end
    whole = w[:, None, :, None]  # (B, 1, Q / size, 1, K)
    size = 1
    while size < chunk:
        blocks = chunk // (2 * size)  # after this turn
        readers_, writers_ = (x.unflatten(2, (blocks, 2, size)) for x in (readers, writers))
        # (B, blocks, 2 size, K)
        late = (readers_[:, :, :, 1] * before[:, :, 1::2].exp()).transpose(1, 2).flatten(2, 3)
        early = (writers_[:, :, :, 0] * after[:, :, 0::2].exp()).transpose(1, 2).flatten(2, 3)
        # (B, blocks, readers, writers, size, size)
        across = (late @ early.mT).view(batch, blocks, 2, size, 2, size).transpose(3, 4)
        # the four quarters of the joined block: [earlier half, zeros], [across, later half]
        top = torch.cat([mix[:, 0::2], torch.zeros_like(across)], -1)
        mix = torch.cat([top, torch.cat([across, mix[:, 1::2]], -1)], -2)
        before = torch.cat([before[:, :, 0::2], before[:, :, 1::2] + whole[:, :, 0::2]], 3)
        after = torch.cat([after[:, :, 0::2] + whole[:, :, 1::2], after[:, :, 1::2]], 3)
        whole = whole[:, :, 0::2] + whole[:, :, 1::2]
        size *= 2
    return (
        mix[:, 0],
        readers * before[:, :, 0].exp(),
        writers * after[:, :, 0].exp(),
        whole[:, 0, 0, 0].exp(),
    )
