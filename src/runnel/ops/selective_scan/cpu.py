"""The selective scan in numba kernels for CPU: fp32 arithmetic for fp32 and bf16 inputs, with a hand-written backward pass.

S sequences, T tokens, Di channels, N state size, G tiles of 16 channels, Q tokens of a chunk of the backward pass.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numba import njit, prange
from torch import Tensor
from torch.autograd.function import once_differentiable

from runnel.ops.numba_math import PARALLEL, SERIAL, Array, parallel
from runnel.ops.selective_scan.lanes import zero
from runnel.ops.selective_scan.tiles import advance, advance4, from_tiles, rate_tiles, tiles_per_item, to_tiles
from runnel.ops.simd import LANES, address, ceil_div, exp2, load, splat, store, total

_CHUNK = 32  # tokens whose states the backward pass holds at once, in addition to one state per chunk
_LN_2 = np.float32(0.6931471805599453)


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
        arrays = _arrays(_channels(x), _channels(dt), rate_tiles(A), _coefficients(B, C), _channels(D), cu, states, y)
        with parallel():
            _forward(*arrays, group)
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
        inputs = (_channels(x), _channels(dt), rate_tiles(A), _coefficients(B, C), _channels(wide_dy), cu, to_tiles(state))
        with parallel():
            _backward(*_arrays(*inputs, d_states, d_rates, d_coefficients, dx, d_dt), group)
        dB, dC = d_coefficients.sum(0).split(N, dim=1)
        dx = dx[:, :channels] + wide_dy * D
        gradients = (dx, d_dt[:, :channels], from_tiles(d_rates, channels).sum(0), dB, dC, (wide_dy * x).sum(0))
        casted = [gradient.to(given.dtype) for gradient, given in zip(gradients, (x, dt, A, B, C, D), strict=True)]
        return *casted, None, from_tiles(d_states, channels).to(state.dtype)


def _channels(values: Tensor) -> Tensor:
    """Convert (..., Di) to contiguous fp32 (..., 16 G), padded with zeros."""
    return F.pad(values.float(), (0, -values.shape[-1] % LANES)).contiguous()


def _coefficients(B: Tensor, C: Tensor) -> Tensor:
    return torch.cat([B.float(), C.float()], dim=1)


def _arrays(*tensors: Tensor) -> list[np.ndarray[Any, Any]]:
    return [tensor.detach().numpy() for tensor in tensors]


@njit(**PARALLEL)
def _forward(
    x: Array, dt: Array, rates: Array, coefficients: Array, skip: Array, cu: Array, states: Array, y: Array, group: int
) -> None:
    """Fill y (T, 16 G) and move states (S, G, N, 16) to the end of each sequence."""
    S, G, N, _ = states.shape
    for item in prange(S * ceil_div(G, group)):
        s, first = item % S, item // S * group
        tiles = first, min(G, first + group), G
        _forward_item(x, dt, rates, coefficients, skip, cu[s], cu[s + 1], states[s], y, tiles, N)


@njit(**SERIAL)
def _forward_item(
    x: Array, dt: Array, rates: Array, coefficients: Array, skip: Array, t: int, end: int, states: Array, y: Array, tiles: Any,
    N: int,
) -> None:  # fmt: skip
    """Process one sequence, tokens t .. end - 1; tiles (first, last, G)."""
    first, last, G = tiles
    width = G * LANES
    x_, dt_, bc, h, y_ = address(x), address(dt), address(coefficients), address(states), address(y)
    while t < end:
        four = t + 4 <= end
        for g in range(first, last):
            at, i, row = g * N * LANES, t * width + g * LANES, t * 2 * N
            D = load(address(skip), g * LANES)
            d0, x0 = load(dt_, i), load(x_, i)
            if four:
                j, k, m = i + width, i + 2 * width, i + 3 * width
                d1, x1, d2, x2, d3, x3 = load(dt_, j), load(x_, j), load(dt_, k), load(x_, k), load(dt_, m), load(x_, m)
                y0, y1, y2, y3 = advance4(
                    h, at, address(rates), at, bc, row, N,
                    d0, d1, d2, d3, d0 * x0, d1 * x1, d2 * x2, d3 * x3, D * x0, D * x1, D * x2, D * x3,
                )  # fmt: skip
                store(y_, i, y0)
                store(y_, j, y1)
                store(y_, k, y2)
                store(y_, m, y3)
            else:
                store(y_, i, advance(h, at, address(rates), at, bc, row, N, d0, d0 * x0, D * x0))
        t += 4 if four else 1


@njit(**PARALLEL)
def _backward(
    x: Array, dt: Array, rates: Array, coefficients: Array, dy: Array, cu: Array, starts: Array,
    d_states: Array, d_rates: Array, d_coefficients: Array, dx: Array, d_dt: Array, group: int,
) -> None:  # fmt: skip
    """Fill dx and d_dt (T, 16 G), d_coefficients (blocks, T, 2N) and d_rates (S, G, N, 16), the gradient of A.

    d_states contains the gradient of the end states on entry and of the start states, `starts`, on return.
    """
    S, G, N, _ = starts.shape
    for item in prange(S * ceil_div(G, group)):
        s, block = item % S, item // S
        chunks = ceil_div(cu[s + 1] - cu[s], _CHUNK)
        kept = np.empty((chunks + 1, N, LANES), np.float32)  # the state before each chunk
        history = np.empty((_CHUNK + 1, N, LANES), np.float32)  # the state before each token of a chunk
        local = np.empty((2, _CHUNK, LANES), np.float32)
        for g in range(block * group, min(G, (block + 1) * group)):
            inputs = x, dt, rates[g], coefficients, dy
            outputs = d_states[s, g], d_rates[s, g], d_coefficients[block], dx, d_dt
            kept[0] = starts[s, g]
            for chunk in range(chunks):
                t = cu[s] + chunk * _CHUNK
                kept[chunk + 1] = kept[chunk]
                _chunk_forward(inputs, t, min(cu[s + 1], t + _CHUNK), kept[chunk + 1], g, G, N)
            for chunk in range(chunks - 1, -1, -1):
                t = cu[s] + chunk * _CHUNK
                history[0] = kept[chunk]
                _chunk_backward(inputs, outputs, t, min(cu[s + 1], t + _CHUNK), history, local[0], local[1], g, G, N)


@njit(**SERIAL)
def _chunk_forward(inputs: Any, t0: int, t1: int, state: Array, g: int, G: int, N: int) -> None:
    """Move `state` (N, 16) over tokens t0 .. t1 - 1."""
    x, dt, rates, coefficients, _ = inputs
    for t in range(t0, t1):
        i = (t * G + g) * LANES
        d = load(address(dt), i)
        advance(address(state), 0, address(rates), 0, address(coefficients), t * 2 * N, N, d, d * load(address(x), i), zero())


@njit(**SERIAL)
def _chunk_backward(
    inputs: Any, outputs: Any, t0: int, t1: int, history: Array, d_u: Array, d_step: Array, g: int, G: int, N: int
) -> None:
    """Process one tile backward over tokens t0 .. t1 - 1. `history` contains the state before t0.

    d_u and d_step are scratch for the gradients of dt x and of the exponents over log2(e), (t1 - t0, 16) each.
    """
    x, dt, rates, bc, dy = (address(inputs[0]), address(inputs[1]), address(inputs[2]), address(inputs[3]), address(inputs[4]))
    d_states, d_rates, d_bc = address(outputs[0]), address(outputs[1]), address(outputs[2])
    dx, d_dt, states, du, ds = address(outputs[3]), address(outputs[4]), address(history), address(d_u), address(d_step)
    for q in range(t1 - t0):
        store(du, q * LANES, zero())
        store(ds, q * LANES, zero())
    for n in range(N):
        rate = load(rates, n * LANES)
        h = load(states, n * LANES)
        for t in range(t0, t1):  # forward again, now keeping every state
            i = (t * G + g) * LANES
            d = load(dt, i)
            h = exp2(rate * d) * h + d * load(x, i) * splat(bc[t * 2 * N + n])
            store(states, ((t - t0 + 1) * N + n) * LANES, h)
        d_h, d_rate = load(d_states, n * LANES), load(d_rates, n * LANES)
        for t in range(t1 - 1, t0 - 1, -1):
            i, q, row = (t * G + g) * LANES, (t - t0) * LANES, t * 2 * N
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
        i, q = (t * G + g) * LANES, (t - t0) * LANES
        store(dx, i, load(du, q) * load(dt, i))
        store(d_dt, i, load(ds, q) * splat(_LN_2) + load(du, q) * load(x, i))
