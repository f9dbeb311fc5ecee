"""causal_conv1d as compiled CPU kernels, fused with SiLU, with a hand-written backward; fp32
arithmetic for fp32 and bf16 inputs.

Threads divide the channels; each iterates over all tokens with a window that stays in cache.

Inner loops run over slices with plain indices: numba checks an index of unknown sign for negative
values, and a checked address cannot become a vector load.

T  tokens      S  sequences      C  channels      w  taps

    y[t, c] = silu(bias[c] + sum over k < w of weight[c, k] * x[t - (w-1) + k, c])

A window has the w-1 inputs before a block of tokens (`before` is w - 1), and then the block. `taps`
is the weight, transposed; `channel` is the first of a task's `count` channels.

The backward pass recomputes the sums before SiLU. With s such a sum and g = dy silu'(s):

    dx[t]  = sum over k of taps[k] g[t + (w-1) - k]
    dtaps[k] = sum over t of g[t] x[t - (w-1) + k]        dbias = sum over t of g[t]
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor
from torch.autograd.function import once_differentiable

from runnel.ops.numba_math import (
    PARALLEL,
    SERIAL,
    Array,
    FlatRows,
    as_array,
    as_f32,
    flat_rows,
    float_array,
    parallel,
    rounded_for,
    silu,
    silu_grad,
)
from runnel.ops.simd import ceil_div
from runnel.ops.simd_tile import read_rows

TOKENS = 64  # tokens per block
# channels per task: several vectors wide, and small enough that window and sums fit the first-level
# cache
CHANNELS = 64


class Inputs(NamedTuple):
    """The inputs of all channels; fp32, x fp32 or bf16 bits."""

    x: Array  # flat rows (T, C), see `flat_rows`
    x_row: int
    taps: Array  # (w, C)
    bias: Array  # (C,)
    cu: Array  # (S+1,)
    state: Array  # (S, C, w-1), or (0, ...) for zeros


class Gradients(NamedTuple):
    """The gradients that `convolve_back` writes."""

    dx: Array  # (T, C)
    dtaps: Array  # (w, C) fp64
    dbias: Array  # (C,) fp64
    dstate: Array  # (S, C, w-1)


class _Scratch(NamedTuple):
    """Memory of one task, fp32."""

    taps: Array  # (w, channels of the task)
    bias: Array  # (channels of the task,)
    window: Array  # (TOKENS + w-1, CHANNELS)
    value: Array  # (CHANNELS,)
    back: Array  # (TOKENS + w-1, CHANNELS), gradients of the window
    sums: Array  # (w+1, CHANNELS), gradients of the w taps, then of the bias, of a block of tokens


@njit(**SERIAL)
def _read_state(state: Array, s: int, channel: int, count: int, before: int, window: Array) -> None:
    for k in range(before):
        for c in range(count):
            window[k, c] = state[s, channel + c, k] if state.shape[0] > 0 else np.float32(0.0)


@njit(**SERIAL)
def _weigh(window: Array, taps: Array, bias: Array, j: int, count: int, out: Array) -> None:
    """Set out[c] = bias + sum over k of taps[k] * window[j + k], before SiLU; taps (w, channels of
    the task).
    """
    if taps.shape[0] == 4:  # all published models; one pass instead of four
        for c in range(count):
            out[c] = (
                bias[c]
                + taps[0, c] * window[j, c]
                + taps[1, c] * window[j + 1, c]
                + taps[2, c] * window[j + 2, c]
                + taps[3, c] * window[j + 3, c]
            )
        return
    for c in range(count):
        out[c] = bias[c]
    for k in range(taps.shape[0]):
        for c in range(count):
            out[c] += taps[k, c] * window[j + k, c]


@njit(**PARALLEL)
def convolve(inputs: Inputs, y: Array, end: Array) -> None:
    """Compute outputs y (T, C) and end states (S, C, w-1)."""
    x, x_row, taps, bias, cu, state = inputs  # outside the loop, which then takes plain arrays
    channels = y.shape[1]
    before = taps.shape[0] - 1
    for share in prange(ceil_div(channels, CHANNELS)):
        channel = share * CHANNELS
        count = min(CHANNELS, channels - channel)
        own_taps = taps[:, channel : channel + count].copy()
        own_bias = bias[channel : channel + count]
        window = np.empty((TOKENS + before, CHANNELS), np.float32)
        value = np.empty(CHANNELS, np.float32)
        for s in range(cu.shape[0] - 1):
            _read_state(state, s, channel, count, before, window)
            for t in range(cu[s], cu[s + 1], TOKENS):
                size = min(TOKENS, cu[s + 1] - t)
                read_rows(x, x_row, t, size, size, channel, count, window[before:])
                for j in range(size):
                    _weigh(window, own_taps, own_bias, j, count, value)
                    target = y[t + j, channel : channel + count]
                    for c in range(count):
                        target[c] = rounded_for(target, silu(value[c]))
                for k in range(before):
                    for c in range(count):
                        window[k, c] = window[size + k, c]
            for c in range(count):
                for k in range(before):
                    end[s, channel + c, k] = window[k, c]


@njit(**SERIAL)
def _spread_back(dy: FlatRows, t: int, size: int, channel: int, count: int, m: _Scratch) -> None:
    """Add the gradients of one block: of its window to `back`, of taps and bias to `sums`."""
    taps, bias, window, value, back, sums = m
    dtaps = sums[:-1]
    dbias = sums[-1]
    for j in range(size):
        at = (t + j) * dy.distance + channel
        source = dy.line[at : at + count]
        _weigh(window, taps, bias, j, count, value)
        for c in range(count):
            value[c] = as_f32(source[c]) * silu_grad(value[c])
        for c in range(count):
            dbias[c] += value[c]
        for k in range(taps.shape[0]):
            for c in range(count):
                back[j + k, c] += taps[k, c] * value[c]
                dtaps[k, c] += value[c] * window[j + k, c]


@njit(**SERIAL)
def _write_back(
    back: Array, rows: int, first: int, start: int, s: int, channel: int, count: int, out: Gradients
) -> None:
    """Write the first `rows` rows of `back` to the gradients of a sequence, from position `first`
    on. The first w-1 positions are the sequence's start state, the next ones its tokens, of which
    `start` is the first.
    """
    before = out.dstate.shape[2]
    for r in range(rows):
        place = first + r
        if place < before:
            for c in range(count):
                out.dstate[s, channel + c, place] = back[r, c]
        else:
            target = out.dx[start + place - before, channel : channel + count]
            for c in range(count):
                target[c] = rounded_for(target, back[r, c])


@njit(**SERIAL)
def _channels_back(
    inputs: Inputs, dy: FlatRows, dend: Array, channel: int, count: int, out: Gradients, m: _Scratch
) -> None:
    """Compute the gradients of `count` channels from `channel` on."""
    cu = inputs.cu
    window, back, sums = m.window, m.back, m.sums
    width = m.taps.shape[0]
    before = width - 1
    out.dtaps[:, channel : channel + count] = 0.0
    out.dbias[channel : channel + count] = 0.0
    for s in range(cu.shape[0] - 1):
        _read_state(inputs.state, s, channel, count, before, window)
        back[:before] = np.float32(0.0)
        for t in range(cu[s], cu[s + 1], TOKENS):
            size = min(TOKENS, cu[s + 1] - t)
            read_rows(inputs.x, inputs.x_row, t, size, size, channel, count, window[before:])
            back[before:] = np.float32(0.0)
            sums[:] = np.float32(0.0)
            _spread_back(dy, t, size, channel, count, m)
            for c in range(count):
                out.dbias[channel + c] += sums[width, c]
                for k in range(width):
                    out.dtaps[k, channel + c] += sums[k, c]
            _write_back(back, size, t - cu[s], cu[s], s, channel, count, out)
            for k in range(before):
                for c in range(count):
                    window[k, c] = window[size + k, c]
                    back[k, c] = back[size + k, c]
        if dend.shape[0] > 0:
            for k in range(before):
                for c in range(count):
                    back[k, c] += dend[s, channel + c, k]
        _write_back(back, before, cu[s + 1] - cu[s], cu[s], s, channel, count, out)


@njit(**PARALLEL)
def convolve_back(inputs: Inputs, dy: FlatRows, dend: Array, out: Gradients) -> None:
    """Compute gradients from dy (T, C) and dend (S, C, w-1), or (0, ...) for zeros."""
    channels = out.dx.shape[1]
    width = inputs.taps.shape[0]
    for share in prange(ceil_div(channels, CHANNELS)):
        channel = share * CHANNELS
        count = min(CHANNELS, channels - channel)
        m = _Scratch(
            inputs.taps[:, channel : channel + count].copy(),
            inputs.bias[channel : channel + count],
            np.empty((TOKENS + width - 1, CHANNELS), np.float32),
            np.empty(CHANNELS, np.float32),
            np.empty((TOKENS + width - 1, CHANNELS), np.float32),
            np.empty((width + 1, CHANNELS), np.float32),
        )
        _channels_back(inputs, dy, dend, channel, count, out, m)


class _Convolution(torch.autograd.Function):
    """See `runnel.ops.causal_conv1d`; cu (S+1,) int64 on the CPU."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, cu: Tensor, state: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        channels, width = weight.shape
        y = torch.empty(x.shape, dtype=x.dtype)
        end = torch.empty(cu.numel() - 1, channels, width - 1)
        with parallel():
            convolve(_inputs(x, weight, bias, cu, state), as_array(y), as_array(end))
        ctx.save_for_backward(x, weight, bias, cu, state)
        ctx.set_materialize_grads(False)
        return y, end

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor | None, dend: Tensor | None) -> tuple[Tensor | None, ...]:
        x, weight, bias, cu, state = ctx.saved_tensors
        channels, width = weight.shape
        dx = torch.empty(x.shape, dtype=x.dtype)
        dstate = torch.empty(cu.numel() - 1, channels, width - 1)
        dtaps = torch.empty(width, channels, dtype=torch.float64)
        dbias = torch.empty(channels, dtype=torch.float64)
        out = Gradients(as_array(dx), as_array(dtaps), as_array(dbias), as_array(dstate))
        with parallel():
            convolve_back(
                _inputs(x, weight, bias, cu, state),
                flat_rows(torch.zeros_like(x) if dy is None else dy),
                float_array(dend, 0, channels, width - 1),
                out,
            )
        return (
            dx, dtaps.t().to(weight.dtype), None if bias is None else dbias.to(bias.dtype), None,
            None if state is None else dstate.to(state.dtype),
        )  # fmt: skip


causal_conv1d_cpu = _Convolution.apply


def _inputs(
    x: Tensor, weight: Tensor, bias: Tensor | None, cu: Tensor, state: Tensor | None
) -> Inputs:
    channels, width = weight.shape
    taps = float_array(weight.t())
    biases = float_array(bias, channels)
    return Inputs(
        *flat_rows(x), taps, biases, cu.numpy(), float_array(state, 0, channels, width - 1)
    )
