"""The inner loops of the fast step of RWKV-7 (`backbones/rwkv7/kernels.py`): a head's state stays
in the first-level cache over many tokens.

With S the state (keys, values), d the decay, and u = S^T a of the state before a token, the token
computes

    S <- d S + b u^T + k v^T
    o  = S^T r

Columns of S are independent. So for some columns u, v, o and the next token's u stay in registers,
and each row of S is read and written once: decayed, added to, multiplied with r, and multiplied
with the next token's a.

A *block* is a tuple of vectors of sixteen numbers, neighboring columns of one row: four vectors, or
one where fewer columns remain.
"""

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.base import BaseContext
from numba.core.typing import Context, Signature
from numba.extending import intrinsic

from runnel.ops.numba_math import SERIAL, Definition, Pointer, Vector, emitting
from runnel.ops.simd import I64, LANES, build_fma, build_load, build_store, shift, splat

# Columns processed together. Registers then hold four vectors each of u, v, o, the next u and a row
# of S, and five factors.
BLOCK = 4 * LANES
_ZERO = np.float32(0.0)
Block = tuple[Vector, ...]


@intrinsic
def block_fma(
    typing_context: Context, factor: types.Type, x: types.Type, sums: types.Type
) -> Definition:
    """Return factor * x + sums; factor: a vector."""

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, values: list[ir.Value]
    ) -> ir.Value:
        blocks = [cgutils.unpack_tuple(builder, value, sums.count) for value in values[1:]]
        results = [build_fma(builder, values[0], *vectors) for vectors in zip(*blocks, strict=True)]
        return context.make_tuple(builder, sums, results)

    return sums(factor, x, sums), generate


@intrinsic
def block_load(
    typing_context: Context, base: types.Type, offset: types.Type, like: types.Type
) -> Definition:
    """Load a block with as many vectors as `like`, a block whose numbers are not used."""

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, values: list[ir.Value]
    ) -> ir.Value:
        places = [builder.add(values[1], ir.Constant(I64, i * LANES)) for i in range(like.count)]
        return context.make_tuple(
            builder, like, [build_load(builder, base, values[0], place) for place in places]
        )

    return like(base, types.intp, like), generate


@intrinsic
def block_store(
    typing_context: Context, base: types.Type, offset: types.Type, block: types.Type
) -> Definition:
    """Store a block."""

    def build(
        builder: ir.IRBuilder, pointer: ir.Value, offset: ir.Value, vectors: ir.Value
    ) -> None:
        for i, vector in enumerate(cgutils.unpack_tuple(builder, vectors, block.count)):
            place = builder.add(offset, ir.Constant(I64, i * LANES))
            build_store(builder, base, pointer, place, vector)

    return types.none(base, types.intp, block), emitting(build)


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
    """Run `advance` on the columns of one block: S, v and out point to its first column. `zero`: a
    block of zeros; all blocks here have as many vectors.
    """
    u = zero
    for i in range(size):
        u = block_fma(splat(a[i]), block_load(S, i * size, zero), u)
    for t in range(count):
        # the u after the last token is not used
        row = t * size
        after = min(t + 1, count - 1) * size
        o = zero
        next_u = zero
        values = block_load(v, row, zero)
        for i in range(size):
            # k v^T, plus b u^T, plus the decayed row
            s = block_fma(splat(b[row + i]), u, block_fma(splat(k[row + i]), values, zero))
            s = block_fma(splat(decay[row + i]), block_load(S, i * size, zero), s)
            block_store(S, i * size, s)
            o = block_fma(splat(r[row + i]), s, o)
            next_u = block_fma(splat(a[after + i]), s, next_u)
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
    """Move one head over `count` tokens. All arrays are fp32.

    Args:
        S: (size, size), updated.
        r, decay, k, v, a, b: (count, size); decay = exp(w).
        count: the number of tokens, at least 1.
        size: numbers of a key and of a value, a multiple of 16.
        out: (count, size), filled with o.
    """
    zero = splat(_ZERO)
    for column in range(0, size - size % BLOCK, BLOCK):
        state = shift(S, column)
        values = shift(v, column)
        target = shift(out, column)
        _advance_block(
            state, r, decay, k, values, a, b, count, size, target, (zero, zero, zero, zero)
        )
    for column in range(size - size % BLOCK, size, LANES):
        state = shift(S, column)
        values = shift(v, column)
        target = shift(out, column)
        _advance_block(state, r, decay, k, values, a, b, count, size, target, (zero,))
