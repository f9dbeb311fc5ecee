"""Causal depthwise convolution and SiLU in the fused kernels of Mamba-1 and Mamba-2.

For some channels and tokens of a sequence, a kernel calls `history`, which collects the w-1 inputs
before the tokens, and then `convolve`, which runs `conv_silu` for sixteen channels at a time. At
the end of the sequence, `keep_inputs` writes the next conv state: the last w-1 inputs of each
channel.

    w  the number of taps, weights of a channel      LANES  16 channels, one vector

    out[t] = silu(bias + sum over k < w of weight[k] * input[t - (w-1) + k])        for each channel

`back` is w - 1, `width` the number of channels and `padded` this number rounded up to whole
vectors. `weights` has a row for each tap, then a row of biases, with a number for each channel.
Arrays are pointers here (`simd`); a stride is the distance between rows, in numbers.
"""

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.typing import Context
from numba.extending import intrinsic

from runnel.ops import simd
from runnel.ops.numba_math import SERIAL, Definition, Pointer, emitting
from runnel.ops.simd import LANES, load_some, number, shift, store

ZERO = np.float32(0.0)


@intrinsic
def conv_silu(
    typing_context: Context,
    source: types.Type,
    source_stride: types.Type,
    history: types.Type,
    history_stride: types.Type,
    weights: types.Type,
    weights_stride: types.Type,
    target: types.Type,
    target_stride: types.Type,
    tokens: types.Type,
    taps: types.Type,
) -> Definition:
    """Set target[t] = silu(bias + sum over k of weight[k] * input[t - (w-1) + k]) for `tokens`
    tokens of sixteen channels.

    `source` points to fp32 or bf16, the others to fp32; strides are between rows. `history` has w-1
    rows: the inputs before the first token, oldest first. `weights` has w rows, then the bias.
    `taps` is any tuple of w integers, of which only the length is used: it is known when the code
    is compiled, so that the loop over taps is unrolled.
    """
    taps_count = len(taps)

    # `source_` is the value of the argument whose numba type is `source`; so are the others
    def build(
        builder: ir.IRBuilder,
        source_: ir.Value,
        source_stride: ir.Value,
        history_: ir.Value,
        history_stride: ir.Value,
        weights_: ir.Value,
        weights_stride: ir.Value,
        target_: ir.Value,
        target_stride: ir.Value,
        tokens: ir.Value,
        _: ir.Value,
    ) -> None:
        def load(kind: types.Type, base: ir.Value, stride: ir.Value, row: ir.Value) -> ir.Value:
            return simd.build_load(builder, kind, base, builder.mul(stride, row))

        rows = [ir.Constant(simd.I64, k) for k in range(taps_count + 1)]
        weight = [load(weights, weights_, weights_stride, row) for row in rows]
        inputs = [cgutils.alloca_once(builder, simd.VF32) for _ in range(taps_count - 1)]
        for row, slot in zip(rows, inputs, strict=False):  # the first w-1 rows
            builder.store(load(history, history_, history_stride, row), slot)
        with cgutils.for_range(builder, tokens) as loop:
            window = [builder.load(slot) for slot in inputs]
            window.append(load(source, source_, source_stride, loop.index))
            result = weight[taps_count]  # the bias
            for factor, x in zip(weight, window, strict=False):  # the bias has no input
                result = simd.build_fma(builder, factor, x, result)
            at = builder.mul(target_stride, loop.index)
            simd.build_store(builder, target, target_, at, simd.build_silu(builder, result))
            for slot, x in zip(inputs, window[1:], strict=True):
                builder.store(x, slot)

    memory = [t for pointer in (source, history, weights, target) for t in (pointer, types.intp)]
    return types.none(*memory, types.intp, taps), emitting(build)


@njit(**SERIAL)
def history(
    source: Pointer,
    stride: int,
    width: int,
    padded: int,
    before: int,
    back: int,
    old: Pointer,
    known: bool,
    out: Pointer,
) -> None:
    """Write to `out` the `back` inputs before the token that `source` points to.

    Args:
        source: a token's row of `width` channels; rows are `stride` apart.
        padded: the distance between rows of `out`.
        before: how many tokens of the sequence come before it. Inputs from before the sequence come
            from its conv state `old` (width, back), newest last, or are zeros unless `known`.
    """
    # Row k is the input of token before - back + k of the sequence; a negative token is in `old`,
    # at place before + k of its channel.
    for k in range(back):
        if before + k >= back:
            for c in range(0, padded, LANES):
                store(out, k * padded + c, load_some(source, (k - back) * stride + c, width - c))
        else:
            for c in range(padded):
                out[k * padded + c] = old[c * back + before + k] if known and c < width else ZERO


@njit(**SERIAL)
def convolve(
    source: Pointer,
    stride: int,
    width: int,
    padded: int,
    tokens: int,
    past: Pointer,
    weights: Pointer,
    weights_stride: int,
    taps: tuple[int, ...],
    out: Pointer,
    out_stride: int,
) -> None:
    """Write conv + SiLU of `width` channels to rows `out_stride` apart.

    Args:
        past: the inputs from `history`, and after them scratch of LANES numbers for each token.
        weights, taps: as of `conv_silu`, for all channels.
    """
    # `conv_silu` reads whole vectors: the inputs of an incomplete last one are copied to `stage`
    stage = shift(past, (len(taps) - 1) * padded)
    for c in range(0, padded, LANES):
        if width - c >= LANES:
            conv_silu(
                shift(source, c),
                stride,
                shift(past, c),
                padded,
                shift(weights, c),
                weights_stride,
                shift(out, c),
                out_stride,
                tokens,
                taps,
            )
        else:
            for t in range(tokens):
                store(stage, t * LANES, load_some(source, t * stride + c, width - c))
            conv_silu(
                stage,
                LANES,
                shift(past, c),
                padded,
                shift(weights, c),
                weights_stride,
                shift(out, c),
                out_stride,
                tokens,
                taps,
            )


@njit(**SERIAL)
def keep_inputs(
    source: Pointer,
    stride: int,
    width: int,
    length: int,
    back: int,
    old: Pointer,
    known: bool,
    out: Pointer,
) -> None:
    """Write to `out` (width, back) the conv state after a sequence of `length` tokens. `source`:
    its first token. `old`: the state before it, if `known`; it may be the same memory as `out`,
    because a number is read before its place is written.
    """
    for c in range(width):
        for k in range(back):
            t = length - back + k
            if t >= 0:
                out[c * back + k] = number(source, t * stride + c)
            else:
                out[c * back + k] = old[c * back + k + length] if known else ZERO
