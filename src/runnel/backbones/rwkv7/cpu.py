"""RWKV-7 inference on the CPU: matrix products, and everything between them in the fused kernels of
`kernels.py`, whose header has the equations and the order of a layer.

T  tokens      D  hidden_size      F  ffn_size      Rw  all low ranks together, see `kernels.py`

The activations of a layer share four slots of memory, T D numbers each. What is in them after each
call, with x_r, x_k and x_v the inputs of the products of these names:

    after             slot 0      slot 1    slot 2    slot 3
    add_norm_shift    x_r         x_k       x_v
    receptance        x_r         x_k       x_v       r
    key               k           x_k       x_v       r
    value             k           v         x_v       r          (in layer 0, v is `v_first`)
    mix_heads         k           v                   gated      the input of `output`
    add_norm_shift    x_k                                        of the feed-forward part
    ffn_key           x_k         middle (T, F), in slot 1 and the memory after it
    square_relu       x_k         middle squared, in place

In 8 bits the inputs of products are bytes in memory of their own: x_r, x_k, x_v, then gated, then
the feed-forward part's x_k, then squared.
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
    att_mixes: ShiftWeights
    low_rank: LowRank
    heads: HeadWeights
    ffn_mixes: ShiftWeights


class _Work(NamedTuple):
    """The activations of one step. Numbers are in the weights' dtype; if the weights are 8 bits, in
    the dtype of the low-rank pairs. The module's docstring says which of them share memory.
    """

    out: Activations  # (T, D), what is added to the residual stream next
    v_first: Activations  # (T, D), v of the first layer
    r: Activations  # (T, D)
    k: Activations  # (T, D)
    v: Activations  # (T, D)
    middle: Activations  # (T, F), the output of ffn.key
    # (T + TILE_ROWS, Rw), the low-rank activations; the kernels read whole tiles of rows
    low: Activations
    mixes: Activations  # (3, T, D), x_r, x_k and x_v; the first is also the input of ffn.key
    gated: Activations  # (T, D), the input of `output`, each head a group in 8 bits
    squared: Activations  # (T, F), the input of ffn.value


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
        self._ranks = int(self._layers[-1].low_rank.first_panel[-1]) * TILE_COLUMNS
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
        att_shift, wkv, ffn_shift = states  # as in `Rwkv7.state_shapes`
        plan = plan_blocks(cu_seqlens, read_rows, write_rows)
        buffers = allocate(self._memory, self._shape, len(plan.first_sequence) + len(read_rows))
        residual = hidden.numpy()
        out, mixes, gated = work.out, work.mixes, work.gated
        x_r, x_k, x_v = (Activations(*parts) for parts in zip(*mixes, strict=True))
        att_inputs = kernels.Mixes(mixes.array, mixes.scale, work.low.array)
        ffn_inputs = kernels.Mixes(mixes.array[:1], mixes.scale[:1], work.low.array)
        out.tensor.zero_()
        for index, layer in enumerate(self._layers):
            buffers.tasks.fill(0)
            with parallel():
                kernels.add_norm_shift(
                    residual,
                    out.array,
                    layer.att_mixes,
                    eps,
                    kernels.R_K_V,
                    att_shift,
                    index,
                    plan,
                    buffers,
                    att_inputs,
                    kernels.V_W_A_G,
                    layer.low_rank,
                )
            v = work.v_first if index == 0 else work.v
            # in this order: k is written over x_r, and v over x_k
            layer.receptance(x_r, work.r)
            layer.key(x_k, work.k)
            layer.value(x_v, v)
            products = kernels.Products(
                r=work.r.array,
                k=work.k.array,
                v=v.array,
                v_first=work.v_first.array,
                low=work.low.array,
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
                    layer.ffn_mixes,
                    eps,
                    kernels.FFN_K,
                    ffn_shift,
                    index,
                    plan,
                    buffers,
                    ffn_inputs,
                    kernels.NO_PAIRS,
                    layer.low_rank,
                )
            layer.ffn_key(x_r, work.middle)  # x_r is now the only mix, x_k of this part
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
        size = tokens * c.hidden_size  # of a slot
        # four slots, or slot 0 and `middle`
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
            r=Activations.of(slots[3]),
            k=Activations.of(slots[0]),
            v=Activations.of(slots[1]),
            middle=middle,
            low=self._numbers("low", tokens + TILE_ROWS, self._ranks),
            mixes=mixes,
            gated=gated,
            squared=squared,
        )

    def _layer(self, layer: Rwkv7Layer) -> _Layer:
        att, shape = layer.att, self._shape
        v0 = att.w0 if att.first else att.v0  # not read in the first layer: only of v0's shape
        pairs = [] if att.first else [(att.v_down, att.v_up)]
        pairs += [(att.w_down, att.w_up), (att.a_down, att.a_up), (att.g_down, att.g_up)]
        downs, ups = ([pair[i].weight.detach() for pair in pairs] for i in range(2))
        # in the order of `HeadWeights`
        small = (att.w0, att.a0, v0, att.k_k, att.k_a, att.r_k, att.ln_x.weight, att.ln_x.bias)
        mixes = (att.x_r, att.x_k, att.x_v, att.x_w, att.x_a, att.x_g)
        return _Layer(
            receptance=self._product(att.receptance),
            key=self._product(att.key),
            value=self._product(att.value),
            output=self._product(att.output, shape.heads),
            ffn_key=self._product(layer.ffn.key),
            ffn_value=self._product(layer.ffn.value, self._groups),
            att_mixes=_shift_weights(layer.norm_att, *mixes),
            low_rank=pack_low_rank(downs, ups, shape),
            heads=HeadWeights(*(pad_heads(float_array(weight), shape) for weight in small)),
            ffn_mixes=_shift_weights(layer.norm_ffn, layer.ffn.x_k),
        )


def _shift_weights(norm: LayerNorm, *mixes: Tensor) -> ShiftWeights:
    """Return a norm with the mixes that follow it; none after the last norm of the model."""
    stacked = (
        torch.stack([mix.detach() for mix in mixes])
        if mixes
        else torch.zeros(0, norm.weight.numel())
    )
    return ShiftWeights(*(pad_columns(float_array(t)) for t in (norm.weight, norm.bias, stacked)))
