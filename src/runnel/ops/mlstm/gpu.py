"""mlstm in Triton kernels, chunkwise; fp32 arithmetic for fp32 and bf16 inputs. Needs Triton.

T  tokens      S  sequences      H  heads      K  numbers of a key      V  numbers of a value
N  chunks of all sequences together

For each head, with its memory C (K, V), its normalizer n (K,), and m, the logarithm of the scale of
both:

    lf = log sigmoid(f_t)      m_t = max(lf + m_{t-1}, i_t)      q' = q_t / sqrt(K)
    C_t = exp(lf + m_{t-1} - m_t) C_{t-1} + exp(i_t - m_t) k_t v_t^T        n_t: with 1 for v_t
    h_t = C_t^T q' / (max(|n_t . q'|, exp(-m_t)) + eps)

One pass over each sequence's chunks writes the state before every chunk, in parallel over
sequences, heads and tiles of the matrix C; a second pass computes the outputs of all chunks at
once. The passes exchange N H (K V + K + 1) fp32 numbers. The backward pass reruns the torch
operations.

Rows of q, k, v, i and f are `..._row` elements apart for the kernels; everything else is
contiguous. `table` is (3, N): the sequence, first token and the token after the last token of each
chunk, and `chunks` is N; `first` (S+1,) is the first chunk of each sequence. `C_in`, `n_in` and
`m_in` are the states before the chunks, TILE_K and TILE_V the rows and columns of a program's tile
of C. The kernels' arguments are listed one by one: Triton takes named tuples too, but a kernel is
changed only together with a run on a GPU. An fp32 product takes three tf32 products, which are as
accurate as fp32 to within a bit or two.

Source: Beck et al. 2025 (arXiv 2503.14376), section 2 (chunkwise form).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr, tensor

from runnel.ops.mlstm import State
from runnel.ops.mlstm.torch import mlstm_torch
from runnel.ops.packed import power_of_two
from runnel.ops.triton_launch import GpuChunks, on_device_of, rows, with_torch_backward

_CHUNK = 64
# The smallest and the largest tile of C in a program: rows (of K) and columns (of V). With 64 rows,
# registers spill. With 16 columns, a program that Triton 3.6 compiled for Hopper read beyond its
# shared memory.
_TILE_K = (16, 32)
_TILE_V = (32, 64)


@triton.jit
def _input_gate(i: tensor, row: tensor, token: tensor, stop: tensor, head: tensor) -> tensor:
    """Return (CHUNK,) logarithms; -1e30 in holes (places of a chunk after its last token), because
    its exp is 0 and differences of two are finite.
    """
    return tl.load(i + token * row + head, mask=token < stop, other=-1e30).to(tl.float32)


@triton.jit
def _forget_gate(f: tensor, row: tensor, token: tensor, stop: tensor, head: tensor) -> tensor:
    """Return (CHUNK,) logarithms; 0 in holes, which forget nothing."""
    value = tl.load(f + token * row + head, mask=token < stop, other=0.0).to(tl.float32)
    # log sigmoid
    return tl.where(
        token < stop, tl.minimum(value, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(value))), 0.0
    )


@triton.jit
def _tile(
    x: tensor,
    row: tensor,
    token: tensor,
    stop: tensor,
    head: tensor,
    column: tensor,
    SIZE: constexpr,
) -> tensor:
    """Load (CHUNK, columns) of one head of x (T, H, SIZE) in fp32, zeros outside."""
    mask = (token < stop)[:, None] & (column < SIZE)[None, :]
    return tl.load(
        x + token[:, None] * row + head * SIZE + column[None, :], mask=mask, other=0.0
    ).to(tl.float32)


@triton.jit
def _store_state(
    C_out: tensor,
    n_out: tensor,
    m_out: tensor,
    index: tensor,
    key: tensor,
    column: tensor,
    C: tensor,
    n: tensor,
    m: tensor,
    K: constexpr,
    V: constexpr,
) -> None:
    """Store a program's tile of C at `index` of (any, K, V). One tile of columns stores n, one
    program m.
    """
    tl.store(
        C_out + (index * K + key[:, None]) * V + column[None, :],
        C,
        mask=(key < K)[:, None] & (column < V)[None, :],
    )
    if tl.program_id(2) == 0:
        tl.store(n_out + index * K + key, n, mask=key < K)
        if tl.program_id(1) == 0:
            tl.store(m_out + index, m)


@triton.jit
def pass_states(
    k: tensor,
    k_row: tensor,
    v: tensor,
    v_row: tensor,
    i: tensor,
    i_row: tensor,
    f: tensor,
    f_row: tensor,
    table: tensor,
    first: tensor,
    chunks: tensor,
    C_start: tensor,
    n_start: tensor,
    m_start: tensor,
    C_end: tensor,
    n_end: tensor,
    m_end: tensor,
    C_in: tensor,
    n_in: tensor,
    m_in: tensor,
    heads: tensor,
    K: constexpr,
    V: constexpr,
    CHUNK: constexpr,
    TILE_K: constexpr,
    TILE_V: constexpr,
) -> None:
    """Run a tile of a head's C over a sequence: the states (N, H, ...) before its chunks, and the
    end state (S, H, ...).
    """
    row = tl.program_id(0).to(tl.int64)
    sequence = row // heads
    head = row % heads
    key = tl.program_id(1) * TILE_K + tl.arange(0, TILE_K)
    column = tl.program_id(2) * TILE_V + tl.arange(0, TILE_V)
    inside = (key < K)[:, None] & (column < V)[None, :]
    C = tl.load(C_start + (row * K + key[:, None]) * V + column[None, :], mask=inside, other=0.0)
    n = tl.load(n_start + row * K + key, mask=key < K, other=0.0)
    m = tl.load(m_start + row)
    for chunk in range(tl.load(first + sequence), tl.load(first + sequence + 1)):
        _store_state(C_in, n_in, m_in, chunk * heads + head, key, column, C, n, m, K, V)
        token = tl.load(table + chunks + chunk) + tl.arange(0, CHUNK)
        stop = tl.load(table + 2 * chunks + chunk)
        # Sums from each token to the chunk's end: differences of sums from the start would cancel.
        to_end = tl.cumsum(_forget_gate(f, f_row, token + 1, stop, head), 0, reverse=True)
        weight = to_end + _input_gate(i, i_row, token, stop, head)
        kept = tl.sum(_forget_gate(f, f_row, token, stop, head), 0)
        m_next = tl.maximum(kept + m, tl.max(weight, 0))
        weight = tl.exp(weight - m_next)
        old = tl.exp(kept + (m - m_next))
        keys = _tile(k, k_row, token, stop, head, key, K) * weight[:, None]
        values = _tile(v, v_row, token, stop, head, column, V)
        C = C * old + tl.dot(tl.trans(keys), values, input_precision="tf32x3")
        n = n * old + tl.sum(keys, 0)
        m = m_next
    _store_state(C_end, n_end, m_end, row, key, column, C, n, m, K, V)


@triton.jit
def _log_weights(enter: tensor, forget: tensor, CHUNK: constexpr) -> tensor:
    """Return (CHUNK, CHUNK): token j's input gate and all later forget gates up to token i; -inf
    for j > i.
    """
    place = tl.arange(0, CHUNK)
    behind = place[:, None] > place[None, :]
    steps = tl.where(behind, forget[:, None], 0.0)
    return tl.where(
        place[:, None] >= place[None, :], tl.cumsum(steps, 0) + enter[None, :], float("-inf")
    )


@triton.jit
def _read(
    q: tensor,
    q_row: tensor,
    k: tensor,
    k_row: tensor,
    C_in: tensor,
    n_in: tensor,
    token: tensor,
    stop: tensor,
    head: tensor,
    index: tensor,
    column: tensor,
    K: constexpr,
    V: constexpr,
    CHUNK: constexpr,
    TILE_K: constexpr,
    TILE_V: constexpr,
    EXACT: constexpr,
) -> tuple[tensor, tensor, tensor]:
    """Return q k^T (CHUNK, CHUNK), q C (CHUNK, TILE_V) and q n (CHUNK,) with the state before the
    chunk. EXACT: the precision that q k^T needs, "tf32" for bf16 inputs, else "tf32x3".
    """
    scores = tl.zeros((CHUNK, CHUNK), tl.float32)
    read = tl.zeros((CHUNK, TILE_V), tl.float32)
    normalizer = tl.zeros((CHUNK,), tl.float32)
    for first in range(0, K, TILE_K):
        key = first + tl.arange(0, TILE_K)
        queries = _tile(q, q_row, token, stop, head, key, K)
        keys = _tile(k, k_row, token, stop, head, key, K)
        inside = (key < K)[:, None] & (column < V)[None, :]
        C = tl.load(C_in + (index * K + key[:, None]) * V + column[None, :], mask=inside, other=0.0)
        n = tl.load(n_in + index * K + key, mask=key < K, other=0.0)
        scores = tl.dot(queries, tl.trans(keys), scores, input_precision=EXACT)
        read = tl.dot(queries, C, read, input_precision="tf32x3")
        normalizer += tl.sum(queries * n[None, :], 1)
    return scores, read, normalizer


@triton.jit
def outputs(
    q: tensor,
    q_row: tensor,
    k: tensor,
    k_row: tensor,
    v: tensor,
    v_row: tensor,
    i: tensor,
    i_row: tensor,
    f: tensor,
    f_row: tensor,
    table: tensor,
    chunks: tensor,
    C_in: tensor,
    n_in: tensor,
    m_in: tensor,
    h: tensor,
    heads: tensor,
    eps: tensor,
    scale: tensor,
    K: constexpr,
    V: constexpr,
    CHUNK: constexpr,
    TILE_K: constexpr,
    TILE_V: constexpr,
    EXACT: constexpr,
) -> None:
    """Compute h of one chunk's tokens and one head, TILE_V of its columns; `scale` applies to q."""
    chunk = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    column = tl.program_id(2) * TILE_V + tl.arange(0, TILE_V)
    token = tl.load(table + chunks + chunk) + tl.arange(0, CHUNK)
    stop = tl.load(table + 2 * chunks + chunk)
    index = chunk * heads + head
    scores, read, normalizer = _read(
        q,
        q_row,
        k,
        k_row,
        C_in,
        n_in,
        token,
        stop,
        head,
        index,
        column,
        K,
        V,
        CHUNK,
        TILE_K,
        TILE_V,
        EXACT,
    )
    forget = _forget_gate(f, f_row, token, stop, head)
    log_weight = _log_weights(_input_gate(i, i_row, token, stop, head), forget, CHUNK)
    kept = tl.cumsum(forget, 0)
    m = tl.load(m_in + index)
    m_token = tl.maximum(kept + m, tl.max(log_weight, 1))
    mix = scores * scale * tl.exp(log_weight - m_token[:, None])
    entering = tl.exp(kept + (m - m_token)) * scale
    values = _tile(v, v_row, token, stop, head, column, V)
    numerator = entering[:, None] * read + tl.dot(mix, values, input_precision="tf32x3")
    weight = entering * normalizer + tl.sum(mix, 1)
    denominator = tl.maximum(tl.abs(weight), tl.exp(-m_token)) + eps
    inside = (token < stop)[:, None] & (column < V)[None, :]
    at = (token[:, None] * heads + head) * V + column[None, :]
    tl.store(h + at, (numerator / denominator[:, None]).to(h.dtype.element_ty), mask=inside)


def mlstm_gpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    cu: Tensor,
    state: State | None,
    eps: float,
) -> tuple[Tensor, State]:
    """See `runnel.ops.mlstm`; cu (S+1,) int64 on the CPU."""

    def run(
        q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, *state: Tensor
    ) -> tuple[Tensor, ...]:
        return _forward(q, k, v, i, f, cu, state, eps)

    def in_torch(
        q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, *state: Tensor
    ) -> tuple[Tensor, ...]:
        start = (state[0], state[1], state[2]) if state else None
        h, end = mlstm_torch(q, k, v, i, f, cu, start, eps)
        return h, *end

    h, C, n, m = with_torch_backward(run, in_torch, q, k, v, i, f, *(state or ()))
    return h, (C, n, m)


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    cu: Tensor,
    state: tuple[Tensor, ...],
    eps: float,
) -> tuple[Tensor, ...]:
    """Return h and the end state. `state`: C, n and m, or nothing."""
    _, heads, width = q.shape
    size = v.shape[2]
    sequences = cu.numel() - 1
    device = v.device
    h = torch.empty(v.shape, dtype=v.dtype, device=device)
    shapes = ((heads, width, size), (heads, width), (heads,))
    start = [part.detach().float().contiguous() for part in state] or [
        torch.zeros(sequences, *shape, device=device) for shape in shapes
    ]
    if not h.numel():
        return h, *(part.clone() for part in start)
    # memory of its own, because programs of other tiles may still read the start
    end = [torch.empty(sequences, *shape, device=device) for shape in shapes]
    chunks = GpuChunks.of(cu, _CHUNK, device)
    entering = [torch.empty(chunks.count, *shape, device=device) for shape in shapes]
    bounds = ((_TILE_K, width), (_TILE_V, size))
    tile_k, tile_v = (
        min(most, power_of_two(length, least=least)) for (least, most), length in bounds
    )
    tiles = {"K": width, "V": size, "CHUNK": _CHUNK, "TILE_K": tile_k, "TILE_V": tile_v}
    gates = (*rows(i), *rows(f), chunks.table)
    with on_device_of(v):
        pass_states[(sequences * heads, triton.cdiv(width, tile_k), triton.cdiv(size, tile_v))](
            *rows(k),
            *rows(v),
            *gates,
            chunks.first,
            chunks.count,
            *start,
            *end,
            *entering,
            heads,
            **tiles,
            num_warps=8,
            num_stages=2,
        )
        # bf16 numbers fit into tf32, so their products are exact; other products take three tf32
        # products each.
        exact = "tf32" if v.dtype == torch.bfloat16 else "tf32x3"
        outputs[(chunks.count, heads, triton.cdiv(size, tile_v))](
            *rows(q),
            *rows(k),
            *rows(v),
            *gates,
            chunks.count,
            *entering,
            h,
            heads,
            eps,
            width**-0.5,
            **tiles,
            EXACT=exact,
            num_warps=8,
            num_stages=2,
        )
    return h, *end
