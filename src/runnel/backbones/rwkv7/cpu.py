"""RWKV-7 inference on the CPU: matrix products and the fused kernels of `kernels` and `shift_kernels` between them.

The products are torch's in fp32 and bf16, and `ops.int8_matmul`'s in 8 bits, whose inputs the kernels write as bytes.

T  tokens    S  sequences    D  hidden_size    F  ffn_size    H  heads    G  groups of 8-bit inputs of ffn.value
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from runnel.backbones.base import weight_dtype
from runnel.backbones.cpu_step import CpuStep, Product, count_workers, pool_arrays
from runnel.backbones.rwkv7 import kernel_plan, kernels, shift_kernels
from runnel.backbones.rwkv7.model import Rwkv7, Rwkv7Layer
from runnel.backbones.state import State
from runnel.ops.int8_matmul import bytes_per_group
from runnel.ops.numba_math import as_array, float_array, index_array, parallel
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
    att_shift: kernel_plan.ShiftWeights
    low_rank: kernel_plan.LowRank
    heads: kernel_plan.HeadWeights
    ffn_shift: kernel_plan.ShiftWeights


class _Inputs(NamedTuple):
    """What a product takes. In 8 bits the three of a step share memory, because each is used up before the next is made."""

    x: Tensor
    scale: Tensor  # fp32, (..., groups); of no numbers but in 8 bits


class _Work(NamedTuple):
    """Activations of one step."""

    residual: Tensor  # (T, D) fp32
    out: Tensor  # (T, D) in the weights' dtype, or the low-rank pairs' if these are 8 bits, as are the next four
    v_first: Tensor  # (T, D)
    slots: Tensor  # (4, T, D): r, k, v and what they are made of
    middle: Tensor  # (T, F), in the memory of slots 1 and up
    low: Tensor  # (T + TILE_ROWS, Rw)
    mixes: _Inputs  # (3, T, D): for r, k, v, or the first for ffn.key; in the memory of slots 0 to 2
    gated: _Inputs  # (T, D): for output, a head being a group; slot 3
    squared: _Inputs  # (T, F): for ffn.value; `middle`


class Rwkv7Cpu(CpuStep):
    """The `FastPath` of RWKV-7 for linear layers that are all fp32, all bf16, or 8 bits but for the low-rank pairs.

    Small weights are copied: build a new one after changing the model's. Memory grows to the largest step seen and is
    reused. Steps may be called from several threads; one runs at a time, on as many cores as torch uses.
    """

    own = ("_memory", "_bytes", "_scales", "_residual", "_buffers")

    def __init__(self, model: Rwkv7) -> None:
        super().__init__()
        c = model.config
        self._config, self._embed = c, model.embed
        first = model.blocks[0].att
        self._dtype: torch.dtype = first.w_down.weight.dtype
        self._int8 = weight_dtype(first.output) == torch.int8
        self._groups = c.inner_size // _GROUP if c.inner_size % _GROUP == 0 else 1
        self._shape = kernel_plan.Shape(c.num_heads, c.head_size, c.group_norm_eps)
        self._layers = [self._layer(layer) for layer in model.blocks]
        self._ranks = int(self._layers[-1].low_rank.first[-1]) * TILE_COLUMNS
        self._width = 2 * c.hidden_size + max(4 * c.hidden_size, c.hidden_size + c.inner_size) + self._ranks
        self._norm_f = _shift_weights(model.norm_f)
        self._memory: Tensor | None = None
        self._bytes: Tensor | None = None
        self._scales: Tensor | None = None
        self._residual: Tensor | None = None
        self._buffers: kernel_plan.Buffers | None = None

    def step(
        self, ids: Tensor, cu_seqlens: Tensor, pool: State, read_rows: Tensor, write_rows: Tensor, added: Tensor | None
    ) -> Tensor:
        """See `Backbone.step`."""
        plan = kernel_plan.plan_step(index_array(cu_seqlens), index_array(read_rows), index_array(write_rows))
        with self._lock, pool_arrays(pool, "att_shift", "wkv", "ffn_shift") as states:
            work = self._work(ids.numel())
            buffers = self._kernel_memory(len(plan.first) + len(plan.read_rows))
            work.residual.copy_(self._embed(ids))
            if added is not None:
                work.residual.add_(added)
            return self._run(work, buffers, plan, *states)

    def _run(
        self,
        work: _Work,
        buffers: kernel_plan.Buffers,
        plan: kernel_plan.Plan,
        att_shift: NDArray[np.float32],
        wkv: NDArray[np.float32],
        ffn_shift: NDArray[np.float32],
    ) -> Tensor:
        eps, slots, (mixes, mix_scales) = self._config.norm_eps, work.slots, work.mixes
        residual, out, middle, low = (as_array(t) for t in (work.residual, work.out, work.middle, work.low))
        work.out.zero_()
        for index, layer in enumerate(self._layers):
            buffers.tasks.fill(0)
            with parallel():
                shift_kernels.add_norm_shift(
                    residual, out, layer.att_shift, eps, (0, 1, 2), att_shift, index, plan, buffers,
                    as_array(mixes), mix_scales.numpy(), (0, 1, 2, 3), layer.low_rank, low,
                )  # fmt: skip
            value = work.v_first if index == 0 else slots[1]
            layer.receptance(mixes[0], mix_scales[0], slots[3])
            layer.key(mixes[1], mix_scales[1], slots[0])
            layer.value(mixes[2], mix_scales[2], value)
            products = kernels.Products(*(as_array(t) for t in (slots[3], slots[0], value, work.v_first, work.low)))
            buffers.tasks.fill(0)
            with parallel():
                kernels.mix_heads(
                    products, as_array(work.gated.x), work.gated.scale.numpy(), index, wkv, self._shape, layer.heads,
                    layer.low_rank, plan, buffers,
                )  # fmt: skip
            layer.output(*work.gated, work.out)
            buffers.tasks.fill(0)
            with parallel():
                shift_kernels.add_norm_shift(
                    residual, out, layer.ffn_shift, eps, (0,), ffn_shift, index, plan, buffers,
                    as_array(mixes[:1]), mix_scales[:1].numpy(), (), layer.low_rank, low,
                )  # fmt: skip
            layer.ffn_key(mixes[0], mix_scales[0], work.middle)
            with parallel():
                if self._int8:
                    shift_kernels.square_relu_bytes(middle, *(t.numpy() for t in work.squared))
                else:
                    shift_kernels.square_relu(middle)
            layer.ffn_value(*work.squared, work.out)
        hidden = torch.empty_like(work.residual)
        with parallel():
            shift_kernels.add_norm(residual, out, self._norm_f, eps, hidden.numpy())
        return hidden

    def _work(self, tokens: int) -> _Work:
        """Return memory for the activations of `tokens` tokens; it is kept."""
        c = self._config
        if self._residual is None or self._memory is None or len(self._residual) < tokens:
            self._residual = torch.empty(tokens, c.hidden_size)
            self._memory = torch.empty((tokens + TILE_ROWS) * self._width, dtype=self._dtype)
        one, rest = tokens * c.hidden_size, self._memory
        out, v_first, slots, middle = rest[:one], rest[one : 2 * one], rest[2 * one : 6 * one], rest[3 * one :]
        low, slots = rest[-(tokens + TILE_ROWS) * self._ranks :], slots.view(4, tokens, c.hidden_size)
        middle = middle[: tokens * c.inner_size].view(tokens, c.inner_size)
        nothing = torch.empty(3, 0, 0)
        inputs = [_Inputs(slots[:3], nothing), _Inputs(slots[3], nothing[0]), _Inputs(middle, nothing[0])]
        return _Work(
            self._residual[:tokens],
            out.view(tokens, c.hidden_size),
            v_first.view(tokens, c.hidden_size),
            slots,
            middle,
            low.view(tokens + TILE_ROWS, self._ranks),
            *(self._int8_inputs(tokens) if self._int8 else inputs),
        )

    def _int8_inputs(self, tokens: int) -> list[_Inputs]:
        """Return memory for the 8-bit `mixes`, `gated` and `squared`."""
        c = self._config
        parts = ((3, c.hidden_size, 1), (1, c.hidden_size, c.num_heads), (1, c.inner_size, self._groups))
        shapes = [(count, tokens, groups * bytes_per_group(inputs, groups)) for count, inputs, groups in parts]
        sizes = [(count, tokens, groups) for count, _, groups in parts]
        if self._bytes is None or self._scales is None or len(self._bytes) < max(map(prod, shapes)):
            self._bytes = torch.empty(max(map(prod, shapes)), dtype=torch.uint8)
            self._scales = torch.empty(max(map(prod, sizes)))
        inputs = [
            _Inputs(self._bytes[: prod(shape)].view(shape), self._scales[: prod(size)].view(size))
            for shape, size in zip(shapes, sizes, strict=True)
        ]
        return [inputs[0], *(_Inputs(x[0], scale[0]) for x, scale in inputs[1:])]

    def _kernel_memory(self, rows: int) -> kernel_plan.Buffers:
        workers = count_workers()
        if self._buffers is None or len(self._buffers.before) < rows or len(self._buffers.scratch) != workers:
            self._buffers = kernel_plan.allocate(self._shape, rows, workers)
        return self._buffers

    def _layer(self, layer: Rwkv7Layer) -> _Layer:
        att, shape = layer.att, self._shape
        v0 = att.w0 if att.first else att.v0
        pairs = [] if att.first else [(att.v_down, att.v_up)]
        pairs += [(att.w_down, att.w_up), (att.a_down, att.a_up), (att.g_down, att.g_up)]
        downs, ups = ([pair[i].weight.detach() for pair in pairs] for i in range(2))
        small = (att.w0, att.a0, v0, att.k_k, att.k_a, att.r_k, att.ln_x.weight, att.ln_x.bias)
        return _Layer(
            Product(att.receptance, 1),
            Product(att.key, 1),
            Product(att.value, 1),
            Product(att.output, shape.heads),
            Product(layer.ffn.key, 1),
            Product(layer.ffn.value, self._groups),
            _shift_weights(layer.norm_att, att.x_r, att.x_k, att.x_v, att.x_w, att.x_a, att.x_g),
            kernel_plan.pack_low_rank(downs, ups, shape),
            kernel_plan.HeadWeights(*(kernel_plan.pad_heads(float_array(weight), shape) for weight in small)),
            _shift_weights(layer.norm_ffn, layer.ffn.x_k),
        )


def _shift_weights(norm: nn.LayerNorm, *mixes: Tensor) -> kernel_plan.ShiftWeights:
    stacked = torch.stack([mix.detach() for mix in mixes]) if mixes else torch.zeros(0, norm.weight.numel())
    return kernel_plan.ShiftWeights(*(kernel_plan.pad_columns(float_array(t)) for t in (norm.weight, norm.bias, stacked)))
