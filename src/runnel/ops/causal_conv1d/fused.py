"""Causal depthwise convolution and SiLU of sixteen channels, for kernels that continue with the result in cache.

    w  conv width
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from runnel.ops import simd


@intrinsic  # type: ignore[untyped-decorator]
def conv_silu(
    typing_context: Any,
    source: Any,
    source_at: Any,
    source_stride: Any,
    history: Any,
    history_at: Any,
    history_stride: Any,
    weights: Any,
    weights_at: Any,
    weights_stride: Any,
    target: Any,
    target_at: Any,
    target_stride: Any,
    tokens: Any,
    taps: Any,
) -> Any:
    """target[t] = silu(bias + sum over k of weight[k] * input[t - (w-1) + k]) for `tokens` tokens of sixteen channels.

    `source` is fp32 or bf16, everything else fp32. `history` has w-1 rows: the inputs before the first token, oldest first.
    `weights` has w rows and the bias as one more. `taps` is any tuple of w integers.
    """
    width = len(taps)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        def place(pointer: int, index: Any) -> Any:
            return builder.add(values[pointer + 1], builder.mul(values[pointer + 2], index))

        def row(pointer: int, index: int) -> Any:
            return simd.build_load(builder, signature.args[pointer], values[pointer], place(pointer, ir.Constant(ir.IntType(64), index)))

        weight = [row(6, k) for k in range(width + 1)]
        inputs = [cgutils.alloca_once(builder, weight[0].type) for _ in range(width - 1)]
        for k, slot in enumerate(inputs):
            builder.store(row(3, k), slot)
        with cgutils.for_range(builder, values[12]) as loop:
            window = [builder.load(slot) for slot in inputs]
            window.append(simd.build_load(builder, source, values[0], place(0, loop.index)))
            result = weight[width]
            for w, x in zip(weight, window, strict=False):
                result = simd.build_fma(builder, w, x, result)
            simd.build_store(builder, target, values[9], place(9, loop.index), simd.build_silu(builder, result))
            for slot, x in zip(inputs, window[1:], strict=True):
                builder.store(x, slot)
        return context.get_dummy_value()

    offset = types.intp
    memory = [t for pointer in (source, history, weights, target) for t in (pointer, offset, offset)]
    return types.none(*memory, offset, taps), generate
