"""The kernels of an encoder's layer between its matrix products (CPU inference): LayerNorm, GELU
and softmax attention.

    T  tokens         S  sequences          n  length of a sequence
    D  width          H  heads              P  size of a head, D / H
    F  inner width    Np  n rounded up to whole panels
    G  groups of 8-bit outputs              Kp  the bytes of a group, rounded up to whole words

    word    32 bits: one number in fp32, two in bf16, four bytes in 8 bits
    panel   TILE_COLUMNS columns of a product's right factor, row after row
    vector  LANES = 16 fp32 numbers (`ops/simd.py`); `load_some` and `store_some` stop at the end of
            a row

The order of a layer, with the products in brackets: [qkv], `attend`, [out], `add_layer_norm`, [up],
`bias_gelu` or (in 8 bits) `bias_gelu_bytes`, [down], `add_layer_norm`. Each kernel is one pass over
its memory and adds the bias of the product before it. `bias` is always the bias of that product.

Attention is within each of many packed sequences, in both directions. One task is one head of one
sequence:

    attend -> _head     lay out the keys and the values of the sequence, once
                        for each block of queries, which fits the first-level cache with its scores:
                            scores = queries keys^T, a product
                            `_mask` and `_softmax` of each row of scores
                            weighted = scores values, a product
                            `_write` each row to the output

So a result depends only on its own sequence, to the last bit. The bias of the keys is not needed,
because it adds the same number to all scores of a query; the bias of the values is added at the
end. Factors of products have the dtype of the activations, fp32 or bf16.
"""

import math

import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.core.typing import Context
from numba.extending import intrinsic

from runnel.backbones.encoder import gelu
from runnel.ops.int8_matmul import quantize_row
from runnel.ops.numba_math import (
    LOG2_E,
    PARALLEL,
    SERIAL,
    Array,
    Definition,
    Number,
    Pointer,
    Scratch,
    Vector,
    build_constant,
    emitting,
)
from runnel.ops.simd import (
    LANES,
    TILE_COLUMNS,
    TILE_ROWS,
    VF32,
    add,
    address,
    build_divide,
    build_fma,
    build_lanes_below,
    build_polynomial,
    ceil_div,
    elementwise,
    exp2,
    f32x16,
    fma,
    keep,
    load,
    load_some,
    mul,
    next_task,
    reduction,
    round_up,
    shift,
    splat,
    store,
    store_some,
    sub,
    total,
)
from runnel.ops.simd_tile import (
    as_kind,
    copy_row,
    load_up_to,
    multiply_panel,
    numbers_per_word,
    store_pairs,
    transpose,
)

_BLOCK = 16  # tokens per task of LayerNorm and GELU
_QUERIES = 32  # queries per block of attention, a multiple of LANES and TILE_ROWS

# ---- LayerNorm and GELU --------------------------------------------------------------------------

# The `rest` of a row follows the loop over whole vectors: with a mask in the loop, the compiler
# would add in another order, and results would change in their last bits.


@njit(**SERIAL)
def _add(residual: Pointer, added: Pointer, bias: Pointer, width: int, out: Pointer) -> Number:
    """Set out = residual + added + bias for one token and return its mean. Pointers; `out` may be
    `residual`.
    """
    rest = width % LANES
    whole = width - rest
    sums = splat(np.float32(0.0))
    for c in range(0, whole, LANES):
        v = add(load(residual, c), add(load(added, c), load(bias, c)))
        store(out, c, v)
        sums = add(sums, v)
    if rest:
        v = add(
            load_some(residual, whole, rest),
            add(load_some(added, whole, rest), load_some(bias, whole, rest)),
        )
        store_some(out, whole, v, rest)
        sums = add(sums, v)
    return total(sums) / np.float32(width)


@njit(**SERIAL)
def _variance(row: Pointer, mean: Number, width: int) -> Number:
    """Return the mean square of row - mean."""
    rest = width % LANES
    whole = width - rest
    center = splat(mean)
    squares = splat(np.float32(0.0))
    for c in range(0, whole, LANES):
        v = sub(load(row, c), center)
        squares = fma(v, v, squares)
    if rest:
        v = keep(sub(load_some(row, whole, rest), center), rest)
        squares = fma(v, v, squares)
    return total(squares) / np.float32(width)


@njit(**SERIAL)
def _normalize(
    row: Pointer, mean: Number, inverse: Number, weight: Pointer, shift_by: Pointer, width: int
) -> None:
    """Set row = (row - mean) * inverse * weight + shift_by, in place."""
    rest = width % LANES
    whole = width - rest
    center = splat(mean)
    factor = splat(inverse)
    for c in range(0, whole, LANES):
        store(
            row, c, fma(mul(sub(load(row, c), center), factor), load(weight, c), load(shift_by, c))
        )
    if rest:
        v = mul(sub(load_some(row, whole, rest), center), factor)
        store_some(
            row,
            whole,
            fma(v, load_some(weight, whole, rest), load_some(shift_by, whole, rest)),
            rest,
        )


@njit(**PARALLEL)
def add_layer_norm(
    residual: Array,
    residual_row: int,
    added: Array,
    bias: Array,
    weight: Array,
    shift_by: Array,
    eps: Number,
    out: Array,
    out_row: int,
    inputs: Array,
    scales: Array,
) -> None:
    """Set out = (x - mean(x)) / sqrt(var(x) + eps) * weight + shift_by, with x = residual + added +
    bias. Call it inside `numba_math.parallel()`.

    Args:
        residual: (T, D) fp32, as from `flat_rows`: `residual_row` is the distance between rows.
        added: (T, D) fp32 or bf16 bits (uint16).
        bias, weight, shift_by: (D,) fp32.
        out: (T, D) fp32, as from `flat_rows`; may be `residual`.
        inputs, scales: filled with the inputs of the next product. Their shapes say what it reads:
            (T, D) bf16 bits and (1, 0); or (T, G Kp) bytes and their (T, G) scales; or (T, 0) and
            (1, 0): `out` itself.
    """
    tokens, width = added.shape
    groups = scales.shape[1]  # 0 unless in bytes
    size = width // max(1, groups)
    padded = inputs.shape[1] // max(1, groups)
    for block in prange(ceil_div(tokens, _BLOCK)):
        for t in range(block * _BLOCK, min(tokens, (block + 1) * _BLOCK)):
            row = shift(address(out), t * out_row)
            target = shift(address(inputs), t * inputs.shape[1])
            mean = _add(
                shift(address(residual), t * residual_row),
                shift(address(added), t * width),
                address(bias),
                width,
                row,
            )
            inverse = np.float32(1.0) / np.sqrt(_variance(row, mean, width) + np.float32(eps))
            _normalize(row, mean, inverse, address(weight), address(shift_by), width)
            for g in range(groups):
                scales[t, g] = quantize_row(shift(row, g * size), size, shift(target, g * padded))
            if groups == 0 and inputs.shape[1]:
                copy_row(row, width, target)


@njit(**PARALLEL)
def copy_rows(source: Array, out: Array) -> None:
    """Set out (T, D), bf16 bits, to the rounded source (T, D) fp32. Call it inside
    `numba_math.parallel()`.
    """
    tokens, width = source.shape
    for t in prange(tokens):
        copy_row(shift(address(source), t * width), width, shift(address(out), t * width))


def _build_gelu(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """Emit the approximation of `gelu.py`."""
    zero, half, whole = (build_constant(VF32, value) for value in (0.0, 0.5, 1.0))
    square = builder.fmul(x, x)
    large = builder.fcmp_ordered(">", square, build_constant(VF32, gelu.END * gelu.END))
    square = builder.select(large, zero, square)  # keeps polynomials of large numbers finite
    ratio = build_divide(
        builder,
        build_polynomial(builder, square, gelu.P),
        build_polynomial(builder, square, gelu.Q),
    )
    outside = builder.select(builder.fcmp_ordered(">", x, zero), whole, zero)
    phi = builder.select(large, outside, build_fma(builder, x, ratio, half))
    return builder.fmul(x, phi)


_gelu = elementwise(
    1, _build_gelu, "x Phi(x), with Phi the normal distribution; exactly 0 or x beyond 5.5"
)


@njit(**SERIAL)
def _gelu_row(x: Pointer, bias: Pointer, width: int, out: Pointer) -> None:
    """Set out = gelu(x + bias) for one token. Pointers; `out` may be `x`."""
    rest = width % LANES
    whole = width - rest
    for c in range(0, whole, LANES):
        store(out, c, _gelu(add(load(x, c), load(bias, c))))
    if rest:
        store_some(
            out, whole, _gelu(add(load_some(x, whole, rest), load_some(bias, whole, rest))), rest
        )


@njit(**PARALLEL)
def bias_gelu(x: Array, bias: Array) -> None:
    """Set x = gelu(x + bias), in place. Call it inside `numba_math.parallel()`.

    Args:
        x: (T, F) fp32 or bf16 bits (uint16).
        bias: (F,) fp32.
    """
    tokens, width = x.shape
    for block in prange(ceil_div(tokens, _BLOCK)):
        for t in range(block * _BLOCK, min(tokens, (block + 1) * _BLOCK)):
            row = shift(address(x), t * width)
            _gelu_row(row, address(bias), width, row)


@njit(**PARALLEL)
def bias_gelu_bytes(x: Array, bias: Array, out: Array, scales: Array, scratch: Scratch) -> None:
    """Run `bias_gelu` with an 8-bit result for `int8_matmul.multiply`; keep x.

    Args:
        out: (T, G Kp) uint8.
        scales: (T, G) fp32.
        scratch: F numbers.
    """
    tokens, width = x.shape
    groups = scales.shape[1]
    size = width // groups
    padded = out.shape[1] // groups
    workers = scratch.rows.shape[0]
    for worker in prange(workers):
        middle = shift(address(scratch.rows), worker * scratch.rows.shape[1])
        for t in range(tokens * worker // workers, tokens * (worker + 1) // workers):
            _gelu_row(shift(address(x), t * width), address(bias), width, middle)
            for g in range(groups):
                target = shift(address(out), t * out.shape[1] + g * padded)
                scales[t, g] = quantize_row(shift(middle, g * size), size, target)


# ---- attention -----------------------------------------------------------------------------------


def _build_larger(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


_larger = elementwise(2, _build_larger, "The larger of a and b; b if one of them is NaN.")
_largest = reduction(_build_larger, "The largest lane.")


@intrinsic
def _only(typing_context: Context, x: types.Type, count: types.Type) -> Definition:
    """Return x in the first `count` lanes, minus infinity in the others."""
    return f32x16(f32x16, types.intp), emitting(
        lambda builder, x, count: builder.select(
            build_lanes_below(builder, count), x, build_constant(VF32, -math.inf)
        )
    )


@njit(**SERIAL)
def attention_memory(head_size: int, tokens: int) -> tuple[int, int, int, int, int]:
    """Return where the five parts of the memory of `attend` end, in words: the keys, the values, a
    block of queries, their scores, and their weighted values. `tokens`: of the longest sequence.

    Keys, values and queries in bf16 need less than their parts, which have the size for fp32.
    """
    depth = round_up(head_size)  # the words of a query or key
    columns = round_up(head_size, TILE_COLUMNS)  # of the values
    padded = round_up(tokens, TILE_COLUMNS)  # Np
    values = (depth + columns) * padded
    queries = values + _QUERIES * depth
    return (
        depth * padded,
        values,
        queries,
        queries + _QUERIES * padded,
        queries + _QUERIES * (padded + columns),
    )


@njit(**SERIAL)
def _read(source: Pointer, stride: int, t: int, tokens: int, c: int, size: int) -> Vector:
    """Return numbers c .. c+15 of token t; 0 where there is no such token or number."""
    return load_up_to(source, t * stride + c, size - c if t < tokens else 0)


@njit(**SERIAL)
def _lay_out_keys(
    source: Pointer, stride: int, tokens: int, size: int, depth: int, rows: Pointer, out: Pointer
) -> None:
    """Lay out keys as the right factor of a product: panels (depth, TILE_COLUMNS) of words, each
    with TILE_COLUMNS keys as its columns.

    Args:
        depth: the words of a key, rounded up to whole vectors.
        rows: scratch for LANES keys, which become LANES columns.
    """
    target = as_kind(source, rows)
    row = depth * numbers_per_word(source)
    for t in range(0, round_up(tokens, TILE_COLUMNS), LANES):
        for i in range(LANES):
            for c in range(0, row, LANES):
                store(target, i * row + c, _read(source, stride, t + i, tokens, c, size))
        panel = shift(out, t // TILE_COLUMNS * TILE_COLUMNS * depth + t % TILE_COLUMNS)
        for k in range(0, depth, LANES):
            transpose(shift(rows, k), depth, shift(panel, k * TILE_COLUMNS), TILE_COLUMNS)


@njit(**SERIAL)
def _lay_out_values(source: Pointer, stride: int, tokens: int, size: int, out: Pointer) -> None:
    """Lay out values as the right factor of a product: panels of TILE_COLUMNS columns, whose rows
    are tokens. In bf16 a word has the numbers of two tokens, so a panel has Np / 2 rows of words.
    """
    step = numbers_per_word(source)
    at = 0  # where the next words go
    for panel in range(0, size, TILE_COLUMNS):
        for t in range(0, round_up(tokens, TILE_COLUMNS), step):
            for c in range(panel, panel + TILE_COLUMNS, LANES):
                low = _read(source, stride, t, tokens, c, size)
                if step == 1:
                    store(out, at, low)
                else:
                    store_pairs(out, at, low, _read(source, stride, t + 1, tokens, c, size))
                at += LANES


@njit(**SERIAL)
def _mask(row: Pointer, count: int, padded: int) -> Number:
    """Set the scores after the first `count` of a row of `padded` to minus infinity; return the
    maximum of the row.
    """
    for c in range(count - count % LANES, padded, LANES):
        store(row, c, _only(load(row, c), count - c))
    top = load(row, 0)
    for c in range(LANES, padded, LANES):
        top = _larger(load(row, c), top)
    return _largest(top)


@njit(**SERIAL)
def _softmax(row: Pointer, top: Number, padded: int, out: Pointer) -> Number:
    """Set out = 2^(row - top) for `padded` numbers; return the inverse of their sum. `out` may
    begin where `row` does.
    """
    center = splat(top)
    sums = splat(np.float32(0.0))
    for c in range(0, padded, LANES):
        v = exp2(sub(load(row, c), center))
        store(out, c, v)
        sums = add(sums, v)
    return np.float32(1.0) / total(sums)


@njit(**SERIAL)
def _write(weighted: Pointer, inverse: Number, bias: Pointer, size: int, out: Pointer) -> Number:
    """Set out = weighted * inverse + bias for one query; return the scale if `out` is bytes.
    `weighted` is changed.
    """
    in_bytes = numbers_per_word(out) == 4
    factor = splat(inverse)
    for c in range(0, size, LANES):
        v = fma(load(weighted, c), factor, load_up_to(bias, c, size - c))
        if in_bytes:
            store(weighted, c, v)
        else:
            store_some(out, c, v, size - c)
    return quantize_row(weighted, size, out) if in_bytes else np.float32(1.0)


@njit(**SERIAL)
def _head(
    source: Pointer,
    stride: int,
    bias: Pointer,
    size: int,
    tokens: int,
    memory: Array,
    out: Pointer,
    out_row: int,
    scales: Array,
) -> None:
    """Compute one head of one sequence.

    Args:
        source: pointer to the first token's query; its key follows after D numbers, its value after
            another D. Tokens are `stride` = 3 D apart.
        bias: pointer to the bias of the query; the bias of the value follows after 2 D numbers.
        size, tokens: P and n.
        memory: (numbers,) fp32, in the parts of `attention_memory`.
        out: pointer to the first token's output; rows are `out_row` apart.
        scales: (n,) of the bytes, or (0,).
    """
    width = stride // 3
    step = numbers_per_word(source)
    keys_end, values_end, queries_end, scores_end, _ = attention_memory(size, tokens)
    depth = round_up(ceil_div(size, step))  # words of a query or key
    columns = round_up(size, TILE_COLUMNS)  # of the values and the weighted values
    padded = round_up(tokens, TILE_COLUMNS)  # Np
    keys = address(memory)
    values = shift(address(memory), keys_end)
    queries = shift(address(memory), values_end)
    scores = shift(address(memory), queries_end)
    weighted = shift(address(memory), scores_end)
    zero = np.float32(0.0)
    # exp(q . k / sqrt(P)) is 2^(q . k log2(e) / sqrt(P))
    query_scale = splat(np.float32(LOG2_E / np.sqrt(size)))
    # of each query: the maximum of its scores, then the inverse of the sum of their powers
    factors = np.empty(_QUERIES, np.float32)
    _lay_out_keys(shift(source, width), stride, tokens, size, depth, queries, keys)
    _lay_out_values(shift(source, 2 * width), stride, tokens, size, values)
    for first in range(0, tokens, _QUERIES):
        count = min(_QUERIES, tokens - first)
        for t in range(round_up(count, TILE_ROWS)):
            for c in range(0, depth * step, LANES):
                query = add(
                    _read(source, stride, first + t, tokens, c, size),
                    load_up_to(bias, c, size - c),
                )
                store(as_kind(source, queries), t * depth * step + c, mul(query, query_scale))
        # `multiply_panel` takes: a pointer whose type says what a word holds, the left matrix and
        # its words from row to row, the panel, the rows to make, the words of a row to use, by what
        # to multiply what `target` holds (0: it is not read), `target` and its numbers from row to
        # row
        for s in range(0, padded, TILE_COLUMNS):
            panel = shift(keys, s * depth)  # a panel has `depth` rows
            target = shift(scores, s)
            used = ceil_div(size, step)
            multiply_panel(source, queries, depth, panel, count, used, zero, target, padded)
        for t in range(count):
            factors[t] = _mask(shift(scores, t * padded), tokens, padded)
        for t in range(count):
            row = shift(scores, t * padded)
            factors[t] = _softmax(row, factors[t], padded, as_kind(source, row))
        for c in range(0, size, TILE_COLUMNS):
            panel = shift(values, c * padded // step)  # a panel has `padded` / `step` rows
            target = shift(weighted, c)
            used = ceil_div(tokens, step)
            # rows of scores stay `padded` words apart, also where bf16 fills only half of each
            multiply_panel(source, scores, padded, panel, count, used, zero, target, columns)
        for t in range(count):
            own = shift(out, (first + t) * out_row)
            scale = _write(
                shift(weighted, t * columns), factors[t], shift(bias, 2 * width), size, own
            )
            if scales.shape[0]:
                scales[first + t] = scale


@njit(**PARALLEL)
def attend(
    qkv: Array,
    bias: Array,
    cu_seqlens: Array,
    heads: int,
    out: Array,
    scales: Array,
    scratch: Scratch,
) -> None:
    """Set out = softmax(q k^T / sqrt(P)) v within each sequence and head. Call it inside
    `numba_math.parallel()`.

    Args:
        qkv: (T, 3 D) fp32 or bf16 bits (uint16): all heads' queries, all keys, all values.
        bias: (3 D,) fp32, added to `qkv`.
        cu_seqlens: (S+1,) int64.
        heads: H.
        out: (T, D) fp32 or bf16 bits; or 8 bits for `int8_matmul.multiply`, with a head as a group:
            (T, H Kp) uint8.
        scales: (T, H) fp32, scales of the bytes; (1, 0) without bytes.
        scratch: as many numbers as the last of `attention_memory` for the longest sequence.
    """
    stride = qkv.shape[1]
    row = out.shape[1]
    size = stride // 3 // heads
    tasks = (cu_seqlens.shape[0] - 1) * heads
    for worker in prange(scratch.rows.shape[0]):
        memory = scratch.rows[worker]
        task = next_task(address(scratch.tasks))
        while task < tasks:
            start = cu_seqlens[task // heads]
            h = task % heads
            tokens = cu_seqlens[task // heads + 1] - start
            own = scales[start : start + tokens, h] if scales.shape[1] else scales[0, :0]
            _head(
                shift(address(qkv), start * stride + h * size),
                stride,
                shift(address(bias), h * size),
                size,
                tokens,
                memory,
                shift(address(out), start * row + h * (row // heads)),
                row,
                own,
            )
            task = next_task(address(scratch.tasks))
