"""mlstm (the matrix memory of xLSTM) in its chunkwise form: batched matrix products inside chunks
and one short loop over chunks; differentiable.

T  tokens         S  sequences      H  heads
K  numbers of a key (`width`)       V  numbers of a value (`size`)
Q  tokens of a chunk                N  chunks of all sequences together

The recurrence, for each head with its memory C (K, V), normalizer n (K,) and m, the logarithm of
the scale of both, from q and k (T, H, K), v (T, H, V), i and f (T, H):

    lf = log sigmoid(f_t)      m_t = max(lf + m_{t-1}, i_t)      q' = q_t / sqrt(K)
    C_t = exp(lf + m_{t-1} - m_t) C_{t-1} + exp(i_t - m_t) k_t v_t^T        n_t: with 1 for v_t
    h_t = C_t^T q' / (max(|n_t . q'|, exp(-m_t)) + eps)

`Grid` (`ops/packed.py`) holds the chunks: `put` lays tokens (T, ...) out as (N, Q, ...), `carry`
runs the states from chunk to chunk, and `take` returns to (T, ...). Each sequence starts a new
chunk; holes at its end forget nothing and add nothing.

m appears twice in the code, as two numbers that are equal but have different gradients: `scale`, a
constant for autograd, and `m`. exp(m) C and exp(m) n do not depend on m, so everything is computed
at `scale`, and `m` is used only in three places: with eps, in the end state and in the start state.
A gradient through the scale would be a small difference of terms as large as C.

Source: Beck et al. 2025 (arXiv 2503.14376), section 2 (chunkwise form).
"""

import functools

import torch
from torch import Tensor
from torch.nn import functional as F

from runnel.ops.mlstm import State
from runnel.ops.packed import Grid, States, accumulation_dtype

CHUNK = 64
_HOLE = -1e30  # the input gate in a hole: its exp is 0, and differences of two are finite


def mlstm_torch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    cu: Tensor,
    state: State | None,
    eps: float,
    chunk: int = CHUNK,
) -> tuple[Tensor, State]:
    """See `runnel.ops.mlstm`; cu (S+1,) int64 on the CPU."""
    dtype = accumulation_dtype(v)
    _, heads, width = q.shape
    size = v.shape[2]
    grid = Grid(cu, chunk, dtype, v.device)

    def put(tensor: Tensor, hole: float = 0.0) -> Tensor:
        return grid.put(tensor, hole).transpose(1, 2)  # (N, H, Q, ...)

    query = put(q) * width**-0.5
    key = put(k)
    value = put(v)
    forget = put(F.logsigmoid(f.to(dtype)))  # (N, H, Q): lf
    enter = put(i, _HOLE)  # (N, H, Q): i

    # i and j are tokens here. log_weight[i, j], the logarithm of the weight of token j's input at
    # token i, is the input gate of j plus the sum of the forget gates of j+1 .. i. Each sum is
    # taken by itself: differences of running sums from the chunk's start would cancel.
    later = torch.ones(grid.chunk, grid.chunk, dtype=torch.bool, device=v.device).triu(1)
    steps = (
        forget[..., :, None].expand(*forget.shape, grid.chunk).masked_fill(~later.T, 0.0).cumsum(2)
    )
    log_weight = (steps + enter[..., None, :]).masked_fill(later, float("-inf"))  # (N, H, Q, Q)
    kept = forget.cumsum(2)  # the logarithm of what is left of the state before the chunk
    top = log_weight.amax(3)  # m without the state before the chunk
    # what each chunk adds to C and n, at the scale exp(top at its end)
    to_end = (log_weight[..., -1, :] - top[..., -1].detach()[..., None]).exp()
    added_C = (key * to_end[..., None]).transpose(2, 3) @ value
    added_n = (key * to_end[..., None]).sum(2)

    sequences = cu.numel() - 1
    shapes = ((sequences, heads, width, size), (sequences, heads, width), (sequences, heads))
    start = [torch.zeros(shape, dtype=dtype, device=v.device) for shape in shapes]
    C, n, m = start if state is None else (part.to(dtype) for part in state)
    added = added_C, added_n, top[..., -1]
    before, end = grid.carry((C, n, m, m), functools.partial(_advance, added, kept[..., -1]))
    C, n, scale, m = before  # `scale` is m as a constant for autograd

    m_token = torch.maximum(kept + m[..., None], top)  # (N, H, Q), m_t of the recurrence
    fixed = m_token.detach()
    mix = query @ key.transpose(2, 3) * (log_weight - fixed[..., None]).exp()
    entering = query * (kept + (scale[..., None] - fixed)).exp()[..., None]
    weight = (entering @ n[..., None]).squeeze(3) + mix.sum(3)  # n_t . q'
    denominator = torch.maximum(weight.abs(), (-fixed).exp()) + eps * (m_token - fixed).exp()
    h = (entering @ C + mix @ value) / denominator[..., None]
    h = grid.take(h.transpose(1, 2))

    C, n, scale, m = end
    back = (scale - m).exp()  # the number is 1; it is here for the gradient of m
    return h.to(v.dtype), (C * back[..., None, None], n * back[..., None], m)


def _advance(added: State, kept: Tensor, index: Tensor, states: States) -> States:
    """Return C, n, the logarithm of their scale, and m, which equals it, after the chunks `index`.

    The scale is a constant for autograd except where it is the start's m. `added` is each chunk's
    addition to C (N, H, K, V) and n (N, H, K) at the scale of its own m, and that m (N, H); `kept`
    (N, H) the logarithm of the factor of the state before it.
    """
    C, n, scale, m = states
    new_C, new_n, top = (part[index] for part in added)
    m = torch.maximum(kept[index] + m, top)
    fixed = m.detach()
    # the difference first: it contains m's rounding error
    old = (kept[index] + (scale - fixed)).exp()
    new = (top.detach() - fixed).exp()
    C = old[..., None, None] * C + new[..., None, None] * new_C
    n = old[..., None] * n + new[..., None] * new_n
    return C, n, fixed, m
