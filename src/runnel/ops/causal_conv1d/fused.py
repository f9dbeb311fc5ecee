"""Causal depthwise convolution and SiLU in the fused kernels of Mamba-1 and Mamba-2.

w  conv width
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from runnel.ops import simd
from runnel.ops.numba_math import SERIAL, Pointer
from runnel.ops.simd import LANES, load_some, number, shift, store

ZERO = np.float32(0.0)


@intrinsic
def conv_silu(
    typing_context: Any,
    source: Any,
    source_stride: Any,
    history: Any,
    history_stride: Any,
    weights: Any,
    weights_stride: Any,
    target: Any,
    target_stride: Any,
    tokens: Any,
    taps: Any,
) -> Any:
    """target[t] = silu(bias + sum over k of weight[k] * input[t - (w-1) + k]) for `tokens` tokens
    of sixteen channels.

    `source` points to fp32 or bf16, the others to fp32; strides are between rows. `history` has w-1
    rows: the inputs before the first token, oldest first. `weights` has w rows, then the bias.
    `taps` is any tuple of w integers.
    """
    width = len(taps)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        def load(pointer: int, row: Any) -> Any:
            at = builder.mul(values[pointer + 1], row)
            return simd.build_load(builder, signature.args[pointer], values[pointer], at)

        weight = [load(4, ir.Constant(simd.I64, k)) for k in range(width + 1)]
        inputs = [cgutils.alloca_once(builder, simd.VF32) for _ in range(width - 1)]
        for k, slot in enumerate(inputs):
            builder.store(load(2, ir.Constant(simd.I64, k)), slot)
        with cgutils.for_range(builder, values[8]) as loop:
            window = [builder.load(slot) for slot in inputs] + [load(0, loop.index)]
            result = weight[width]
            for w, x in zip(weight, window, strict=False):  # the bias has no input
                result = simd.build_fma(builder, w, x, result)
            at = builder.mul(values[7], loop.index)
            simd.build_store(builder, target, values[6], at, simd.build_silu(builder, result))
            for slot, x in zip(inputs, window[1:], strict=True):
                builder.store(x, slot)
        return context.get_dummy_value()

    memory = [t for pointer in (source, history, weights, target) for t in (pointer, types.intp)]
    return types.none(*memory, types.intp, taps), generate


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
    """The `back` inputs of the conv before `source`: rows of it, or of the conv state `old` (width,
    back), or zeros.
    """
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
    w: Pointer,
    w_stride: int,
    taps: tuple[int, ...],
    out: Pointer,
    out_stride: int,
) -> None:
    """conv + SiLU of `width` channels into rows `out_stride` apart. `past`: from `history`, and
    CHUNK LANES numbers behind it.
    """
    stage = shift(past, (len(taps) - 1) * padded)
    for c in range(0, padded, LANES):
        if width - c >= LANES:
            conv_silu(
                shift(source, c),
                stride,
                shift(past, c),
                padded,
                shift(w, c),
                w_stride,
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
                shift(w, c),
                w_stride,
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
    """The conv state after a sequence of `length` tokens; `source`: its first. `old` and `out` may
    be the same memory.
    """
    for c in range(width):
        for k in range(back):
            t = length - back + k
            if t >= 0:
                out[c * back + k] = number(source, t * stride + c)
            else:
                out[c * back + k] = old[c * back + k + length] if known else ZERO
