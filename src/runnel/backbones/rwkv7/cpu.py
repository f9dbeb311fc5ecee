"""RWKV-7 inference on the CPU: matrix products, and everything between them in the fused kernels of
`kernels.py`, whose header has the order of a layer.

T  tokens      D  hidden_size      F  ffn_size      Rw  all low ranks together, see `kernels.py`
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from runnel.backbones.cpu_step import Activations, CpuStep, Floats, Indices, Product
from runnel.backbones.layers import LayerNorm
from runnel.backbones.rwkv7 import kernels
from runnel.backbones.rwkv7.kernels import (
    HeadWeights,
    LowRank,
    Shape,
    ShiftWeights,
    allocate,
    pack_low_rank,
    pad_columns,
    pad_heads,
    plan_blocks,
)
from runnel.backbones.rwkv7.model import Rwkv7, Rwkv7Layer
from runnel.ops.int8_matmul import count_groups
from runnel.ops.numba_math import as_array, float_array, parallel
from runnel.ops.simd import TILE_COLUMNS, TILE_ROWS

_GROUP = 128  # inputs of an 8-bit ffn.value that share a scale, where it divides their number


class _Layer(NamedTuple):
    """One layer's weights as the step needs them; the big matrices are the model's own tensors."""

    receptance: Product
    key: Product
    value: Product
    output: Product
    ffn_key: Product
    ffn_value: Product
    att_shift: ShiftWeights
    low_rank: LowRank
    heads: HeadWeights
    ffn_shift: ShiftWeights


class _Work(NamedTuple):
    """The activations of one step. Numbers are in the weights' dtype; if the weights are 8 bits, in
    the dtype of the low-rank pairs. Several activations share memory, where one is no longer needed
    when the other is made.
    """

    out: Activations  # (T, D)
    v_first: Activations  # (T, D)
    slots: list[Activations]  # 4 of (T, D): k, v, a part of `mixes`, r
    middle: Activations  # (T, F), the output of ffn.key, in the memory of slots 1 and up
    low: Activations  # (T + TILE_ROWS, Rw), the low-rank activations
    # (3, T, D), the inputs of r, k and v; the first is also that of ffn.key. In the memory of slots
    # 0 to 2; of its own in 8 bits.
    mixes: Activations
    # (T, D), the input of `output`, each head a group in 8 bits; slot 3, or of its own in 8 bits
    gated: Activations
    squared: Activations  # (T, F), the input of ffn.value; `middle`, or of its own in 8 bits


class Rwkv7Cpu(CpuStep):
    """The fast step of RWKV-7, for linear layers that are all fp32, all bf16, or in 8 bits except
    for the low-rank pairs.
    """

    def __init__(self, model: Rwkv7) -> None:
        first = model.blocks[0].att
        super().__init__(model, first.output, first.w_down.weight.dtype)
        c = self._config = model.config
        self._groups = count_groups(c.ffn_size, _GROUP)
        self._shape = Shape(c.num_heads, c.head_size, c.group_norm_eps)
        self._layers = [self._layer(layer) for layer in model.blocks]
        self._ranks = int(self._layers[-1].low_rank.first[-1]) * TILE_COLUMNS
        self._norm_f = _shift_weights(model.norm_f)

    def _run(
        self,
        hidden: Tensor,
        states: list[Floats],
        cu_seqlens: Indices,
        read_rows: Indices,
        write_rows: Indices,
    ) -> Tensor:
        eps = self._config.norm_eps
        work = self._work(len(hidden))
        att_shift, wkv, ffn_shift = states
        plan = plan_blocks(cu_seqlens, read_rows, write_rows)
        buffers = allocate(self._memory, self._shape, len(plan.first) + len(read_rows))
        residual = hidden.numpy()
        out, slots, mixes, gated = work.out, work.slots, work.mixes, work.gated
        for_r, for_k, for_v = (Activations(*parts) for parts in zip(*mixes, strict=True))
        all_mixes = kernels.Mixes(mixes.array, mixes.scale, work.low.array)
        first_mix = kernels.Mixes(mixes.array[:1], mixes.scale[:1], work.low.array)
        out.tensor.zero_()
        for index, layer in enumerate(self._layers):
            buffers.tasks.fill(0)
            with parallel():
                kernels.add_norm_shift(
                    residual,
                    out.array,
                    layer.att_shift,
                    eps,
                    (0, 1, 2),
                    att_shift,
                    index,
                    plan,
                    buffers,
                    all_mixes,
                    (0, 1, 2, 3),
                    layer.low_rank,
                )
            value = work.v_first if index == 0 else slots[1]
            layer.receptance(for_r, slots[3])
            layer.key(for_k, slots[0])
            layer.value(for_v, value)
            products = kernels.Products(
                *(x.array for x in (slots[3], slots[0], value, work.v_first, work.low))
            )
            buffers.tasks.fill(0)
            with parallel():
                kernels.mix_heads(
                    products,
                    gated.array,
                    gated.scale,
                    index,
                    wkv,
                    self._shape,
                    layer.heads,
                    layer.low_rank,
                    plan,
                    buffers,
                )
            layer.output(gated, out)
            buffers.tasks.fill(0)
            with parallel():
                kernels.add_norm_shift(
                    residual,
                    out.array,
                    layer.ffn_shift,
                    eps,
                    (0,),
                    ffn_shift,
                    index,
                    plan,
                    buffers,
                    first_mix,
                    (),
                    layer.low_rank,
                )
            layer.ffn_key(for_r, work.middle)
            with parallel():
                scratch = self._memory.scratch("squared", self._config.ffn_size)
                kernels.square_relu(
                    work.middle.array, work.squared.array, work.squared.scale, scratch
                )
            layer.ffn_value(work.squared, out)
        end = torch.empty_like(hidden)
        with parallel():
            scratch = self._memory.scratch("normed", self._config.hidden_size)
            kernels.add_norm(residual, out.array, self._norm_f, eps, end.numpy(), scratch)
        return end

    def _work(self, tokens: int) -> _Work:
        """Return memory for the activations of a step."""
        c = self._config
        size = tokens * c.hidden_size
        memory = self._tensor("slots", max(4 * size, size + tokens * c.ffn_size), dtype=self._dtype)
        slots = memory[: 4 * size].view(4, tokens, c.hidden_size)
        middle = Activations.of(memory[size : size + tokens * c.ffn_size].view(tokens, c.ffn_size))
        if self._int8:
            squared = self._inputs("inputs", tokens, c.ffn_size, self._groups)
            gated = self._inputs("inputs", tokens, c.hidden_size, c.num_heads)
            three = self._inputs("inputs", 3 * tokens, c.hidden_size)
            x = three.tensor.view(3, tokens, three.tensor.shape[1])
            mixes = Activations(x, x.numpy(), three.scale.reshape(3, tokens, 1))
        else:
            squared = middle
            gated = Activations.of(slots[3])
            mixes = Activations(
                slots[:3], as_array(slots[:3]), np.empty((3, tokens, 0), np.float32)
            )
        return _Work(
            out=self._numbers("out", tokens, c.hidden_size),
            v_first=self._numbers("v_first", tokens, c.hidden_size),
            slots=[Activations.of(slot) for slot in slots],
            middle=middle,
            low=self._numbers("low", tokens + TILE_ROWS, self._ranks),
            mixes=mixes,
            gated=gated,
            squared=squared,
        )

    def _layer(self, layer: Rwkv7Layer) -> _Layer:
        att, shape = layer.att, self._shape
        v0 = att.w0 if att.first else att.v0
        pairs = [] if att.first else [(att.v_down, att.v_up)]
        pairs += [(att.w_down, att.w_up), (att.a_down, att.a_up), (att.g_down, att.g_up)]
        downs, ups = ([pair[i].weight.detach() for pair in pairs] for i in range(2))
        small = (att.w0, att.a0, v0, att.k_k, att.k_a, att.r_k, att.ln_x.weight, att.ln_x.bias)
        return _Layer(
            self._product(att.receptance),
            self._product(att.key),
            self._product(att.value),
            self._product(att.output, shape.heads),
            self._product(layer.ffn.key),
            self._product(layer.ffn.value, self._groups),
            _shift_weights(layer.norm_att, att.x_r, att.x_k, att.x_v, att.x_w, att.x_a, att.x_g),
            pack_low_rank(downs, ups, shape),
            HeadWeights(*(pad_heads(float_array(weight), shape) for weight in small)),
            _shift_weights(layer.norm_ffn, layer.ffn.x_k),
        )


def _shift_weights(norm: LayerNorm, *mixes: Tensor) -> ShiftWeights:
    stacked = (
        torch.stack([mix.detach() for mix in mixes])
        if mixes
        else torch.zeros(0, norm.weight.numel())
    )
    return ShiftWeights(*(pad_columns(float_array(t)) for t in (norm.weight, norm.bias, stacked)))
