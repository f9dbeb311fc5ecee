"""The two fused kernels of a Mamba-1 block for CPU inference, on states that stay in a pool.

    S  sequences     T  tokens     R  rows of the pool     L  layers      Di channels, a multiple of 16
    N  state size    w  conv width G  = Di / 16 tiles      W  columns of the input projection

Both kernels read the projection's columns where they lie. Arrays of uint16 hold bf16 bit patterns, which is also what the
matrix products take and give. `reads` and `writes` (S,) name the pool row where each sequence's state is (-1: start from
zero) and the row its end state goes to (-1: not wanted). Call them inside `numba_math.parallel()`.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from runnel.ops.causal_conv1d.fused import convolve, history, keep_inputs
from runnel.ops.numba_math import PARALLEL, SERIAL, Array
from runnel.ops.selective_scan.tiles import advance, advance4, softplus
from runnel.ops.simd import LANES, address, ceil_div, load, shift, silu, store
from runnel.ops.simd_tile import transpose

_TOKENS = 64  # that one vector of channels after another passes over, while their rows are in cache


@njit(**PARALLEL)
def conv_silu(
    projection: Array, column: int, weights: Array, taps: tuple[int, ...],
    pool: Array, layer: int, reads: Array, writes: Array, cu: Array, out: Array, group: int,
) -> None:  # fmt: skip
    """out = silu(causal convolution of the Di columns of `projection` from `column` on).

    Args:
        projection: (T, W) fp32 or bf16.
        weights: (w+1, Di) fp32: taps, the last one for the present token, then the bias.
        taps: (0, .. w-1) as a tuple so that the code is made for this w.
        pool: (R, L, Di, w-1) fp32, the last inputs of each sequence, newest last; rows `writes` are updated.
        cu: (S+1,) cumulative lengths.
        out: (T, Di), dtype of `projection`.
        group: tiles of a work item.
    """
    S, channels, stride, back = len(reads), out.shape[1], projection.shape[1], len(taps) - 1
    for item in prange(S * ceil_div(channels, group * LANES)):
        s, first = item % S, item // S * group * LANES
        width, known = min(channels - first, group * LANES), reads[s] >= 0
        old = shift(address(pool), ((max(reads[s], 0) * pool.shape[1] + layer) * channels + first) * back)
        source, past = shift(address(projection), column + first), np.empty(max(1, back * width), np.float32)
        own_weights, target = shift(address(weights), first), shift(address(out), first)
        for t in range(cu[s], cu[s + 1], _TOKENS):
            tokens, here = min(_TOKENS, cu[s + 1] - t), shift(source, t * stride)
            history(here, stride, width, width, t - cu[s], back, old, known, address(past))
            convolve(
                here,
                stride,
                width,
                width,
                tokens,
                address(past),
                own_weights,
                channels,
                taps,
                shift(target, t * channels),
                channels,
            )
        if writes[s] >= 0:
            new = shift(address(pool), ((writes[s] * pool.shape[1] + layer) * channels + first) * back)
            keep_inputs(shift(source, cu[s] * stride), stride, width, cu[s + 1] - cu[s], back, old, known, new)


@njit(**PARALLEL)
def gated_scan(
    x: Array, dt: Array, dt_bias: Array, rates: Array, coefficients: Array, skip: Array, projection: Array, column: int,
    pool: Array, layer: int, reads: Array, writes: Array, cu: Array, out: Array, group: int,
) -> None:  # fmt: skip
    """out = selective_scan(x, softplus(dt + dt_bias), A, B, C, D) * silu(z).

    Args:
        x, dt: (T, Di) fp32 or bf16; dt before bias and softplus.
        dt_bias, skip: (Di,) fp32; skip is D.
        rates: (G, N, 16) fp32, from `tiles.rate_tiles(A)`.
        coefficients: (T, 2N) fp32, B and C.
        projection: (T, W) with z in the Di columns from `column` on, dtype of x.
        pool: (R, L, Di, N) fp32; rows `writes` are updated.
        cu: (S+1,) cumulative lengths.
        out: (T, Di), dtype of x.
        group: tiles of a work item.
    """
    S, G, N = len(reads), rates.shape[0], rates.shape[1]
    for item in prange(S * ((G + group - 1) // group)):
        s, first = item % S, item // S * group
        last = min(G, first + group)
        states = np.zeros((last - first, N, LANES), np.float32)
        if reads[s] >= 0:
            _read_tiles(pool[reads[s], layer], first, states)
        tiles = first, last, G
        _scan_item(x, dt, dt_bias, rates, coefficients, skip, projection, column, cu[s], cu[s + 1], states, out, tiles, N)
        if writes[s] >= 0:
            _write_tiles(states, first, pool[writes[s], layer])


@njit(**SERIAL)
def _read_tiles(row: Array, first: int, states: Array) -> None:
    """Channels of `row` (Di, N) from tile `first` on -> states (tiles, N, 16)."""
    N = states.shape[1]
    whole = N - N % LANES
    for g in range(states.shape[0]):
        for n in range(0, whole, LANES):
            transpose(shift(address(row), (first + g) * LANES * N + n), N, shift(address(states), (g * N + n) * LANES), LANES)
        for n in range(whole, N):
            for c in range(LANES):
                states[g, n, c] = row[(first + g) * LANES + c, n]


@njit(**SERIAL)
def _write_tiles(states: Array, first: int, row: Array) -> None:
    """Inverse of `_read_tiles`."""
    N = states.shape[1]
    whole = N - N % LANES
    for g in range(states.shape[0]):
        for n in range(0, whole, LANES):
            transpose(shift(address(states), (g * N + n) * LANES), LANES, shift(address(row), (first + g) * LANES * N + n), N)
        for n in range(whole, N):
            for c in range(LANES):
                row[(first + g) * LANES + c, n] = states[g, n, c]


@njit(**SERIAL)
def _scan_item(
    x: Array, dt: Array, dt_bias: Array, rates: Array, coefficients: Array, skip: Array, projection: Array, column: int,
    t: int, end: int, states: Array, out: Array, tiles: tuple[int, int, int], N: int,
) -> None:  # fmt: skip
    """Tokens t .. end - 1 of one sequence, tiles (first, last, G); `states` (last - first, N, 16) moves to the end."""
    first, last, G = tiles
    width, wide = G * LANES, projection.shape[1]
    x_, dt_, gate, out_ = address(x), address(dt), address(projection), address(out)
    h, rate, bc = address(states), address(rates), address(coefficients)
    while t < end:
        four = t + 4 <= end
        for g in range(first, last):
            states_, rates_ = shift(h, (g - first) * N * LANES), shift(rate, g * N * LANES)
            i, z = t * width + g * LANES, t * wide + column + g * LANES
            D, bias, row = load(address(skip), g * LANES), load(address(dt_bias), g * LANES), shift(bc, t * 2 * N)
            d0, x0 = softplus(load(dt_, i) + bias), load(x_, i)
            if four:
                j, k, m = i + width, i + 2 * width, i + 3 * width
                d1, x1 = softplus(load(dt_, j) + bias), load(x_, j)
                d2, x2 = softplus(load(dt_, k) + bias), load(x_, k)
                d3, x3 = softplus(load(dt_, m) + bias), load(x_, m)
                d, u, y = (d0, d1, d2, d3), (d0 * x0, d1 * x1, d2 * x2, d3 * x3), (D * x0, D * x1, D * x2, D * x3)
                y0, y1, y2, y3 = advance4(states_, rates_, row, N, d, u, y)
                store(out_, i, y0 * silu(load(gate, z)))
                store(out_, j, y1 * silu(load(gate, z + wide)))
                store(out_, k, y2 * silu(load(gate, z + 2 * wide)))
                store(out_, m, y3 * silu(load(gate, z + 3 * wide)))
            else:
                store(out_, i, advance(states_, rates_, row, N, d0, d0 * x0, D * x0) * silu(load(gate, z)))
        t += 4 if four else 1
