"""The two fused kernels of a Mamba-1 block for CPU inference, on states that stay in a pool.

    S  sequences      T  tokens      R  rows of the pool      L  layers
    Di  channels, a multiple of 16
    N  state size      w  conv width      G  = Di / 16 tiles      W  columns of the input projection

Both kernels read the projection's columns where they lie. Arrays of uint16 hold bf16 bit patterns,
which is also what the matrix products take and give. `reads` and `writes` (S,) name the pool row
where each sequence's state is (-1: start from zero) and the row its end state goes to (-1: not
wanted). Call them inside `numba_math.parallel()`.

A tile is sixteen channels, one vector: its N x 16 states stay in cache over many tokens. Its states
and its rates A log2(e) have shape (N, 16). Rows of `coefficients` (T, 2N) contain one token's B,
then C.
"""

from typing import Any

import numpy as np
from numba import njit, prange

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
from runnel.ops.simd_tile import fill

_TOKENS = 64  # that one vector of channels after another passes over, while their rows are in cache


def _build_softplus(builder: Any, x: Any) -> Any:
    zero, two = build_constant(VF32, 0.0), build_constant(VF32, 2.0)
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
) -> Any:
    """Move the states of one tile over one token, with its row of coefficients, dt, dt x and the
    output so far.

    Return y with C h added.
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
    states: Pointer, rates: Pointer, coefficients: Pointer, N: int, d: Any, u: Any, y: Any
) -> Any:
    """Run `advance` over four tokens; d, u and y are tuples. States and rates are loaded once, four
    dependency chains overlap.
    """
    (d0, d1, d2, d3), (u0, u1, u2, u3), (y0, y1, y2, y3) = d, u, y
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


@njit(**PARALLEL)
def conv_silu(
    projection: Array,
    column: int,
    weights: Array,
    taps: tuple[int, ...],
    pool: Array,
    layer: int,
    reads: Array,
    writes: Array,
    cu: Array,
    out: Array,
    group: int,
    scratch: Scratch,
) -> None:
    """out = silu(causal convolution of the Di columns of `projection` from `column` on).

    Args:
        projection: (T, W) fp32 or bf16.
        weights: (w+1, Di) fp32: taps, the last one for the present token, then the bias.
        taps: (0, .. w-1) as a tuple so that the code is made for this w.
        pool: (R, L, Di, w-1) fp32, the last inputs of each sequence, newest last; rows `writes` are
            updated.
        cu: (S+1,) cumulative lengths.
        out: (T, Di), dtype of `projection`.
        group: tiles of a work item.
        scratch: the last w-1 inputs of `group` tiles.
    """
    S, channels, stride, back = len(reads), out.shape[1], projection.shape[1], len(taps) - 1
    items = S * ceil_div(channels, group * LANES)
    for worker in prange(scratch.rows.shape[0]):
        past = shift(address(scratch.rows), worker * scratch.rows.shape[1])
        item = next_task(address(scratch.tasks))
        while item < items:
            s, first = item % S, item // S * group * LANES
            width = min(channels - first, group * LANES)
            known = reads[s] >= 0
            old = shift(
                address(pool),
                ((max(reads[s], 0) * pool.shape[1] + layer) * channels + first) * back,
            )
            source = shift(address(projection), column + first)
            own_weights = shift(address(weights), first)
            target = shift(address(out), first)
            for t in range(cu[s], cu[s + 1], _TOKENS):
                tokens = min(_TOKENS, cu[s + 1] - t)
                here = shift(source, t * stride)
                history(here, stride, width, width, t - cu[s], back, old, known, past)
                result = shift(target, t * channels)
                convolve(
                    here,
                    stride,
                    width,
                    width,
                    tokens,
                    past,
                    own_weights,
                    channels,
                    taps,
                    result,
                    channels,
                )
            if writes[s] >= 0:
                new = shift(
                    address(pool), ((writes[s] * pool.shape[1] + layer) * channels + first) * back
                )
                keep_inputs(
                    shift(source, cu[s] * stride),
                    stride,
                    width,
                    cu[s + 1] - cu[s],
                    back,
                    old,
                    known,
                    new,
                )
            item = next_task(address(scratch.tasks))


@njit(**PARALLEL)
def gated_scan(
    x: Array,
    dt: Array,
    dt_bias: Array,
    rates: Array,
    coefficients: Array,
    skip: Array,
    projection: Array,
    column: int,
    pool: Array,
    layer: int,
    reads: Array,
    writes: Array,
    cu: Array,
    out: Array,
    group: int,
    scratch: Scratch,
) -> None:
    """out = selective_scan(x, softplus(dt + dt_bias), A, B, C, D) * silu(z).

    Args:
        x, dt: (T, Di) fp32 or bf16; dt before bias and softplus.
        dt_bias, skip: (Di,) fp32; skip is D.
        rates: (G, N, 16) fp32, A log2(e).
        coefficients: (T, 2N) fp32, B and C.
        projection: (T, W) with z in the Di columns from `column` on, dtype of x.
        pool: (R, L, Di, N) fp32; rows `writes` are updated.
        cu: (S+1,) cumulative lengths.
        out: (T, Di), dtype of x.
        group: tiles of a work item.
        scratch: the states of `group` tiles.
    """
    S, G, N = len(reads), rates.shape[0], rates.shape[1]
    items = S * ceil_div(G, group)
    row = pool.shape[2] * N
    for worker in prange(scratch.rows.shape[0]):
        states = shift(address(scratch.rows), worker * scratch.rows.shape[1])
        item = next_task(address(scratch.tasks))
        while item < items:
            s, first = item % S, item // S * group
            last = min(G, first + group)
            size = (last - first) * LANES
            if reads[s] >= 0:
                old = shift(
                    address(pool), (reads[s] * pool.shape[1] + layer) * row + first * LANES * N
                )
                load_state(old, size, N, N, LANES, states)
            else:
                fill(states, size * N, np.float32(0.0))
            tiles = first, last, G
            _scan_item(
                x,
                dt,
                dt_bias,
                rates,
                coefficients,
                skip,
                projection,
                column,
                cu[s],
                cu[s + 1],
                states,
                out,
                tiles,
                N,
            )
            if writes[s] >= 0:
                new = shift(
                    address(pool), (writes[s] * pool.shape[1] + layer) * row + first * LANES * N
                )
                store_state(states, size, N, N, LANES, new)
            item = next_task(address(scratch.tasks))


@njit(**SERIAL)
def _scan_item(
    x: Array,
    dt: Array,
    dt_bias: Array,
    rates: Array,
    coefficients: Array,
    skip: Array,
    projection: Array,
    column: int,
    t: int,
    end: int,
    states: Pointer,
    out: Array,
    tiles: tuple[int, int, int],
    N: int,
) -> None:
    """Tokens t .. end - 1 of one sequence, tiles (first, last, G); `states` (last - first, N, 16)
    moves to the end.
    """
    first, last, G = tiles
    width, wide = G * LANES, projection.shape[1]
    x_, dt_, gate, out_ = address(x), address(dt), address(projection), address(out)
    rate = address(rates)
    bc = address(coefficients)
    while t < end:
        four = t + 4 <= end
        for g in range(first, last):
            states_, rates_ = shift(states, (g - first) * N * LANES), shift(rate, g * N * LANES)
            i, z = t * width + g * LANES, t * wide + column + g * LANES
            D, bias, row = (
                load(address(skip), g * LANES),
                load(address(dt_bias), g * LANES),
                shift(bc, t * 2 * N),
            )
            d0, x0 = softplus(add(load(dt_, i), bias)), load(x_, i)
            if four:
                j, k, m = i + width, i + 2 * width, i + 3 * width
                d1, x1 = softplus(add(load(dt_, j), bias)), load(x_, j)
                d2, x2 = softplus(add(load(dt_, k), bias)), load(x_, k)
                d3, x3 = softplus(add(load(dt_, m), bias)), load(x_, m)
                u, y = (
                    (mul(d0, x0), mul(d1, x1), mul(d2, x2), mul(d3, x3)),
                    (mul(D, x0), mul(D, x1), mul(D, x2), mul(D, x3)),
                )
                y0, y1, y2, y3 = advance4(states_, rates_, row, N, (d0, d1, d2, d3), u, y)
                store(out_, i, mul(y0, silu(load(gate, z))))
                store(out_, j, mul(y1, silu(load(gate, z + wide))))
                store(out_, k, mul(y2, silu(load(gate, z + 2 * wide))))
                store(out_, m, mul(y3, silu(load(gate, z + 3 * wide))))
            else:
                y0 = advance(states_, rates_, row, N, d0, mul(d0, x0), mul(D, x0))
                store(out_, i, mul(y0, silu(load(gate, z))))
        t += 4 if four else 1
