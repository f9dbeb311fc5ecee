"""The inner loops of wkv7: a head's state stays in the first-level cache over many tokens, sixteen
columns per vector.

With S the state, keys first, d the decay and u = S^T a of the state before the token, a token
computes S <- d S + b u^T + k v^T and o = S^T r. Columns of S are independent. So u, v, o and the
next token's u stay in registers, and each row of S is read and written once: decayed, added to,
multiplied with r, and multiplied with the next token's a.

A *block* is a tuple of vectors, neighboring columns of one row: four, or one where fewer columns
remain.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from runnel.ops.numba_math import SERIAL, Pointer
from runnel.ops.simd import I64, LANES, build_fma, build_load, build_store, shift, splat

# columns processed together: four vectors each of u, v, o and the next u, a row of S, and five
# factors
BLOCK = 4 * LANES
_ZERO = np.float32(0.0)
Block = Any  # a tuple of vectors


@intrinsic
def block_fma(typing_context: Any, factor: Any, x: Any, sums: Any) -> Any:
    """Return factor * x + sums; factor: a vector."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        blocks = [cgutils.unpack_tuple(builder, value, sums.count) for value in values[1:]]
        results = [build_fma(builder, values[0], *vectors) for vectors in zip(*blocks, strict=True)]
        return context.make_tuple(builder, sums, results)

    return sums(factor, x, sums), generate


@intrinsic
def block_load(typing_context: Any, base: Any, offset: Any, like: Any) -> Any:
    """Load a block with as many vectors as `like`."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        places = [builder.add(values[1], ir.Constant(I64, i * LANES)) for i in range(like.count)]
        return context.make_tuple(
            builder, like, [build_load(builder, base, values[0], place) for place in places]
        )

    return like(base, types.intp, like), generate


@intrinsic
def block_store(typing_context: Any, base: Any, offset: Any, block: Any) -> Any:
    """Store a block."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        for i, vector in enumerate(cgutils.unpack_tuple(builder, values[2], block.count)):
            build_store(
                builder,
                base,
                values[0],
                builder.add(values[1], ir.Constant(I64, i * LANES)),
                vector,
            )
        return context.get_dummy_value()

    return types.none(base, types.intp, block), generate


@njit(inline="always")
def _advance_block(
    S: Pointer,
    r: Pointer,
    decay: Pointer,
    k: Pointer,
    v: Pointer,
    a: Pointer,
    b: Pointer,
    count: int,
    size: int,
    out: Pointer,
    zero: Block,
) -> None:
    """Run `advance` on the columns of a block, which the pointers S, v and out start with; zero: a
    block of zeros.
    """
    u = zero
    for i in range(size):
        u = block_fma(splat(a[i]), block_load(S, i * size, zero), u)
    for t in range(count):
        # the u after the last token is not used
        row, after = t * size, min(t + 1, count - 1) * size
        o, next_u, values = zero, zero, block_load(v, row, zero)
        for i in range(size):
            s = block_fma(splat(b[row + i]), u, block_fma(splat(k[row + i]), values, zero))
            s = block_fma(splat(decay[row + i]), block_load(S, i * size, zero), s)
            block_store(S, i * size, s)
            o, next_u = (
                block_fma(splat(r[row + i]), s, o),
                block_fma(splat(a[after + i]), s, next_u),
            )
        block_store(out, row, o)
        u = next_u


@njit(**SERIAL)
def advance(
    S: Pointer,
    r: Pointer,
    decay: Pointer,
    k: Pointer,
    v: Pointer,
    a: Pointer,
    b: Pointer,
    count: int,
    size: int,
    out: Pointer,
) -> None:
    """Move one head over `count` tokens.

    Args:
        S: (size, size) fp32, as all arrays, updated.
        r, decay, k, v, a, b: (count, size); decay = exp(w).
        count: tokens, at least 1.
        size: of keys and values, a multiple of 16.
        out: (count, size), filled with o.
    """
    zero = splat(_ZERO)
    for column in range(0, size - size % BLOCK, BLOCK):
        state, values, target = shift(S, column), shift(v, column), shift(out, column)
        _advance_block(
            state, r, decay, k, values, a, b, count, size, target, (zero, zero, zero, zero)
        )
    for column in range(size - size % BLOCK, size, LANES):
        state, values, target = shift(S, column), shift(v, column), shift(out, column)
        _advance_block(state, r, decay, k, values, a, b, count, size, target, (zero,))
