"""Softmax attention within each of many packed sequences, in both directions (CPU inference).

    T  tokens      D  width = H P      H  heads      P  head size      Kp  P padded to whole words
    n  length of a sequence            Np, Pp  n and P padded to LANES

A task is one head of one sequence: its keys and values are laid out once, and its queries are processed in blocks that fit the
first-level cache together with their scores. So a result depends only on its own sequence, to the last bit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, prange, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from runnel.ops.int8_matmul import quantize_row
from runnel.ops.numba_math import PARALLEL, SERIAL, Array, Number, Pointer, build_constant
from runnel.ops.numba_matmul import ROWS, multiply
from runnel.ops.simd import (
    LANES,
    VF32,
    add,
    address,
    build_lanes_below,
    elementwise,
    exp,
    f32x16,
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
from runnel.ops.simd_tile import numbers_per_word, transpose

_QUERIES = 32  # queries per block


def _build_larger(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


_larger = elementwise(2, _build_larger, "The larger of a and b; b if one of them is NaN.")
_largest = reduction(_build_larger, "The largest lane.")


@intrinsic
def _only(typing_context: Any, x: Any, count: Any) -> Any:
    """Return x in the first `count` lanes, minus infinity in the others."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.select(build_lanes_below(builder, values[1]), values[0], build_constant(VF32, -math.inf))

    return f32x16(f32x16, types.intp), generate


def scratch(head_size: int, longest: int, workers: int) -> NDArray[np.float32]:
    """Allocate memory (workers, numbers) for `attend`, for sequences of at most `longest` tokens."""
    return np.empty((workers, _offsets.py_func(head_size, longest)[-1]), np.float32)


@njit(**SERIAL)
def _offsets(head_size: int, tokens: int) -> Any:
    """Return where keys (Pp, Np), values (Np, Pp), queries (32, Pp), scores (32, Np) and weighted values (32, Pp) end."""
    wide, long = round_up(head_size), round_up(tokens)
    keys, queries = wide * long, _QUERIES * wide
    scores = 2 * keys + queries + _QUERIES * long
    return keys, 2 * keys, 2 * keys + queries, scores, scores + queries


@njit(**SERIAL)
def _take(source: Pointer, stride: int, tokens: int, bias: Pointer, scale: Number, size: int, rows: int, out: Pointer) -> None:
    """Set out (rows, Pp) = scale * (source + bias) for the first `tokens` tokens, zero elsewhere. Pointers."""
    wide, whole, factor, zero = round_up(size), size - size % LANES, splat(scale), splat(np.float32(0.0))
    for t in range(min(tokens, rows)):
        row, target = shift(source, t * stride), shift(out, t * wide)
        for c in range(0, whole, LANES):
            store(target, c, mul(add(load(row, c), load(bias, c)), factor))
        if whole < wide:
            store(target, whole, mul(add(load_some(row, whole, size - whole), load_some(bias, whole, size - whole)), factor))
    for c in range(min(tokens, rows) * wide, rows * wide, LANES):
        store(out, c, zero)


@njit(**SERIAL)
def _softmax(row: Pointer, count: int) -> Any:
    """Set row = exp(row - max) for `count` numbers, 0 up to a whole vector; return the inverse of their sum. Pointer."""
    whole, rest = count - count % LANES, count % LANES
    if rest:
        store(row, whole, _only(load(row, whole), rest))
    top = load(row, 0)
    for c in range(LANES, whole + rest, LANES):
        top = _larger(load(row, c), top)
    center, sums = splat(_largest(top)), splat(np.float32(0.0))
    for c in range(0, whole + rest, LANES):
        v = exp(sub(load(row, c), center))
        store(row, c, v)
        sums = add(sums, v)
    return np.float32(1.0) / total(sums)


@njit(**SERIAL)
def _write(seen: Pointer, inverse: Number, size: int, out: Pointer) -> Any:
    """Set out = seen * inverse for one query; return the scale if `out` is bytes. Pointers."""
    factor = splat(inverse)
    if numbers_per_word(out) == 4:
        for c in range(0, size, LANES):
            store(seen, c, mul(load(seen, c), factor))
        return quantize_row(seen, size, out)
    for c in range(0, size, LANES):
        store_some(out, c, mul(load(seen, c), factor), size - c)
    return np.float32(1.0)


@njit(**SERIAL)
def _head(
    source: Pointer, stride: int, bias: Pointer, size: int, tokens: int, memory: Array, out: Pointer, row: int, scales: Array
) -> None:
    """Compute one head of one sequence.

    Args:
        source: pointer to the first token's query; its key follows after stride / 3 numbers, its value after another stride / 3.
        bias: pointer to the query's bias, with the key's and the value's at the same distances.
        memory: (numbers,) fp32.
        out: pointer to the first token's output; rows are `row` apart.
        scales: (n,) of the bytes, or (0,).
    """
    width, wide, long, place = stride // 3, round_up(size), round_up(tokens), _offsets(size, tokens)
    keys, values = memory[: place[0]].reshape((wide, long)), memory[place[0] : place[1]].reshape((long, wide))
    queries = memory[place[1] : place[2]].reshape((_QUERIES, wide))
    scores, seen = memory[place[2] : place[3]].reshape((_QUERIES, long)), memory[place[3] : place[4]].reshape((_QUERIES, wide))
    one, softer = np.float32(1.0), np.float32(1.0 / np.sqrt(size))
    for t in range(0, long, LANES):
        _take(shift(source, t * stride + width), stride, tokens - t, shift(bias, width), one, size, LANES, address(queries))
        for c in range(0, wide, LANES):
            transpose(shift(address(queries), c), wide, shift(address(keys), c * long + t), long)
    _take(shift(source, 2 * width), stride, tokens, shift(bias, 2 * width), one, size, long, address(values))
    for first in range(0, tokens, _QUERIES):
        count = min(_QUERIES, tokens - first)
        rows = round_up(count, ROWS)
        _take(shift(source, first * stride), stride, count, bias, softer, size, rows, address(queries))
        multiply(scores, queries, wide, 1, keys, rows, size, np.float32(0.0))
        for t in range(count):
            queries[t, 0] = _softmax(shift(address(scores), t * long), tokens)  # the query is no longer needed
        multiply(seen, scores, long, 1, values, rows, tokens, np.float32(0.0))
        for t in range(count):
            scale = _write(shift(address(seen), t * wide), queries[t, 0], size, shift(out, (first + t) * row))
            if scales.shape[0]:
                scales[first + t] = scale


@njit(**PARALLEL)
def attend(qkv: Array, bias: Array, cu_seqlens: Array, heads: int, out: Array, scales: Array, memory: Array) -> None:
    """Set out = softmax(q k^T / sqrt(P)) v within each sequence and head. Call it inside `numba_math.parallel()`.

    Args:
        qkv: (T, 3 D) fp32 or bf16 bits (uint16): all heads' queries, all keys, all values.
        bias: (3 D,) fp32, added to `qkv`.
        cu_seqlens: (S+1,) int64.
        heads: H.
        out: (T, D) fp32 or bf16 bits; or 8 bits for `int8_matmul.multiply`, with a head as a group: (T, H Kp) uint8.
        scales: (T, H) fp32, scales of the bytes; (T, 0) without bytes.
        memory: as from `scratch`.
    """
    stride, row = qkv.shape[1], out.shape[1]
    size = stride // 3 // heads
    tasks = (cu_seqlens.shape[0] - 1) * heads
    counter = np.zeros(1, np.int64)
    for worker in prange(memory.shape[0]):
        task = next_task(address(counter))
        while task < tasks:
            start, h = cu_seqlens[task // heads], task % heads
            tokens = cu_seqlens[task // heads + 1] - start
            source = shift(address(qkv), start * stride + h * size)
            target = shift(address(out), start * row + h * (row // heads))
            own = scales[start : start + tokens, h] if scales.shape[1] else scales[0, :0]
            _head(source, stride, shift(address(bias), h * size), size, tokens, memory[worker], target, row, own)
            task = next_task(address(counter))
