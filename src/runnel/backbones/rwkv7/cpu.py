"""RWKV-7 inference on the CPU: the order of a step, its memory, and its weights as the kernels read
them. The numbers between matrix products are made by the fused kernels of `kernels.py`, whose
header has the equations. `cpu_step.py` has what all families share.

    T  tokens      D  hidden_size      F  ffn_size
    Rw  the ranks of the four low-rank pairs of a layer, laid end to end (see `low`)

`residual` (T, D) is the residual stream in fp32, updated in place. `out` (T, D) is what the next
kernel adds to it, zero before the first layer. A layer is these calls in order; kernels are named
as in `kernels.py`, products in brackets:

    add_norm_shift     residual += out; norm; mix each token with the one before it: x_r, x_k and
                       x_v for the products, and through the small "down" matrices `low`
    [receptance]       x_r -> r
    [key]              x_k -> k
    [value]            x_v -> v; in the first layer -> v_first, which every later layer mixes in
    mix_heads          r, k, v and `low` -> the recurrence, norm and gate of each head: gated
    [output]           gated -> out
    add_norm_shift     residual += out; norm; mix: x_k of the feed-forward part alone
    [ffn_key]          x_k -> middle
    square_relu        middle -> squared
    [ffn_value]        squared -> out

and after the last layer `add_norm`: the norm of residual + out.

Four more results of a token come from low-rank pairs, a "down" matrix (rank, D) and an "up" matrix
(D, rank): the share of `v_first` in v (pair v, not in the first layer), the decay w, the gate of
the state's updates a, and the output's gate g. `low` (T, Rw) holds what the four down matrices
give, side by side in the order v, w, a, g; `mix_heads` multiplies by the up matrices. Each rank is
rounded up to whole *panels*: TILE_COLUMNS outputs of a matrix product, the width that the kernels
compute at a time.

The mixes x_w, x_a and x_g, and x_v for pair v, are made, multiplied by a down matrix and not kept.
`kernels.R_K_V` and `FFN_K` say which mixes a call of `add_norm_shift` keeps, `V_W_A_G` and
`NO_PAIRS` which pairs it computes; the first layer has pair v with a rank of 0. The kernels of
whole blocks and heads take their work from the counter `buffers.tasks`; the others need none.

The *shift weights* of a layer are its norm and the learned weights of the token before, one for
each mix; x_r and the others are the *mixed inputs*, which they make.

The activations of a layer share four slots of memory, T D numbers each; `low`, `out` and `v_first`
have memory of their own. What is in the slots after each call:

    after             slot 0      slot 1    slot 2    slot 3
    add_norm_shift    x_r         x_k       x_v
    receptance        x_r         x_k       x_v       r
    key               k           x_k       x_v       r
    value             k           v         x_v       r          (in layer 0, v is `v_first`)
    mix_heads         k           v                   gated      over r, head by head
    add_norm_shift    x_k                                        of the feed-forward part
    ffn_key           x_k         middle (T, F), in slot 1 and the memory after it
    square_relu       x_k         middle squared, in place: `squared`

In 8 bits the inputs of products are bytes in one more piece of memory, which they share because
each is used up before the next is made: x_r, x_k and x_v, then gated, then the feed-forward part's
x_k, then squared.
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
    att_shift_weights: ShiftWeights  # of the first add_norm_shift
    low_rank: LowRank  # the matrices of the four pairs
    heads: HeadWeights  # the small weights of mix_heads
    ffn_shift_weights: ShiftWeights  # of the second


class _Work(NamedTuple):
    """The activations of one step; the module's docstring says which of them share memory.

    Each is an `Activations`: `tensor` for torch's products, `array`, the same memory for kernels,
    and in 8 bits `scale`, the scales of its bytes. Numbers are in the weights' dtype; if the
    weights are 8 bits, in the dtype of the low-rank pairs.
    """

    out: Activations  # (T, D), what is added to the residual stream next
    v_first: Activations  # (T, D), v of the first layer
    r: Activations  # (T, D)
    k: Activations  # (T, D)
    v: Activations  # (T, D)
    middle: Activations  # (T, F), the output of ffn.key
    # (T + TILE_ROWS, Rw), outputs of the down matrices; the kernels read whole tiles of rows
    low: Activations
    # (3, T, D), x_r, x_k and x_v; x_r's memory also takes x_k of the feed-forward part
    mixed: Activations
    gated: Activations  # (T, D), the input of `output`, each head a group in 8 bits
    squared: Activations  # (T, F), the input of ffn.value


class Rwkv7Cpu(CpuStep):
    """The fast step of RWKV-7, for linear layers that are all fp32, all bf16, or in 8 bits except
    for the low-rank pairs.
    """

    def __init__(self, model: Rwkv7) -> None:
        first = model.blocks[0].att
        # The dtype of `output` is the one of all large products. If it is 8 bits, the dtype of the
        # low-rank pairs is the one of the numbers between products.
        super().__init__(model, first.output, first.w_down.weight.dtype)
        c = self._config = model.config
        self._groups = count_groups(c.ffn_size, _GROUP)  # of the inputs of ffn.value, in 8 bits
        self._shape = Shape(c.num_heads, c.head_size, c.group_norm_eps)
        self._layers = [self._layer(layer) for layer in model.blocks]
        # Rw: `first_panel` ends with the number of panels. All layers but the first, which lacks
        # the pair v, have the same.
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
        # the pools of the three states of `Rwkv7.state_shapes`: the last normed token of the first
        # half of each layer, the recurrence's matrices, the last normed token of the second half
        att_shift, wkv, ffn_shift = states
        plan = plan_blocks(cu_seqlens, read_rows, write_rows)  # blocks of tokens, a task each
        # room for the token before each block (`first_sequence` has one entry per block) and before
        # each sequence
        buffers = allocate(self._memory, self._shape, len(plan.first_sequence) + len(read_rows))
        residual = hidden.numpy()
        out, mixed, gated = work.out, work.mixed, work.gated
        # tensor, array and scale of `mixed` each have a first axis of 3, which `zip` divides: x_r
        # gets the first of each, x_k the second, x_v the third
        x_r, x_k, x_v = (Activations(*views) for views in zip(*mixed, strict=True))
        att_inputs = kernels.Mixes(mixed.array, mixed.scale, work.low.array)
        ffn_inputs = kernels.Mixes(mixed.array[:1], mixed.scale[:1], work.low.array)
        out.tensor.zero_()
        for index, layer in enumerate(self._layers):
            # the next free task, a counter from which the cores take work
            buffers.tasks.fill(0)
            with parallel():
                kernels.add_norm_shift(
                    residual,
                    out.array,
                    layer.att_shift_weights,
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
                    layer.ffn_shift_weights,
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
            layer.ffn_key(x_r, work.middle)  # in the memory of x_r is now x_k of this part
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
        """Return memory for the activations of a step. Of `CpuStep`, `_tensor` gives memory of a
        name, `_numbers` such memory for the outputs of a product and `_inputs` for its inputs,
        which are bytes in 8 bits.
        """
        c = self._config
        size = tokens * c.hidden_size  # of a slot
        # four slots, or, if that is more, slot 0 and `middle` (T, F) after it
        memory = self._tensor("slots", max(4 * size, size + tokens * c.ffn_size), dtype=self._dtype)
        slots = memory[: 4 * size].view(4, tokens, c.hidden_size)
        middle = Activations.of(memory[size : size + tokens * c.ffn_size].view(tokens, c.ffn_size))
        if self._int8:
            # bytes: one name is one memory, which these share on purpose
            squared = self._inputs("inputs", tokens, c.ffn_size, self._groups)
            gated = self._inputs("inputs", tokens, c.hidden_size, c.num_heads)
            three = self._inputs("inputs", 3 * tokens, c.hidden_size)
            x = three.tensor.view(3, tokens, three.tensor.shape[1])
            mixed = Activations(x, x.numpy(), three.scale.reshape(3, tokens, 1))
        else:
            squared = middle
            gated = Activations.of(slots[3])
            mixed = Activations(
                slots[:3], as_array(slots[:3]), np.empty((3, tokens, 0), np.float32)
            )
        return _Work(
            out=self._outputs("out", tokens, c.hidden_size),
            v_first=self._outputs("v_first", tokens, c.hidden_size),
            r=Activations.of(slots[3]),
            k=Activations.of(slots[0]),
            v=Activations.of(slots[1]),
            middle=middle,
            low=self._outputs("low", tokens + TILE_ROWS, self._ranks),
            mixed=mixed,
            gated=gated,
            squared=squared,
        )

    def _layer(self, layer: Rwkv7Layer) -> _Layer:
        """Return a layer's weights as the step needs them; `_product(linear, groups)` of `CpuStep`
        makes a product whose inputs have as many scales in 8 bits.
        """
        att, shape = layer.att, self._shape
        # v0 is the bias of the pair v, which the first layer lacks; there w0, of the same shape,
        # stands in and is not read
        v0 = att.w0 if att.first else att.v0
        pairs = [] if att.first else [(att.v_down, att.v_up)]
        pairs += [(att.w_down, att.w_up), (att.a_down, att.a_up), (att.g_down, att.g_up)]
        downs, ups = ([pair[i].weight.detach() for pair in pairs] for i in range(2))
        # in the order of `HeadWeights`
        small = (att.w0, att.a0, v0, att.k_k, att.k_a, att.r_k, att.ln_x.weight, att.ln_x.bias)
        return _Layer(
            receptance=self._product(att.receptance),
            key=self._product(att.key),
            value=self._product(att.value),
            output=self._product(att.output, shape.heads),
            ffn_key=self._product(layer.ffn.key),
            ffn_value=self._product(layer.ffn.value, self._groups),
            # the weights of the token before, in the order of `ShiftWeights`
            att_shift_weights=_shift_weights(
                layer.norm_att, att.x_r, att.x_k, att.x_v, att.x_w, att.x_a, att.x_g
            ),
            low_rank=pack_low_rank(downs, ups, shape),
            heads=HeadWeights(*(pad_heads(float_array(weight), shape) for weight in small)),
            ffn_shift_weights=_shift_weights(layer.norm_ffn, layer.ffn.x_k),
        )


def _shift_weights(norm: LayerNorm, *before: Tensor) -> ShiftWeights:
    """Return a norm with the weights (D,) of the token before in each mix that follows it; the last
    norm of the model has none.
    """
    stacked = (
        torch.stack([weight.detach() for weight in before])
        if before
        else torch.zeros(0, norm.weight.numel())
    )
    return ShiftWeights(*(pad_columns(float_array(t)) for t in (norm.weight, norm.bias, stacked)))
