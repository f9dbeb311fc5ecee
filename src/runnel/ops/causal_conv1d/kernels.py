"""The causal_conv1d kernels. Threads divide the channels; each iterates over all tokens with a window that stays in cache.

Inner loops run over slices with plain indices: numba checks an index of unknown sign for negative values, and a checked
address cannot become a vector load.

T tokens, S sequences, C channels, w taps. A window holds w-1 inputs from before a block of tokens and then the block.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from runnel.ops.numba_math import PARALLEL, SERIAL, Array, as_f32, rounded_for, silu, silu_grad
from runnel.ops.simd import ceil_div

TOKENS = 64  # tokens per block
CHANNELS = 64  # channels per task: several vectors wide, and small enough that window and sums fit the first-level cache


@njit(**SERIAL)
def _read_state(state: Array, s: int, channel: int, count: int, before: int, window: Array) -> None:
    for k in range(before):
        for c in range(count):
            window[k, c] = state[s, channel + c, k] if state.shape[0] > 0 else np.float32(0.0)


@njit(**SERIAL)
def _read_block(x: Array, x_row: int, channel: int, count: int, t: int, size: int, before: int, window: Array) -> None:
    for j in range(size):
        at = (t + j) * x_row + channel
        source, target = x[at : at + count], window[before + j]
        for c in range(count):
            target[c] = as_f32(source[c])


@njit(**SERIAL)
def _weigh(window: Array, taps: Array, bias: Array, j: int, count: int, out: Array) -> None:
    """Set out[c] = bias + sum over k of taps[k] * window[j + k], before the activation; taps (w, channels of the task)."""
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
def convolve(
    x: Array, x_row: int, taps: Array, bias: Array, cu: Array, state: Array, activate: bool, y: Array, end: Array
) -> None:
    """Compute outputs and end states.

    Args:
        x: flat rows (T, C).   taps: (w, C).   bias: (C,).   cu: (S+1,).   state: (S, C, w-1), or (0, ...) for zeros.
        activate: apply SiLU.   y: out (T, C).   end: out (S, C, w-1).
    """
    channels, before = y.shape[1], taps.shape[0] - 1
    for share in prange(ceil_div(channels, CHANNELS)):
        channel = share * CHANNELS
        count = min(CHANNELS, channels - channel)
        own_taps, own_bias = taps[:, channel : channel + count].copy(), bias[channel : channel + count]
        window, value = np.empty((TOKENS + before, CHANNELS), np.float32), np.empty(CHANNELS, np.float32)
        for s in range(cu.shape[0] - 1):
            _read_state(state, s, channel, count, before, window)
            for t in range(cu[s], cu[s + 1], TOKENS):
                size = min(TOKENS, cu[s + 1] - t)
                _read_block(x, x_row, channel, count, t, size, before, window)
                for j in range(size):
                    _weigh(window, own_taps, own_bias, j, count, value)
                    target = y[t + j, channel : channel + count]
                    if activate:
                        for c in range(count):
                            target[c] = rounded_for(target, silu(value[c]))
                    else:
                        for c in range(count):
                            target[c] = rounded_for(target, value[c])
                for k in range(before):
                    for c in range(count):
                        window[k, c] = window[size + k, c]
            for c in range(count):
                for k in range(before):
                    end[s, channel + c, k] = window[k, c]


@njit(**SERIAL)
def _spread_back(
    dy: Array, dy_row: int, taps: Array, bias: Array, t: int, size: int, channel: int, count: int, activate: bool, window: Array,
    value: Array, back: Array, dtaps: Array, dbias: Array,
) -> None:  # fmt: skip
    """Add the gradients of one block: of its window rows to `back`, of taps and bias to fp32 sums."""
    for j in range(size):
        at = (t + j) * dy_row + channel
        source = dy[at : at + count]
        if activate:
            _weigh(window, taps, bias, j, count, value)
            for c in range(count):
                value[c] = as_f32(source[c]) * silu_grad(value[c])
        else:
            for c in range(count):
                value[c] = as_f32(source[c])
        for c in range(count):
            dbias[c] += value[c]
        for k in range(taps.shape[0]):
            for c in range(count):
                back[j + k, c] += taps[k, c] * value[c]
                dtaps[k, c] += value[c] * window[j + k, c]


@njit(**SERIAL)
def _write_back(
    back: Array, rows: int, first: int, start: int, s: int, channel: int, count: int, before: int, dx: Array, dstate: Array
) -> None:
    """Write rows 0.. of `back` to positions first.. of a sequence, whose first w-1 positions are its start state."""
    for r in range(rows):
        place = first + r
        if place < before:
            for c in range(count):
                dstate[s, channel + c, place] = back[r, c]
        else:
            target = dx[start + place - before, channel : channel + count]
            for c in range(count):
                target[c] = rounded_for(target, back[r, c])


@njit(**PARALLEL)
def convolve_back(
    x: Array, x_row: int, dy: Array, dy_row: int, taps: Array, bias: Array, cu: Array, state: Array, dend: Array, activate: bool,
    dx: Array, dtaps: Array, dbias: Array, dstate: Array,
) -> None:  # fmt: skip
    """Compute gradients. Arguments as in `convolve`; dend: (S, C, w-1), or (0, ...) for zeros.

    Out: dx (T, C), dtaps (w, C) fp64, dbias (C,) fp64, dstate (S, C, w-1).
    """
    channels, width = dx.shape[1], taps.shape[0]
    before = width - 1
    for share in prange(ceil_div(channels, CHANNELS)):
        channel = share * CHANNELS
        count = min(CHANNELS, channels - channel)
        own_taps, own_bias = taps[:, channel : channel + count].copy(), bias[channel : channel + count]
        window, back = np.empty((TOKENS + before, CHANNELS), np.float32), np.zeros((TOKENS + before, CHANNELS), np.float32)
        value, sums = np.empty(CHANNELS, np.float32), np.zeros((width + 1, CHANNELS), np.float32)
        dtaps[:, channel : channel + count] = 0.0
        dbias[channel : channel + count] = 0.0
        for s in range(cu.shape[0] - 1):
            _read_state(state, s, channel, count, before, window)
            back[:before] = np.float32(0.0)
            for t in range(cu[s], cu[s + 1], TOKENS):
                size = min(TOKENS, cu[s + 1] - t)
                _read_block(x, x_row, channel, count, t, size, before, window)
                back[before:] = np.float32(0.0)
                sums[:] = np.float32(0.0)
                _spread_back(
                    dy,
                    dy_row,
                    own_taps,
                    own_bias,
                    t,
                    size,
                    channel,
                    count,
                    activate,
                    window,
                    value,
                    back,
                    sums[:width],
                    sums[width],
                )
                for c in range(count):
                    dbias[channel + c] += sums[width, c]
                    for k in range(width):
                        dtaps[k, channel + c] += sums[k, c]
                _write_back(back, size, t - cu[s], cu[s], s, channel, count, before, dx, dstate)
                for k in range(before):
                    for c in range(count):
                        window[k, c] = window[size + k, c]
                        back[k, c] = back[size + k, c]
            if dend.shape[0] > 0:
                for k in range(before):
                    for c in range(count):
                        back[k, c] += dend[s, channel + c, k]
            _write_back(back, before, cu[s + 1] - cu[s], cu[s], s, channel, count, before, dx, dstate)
