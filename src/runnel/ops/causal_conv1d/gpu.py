"""causal_conv1d in Triton kernels, forward and backward; fp32 arithmetic for fp32 and bf16 inputs. Needs Triton.

T tokens, S sequences, C channels, w taps. One program per block of tokens and block of channels.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable
from triton.language import constexpr, tensor

from runnel.ops.packed import power_of_two
from runnel.ops.triton_launch import on_device_of, rows
from runnel.ops.triton_math import silu, silu_grad

_TOKENS, _CHANNELS = 32, 64  # per block


def causal_conv1d_gpu(
    x: Tensor, weight: Tensor, bias: Tensor | None, cu: Tensor, state: Tensor | None, silu: bool
) -> tuple[Tensor, Tensor]:
    """See `runnel.ops.causal_conv1d`; cu (S+1,) int64 on the CPU."""
    out: tuple[Tensor, Tensor] = _Conv.apply(x, weight, bias, cu, state, silu)
    return out


class _Conv(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, cu: Tensor, state: Tensor | None, activate: bool
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, weight, bias, cu, state)
        ctx.activate = activate
        ctx.set_materialize_grads(False)
        tokens, channels = x.shape
        sequences, width = cu.numel() - 1, weight.shape[1]
        y = torch.empty(tokens, channels, dtype=x.dtype, device=x.device)
        end = torch.empty(sequences, channels, width - 1, dtype=torch.float32, device=x.device)
        inputs, sizes = _inputs(x, weight, bias, cu, state)
        with on_device_of(x):
            if y.numel():
                _convolve[_token_grid(tokens, channels)](*inputs, y, **sizes, ACTIVATE=activate)
            if end.numel():
                grid = sequences, triton.cdiv(channels, _CHANNELS)
                _end_state[grid](*inputs, end, **sizes, ROWS=power_of_two(width - 1))
        return y, end

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor | None, dend: Tensor | None) -> tuple[Tensor | None, ...]:
        x, weight, bias, cu, state = ctx.saved_tensors
        (tokens, channels), width = x.shape, weight.shape[1]
        inputs, sizes = _inputs(x, weight, bias, cu, state)
        grid = _token_grid(tokens, channels)
        dy = torch.zeros(tokens, channels, dtype=x.dtype, device=x.device) if dy is None else dy.contiguous()
        dend = None if dend is None else dend.contiguous()
        weighed = torch.empty(tokens, channels, dtype=torch.float32, device=x.device)  # the gradient before the activation
        parts = torch.empty(grid[0], width + 1, channels, dtype=torch.float32, device=x.device)
        dx = torch.empty(tokens, channels, dtype=x.dtype, device=x.device)
        dstate = torch.empty(cu.numel() - 1, channels, width - 1, dtype=torch.float32, device=x.device)
        _, _, cu_gpu, sequence, _, taps, _ = inputs
        back = weighed, cu_gpu, sequence, dend, taps
        sizes_back = {key: size for key, size in sizes.items() if key not in ("HAS_STATE", "HAS_BIAS")}
        with on_device_of(x):
            if dx.numel():
                _weigh_gradient[grid](*inputs, dy, weighed, parts, **sizes, ACTIVATE=ctx.activate)
                _input_gradient[grid](*back, dx, **sizes_back, HAS_END=dend is not None)
            if dstate.numel():
                grid = dstate.shape[0], triton.cdiv(channels, _CHANNELS)
                _state_gradient[grid](*back, dstate, **sizes_back, ROWS=power_of_two(width - 1), HAS_END=dend is not None)
        sums = parts.sum(0)
        dweight, dbias = sums[:width].T.to(weight.dtype), None if bias is None else sums[width].to(bias.dtype)
        return dx, dweight, dbias, None, None if state is None else dstate.to(state.dtype), None


def _token_grid(tokens: int, channels: int) -> tuple[int, int]:
    return triton.cdiv(tokens, _TOKENS), triton.cdiv(channels, _CHANNELS)


def _inputs(
    x: Tensor, weight: Tensor, bias: Tensor | None, cu: Tensor, state: Tensor | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the first arguments and the sizes (last arguments) of all kernels."""
    (tokens, channels), width = x.shape, weight.shape[1]
    x, distance = rows(x)
    cu = cu.to(x.device)
    # For each token the first sequence that ends after it; never an empty sequence, which ends where it starts.
    sequence = torch.searchsorted(cu[1:], torch.arange(tokens, device=x.device), right=True)
    taps = weight.detach().float().contiguous()
    start = None if state is None else state.detach().float().contiguous()
    shift = None if bias is None else bias.detach().float().contiguous()
    sizes = {
        "tokens": tokens, "channels": channels, "WIDTH": width, "HAS_BIAS": bias is not None, "HAS_STATE": state is not None,
        "TOKENS": _TOKENS, "CHANNELS": _CHANNELS,
    }  # fmt: skip
    return (x, distance, cu, sequence, start, taps, shift), sizes


@triton.jit
def _read(
    x: tensor, distance: tensor, state: tensor, row: tensor, sequence: tensor, start: tensor, mask: tensor, channel: tensor,
    channels: tensor,
    BEFORE: constexpr, HAS_STATE: constexpr,
) -> tensor:  # fmt: skip
    """Read rows of the sequences' inputs (R, CHANNELS) in fp32; rows before a sequence's start come from its state.

    row, sequence, start: (R,) int64.   mask: (R, CHANNELS).
    """
    inside = (row >= start)[:, None]
    value = tl.load(x + row[:, None] * distance + channel[None, :], mask=mask & inside, other=0.0).to(tl.float32)
    if HAS_STATE:
        place = (row - start + BEFORE)[:, None]
        at = (sequence[:, None] * channels + channel[None, :]) * BEFORE + place
        value += tl.load(state + at, mask=mask & (place < BEFORE), other=0.0)
    return value


@triton.jit
def _weigh(
    x: tensor, distance: tensor, state: tensor, taps: tensor, bias: tensor, token: tensor, sequence: tensor, start: tensor,
    mask: tensor, channel: tensor, channels: tensor,
    WIDTH: constexpr, HAS_BIAS: constexpr, HAS_STATE: constexpr, TOKENS: constexpr, CHANNELS: constexpr,
) -> tensor:  # fmt: skip
    """Return the input of the activation, (TOKENS, CHANNELS)."""
    value = tl.zeros((TOKENS, CHANNELS), tl.float32)
    if HAS_BIAS:
        value += tl.load(bias + channel, mask=channel < channels, other=0.0)[None, :]
    for k in tl.static_range(WIDTH):
        tap = tl.load(taps + channel * WIDTH + k, mask=channel < channels, other=0.0)
        row = token - (WIDTH - 1) + k
        value += tap[None, :] * _read(
            x, distance, state, row, sequence, start, mask, channel, channels, WIDTH - 1, HAS_STATE
        )  # fmt: skip
    return value


@triton.jit
def _convolve(
    x: tensor, distance: tensor, cu: tensor, sequences: tensor, state: tensor, taps: tensor, bias: tensor, y: tensor,
    tokens: tensor, channels: tensor,
    WIDTH: constexpr, HAS_BIAS: constexpr, HAS_STATE: constexpr, TOKENS: constexpr, CHANNELS: constexpr, ACTIVATE: constexpr,
) -> None:  # fmt: skip
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    mask = (token < tokens)[:, None] & (channel < channels)[None, :]
    sequence = tl.load(sequences + token, mask=token < tokens, other=0)
    start = tl.load(cu + sequence)
    value = _weigh(
        x, distance, state, taps, bias, token, sequence, start, mask, channel, channels,
        WIDTH, HAS_BIAS, HAS_STATE, TOKENS, CHANNELS,
    )  # fmt: skip
    if ACTIVATE:
        value = silu(value)
    tl.store(y + token[:, None] * channels + channel[None, :], value.to(y.dtype.element_ty), mask=mask)


@triton.jit
def _end_state(
    x: tensor, distance: tensor, cu: tensor, sequences: tensor, state: tensor, taps: tensor, bias: tensor, end: tensor,
    tokens: tensor, channels: tensor,
    WIDTH: constexpr, HAS_BIAS: constexpr, HAS_STATE: constexpr, TOKENS: constexpr, CHANNELS: constexpr, ROWS: constexpr,
) -> None:  # fmt: skip
    """Write the last w-1 rows of one sequence, including its start state."""
    place = tl.arange(0, ROWS)
    sequence = tl.program_id(0).to(tl.int64) + tl.zeros((ROWS,), tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    mask = (place < WIDTH - 1)[:, None] & (channel < channels)[None, :]
    row = tl.load(cu + sequence + 1) - (WIDTH - 1) + place
    start = tl.load(cu + sequence)
    value = _read(x, distance, state, row, sequence, start, mask, channel, channels, WIDTH - 1, HAS_STATE)
    at = (sequence[:, None] * channels + channel[None, :]) * (WIDTH - 1) + place[:, None]
    tl.store(end + at, value, mask=mask)


@triton.jit
def _weigh_gradient(
    x: tensor, distance: tensor, cu: tensor, sequences: tensor, state: tensor, taps: tensor, bias: tensor, dy: tensor,
    weighed: tensor, parts: tensor, tokens: tensor, channels: tensor,
    WIDTH: constexpr, HAS_BIAS: constexpr, HAS_STATE: constexpr, TOKENS: constexpr, CHANNELS: constexpr, ACTIVATE: constexpr,
) -> None:  # fmt: skip
    """Fill `weighed` (T, C), the gradient before the activation, and this block's share of the gradients of taps and bias.

    parts: (blocks of tokens, w+1, C), the bias last.
    """
    block = tl.program_id(0).to(tl.int64)
    token = block * TOKENS + tl.arange(0, TOKENS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    mask = (token < tokens)[:, None] & (channel < channels)[None, :]
    sequence = tl.load(sequences + token, mask=token < tokens, other=0)
    start = tl.load(cu + sequence)
    at = token[:, None] * channels + channel[None, :]
    value = tl.load(dy + at, mask=mask, other=0.0).to(tl.float32)
    if ACTIVATE:
        value *= silu_grad(
            _weigh(
                x, distance, state, taps, bias, token, sequence, start, mask, channel, channels,
                WIDTH, HAS_BIAS, HAS_STATE, TOKENS, CHANNELS,
            )
        )  # fmt: skip
    tl.store(weighed + at, value, mask=mask)
    part = parts + block * (WIDTH + 1) * channels + channel
    for k in tl.static_range(WIDTH):
        row = token - (WIDTH - 1) + k
        met = _read(x, distance, state, row, sequence, start, mask, channel, channels, WIDTH - 1, HAS_STATE)
        tl.store(part + k * channels, tl.sum(value * met, 0), mask=channel < channels)
    tl.store(part + WIDTH * channels, tl.sum(value, 0), mask=channel < channels)


@triton.jit
def _row_gradient(
    weighed: tensor, taps: tensor, dend: tensor, row: tensor, sequence: tensor, start: tensor, stop: tensor, mask: tensor,
    channel: tensor, channels: tensor,
    WIDTH: constexpr, HAS_END: constexpr, ROWS: constexpr, CHANNELS: constexpr,
) -> tensor:  # fmt: skip
    """Return the gradient of input rows, including start states: from the tokens that use them and from the end state."""
    value = tl.zeros((ROWS, CHANNELS), tl.float32)
    for k in tl.static_range(WIDTH):
        tap = tl.load(taps + channel * WIDTH + k, mask=channel < channels, other=0.0)
        token = row + (WIDTH - 1) - k
        meets = ((token >= start) & (token < stop))[:, None]
        at = token[:, None] * channels + channel[None, :]
        value += tap[None, :] * tl.load(weighed + at, mask=mask & meets, other=0.0)
    if HAS_END:
        place = (row - stop + (WIDTH - 1))[:, None]
        at = (sequence[:, None] * channels + channel[None, :]) * (WIDTH - 1) + place
        value += tl.load(dend + at, mask=mask & (place >= 0), other=0.0)
    return value


@triton.jit
def _input_gradient(
    weighed: tensor, cu: tensor, sequences: tensor, dend: tensor, taps: tensor, dx: tensor, tokens: tensor, channels: tensor,
    WIDTH: constexpr, TOKENS: constexpr, CHANNELS: constexpr, HAS_END: constexpr,
) -> None:  # fmt: skip
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    mask = (token < tokens)[:, None] & (channel < channels)[None, :]
    sequence = tl.load(sequences + token, mask=token < tokens, other=0)
    start, stop = tl.load(cu + sequence), tl.load(cu + sequence + 1)
    value = _row_gradient(
        weighed, taps, dend, token, sequence, start, stop, mask, channel, channels, WIDTH, HAS_END, TOKENS, CHANNELS
    )  # fmt: skip
    tl.store(dx + token[:, None] * channels + channel[None, :], value.to(dx.dtype.element_ty), mask=mask)


@triton.jit
def _state_gradient(
    weighed: tensor, cu: tensor, sequences: tensor, dend: tensor, taps: tensor, dstate: tensor, tokens: tensor,
    channels: tensor,
    WIDTH: constexpr, TOKENS: constexpr, CHANNELS: constexpr, ROWS: constexpr, HAS_END: constexpr,
) -> None:  # fmt: skip
    place = tl.arange(0, ROWS)
    sequence = tl.program_id(0).to(tl.int64) + tl.zeros((ROWS,), tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    mask = (place < WIDTH - 1)[:, None] & (channel < channels)[None, :]
    start, stop = tl.load(cu + sequence), tl.load(cu + sequence + 1)
    row = start - (WIDTH - 1) + place
    value = _row_gradient(
        weighed, taps, dend, row, sequence, start, stop, mask, channel, channels, WIDTH, HAS_END, ROWS, CHANNELS
    )  # fmt: skip
    at = (sequence[:, None] * channels + channel[None, :]) * (WIDTH - 1) + place[:, None]
    tl.store(dstate + at, value, mask=mask)
