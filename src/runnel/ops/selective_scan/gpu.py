"""The selective scan in Triton kernels, forward and backward; fp32 arithmetic for fp32 and bf16
inputs. Needs Triton.

T  tokens      S  sequences      Di  channels      n  numbers of a channel's state
N  chunks of all sequences together

For each channel, with its state h (n,) and its row of A (n,):

    h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t
    y_t = h_t . C_t + D x_t

It is diagonal: a chunk maps the state h0 before it to exp(A * sum of dt) h0 + added.

    chunk_sums   for all chunks at once: `added` and the sum of dt
    join         for each sequence, over its chunks: the state before each chunk
    outputs      for all chunks at once: y
    backward     for each sequence and block of channels, over the chunks from the last: gradients

The gradients of B and C are sums over channels in no fixed order, so their last bits vary from run
to run.

Rows of x, dt, B, C and dy are `..._row` elements apart for the kernels; everything else is
contiguous. `table` is (3, N): the sequence, first token and the token after the last token of each
chunk, and `chunks` is N; `first` (S+1,) is the first chunk of each sequence. STATES is n and BLOCK
n rounded up to a power of two, CHANNELS the channels of a program. `d_...` are gradients, `rates`
is A, `skip` is D, and `arriving` is the gradient of the state after a token. The kernels' arguments
are listed one by one: Triton takes named tuples too, but a kernel is changed only together with a
run on a GPU.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable
from triton.language import constexpr, tensor

from runnel.ops.packed import copy_state, power_of_two
from runnel.ops.triton_launch import GpuChunks, on_device_of, rows

_CHUNK, _CHANNELS = 128, 32  # tokens and channels of a program of the forward pass
# Tokens of a chunk of the backward pass, which is shorter: it stores the states of all its tokens.
_SHORT = 32
_PROGRAMS = 2048  # of the backward pass: enough for any GPU, few enough that their memory is small


@triton.jit
def _rates(
    A: tensor, channel: tensor, channels: tensor, STATES: constexpr, BLOCK: constexpr
) -> tensor:
    """Load A (CHANNELS, BLOCK). Beyond the state size A and B are 0, so that
    those states stay 0.
    """
    place = tl.arange(0, BLOCK)
    mask = (channel < channels)[:, None] & (place < STATES)[None, :]
    return tl.load(A + channel[:, None] * STATES + place[None, :], mask=mask, other=0.0)


@triton.jit
def _coefficients(
    B: tensor, row: tensor, token: tensor, STATES: constexpr, BLOCK: constexpr
) -> tensor:
    """Load one token's B or C (BLOCK,)."""
    place = tl.arange(0, BLOCK)
    return tl.load(B + token * row + place, mask=place < STATES, other=0.0).to(tl.float32)


@triton.jit
def _state_at(
    index: tensor, channel: tensor, channels: tensor, STATES: constexpr, BLOCK: constexpr
) -> tensor:
    """Return the offsets (CHANNELS, BLOCK) of one state in (any, Di, n)."""
    return (index * channels + channel[:, None]) * STATES + tl.arange(0, BLOCK)[None, :]


@triton.jit
def chunk_sums(
    x: tensor,
    x_row: tensor,
    dt: tensor,
    dt_row: tensor,
    A: tensor,
    B: tensor,
    B_row: tensor,
    C: tensor,
    C_row: tensor,
    table: tensor,
    chunks: tensor,
    states: tensor,
    totals: tensor,
    channels: tensor,
    STATES: constexpr,
    BLOCK: constexpr,
    CHANNELS: constexpr,
) -> None:
    """Write a chunk's addition to the state to states[chunk] and the sum of its dt to
    totals[chunk]. C is not used; it is here because all kernels take the same first arguments.
    """
    chunk = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < channels
    mask = inside[:, None] & (tl.arange(0, BLOCK) < STATES)[None, :]
    rates = _rates(A, channel, channels, STATES, BLOCK)
    h = tl.zeros((CHANNELS, BLOCK), tl.float32)
    total = tl.zeros((CHANNELS,), tl.float32)
    for token in range(tl.load(table + chunks + chunk), tl.load(table + 2 * chunks + chunk)):
        step = tl.load(dt + token * dt_row + channel, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(x + token * x_row + channel, mask=inside, other=0.0).to(tl.float32)
        b = _coefficients(B, B_row, token, STATES, BLOCK)
        h = tl.exp(step[:, None] * rates) * h + (step * value)[:, None] * b[None, :]
        total += step
    tl.store(states + _state_at(chunk, channel, channels, STATES, BLOCK), h, mask=mask)
    tl.store(totals + chunk * channels + channel, total, mask=inside)


@triton.jit
def join(
    A: tensor, first: tensor, start: tensor, states: tensor, totals: tensor, channels: tensor,
    STATES: constexpr, BLOCK: constexpr, CHANNELS: constexpr,
) -> None:  # fmt: skip
    """Replace the additions written by `chunk_sums` by the state before each
    chunk of one sequence.
    """
    sequence = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < channels
    mask = inside[:, None] & (tl.arange(0, BLOCK) < STATES)[None, :]
    rates = _rates(A, channel, channels, STATES, BLOCK)
    h = tl.load(start + _state_at(sequence, channel, channels, STATES, BLOCK), mask=mask, other=0.0)
    for chunk in range(tl.load(first + sequence), tl.load(first + sequence + 1)):
        at = states + _state_at(chunk, channel, channels, STATES, BLOCK)
        added = tl.load(at, mask=mask, other=0.0)
        tl.store(at, h, mask=mask)
        h = (
            tl.exp(
                tl.load(totals + chunk * channels + channel, mask=inside, other=0.0)[:, None]
                * rates
            )
            * h
            + added
        )


@triton.jit
def outputs(
    x: tensor,
    x_row: tensor,
    dt: tensor,
    dt_row: tensor,
    A: tensor,
    B: tensor,
    B_row: tensor,
    C: tensor,
    C_row: tensor,
    table: tensor,
    first: tensor,
    chunks: tensor,
    entering: tensor,
    end: tensor,
    skip: tensor,
    y: tensor,
    channels: tensor,
    STATES: constexpr,
    BLOCK: constexpr,
    CHANNELS: constexpr,
    HAS_SKIP: constexpr,
    HAS_ENTERING: constexpr,
) -> None:
    """Compute y of one chunk's tokens; the last chunk of a sequence also writes its state to `end`.

    entering: (N, Di, n). Without it, `end` contains the start states, and every sequence is at most
        one chunk.
    """
    chunk = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < channels
    mask = inside[:, None] & (tl.arange(0, BLOCK) < STATES)[None, :]
    rates = _rates(A, channel, channels, STATES, BLOCK)
    sequence = tl.load(table + chunk)
    at_end = end + _state_at(sequence, channel, channels, STATES, BLOCK)
    if HAS_ENTERING:
        h = tl.load(
            entering + _state_at(chunk, channel, channels, STATES, BLOCK), mask=mask, other=0.0
        )
    else:
        h = tl.load(at_end, mask=mask, other=0.0)
    for token in range(tl.load(table + chunks + chunk), tl.load(table + 2 * chunks + chunk)):
        step = tl.load(dt + token * dt_row + channel, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(x + token * x_row + channel, mask=inside, other=0.0).to(tl.float32)
        b = _coefficients(B, B_row, token, STATES, BLOCK)
        h = tl.exp(step[:, None] * rates) * h + (step * value)[:, None] * b[None, :]
        out = tl.sum(h * _coefficients(C, C_row, token, STATES, BLOCK)[None, :], 1)
        if HAS_SKIP:
            out += tl.load(skip + channel, mask=inside, other=0.0) * value
        tl.store(y + token * channels + channel, out.to(y.dtype.element_ty), mask=inside)
    if chunk + 1 == tl.load(first + sequence + 1):
        tl.store(at_end, h, mask=mask)


@triton.jit
def _keep_states(
    x: tensor,
    x_row: tensor,
    dt: tensor,
    dt_row: tensor,
    B: tensor,
    B_row: tensor,
    rates: tensor,
    start: tensor,
    stop: tensor,
    h: tensor,
    room: tensor,
    inside: tensor,
    channel: tensor,
    STATES: constexpr,
    BLOCK: constexpr,
    CHANNELS: constexpr,
) -> None:
    """Rerun a chunk from the state h before it and write the state before each token to `room`."""
    place = tl.arange(0, CHANNELS)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    for token in range(start, stop):
        tl.store(room + (token - start) * (CHANNELS * BLOCK) + place, h)
        step = tl.load(dt + token * dt_row + channel, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(x + token * x_row + channel, mask=inside, other=0.0).to(tl.float32)
        b = _coefficients(B, B_row, token, STATES, BLOCK)
        h = tl.exp(step[:, None] * rates) * h + (step * value)[:, None] * b[None, :]


@triton.jit
def _chunk_backward(
    x: tensor,
    x_row: tensor,
    dt: tensor,
    dt_row: tensor,
    B: tensor,
    B_row: tensor,
    C: tensor,
    C_row: tensor,
    dy: tensor,
    dy_row: tensor,
    skip: tensor,
    rates: tensor,
    start: tensor,
    stop: tensor,
    room: tensor,
    arriving: tensor,
    d_rates: tensor,
    dx: tensor,
    ddt: tensor,
    dB: tensor,
    dC: tensor,
    inside: tensor,
    channel: tensor,
    channels: tensor,
    STATES: constexpr,
    BLOCK: constexpr,
    CHANNELS: constexpr,
    HAS_SKIP: constexpr,
) -> tuple[tensor, tensor]:
    """Process the tokens of a chunk from the last to the first; `arriving` is the gradient of the
    state after it.

    Return the gradient of the state before the chunk, and d_rates with the chunk's share of the
    gradient of A added.
    """
    place = tl.arange(0, CHANNELS)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    state = tl.arange(0, BLOCK)
    in_state = tl.arange(0, BLOCK) < STATES
    for back in range(0, stop - start):
        token = stop - 1 - back
        step = tl.load(dt + token * dt_row + channel, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(x + token * x_row + channel, mask=inside, other=0.0).to(tl.float32)
        gradient = tl.load(dy + token * dy_row + channel, mask=inside, other=0.0).to(tl.float32)
        b = _coefficients(B, B_row, token, STATES, BLOCK)
        c = _coefficients(C, C_row, token, STATES, BLOCK)
        before = tl.load(room + (token - start) * (CHANNELS * BLOCK) + place)
        kept = tl.exp(step[:, None] * rates)
        entered = step * value
        h = kept * before + entered[:, None] * b[None, :]
        d_h = arriving + gradient[:, None] * c[None, :]
        arriving = d_h * kept
        d_exponent = arriving * before
        d_rates += d_exponent * step[:, None]
        d_entered = tl.sum(d_h * b[None, :], 1)
        d_value = d_entered * step
        d_step = d_entered * value + tl.sum(d_exponent * rates, 1)
        if HAS_SKIP:
            d_value += gradient * tl.load(skip + channel, mask=inside, other=0.0)
        at = token * channels + channel
        tl.store(dx + at, d_value.to(dx.dtype.element_ty), mask=inside)
        tl.store(ddt + at, d_step.to(ddt.dtype.element_ty), mask=inside)
        tl.atomic_add(dB + token * STATES + state, tl.sum(d_h * entered[:, None], 0), mask=in_state)
        tl.atomic_add(dC + token * STATES + state, tl.sum(h * gradient[:, None], 0), mask=in_state)
    return arriving, d_rates


@triton.jit
def backward(
    x: tensor,
    x_row: tensor,
    dt: tensor,
    dt_row: tensor,
    A: tensor,
    B: tensor,
    B_row: tensor,
    C: tensor,
    C_row: tensor,
    dy: tensor,
    dy_row: tensor,
    table: tensor,
    first: tensor,
    chunks: tensor,
    sequences: tensor,
    entering: tensor,
    skip: tensor,
    room: tensor,
    dx: tensor,
    ddt: tensor,
    dA: tensor,
    dB: tensor,
    dC: tensor,
    dstate: tensor,
    channels: tensor,
    STATES: constexpr,
    BLOCK: constexpr,
    CHANNELS: constexpr,
    TOKENS: constexpr,
    HAS_SKIP: constexpr,
) -> None:
    """Compute gradients. Programs divide the pairs of sequence and block of channels; each
    processes its chunks from the last.

    room: (programs, TOKENS, CHANNELS, BLOCK), for the states of one chunk. dstate (S, Di, n)
    contains the gradient of the end state on entry and of the start state on return. dB and dC (T,
    n) are added to; dA (S, Di, n) is filled.
    """
    blocks = tl.cdiv(channels, CHANNELS)
    room += tl.program_id(0).to(tl.int64) * (TOKENS * CHANNELS * BLOCK)
    for item in range(tl.program_id(0), sequences * blocks, tl.num_programs(0)):
        sequence = (item // blocks).to(tl.int64)
        channel = item % blocks * CHANNELS + tl.arange(0, CHANNELS)
        inside = channel < channels
        mask = inside[:, None] & (tl.arange(0, BLOCK) < STATES)[None, :]
        rates = _rates(A, channel, channels, STATES, BLOCK)
        at_sequence = _state_at(sequence, channel, channels, STATES, BLOCK)
        arriving = tl.load(dstate + at_sequence, mask=mask, other=0.0)
        d_rates = tl.zeros((CHANNELS, BLOCK), tl.float32)
        begin = tl.load(first + sequence)
        behind = tl.load(first + sequence + 1)
        for back in range(0, behind - begin):
            chunk = behind - 1 - back
            start = tl.load(table + chunks + chunk)
            stop = tl.load(table + 2 * chunks + chunk)
            h = tl.load(
                entering + _state_at(chunk, channel, channels, STATES, BLOCK), mask=mask, other=0.0
            )
            _keep_states(
                x,
                x_row,
                dt,
                dt_row,
                B,
                B_row,
                rates,
                start,
                stop,
                h,
                room,
                inside,
                channel,
                STATES,
                BLOCK,
                CHANNELS,
            )
            tl.debug_barrier()  # all writes to `room` must be visible to the threads that read it
            arriving, d_rates = _chunk_backward(
                x,
                x_row,
                dt,
                dt_row,
                B,
                B_row,
                C,
                C_row,
                dy,
                dy_row,
                skip,
                rates,
                start,
                stop,
                room,
                arriving,
                d_rates,
                dx,
                ddt,
                dB,
                dC,
                inside,
                channel,
                channels,
                STATES,
                BLOCK,
                CHANNELS,
                HAS_SKIP,
            )
            tl.debug_barrier()  # all reads of `room` must be done before the next chunk's writes
        tl.store(dstate + at_sequence, arriving, mask=mask)
        tl.store(dA + at_sequence, d_rates, mask=mask)


class _Scan(torch.autograd.Function):
    """See `runnel.ops.selective_scan`; cu (S+1,) int64 on the CPU."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None,
        cu: Tensor,
        state: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, dt, A, B, C, D, cu, state)
        ctx.set_materialize_grads(False)
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        end = copy_state(state, x.device, cu.numel() - 1, *A.shape)
        if not y.numel():
            return y, end
        chunks = GpuChunks.of(cu, _CHUNK, x.device)
        inputs, sizes = _inputs(x, dt, A, B, C)
        skip = None if D is None else D.detach().float().contiguous()
        with on_device_of(x):
            # If every sequence is one chunk, the states before the chunks are the start states.
            entering = _entering(inputs, sizes, chunks, end) if chunks.most > 1 else None
            grid = chunks.count, triton.cdiv(x.shape[1], _CHANNELS)
            outputs[grid](
                *inputs,
                chunks.table,
                chunks.first,
                chunks.count,
                entering,
                end,
                skip,
                y,
                **sizes,
                CHANNELS=_CHANNELS,
                HAS_SKIP=skip is not None,
                HAS_ENTERING=entering is not None,
                num_warps=1,
            )
        return y, end

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor | None, dend: Tensor | None) -> tuple[Tensor | None, ...]:
        x, dt, A, B, C, D, cu, state = ctx.saved_tensors
        sequences = cu.numel() - 1
        dy = torch.zeros(x.shape, dtype=x.dtype, device=x.device) if dy is None else dy
        dx, ddt = (torch.empty(x.shape, dtype=like.dtype, device=x.device) for like in (x, dt))
        dB, dC = torch.zeros(2, x.shape[0], A.shape[1], device=x.device)
        dA = torch.zeros(sequences, *A.shape, device=x.device)
        dstate = (
            torch.zeros(dA.shape, device=x.device)
            if dend is None
            else dend.detach().float().clone()
        )
        if dx.numel():
            chunks = GpuChunks.of(cu, _SHORT, x.device)
            inputs, sizes = _inputs(x, dt, A, B, C)
            skip = None if D is None else D.detach().float().contiguous()
            programs = min(_PROGRAMS, sequences * triton.cdiv(x.shape[1], _CHANNELS))
            room = torch.empty(programs, _SHORT, _CHANNELS, sizes["BLOCK"], device=x.device)
            with on_device_of(x):
                entering = _entering(
                    inputs, sizes, chunks, copy_state(state, x.device, sequences, *A.shape)
                )
                backward[(programs,)](
                    *inputs,
                    *rows(dy),
                    chunks.table,
                    chunks.first,
                    chunks.count,
                    sequences,
                    entering,
                    skip,
                    room,
                    dx,
                    ddt,
                    dA,
                    dB,
                    dC,
                    dstate,
                    **sizes,
                    CHANNELS=_CHANNELS,
                    TOKENS=_SHORT,
                    HAS_SKIP=skip is not None,
                    num_warps=1,
                )
        dD = None if D is None else (dy.float() * x.float()).sum(0).to(D.dtype)
        dA = dA.sum(0).to(A.dtype)
        dB = dB.to(B.dtype)
        dC = dC.to(C.dtype)
        return dx, ddt, dA, dB, dC, dD, None, None if state is None else dstate.to(state.dtype)


selective_scan_gpu = _Scan.apply


def _inputs(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor
) -> tuple[tuple[Any, ...], dict[str, int]]:
    """Return the first arguments of the kernels, and their sizes."""
    arguments = (*rows(x), *rows(dt), A.detach().float().contiguous(), *rows(B), *rows(C))
    return arguments, {
        "channels": x.shape[1],
        "STATES": A.shape[1],
        "BLOCK": power_of_two(A.shape[1]),
    }


def _entering(
    inputs: tuple[Any, ...], sizes: dict[str, int], chunks: GpuChunks, start: Tensor
) -> Tensor:
    """Return the state (N, Di, n) before each chunk; start (S, Di, n)."""
    channels = sizes["channels"]
    states = torch.empty(chunks.count, *start.shape[1:], device=start.device)
    totals = torch.empty(chunks.count, channels, device=start.device)
    blocks = triton.cdiv(channels, _CHANNELS)
    chunk_sums[(chunks.count, blocks)](
        *inputs,
        chunks.table,
        chunks.count,
        states,
        totals,
        **sizes,
        CHANNELS=_CHANNELS,
        num_warps=1,
    )
    # inputs[4]: A
    join[(start.shape[0], blocks)](
        inputs[4], chunks.first, start, states, totals, **sizes, CHANNELS=_CHANNELS, num_warps=1
    )
    return states
