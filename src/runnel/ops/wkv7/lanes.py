"""The inner loops of wkv7: a head's state stays in the first-level cache over many tokens, sixteen columns per vector.

K key size, V value size (here a multiple of 16), Q tokens.

With S the state (K, V), d the decay and u = S^T a of the state before the token, a token computes S <- d S + b u^T + k v^T and
o = S^T r. Columns of S are independent. So u, v, o and the next token's u stay in registers, and each row of S is read
and written once: decayed, added to, multiplied with r, and multiplied with the next token's a.

A *block* is a tuple of vectors, neighboring columns of one row: four, or one where fewer columns remain.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from runnel.ops.numba_math import SERIAL, Array, Pointer
from runnel.ops.simd import I64, LANES, address, build_fma, build_load, build_store, shift, splat

BLOCK = 4 * LANES  # columns processed together: four vectors each of u, v, o and the next u, a row of S, and five factors
_ZERO = np.float32(0.0)
Block = Any  # a tuple of vectors


def _each(build: Any) -> Any:
    """Return the code generator that runs `build` on each vector of blocks, and on arguments that are one vector."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        count = signature.return_type.count
        blocks = [
            cgutils.unpack_tuple(builder, value, count) if isinstance(kind, types.UniTuple) else [value] * count
            for kind, value in zip(signature.args, values, strict=True)
        ]
        results = [build(builder, *vectors) for vectors in zip(*blocks, strict=True)]
        return context.make_tuple(builder, signature.return_type, results)

    return generate


@intrinsic
def block_mul(typing_context: Any, factor: Any, x: Any) -> Any:
    """Return factor * x; factor: a vector."""
    return x(factor, x), _each(lambda builder, a, b: builder.fmul(a, b))


@intrinsic
def block_fma(typing_context: Any, factor: Any, x: Any, sums: Any) -> Any:
    """Return factor * x + sums; factor: a vector."""
    return sums(factor, x, sums), _each(build_fma)


@intrinsic
def block_load(typing_context: Any, base: Any, offset: Any, like: Any) -> Any:
    """Load a block with as many vectors as `like`."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        places = [builder.add(values[1], ir.Constant(I64, i * LANES)) for i in range(like.count)]
        return context.make_tuple(builder, like, [build_load(builder, base, values[0], place) for place in places])

    return like(base, types.intp, like), generate


@intrinsic
def block_store(typing_context: Any, base: Any, offset: Any, block: Any) -> Any:
    """Store a block."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        for i, vector in enumerate(cgutils.unpack_tuple(builder, values[2], block.count)):
            build_store(builder, base, values[0], builder.add(values[1], ir.Constant(I64, i * LANES)), vector)
        return context.get_dummy_value()

    return types.none(base, types.intp, block), generate


class Coefficients(NamedTuple):
    """The coefficients of consecutive tokens, (Q, K) fp32 each."""

    r: Pointer
    d: Pointer
    k: Pointer
    a: Pointer
    b: Pointer


@njit(inline="always")
def from_element(x: Coefficients, row: int) -> Coefficients:
    """Return the coefficients from element `row` on."""
    return Coefficients(shift(x.r, row), shift(x.d, row), shift(x.k, row), shift(x.a, row), shift(x.b, row))


@njit(inline="always")
def removed(S: Pointer, stride: int, a: Pointer, K: int, zero: Block) -> Block:
    """Return S^T a for the columns of a block from S on; stride: between rows of the state."""
    u = zero
    for i in range(K):
        u = block_fma(splat(a[i]), block_load(S, i * stride, zero), u)
    return u


@njit(inline="always")
def token(
    before: Pointer, after: Pointer, stride: int, x: Coefficients, a: Pointer, K: int, u: Block, v: Block, zero: Block
) -> Any:
    """Process one token on the columns of a block.

    Args:
        before, after: the block's state before and after the token; may be the same.
        stride: numbers between rows of the state.
        x: of the token.   a: of the next token.
        u, v: of the token.   zero: a block of zeros.

    Returns:
        o, and u of the next token.
    """
    o = next_u = zero
    for i in range(K):
        s = block_fma(splat(x.b[i]), u, block_mul(splat(x.k[i]), v))
        s = block_fma(splat(x.d[i]), block_load(before, i * stride, zero), s)
        block_store(after, i * stride, s)
        o, next_u = block_fma(splat(x.r[i]), s, o), block_fma(splat(a[i]), s, next_u)
    return o, next_u


@njit(inline="always")
def _advance_block(S: Pointer, x: Coefficients, v: Pointer, count: int, K: int, V: int, out: Pointer, zero: Block) -> None:
    """Run `advance` on the columns of a block, which the pointers S, v and out start with."""
    u = removed(S, V, x.a, K, zero)
    for t in range(count):
        after = shift(x.a, min(t + 1, count - 1) * K)  # the u after the last token is not used
        o, u = token(S, S, V, from_element(x, t * K), after, K, u, block_load(v, t * V, zero), zero)
        block_store(out, t * V, o)


@njit(**SERIAL)
def advance(state: Array, r: Array, decay: Array, k: Array, v: Array, a: Array, b: Array, count: int, out: Array) -> None:
    """Move one head over `count` tokens.

    All arrays are fp32 and C-contiguous; V is a multiple of 16, K any number. Callable from jitted code on slices; without
    checks.

    Args:
        state: (K, V), updated.
        r, decay, k, a, b: (>= count, K), of which `count` rows are read; decay = exp(w).
        v: (>= count, V).
        count: tokens; 0 changes nothing.
        out: (>= count, V); o is written to the first `count` rows.
    """
    K, V = state.shape
    S, v_, out_, zero = address(state), address(v), address(out), splat(_ZERO)
    x = Coefficients(address(r), address(decay), address(k), address(a), address(b))
    column = 0
    while column < V and count > 0:
        place, values, target = shift(S, column), shift(v_, column), shift(out_, column)
        if column + BLOCK <= V:
            _advance_block(place, x, values, count, K, V, target, (zero, zero, zero, zero))
            column += BLOCK
        else:
            _advance_block(place, x, values, count, K, V, target, (zero,))
            column += LANES
