"""The two fused kernels of a Mamba-1 block for CPU inference, on states that stay in a pool.

    T  tokens      S  sequences      R  rows of the pool      L  layers
    Di  channels, a multiple of 16
    N  state size      w  conv width      G  = Di / 16 tiles
    W  columns of the input projection, 2 Di

In order, per block: `conv_silu` reads the x columns of the projection; after the products that make
dt, B and C, `gated_scan` runs the recurrence and reads the z columns. For each channel, with its
states h (N,), A (N,) and D, and B and C (N,) of the token:

    x  = silu(sum over the last w inputs of tap * input, + bias)
    dt = softplus(dt + dt_bias)
    h  = exp(dt A) h + dt x B
    y  = (C . h + D x) silu(z)

Call both inside `numba_math.parallel()`. Arrays of uint16 hold bf16 bit patterns, which is also
what the matrix products take and give.

    projection (T, W)       | x: Di columns | z: Di columns |
    conv pool (R, L, Di, w-1), and state pool (R, L, Di, N):

        row 0                     row 1                     ...
        | layer 0 | layer 1 | ..  | layer 0 | layer 1 | ..
        | channel 0 | channel 1 | ..         w-1 inputs or N states each, next to each other

A tile is sixteen channels, one vector: its N x 16 states stay in cache over many tokens. Its states
and its rates A log2(e), for which exp2 gives exp(dt A), have shape (N, 16). Rows of `coefficients`
(T, 2N) contain one token's B, then C. A work item is some neighboring tiles (`group`) of one
sequence: item i has sequence i % S. Each worker, on a core of its own, takes the number of the next
item from the counter in `scratch.tasks` (`next_task`), which `StepMemory.scratch` sets to 0, and
has a row of `scratch.rows`.
"""

from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, prange
from numpy.typing import NDArray

from runnel.backbones.cpu_step import Floats, Indices
from runnel.ops.causal_conv1d.fused import convolve, history, keep_inputs
from runnel.ops.chunk_tiles import load_state, store_state
from runnel.ops.numba_math import (
    ATANH,
    LOG2_E,
    PARALLEL,
    SERIAL,
    Array,
    Pointer,
    Scratch,
    Vector,
    build_constant,
    count_workers,
)
from runnel.ops.simd import (
    LANES,
    VF32,
    add,
    address,
    build_exp2,
    build_polynomial,
    ceil_div,
    elementwise,
    exp2,
    fma,
    load,
    mul,
    next_task,
    shift,
    silu,
    splat,
    store,
)
from runnel.ops.simd_tile import fill, place_in_pool

_Four = tuple[Vector, Vector, Vector, Vector]  # one vector for each of four tokens
_TOKENS = 64  # tokens of a block of the conv: their rows stay in cache while it goes over channels


def _build_softplus(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    zero = build_constant(VF32, 0.0)
    two = build_constant(VF32, 2.0)
    v = builder.fmul(x, build_constant(VF32, LOG2_E))
    negative = builder.fsub(zero, v)
    # NaN stays NaN
    e = build_exp2(builder, builder.select(builder.fcmp_ordered(">", v, negative), negative, v))
    s = builder.fdiv(e, builder.fadd(two, e))  # log(1 + e) = 2 atanh(s)
    p = builder.fmul(
        builder.fmul(two, s), build_polynomial(builder, builder.fmul(s, s), ATANH[::-1])
    )
    return builder.fadd(builder.select(builder.fcmp_ordered("<", x, zero), zero, x), p)


softplus = elementwise(1, _build_softplus, "log(1 + exp(x)), relative error below 1e-6 for x > -12")


def tiles_per_item(sequences: int, tiles: int) -> int:
    """Return the number of tiles per work item.

    At most 16: half a KiB of each row of x, dt and y, so that few pages are open at once, and
    states fit the first-level cache. Fewer if there would be less than two items per core.
    """
    return max(1, min(16, sequences * tiles // (2 * count_workers())))


@njit(inline="always")
def advance(
    states: Pointer, rates: Pointer, coefficients: Pointer, N: int, d: Vector, u: Vector, y: Vector
) -> Vector:
    """Move the states of one tile over one token; return y + C . h.

    Args:
        states, rates: (N, 16), the states are updated.
        coefficients: the token's B and C (2N,).
        d, u: the token's dt and dt x, of the sixteen channels.
        y: the token's output so far, D x.
    """
    for n in range(N):
        h = fma(
            exp2(mul(load(rates, n * LANES), d)),
            load(states, n * LANES),
            mul(u, splat(coefficients[n])),
        )
        store(states, n * LANES, h)
        y = fma(h, splat(coefficients[N + n]), y)
    return y


@njit(inline="always")
def advance4(
    states: Pointer,
    rates: Pointer,
    coefficients: Pointer,
    N: int,
    d: _Four,
    u: _Four,
    y: _Four,
) -> _Four:
    """Run `advance` over four tokens, whose rows of B and C follow each other in `coefficients`.
    States and rates are loaded once, and the computations of the four tokens overlap.
    """
    d0, d1, d2, d3 = d
    u0, u1, u2, u3 = u
    y0, y1, y2, y3 = y
    for n in range(N):
        rate = load(rates, n * LANES)
        h = load(states, n * LANES)
        h = fma(exp2(mul(rate, d0)), h, mul(u0, splat(coefficients[n])))
        y0 = fma(h, splat(coefficients[N + n]), y0)
        h = fma(exp2(mul(rate, d1)), h, mul(u1, splat(coefficients[2 * N + n])))
        y1 = fma(h, splat(coefficients[3 * N + n]), y1)
        h = fma(exp2(mul(rate, d2)), h, mul(u2, splat(coefficients[4 * N + n])))
        y2 = fma(h, splat(coefficients[5 * N + n]), y2)
        h = fma(exp2(mul(rate, d3)), h, mul(u3, splat(coefficients[6 * N + n])))
        y3 = fma(h, splat(coefficients[7 * N + n]), y3)
        store(states, n * LANES, h)
    return y0, y1, y2, y3


class Sequences(NamedTuple):
    """The sequences of a step."""

    cu_seqlens: Indices  # (S+1,)
    read_rows: Indices  # (S,) the pool row of each sequence's state; -1: start from zero
    write_rows: Indices  # (S,) the row its end state goes to; -1: not wanted


class ScanInputs(NamedTuple):
    """The tensors of a step that `gated_scan` reads."""

    x: NDArray[np.generic]  # (T, Di) fp32 or bf16 bits
    dt: NDArray[np.generic]  # (T, Di), dtype of x, before bias and softplus
    coefficients: Floats  # (T, 2N), B and C
    projection: NDArray[np.generic]  # (T, W), dtype of x


class ScanWeights(NamedTuple):
    """fp32 weights of `gated_scan`."""

    dt_bias: Floats  # (Di,)
    rates: Floats  # (G, N, 16): A log2(e)
    skip: Floats  # (Di,), D


@njit(**PARALLEL)
def conv_silu(
    projection: Array,
    weights: Array,
    tap_numbers: tuple[int, ...],
    pool: Array,
    layer: int,
    sequences: Sequences,
    out: Array,
    group: int,
    scratch: Scratch,
) -> None:
    """Set out = silu(causal convolution of the first Di columns of `projection`).

    Args:
        projection: (T, W) fp32 or bf16.
        weights: (w+1, Di) fp32: taps, the last one for the present token, then the bias.
        tap_numbers: (0, .. w-1), a tuple so that the code is compiled for this w.
        pool: (R, L, Di, w-1) fp32, the last inputs of each sequence, newest last; the rows in
            `write_rows` are updated.
        out: (T, Di), dtype of `projection`.
        group: tiles of a work item.
        scratch: the last w-1 inputs of `group` tiles.
    """
    cu, reads, writes = sequences
    channels = out.shape[1]
    stride = projection.shape[1]
    back = len(tap_numbers) - 1  # the earlier inputs that an output needs
    S = len(reads)
    items = S * ceil_div(channels, group * LANES)
    for worker in prange(scratch.rows.shape[0]):
        past = shift(address(scratch.rows), worker * scratch.rows.shape[1])
        item = next_task(address(scratch.tasks))
        while item < items:
            s = item % S
            first = item // S * group * LANES
            width = min(channels - first, group * LANES)
            continues = reads[s] >= 0
            old = place_in_pool(pool, max(reads[s], 0), layer, first)
            source = shift(address(projection), first)
            own_weights = shift(address(weights), first)
            for t in range(cu[s], cu[s + 1], _TOKENS):
                tokens = min(_TOKENS, cu[s + 1] - t)
                here = shift(source, t * stride)
                target = shift(address(out), t * channels + first)
                # First `past`, the inputs before the block: they are in the sequence or, at its
                # begin, in its old state. Its rows have `width` channels and are as far apart. Then
                # the outputs of the block.
                history(here, stride, width, width, t - cu[s], back, old, continues, past)
                convolve(
                    here,
                    stride,
                    width,
                    width,
                    tokens,
                    past,
                    own_weights,
                    channels,
                    tap_numbers,
                    target,
                    channels,
                )
            # the last inputs of the sequence are its new state
            if writes[s] >= 0:
                length = cu[s + 1] - cu[s]
                new = place_in_pool(pool, writes[s], layer, first)
                begin = shift(source, cu[s] * stride)
                keep_inputs(begin, stride, width, length, back, old, continues, new)
            item = next_task(address(scratch.tasks))


@njit(**PARALLEL)
def gated_scan(
    inputs: ScanInputs,
    weights: ScanWeights,
    pool: Array,
    layer: int,
    sequences: Sequences,
    out: Array,
    group: int,
    scratch: Scratch,
) -> None:
    """Set out = selective_scan(x, softplus(dt + dt_bias), A, B, C, D) * silu(z).

    Args:
        pool: (R, L, Di, N) fp32; the rows in `write_rows` are updated.
        out: (T, Di), dtype of x.
        group: tiles of a work item.
        scratch: the states of `group` tiles.
    """
    cu, reads, writes = sequences
    G, N, _ = weights.rates.shape
    S = len(reads)
    items = S * ceil_div(G, group)
    for worker in prange(scratch.rows.shape[0]):
        states = shift(address(scratch.rows), worker * scratch.rows.shape[1])
        item = next_task(address(scratch.tasks))
        while item < items:
            s = item % S
            first = item // S * group
            last = min(G, first + group)
            size = (last - first) * LANES
            # In the pool the N states of a channel are next to each other; in `states` those of the
            # sixteen channels of a tile are.
            if reads[s] >= 0:
                old = place_in_pool(pool, reads[s], layer, first * LANES)
                load_state(old, size, N, N, LANES, states)
            else:
                fill(states, size * N, np.float32(0.0))
            _scan_item(inputs, weights, first, last, cu[s], cu[s + 1], states, out)
            if writes[s] >= 0:
                new = place_in_pool(pool, writes[s], layer, first * LANES)
                store_state(states, size, N, N, LANES, new)
            item = next_task(address(scratch.tasks))


@njit(**SERIAL)
def _scan_item(
    inputs: ScanInputs,
    weights: ScanWeights,
    first: int,
    last: int,
    t: int,
    end: int,
    states: Pointer,
    out: Array,
) -> None:
    """Run the tiles first .. last - 1 over the tokens t .. end - 1 of one sequence; update `states`
    (last - first, N, 16).
    """
    _, N, _ = weights.rates.shape
    width = out.shape[1]
    wide = inputs.projection.shape[1]
    x = address(inputs.x)
    dt = address(inputs.dt)
    gate = shift(address(inputs.projection), width)  # the z columns
    y = address(out)
    while t < end:  # four tokens at a time, then one
        four = t + 4 <= end
        row = shift(address(inputs.coefficients), t * 2 * N)
        for g in range(first, last):
            tile = shift(states, (g - first) * N * LANES)
            rates = shift(address(weights.rates), g * N * LANES)
            i = t * width + g * LANES
            z = t * wide + g * LANES
            D = load(address(weights.skip), g * LANES)
            bias = load(address(weights.dt_bias), g * LANES)
            d0 = softplus(add(load(dt, i), bias))
            x0 = load(x, i)
            if four:
                j = i + width
                k = i + 2 * width
                m = i + 3 * width
                x1 = load(x, j)
                x2 = load(x, k)
                x3 = load(x, m)
                d1 = softplus(add(load(dt, j), bias))
                d2 = softplus(add(load(dt, k), bias))
                d3 = softplus(add(load(dt, m), bias))
                u = (mul(d0, x0), mul(d1, x1), mul(d2, x2), mul(d3, x3))
                skipped = (mul(D, x0), mul(D, x1), mul(D, x2), mul(D, x3))
                y0, y1, y2, y3 = advance4(tile, rates, row, N, (d0, d1, d2, d3), u, skipped)
                store(y, i, mul(y0, silu(load(gate, z))))
                store(y, j, mul(y1, silu(load(gate, z + wide))))
                store(y, k, mul(y2, silu(load(gate, z + 2 * wide))))
                store(y, m, mul(y3, silu(load(gate, z + 3 * wide))))
            else:
                y0 = advance(tile, rates, row, N, d0, mul(d0, x0), mul(D, x0))
                store(y, i, mul(y0, silu(load(gate, z))))
        t += 4 if four else 1
