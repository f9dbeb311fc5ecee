"""Causal depthwise convolution and SiLU of sixteen channels, for kernels that use the result from cache.

w  conv width
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from runnel.ops import simd


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
    """target[t] = silu(bias + sum over k of weight[k] * input[t - (w-1) + k]) for `tokens` tokens of sixteen channels.

    `source` points to fp32 or bf16, the others to fp32; strides are between rows. `history` has w-1 rows: the inputs before the
    first token, oldest first. `weights` has w rows, then the bias. `taps` is any tuple of w integers.
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
