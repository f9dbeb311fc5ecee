"""Everything of an xLSTM block between its matrix products, for CPU inference.

    T  tokens           S  sequences        C  chunks (at most CHUNK tokens of one sequence)        Q  CHUNK
    H  heads            K  key size         V  value size         D  width of the residual stream
    R  rows of the state pool               L  layers             Kp  K padded to whole vectors     F  feed-forward width

Four kernels in the first half of a block. `project_gates` computes both gates of all heads from the residual stream, in fp32
throughout. `prepare_heads` gives each (sequence, head) to one core, which walks through its chunks and finds all that the columns
of V share: m and n, and with them the factors and divisors of

    y_i = (grown_i q_i . S + sum_{j<=i} mixed_ij v_j) / divisor_i          mixed_ij = q_i . k_j K^-1/2 exp(u_j - most_i)
    S  <- decay S + sum_j carried_j k_j v_j^T

`scan_columns` computes these for TILE_COLUMNS columns of V at a time, as matrix tiles with the columns of S in cache, so that a
few heads keep many cores busy. `normalize_heads` ends with the head's norm and the output gate. The state stays fp32 between
chunks; the factors of the products are bf16 where the projections are bf16 (sums in fp32), and fp32 where they are fp32.
Source of the chunked form: Beck et al., "Tiled Flash Linear Attention", 2025.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from runnel.backbones.xlstm.kernel_parts import (
    ONE,
    ZERO,
    Buffers,
    Shape,
    Weights,
    advance_n,
    cap_gates,
    copy_rows,
    divisors,
    load_columns,
    mix,
    normalize_head,
    read_gates,
    store_columns,
)
from runnel.ops.chunk_tiles import multiply_keys, scan_panel
from runnel.ops.chunks import CHUNK, ChunkPlan
from runnel.ops.numba_math import PARALLEL, SERIAL, Array, Number, Pointer, fast_exp
from runnel.ops.simd import (
    LANES,
    TILE_COLUMNS,
    TILE_ROWS,
    address,
    ceil_div,
    mul,
    next_task,
    round_up,
    shift,
    silu,
)
from runnel.ops.simd_tile import as_kind, fill, load_up_to, numbers_per_word, pack, store_up_to, tile_product

_BLOCK = 16  # tokens per task, a multiple of TILE_ROWS
_PIECE = 4096  # numbers per task


# ---- gates ---------------------------------------------------------------------------------------------------------------


@njit(**PARALLEL)
def project_gates(residual: Array, s: Shape, w: Weights, b: Buffers) -> None:
    """Fill `b.gates` from the residual stream. Call it, and all below, inside `numba_math.parallel()`.

    Args:
        residual: (T, D) fp32; memory for T rounded up to TILE_ROWS rows must follow, whatever is in it.
        s, w, b: shape, weights, buffers.
    """
    tokens, width = residual.shape
    panel = b.gates.shape[1] * TILE_COLUMNS
    for block in prange(ceil_div(tokens, _BLOCK)):
        first, last = block * _BLOCK, min(tokens, (block + 1) * _BLOCK)
        x, gates = address(residual), address(b.gates)
        for p in range(b.gates.shape[0]):
            weights = shift(address(w.gates), p * width * TILE_COLUMNS)
            for t in range(first, last, TILE_ROWS):
                out = shift(gates, p * panel + t * TILE_COLUMNS)
                tile_product(x, out, x, -1, shift(x, t * width), width, 1, weights, width)
        for t in range(first, last):
            cap_gates(
                gates, panel, shift(x, t * width), width, address(w.gate_bias), s.heads, np.float32(s.gate_cap),
                np.float32(s.norm_eps), t,
            )  # fmt: skip


# ---- what the columns of V share ---------------------------------------------------------------------------------------------


@njit(**SERIAL)
def _prepare_chunk(
    q: Pointer, k: Pointer, stride: int, h: int, m: Number, n: Pointer, s: Shape, p: ChunkPlan, b: Buffers, chunk: int,
    memory: Pointer,
) -> Any:  # fmt: skip
    """One chunk of one head; q and k: its first token's. n (Kp,) advances; returns m after the chunk."""
    size, padded, step = s.key_size, round_up(s.key_size, 2 * LANES), numbers_per_word(q)
    chunks = p.sequence.shape[0]
    row = h * p.row[chunks] + p.row[chunk]
    tokens = min(p.cu_seqlens[p.sequence[chunk] + 1] - p.start[chunk], CHUNK)
    scale = np.float32(1.0 / np.sqrt(size))
    u, most, m_all = memory, shift(memory, CHUNK), shift(memory, 2 * CHUNK)
    k_rows = shift(memory, 3 * CHUNK)
    panel = shift(k_rows, CHUNK * padded)
    products = shift(panel, padded * TILE_COLUMNS)
    grown, carried, inverse = (shift(address(b.grown), row), shift(address(b.carried), row), shift(address(b.inverse), row))
    q_words, k_words = shift(address(b.q_words), row * padded // step), shift(address(b.k_words), row * padded // step)
    m_new = read_gates(address(b.gates), b.gates.shape[1] * TILE_COLUMNS, p.start[chunk], tokens, h, s.heads, m, u, most, m_all)
    for t in range(tokens):
        grown[t] = scale * fast_exp(m - most[t])
        carried[t] = fast_exp(u[t] - most[tokens - 1])
    decay = fast_exp(m - most[tokens - 1])
    b.decay[h * chunks + chunk] = decay
    copy_rows(q, q, stride, size, padded, tokens, q_words)
    copy_rows(q, k, stride, size, padded, tokens, k_rows)
    multiply_keys(q, q_words, k_rows, tokens, 1, padded, CHUNK, panel, products)
    mix(q, products, u, most, scale, tokens, inverse, shift(address(b.mixed), row * CHUNK // step))
    divisors(q, q_words, padded, n, grown, inverse, m_all, np.float32(s.cell_eps), tokens, inverse)
    advance_n(q, k_rows, padded, carried, decay, tokens, n)
    fill(panel, CHUNK, ONE)
    pack(q, as_kind(q, k_rows), padded, tokens, panel, k_words, padded)
    return m_new


@njit(**SERIAL)
def _prepare_head(
    q: Array, k: Array, layer: int, n_pool: Array, m_pool: Array, s: Shape, p: ChunkPlan, b: Buffers, task: int, memory: Pointer
) -> None:
    sequence, h = task // s.heads, task % s.heads
    size, padded, stride = s.key_size, round_up(s.key_size, 2 * LANES), q.shape[1]
    read, write = p.read_rows[sequence], p.write_rows[sequence]
    n, rest = memory, shift(memory, padded)
    fill(n, padded, ZERO)
    m = ZERO
    if read >= 0:
        m = m_pool[read, layer, h]
        old = shift(address(n_pool), ((read * n_pool.shape[1] + layer) * s.heads + h) * size)
        for c in range(size):
            n[c] = old[c]
    for chunk in range(p.first_chunk[sequence], p.first_chunk[sequence + 1]):
        place = p.start[chunk] * stride + h * size
        m = _prepare_chunk(shift(address(q), place), shift(address(k), place), stride, h, m, n, s, p, b, chunk, rest)
    if write >= 0:
        m_pool[write, layer, h] = m
        new = shift(address(n_pool), ((write * n_pool.shape[1] + layer) * s.heads + h) * size)
        for c in range(size):
            new[c] = n[c]


@njit(**PARALLEL)
def prepare_heads(q: Array, k: Array, layer: int, n_pool: Array, m_pool: Array, s: Shape, p: ChunkPlan, b: Buffers) -> None:
    """Fill `b` with what `scan_columns` needs, after `project_gates`.

    Args:
        q, k: (T, H K) fp32 or bf16 bits.
        layer: which layer of the pools.
        n_pool, m_pool: (R, L, H, K) and (R, L, H) fp32; the rows in `p.write_rows` are updated.
        s, p, b: shape, plan, buffers.
    """
    tasks = (p.cu_seqlens.shape[0] - 1) * s.heads
    for worker in prange(b.scratch.shape[0]):
        memory = shift(address(b.scratch), worker * b.scratch.shape[1])
        while True:
            task = next_task(address(b.tasks))
            if task >= tasks:
                break
            _prepare_head(q, k, layer, n_pool, m_pool, s, p, b, task, memory)


# ---- the columns -----------------------------------------------------------------------------------------------------------


@njit(**SERIAL)
def _scan_block(
    v: Array, y: Array, h: int, first: int, layer: int, pool: Array, s: Shape, p: ChunkPlan, b: Buffers, sequence: int,
    memory: Pointer,
) -> None:  # fmt: skip
    """TILE_COLUMNS columns of V, from `first` on, of one head of one sequence."""
    size, padded, stride = s.key_size, round_up(s.key_size, 2 * LANES), v.shape[1]
    columns, step = min(s.value_size - first, TILE_COLUMNS), numbers_per_word(address(v))
    read, write = p.read_rows[sequence], p.write_rows[sequence]
    values = memory
    out = shift(values, CHUNK * TILE_COLUMNS)
    S = shift(out, CHUNK * TILE_COLUMNS)
    rest = shift(S, padded * TILE_COLUMNS)
    fill(rest, CHUNK + padded, ONE)
    known = read >= 0
    if known:
        place = ((read * pool.shape[1] + layer) * s.heads + h) * size * s.value_size + first
        load_columns(shift(address(pool), place), s.value_size, size, columns, S)
        fill(shift(S, size * TILE_COLUMNS), (padded - size) * TILE_COLUMNS, ZERO)
    for chunk in range(p.first_chunk[sequence], p.first_chunk[sequence + 1]):
        start = p.start[chunk]
        tokens = min(p.cu_seqlens[sequence + 1] - start, CHUNK)
        place = start * stride + h * s.value_size + first
        load_columns(shift(address(v), place), stride, tokens, columns, values)
        wanted = write >= 0 or start + tokens < p.cu_seqlens[sequence + 1]
        row = h * p.row[p.sequence.shape[0]] + p.row[chunk]
        scan_panel(
            address(v), tokens, 1, padded, known, wanted, shift(address(b.q_words), row * padded // step),
            shift(address(b.k_words), row * padded // step), shift(address(b.mixed), row * CHUNK // step),
            shift(address(b.grown), row), shift(address(b.carried), row),
            shift(address(b.decay), h * p.sequence.shape[0] + chunk), values, TILE_COLUMNS, S, out, rest,
        )  # fmt: skip
        store_columns(out, tokens, columns, shift(address(b.inverse), row), 1, shift(address(y), place), stride)
        known = True
    if write >= 0:
        if not known:
            fill(S, padded * TILE_COLUMNS, ZERO)
        place = ((write * pool.shape[1] + layer) * s.heads + h) * size * s.value_size + first
        store_columns(S, size, columns, rest, 0, shift(address(pool), place), s.value_size)


@njit(**PARALLEL)
def scan_columns(v: Array, y: Array, layer: int, pool: Array, s: Shape, p: ChunkPlan, b: Buffers) -> None:
    """The recurrence, after `prepare_heads`.

    Args:
        v: (T, H V) fp32 or bf16 bits.
        y: (T, H V) fp32, filled with the output of the memory.
        layer: which layer of the pool.
        pool: (R, L, H, K, V) fp32; the rows in `p.write_rows` are updated.
        s, p, b: shape, plan, buffers.
    """
    blocks = ceil_div(s.value_size, TILE_COLUMNS)
    tasks = (p.cu_seqlens.shape[0] - 1) * s.heads * blocks
    for worker in prange(b.scratch.shape[0]):
        memory = shift(address(b.scratch), worker * b.scratch.shape[1])
        while True:
            task = next_task(shift(address(b.tasks), 1))
            if task >= tasks:
                break
            sequence, h, block = task // (blocks * s.heads), task // blocks % s.heads, task % blocks
            _scan_block(v, y, h, block * TILE_COLUMNS, layer, pool, s, p, b, sequence, memory)


# ---- elementwise -----------------------------------------------------------------------------------------------------------


@njit(**PARALLEL)
def normalize_heads(y: Array, o: Array, s: Shape, w: Weights, out: Array) -> None:
    """out = sigmoid(o) * (LayerNorm of y over each head) * weight: out_proj's input.

    Args:
        y: (T, H V) fp32.
        o: (T, H V) fp32 or bf16 bits.
        out: (T, H V), filled in o's dtype.
    """
    tokens, width, size = y.shape[0], y.shape[1], s.value_size
    for block in prange(ceil_div(tokens, _BLOCK)):
        for t in range(block * _BLOCK, min(tokens, (block + 1) * _BLOCK)):
            for h in range(s.heads):
                at = t * width + h * size
                normalize_head(
                    shift(address(y), at), size, shift(address(w.head_norm), h * size), np.float32(s.norm_eps),
                    shift(address(o), at), shift(address(out), at),
                )  # fmt: skip


@njit(**PARALLEL)
def multiply_silu(gate: Array, up: Array) -> None:
    """gate = silu(gate) * up, (T, F) fp32 or bf16 bits: proj_down's input."""
    size = gate.size
    for piece in prange(ceil_div(size, _PIECE)):
        a, b = address(gate), address(up)
        for c in range(piece * _PIECE, min(size, (piece + 1) * _PIECE), LANES):
            store_up_to(a, c, mul(silu(load_up_to(a, c, size - c)), load_up_to(b, c, size - c)), size - c)
