"""The selective scan in numba kernels for CPU: fp32 arithmetic for fp32 and bf16 inputs, with a hand-written backward pass.

S sequences, T tokens, Di channels, N state size, G tiles of 16 channels, Q tokens of a chunk of the backward pass.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numba import njit, prange
from torch import Tensor
from torch.autograd.function import once_differentiable

from runnel.ops.numba_math import PARALLEL, SERIAL, Array, parallel
from runnel.ops.selective_scan.lanes import zero
from runnel.ops.selective_scan.tiles import advance, advance4, from_tiles, rate_tiles, tiles_per_item, to_tiles
from runnel.ops.simd import LANES, address, ceil_div, exp2, load, shift, splat, store, total

_CHUNK = 32  # tokens whose states the backward pass holds at once, in addition to one state per chunk
_LN_2 = np.float32(0.6931471805599453)


class _Inputs(NamedTuple):
    """The inputs of all tiles, fp32; of one tile, rates are (N, 16)."""

    x: Array  # (T, 16 G)
    dt: Array  # (T, 16 G)
    rates: Array  # (G, N, 16), see `rate_tiles`
    coefficients: Array  # (T, 2N), B and C


class _Gradients(NamedTuple):
    """What the backward kernel writes, fp32; of one tile without (S, G) and blocks."""

    states: Array  # (S, G, N, 16), of the end states on entry and of the start states on return
    rates: Array  # (S, G, N, 16), of A; zeros, added to
    coefficients: Array  # (blocks, T, 2N); zeros, added to
    x: Array  # (T, 16 G)
    dt: Array  # (T, 16 G)


class _Scratch(NamedTuple):
    """Memory for one tile, fp32, Q tokens of a chunk."""

    kept: Array  # (chunks + 1, N, 16), the state before each chunk
    history: Array  # (Q + 1, N, 16), the state before each token of a chunk
    u: Array  # (Q, 16), the gradients of dt x
    steps: Array  # (Q, 16), the gradients of the exponents over log2(e)


def selective_scan_cpu(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    cu: Tensor,
    state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """See `runnel.ops.selective_scan`; cu (S+1,) int64 on the CPU."""
    state = x.new_zeros(cu.numel() - 1, *A.shape, dtype=torch.float32) if state is None else state
    skip = x.new_zeros(x.shape[1], dtype=torch.float32) if D is None else D
    y, end = _Scan.apply(x, dt, A, B, C, skip, cu, state)
    return y, end


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, cu: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, dt, A, B, C, D, cu, state)
        states = to_tiles(state)  # (S, G, N, 16), a copy
        y = torch.empty(x.shape[0], states.shape[1] * LANES)
        group = tiles_per_item(*states.shape[:2])
        with parallel():
            _forward(_inputs(x, dt, A, B, C), _array(_channels(D)), _array(cu), _array(states), _array(y), group)
        return y[:, : x.shape[1]].to(x.dtype), from_tiles(states, x.shape[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, d_end: Tensor) -> tuple[Tensor | None, ...]:
        x, dt, A, B, C, D, cu, state = ctx.saved_tensors
        channels, N = A.shape
        wide_dy = dy.float()
        d_states = to_tiles(d_end)  # becomes the gradient of the start states
        tiles = d_states.shape[1]
        group = tiles_per_item(*d_states.shape[:2])
        dx, d_dt = torch.empty(2, x.shape[0], tiles * LANES)
        d_rates = torch.zeros_like(d_states)
        d_coefficients = torch.zeros(ceil_div(tiles, group), x.shape[0], 2 * N)
        starts, out = to_tiles(state), _Gradients(*(_array(d) for d in (d_states, d_rates, d_coefficients, dx, d_dt)))
        with parallel():
            _backward(_inputs(x, dt, A, B, C), _array(_channels(wide_dy)), _array(cu), _array(starts), out, group)
        dB, dC = d_coefficients.sum(0).split(N, dim=1)
        dx = dx[:, :channels] + wide_dy * D
        gradients = (dx, d_dt[:, :channels], from_tiles(d_rates, channels).sum(0), dB, dC, (wide_dy * x).sum(0))
        casted = [gradient.to(given.dtype) for gradient, given in zip(gradients, (x, dt, A, B, C, D), strict=True)]
        return *casted, None, from_tiles(d_states, channels).to(state.dtype)


def _channels(values: Tensor) -> Tensor:
    """Convert (..., Di) to contiguous fp32 (..., 16 G), padded with zeros."""
    return F.pad(values.float(), (0, -values.shape[-1] % LANES)).contiguous()


def _inputs(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> _Inputs:
    coefficients = torch.cat([B.float(), C.float()], dim=1)
    return _Inputs(_array(_channels(x)), _array(_channels(dt)), _array(rate_tiles(A)), _array(coefficients))


def _array(tensor: Tensor) -> np.ndarray[Any, Any]:
    return tensor.detach().numpy()


@njit(**PARALLEL)
def _forward(inputs: _Inputs, skip: Array, cu: Array, states: Array, y: Array, group: int) -> None:
    """Fill y (T, 16 G) and move states (S, G, N, 16) to the end of each sequence."""
    S, G, _, _ = states.shape
    for item in prange(S * ceil_div(G, group)):
        s, first = item % S, item // S * group
        _forward_item(inputs, skip, cu[s], cu[s + 1], states[s], first, min(G, first + group), y)


@njit(**SERIAL)
def _forward_item(inputs: _Inputs, skip: Array, t: int, end: int, states: Array, first: int, last: int, y: Array) -> None:
    """Process tokens t .. end - 1 of one sequence and tiles first .. last - 1."""
    x, dt, y_, coefficients = address(inputs.x), address(inputs.dt), address(y), address(inputs.coefficients)
    G, N, _ = states.shape
    width = G * LANES
    while t < end:
        four, bc = t + 4 <= end, shift(coefficients, t * 2 * N)
        for g in range(first, last):
            h, rates = shift(address(states), g * N * LANES), shift(address(inputs.rates), g * N * LANES)
            i, D = t * width + g * LANES, load(address(skip), g * LANES)
            d0, x0 = load(dt, i), load(x, i)
            if four:
                j, k, m = i + width, i + 2 * width, i + 3 * width
                d1, x1, d2, x2, d3, x3 = load(dt, j), load(x, j), load(dt, k), load(x, k), load(dt, m), load(x, m)
                d, u, out = (d0, d1, d2, d3), (d0 * x0, d1 * x1, d2 * x2, d3 * x3), (D * x0, D * x1, D * x2, D * x3)
                y0, y1, y2, y3 = advance4(h, rates, bc, N, d, u, out)
                store(y_, i, y0)
                store(y_, j, y1)
                store(y_, k, y2)
                store(y_, m, y3)
            else:
                store(y_, i, advance(h, rates, bc, N, d0, d0 * x0, D * x0))
        t += 4 if four else 1


@njit(**PARALLEL)
def _backward(inputs: _Inputs, dy: Array, cu: Array, starts: Array, out: _Gradients, group: int) -> None:
    """Fill `out` from dy (T, 16 G) and the start states (S, G, N, 16)."""
    S, G, N, _ = starts.shape
    for item in prange(S * ceil_div(G, group)):
        s, block = item % S, item // S
        m = _Scratch(
            np.empty((ceil_div(cu[s + 1] - cu[s], _CHUNK) + 1, N, LANES), np.float32),
            np.empty((_CHUNK + 1, N, LANES), np.float32),
            np.empty((_CHUNK, LANES), np.float32),
            np.empty((_CHUNK, LANES), np.float32),
        )
        for g in range(block * group, min(G, (block + 1) * group)):
            of_tile = _Inputs(inputs.x, inputs.dt, inputs.rates[g], inputs.coefficients)
            gradients = _Gradients(out.states[s, g], out.rates[s, g], out.coefficients[block], out.x, out.dt)
            _tile_backward(of_tile, dy, cu[s], cu[s + 1], starts[s, g], g, gradients, m)


@njit(**SERIAL)
def _copy(source: Array, out: Array) -> None:
    """Copy states (N, 16)."""
    for n in range(source.shape[0]):
        store(address(out), n * LANES, load(address(source), n * LANES))


@njit(**SERIAL)
def _tile_backward(inputs: _Inputs, dy: Array, t0: int, t1: int, start: Array, g: int, out: _Gradients, m: _Scratch) -> None:
    """Process tile g over tokens t0 .. t1 - 1 of a sequence."""
    chunks = ceil_div(t1 - t0, _CHUNK)
    _copy(start, m.kept[0])
    for chunk in range(chunks):
        t = t0 + chunk * _CHUNK
        _copy(m.kept[chunk], m.kept[chunk + 1])
        _chunk_forward(inputs, t, min(t1, t + _CHUNK), m.kept[chunk + 1], g)
    for chunk in range(chunks - 1, -1, -1):
        t = t0 + chunk * _CHUNK
        _copy(m.kept[chunk], m.history[0])
        _chunk_backward(inputs, dy, t, min(t1, t + _CHUNK), g, out, m)


@njit(**SERIAL)
def _chunk_forward(inputs: _Inputs, t0: int, t1: int, state: Array, g: int) -> None:
    """Move `state` (N, 16) over tokens t0 .. t1 - 1."""
    x, dt, coefficients, N = address(inputs.x), address(inputs.dt), address(inputs.coefficients), state.shape[0]
    for t in range(t0, t1):
        i = t * inputs.x.shape[1] + g * LANES
        d = load(dt, i)
        advance(address(state), address(inputs.rates), shift(coefficients, t * 2 * N), N, d, d * load(x, i), zero())


@njit(**SERIAL)
def _chunk_backward(inputs: _Inputs, dy_: Array, t0: int, t1: int, g: int, out: _Gradients, m: _Scratch) -> None:
    """Process one tile backward over tokens t0 .. t1 - 1. `history` contains the state before t0."""
    x, dt, rates, bc, dy = (
        address(inputs.x), address(inputs.dt), address(inputs.rates), address(inputs.coefficients), address(dy_),
    )  # fmt: skip
    d_states, d_rates, d_bc, dx, d_dt = (
        address(out.states), address(out.rates), address(out.coefficients), address(out.x), address(out.dt),
    )  # fmt: skip
    states, du, ds = address(m.history), address(m.u), address(m.steps)
    _, N, _ = m.history.shape
    width, column = inputs.x.shape[1], g * LANES
    for q in range(t1 - t0):
        store(du, q * LANES, zero())
        store(ds, q * LANES, zero())
    for n in range(N):
        rate = load(rates, n * LANES)
        h = load(states, n * LANES)
        for t in range(t0, t1):  # forward again, now keeping every state
            i = t * width + column
            d = load(dt, i)
            h = exp2(rate * d) * h + d * load(x, i) * splat(bc[t * 2 * N + n])
            store(states, ((t - t0 + 1) * N + n) * LANES, h)
        d_h, d_rate = load(d_states, n * LANES), load(d_rates, n * LANES)
        for t in range(t1 - 1, t0 - 1, -1):
            i, q, row = t * width + column, (t - t0) * LANES, t * 2 * N
            d, grad = load(dt, i), load(dy, i)
            d_bc[row + N + n] += total(grad * load(states, ((t - t0 + 1) * N + n) * LANES))
            d_h = d_h + grad * splat(bc[row + N + n])
            d_bc[row + n] += total(d_h * d * load(x, i))
            store(du, q, load(du, q) + d_h * splat(bc[row + n]))
            d_h = d_h * exp2(rate * d)  # now the gradient of the state before this token
            d_exponent = d_h * load(states, ((t - t0) * N + n) * LANES)
            store(ds, q, load(ds, q) + d_exponent * rate)
            d_rate = d_rate + d_exponent * d
        store(d_states, n * LANES, d_h)
        store(d_rates, n * LANES, d_rate)
    for t in range(t0, t1):
        i, q = t * width + column, (t - t0) * LANES
        store(dx, i, load(du, q) * load(dt, i))
        store(d_dt, i, load(ds, q) * splat(_LN_2) + load(du, q) * load(x, i))
