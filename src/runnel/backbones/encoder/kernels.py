"""The kernels of an encoder's layer between its matrix products (CPU inference): LayerNorm, GELU
and softmax attention.

    T  tokens         S  sequences          n  length of a sequence
    D  width          H  heads              F  inner width
    G  groups of 8-bit outputs              Kp  the bytes of a group: its width in whole words
    Np  n padded to whole vectors

The order of a layer, with the products in brackets: [qkv], `attend`, [out], `add_layer_norm`, [up],
`bias_gelu` or (in 8 bits) `bias_gelu_bytes`, [down], `add_layer_norm`. Each kernel is one pass over
its memory and adds the bias of the product before it.

Attention is within each of many packed sequences, in both directions. One task is one head of one
sequence (`_head`): keys and values are laid out once, and queries are processed in blocks that fit
the first-level cache together with their scores. So a result depends only on its own sequence, to
the last bit. The bias of the keys is not needed, because it adds the same number to all scores of a
query; the bias of the values is added at the end. Factors of products have the dtype of the
activations.
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
    multiply_panel,
    numbers_per_word,
    store_pairs,
    transpose,
)

# Rows end outside the loops over whole vectors: with masks in these loops, the compiler would add
# in another order, and results would change in their last bits.
_BLOCK = 16  # tokens per task of LayerNorm and GELU
_QUERIES = 32  # queries per block of attention, a multiple of LANES and TILE_ROWS


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
def _deviation(row: Pointer, mean: Number, width: int) -> Number:
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
        inputs, scales: filled with the inputs of the next product: (T, D) bf16 bits and (1, 0); or
            (T, G Kp) bytes and their (T, G) scales; or (T, 0) and (1, 0), if that product reads
            `out` itself.
    """
    tokens, width = added.shape
    groups = scales.shape[1]
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
            inverse = np.float32(1.0) / np.sqrt(_deviation(row, mean, width) + np.float32(eps))
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
    """Return where the five parts of the memory of `attend` end, in words: the keys, the values,
    the rows of a block of queries, their scores, and their weighted values. `tokens`: of the
    longest sequence.
    """
    wide = round_up(head_size)
    panels = round_up(head_size, TILE_COLUMNS)
    long = round_up(tokens, TILE_COLUMNS)
    values = (wide + panels) * long
    rows = values + _QUERIES * wide
    return wide * long, values, rows, rows + _QUERIES * long, rows + _QUERIES * (long + panels)


@njit(**SERIAL)
def _read(source: Pointer, stride: int, t: int, tokens: int, c: int, size: int) -> Vector:
    """Return numbers c .. c+15 of token t; 0 where there is no such token or number."""
    if t < tokens and c + LANES <= size:
        return load(source, t * stride + c)
    return load_some(source, t * stride + c, size - c if t < tokens else 0)


@njit(**SERIAL)
def _lay_out_keys(
    source: Pointer, stride: int, tokens: int, size: int, depth: int, rows: Pointer, out: Pointer
) -> None:
    """Lay out keys as the right side of a product: panels (depth, TILE_COLUMNS) of words. `rows`:
    memory for LANES of them.
    """
    target = as_kind(source, rows)
    wide = depth * numbers_per_word(source)
    for t in range(0, round_up(tokens, TILE_COLUMNS), LANES):
        for i in range(LANES):
            for c in range(0, wide, LANES):
                store(target, i * wide + c, _read(source, stride, t + i, tokens, c, size))
        panel = shift(out, t // TILE_COLUMNS * TILE_COLUMNS * depth + t % TILE_COLUMNS)
        for c in range(0, depth, LANES):
            transpose(shift(rows, c), depth, shift(panel, c * TILE_COLUMNS), TILE_COLUMNS)


@njit(**SERIAL)
def _lay_out_values(source: Pointer, stride: int, tokens: int, size: int, out: Pointer) -> None:
    """Lay out values as the right side of a product: panels (Np, TILE_COLUMNS), as words that join
    tokens.
    """
    step = numbers_per_word(source)
    at = 0
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
def _mask(row: Pointer, count: int, long: int) -> Number:
    """Set the scores after the first `count` of a row of `long` to minus infinity; return the
    maximum of the row.
    """
    for c in range(count - count % LANES, long, LANES):
        store(row, c, _only(load(row, c), count - c))
    top = load(row, 0)
    for c in range(LANES, long, LANES):
        top = _larger(load(row, c), top)
    return _largest(top)


@njit(**SERIAL)
def _softmax(row: Pointer, top: Number, long: int, out: Pointer) -> Number:
    """Set out = 2^(row - top) for `long` numbers; return the inverse of their sum. `out` may begin
    where `row` does.
    """
    center = splat(top)
    sums = splat(np.float32(0.0))
    for c in range(0, long, LANES):
        v = exp2(sub(load(row, c), center))
        store(out, c, v)
        sums = add(sums, v)
    return np.float32(1.0) / total(sums)


@njit(**SERIAL)
def _write(seen: Pointer, inverse: Number, bias: Pointer, size: int, out: Pointer) -> Number:
    """Set out = seen * inverse + bias for one query; return the scale if `out` is bytes. `seen` is
    changed.
    """
    factor = splat(inverse)
    for c in range(0, size, LANES):
        v = fma(load(seen, c), factor, _read(bias, 0, 0, 1, c, size))
        if numbers_per_word(out) == 4:
            store(seen, c, v)
        else:
            store_some(out, c, v, size - c)
    return quantize_row(seen, size, out) if numbers_per_word(out) == 4 else np.float32(1.0)


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
        source: pointer to the first token's query; its key follows after stride / 3 numbers, its
            value after another stride / 3.
        bias: pointer to the bias of the query; the bias of the key follows after stride / 3
        numbers,
            that of the value after another stride / 3.
        memory: (numbers,) fp32.
        out: pointer to the first token's output; rows are `out_row` apart.
        scales: (n,) of the bytes, or (0,).
    """
    width = stride // 3
    step = numbers_per_word(source)
    place = attention_memory(size, tokens)
    depth = round_up(ceil_div(size, step))
    panels = round_up(size, TILE_COLUMNS)
    long = round_up(tokens, TILE_COLUMNS)
    keys = address(memory)
    values = shift(address(memory), place[0])
    rows = shift(address(memory), place[1])
    scores = shift(address(memory), place[2])
    seen = shift(address(memory), place[3])
    zero = np.float32(0.0)
    soft = splat(np.float32(LOG2_E / np.sqrt(size)))
    factors = np.empty(_QUERIES, np.float32)
    _lay_out_keys(shift(source, width), stride, tokens, size, depth, rows, keys)
    _lay_out_values(shift(source, 2 * width), stride, tokens, size, values)
    for first in range(0, tokens, _QUERIES):
        count = min(_QUERIES, tokens - first)
        for t in range(round_up(count, TILE_ROWS)):
            for c in range(0, depth * step, LANES):
                query = add(
                    _read(source, stride, first + t, tokens, c, size), _read(bias, 0, 0, 1, c, size)
                )
                store(as_kind(source, rows), t * depth * step + c, mul(query, soft))
        for s in range(0, long, TILE_COLUMNS):
            panel = shift(keys, s * depth)
            target = shift(scores, s)
            used = ceil_div(size, step)
            multiply_panel(source, rows, depth, panel, count, used, zero, target, long)
        for t in range(count):
            factors[t] = _mask(shift(scores, t * long), tokens, long)
        for t in range(count):
            row = shift(scores, t * long)
            factors[t] = _softmax(row, factors[t], long, as_kind(source, row))
        for c in range(0, size, TILE_COLUMNS):
            panel = shift(values, c * long // step)
            target = shift(seen, c)
            used = ceil_div(tokens, step)
            multiply_panel(source, scores, long, panel, count, used, zero, target, panels)
        for t in range(count):
            own = shift(out, (first + t) * out_row)
            scale = _write(shift(seen, t * panels), factors[t], shift(bias, 2 * width), size, own)
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
