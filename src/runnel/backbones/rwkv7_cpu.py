"""RWKV-7 inference on the CPU: torch's matrix products and the fused kernels of `ops.wkv7` between them.

T  tokens    S  sequences    D  hidden_size    F  ffn_size    H  heads
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from runnel.backbones.cpu_step import CpuStep, pool_arrays
from runnel.backbones.state import State
from runnel.ops.numba_math import parallel
from runnel.ops.packed import as_array, float_array, index_array
from runnel.ops.simd import TILE_COLUMNS, TILE_ROWS
from runnel.ops.wkv7 import fused, fused_plan, fused_shift

if TYPE_CHECKING:
    from runnel.backbones.rwkv7 import Rwkv7, Rwkv7ChannelMix, Rwkv7Layer, Rwkv7TimeMix


class _Layer(NamedTuple):
    """One layer's weights as the step needs them; the big matrices are the model's own tensors."""

    att: Rwkv7TimeMix
    ffn: Rwkv7ChannelMix
    att_shift: fused_plan.ShiftWeights
    low_rank: fused_plan.LowRank
    heads: fused_plan.HeadWeights
    ffn_shift: fused_plan.ShiftWeights


class _Work(NamedTuple):
    """Activations of one step."""

    residual: Tensor  # (T, D) fp32
    out: Tensor  # (T, D) in the weights' dtype, as are all that follow
    v_first: Tensor  # (T, D)
    slots: Tensor  # (4, T, D): mixes for r, k, v, then whatever comes next
    middle: Tensor  # (T, F), in the memory of slots 1 and up
    low: Tensor  # (T + TILE_ROWS, Rw)


class Rwkv7Cpu(CpuStep):
    """The `FastPath` of RWKV-7 for linear layers that are all fp32 or all bf16.

    Small weights are copied: build a new one after changing the model's. Memory grows to the largest step seen and is
    reused. Steps may be called from several threads; one runs at a time, on as many cores as torch uses.
    """

    own = ("_memory", "_residual", "_buffers")

    def __init__(self, model: Rwkv7) -> None:
        super().__init__()
        c = model.config
        self._config, self._embed = c, model.embed
        self._dtype: torch.dtype = model.blocks[0].att.output.weight.dtype
        self._shape = fused_plan.Shape(c.num_heads, c.head_size, c.group_norm_eps)
        self._layers = [self._layer(layer) for layer in model.blocks]
        self._ranks = int(self._layers[-1].low_rank.first[-1]) * TILE_COLUMNS
        self._width = 2 * c.hidden_size + max(4 * c.hidden_size, c.hidden_size + c.inner_size) + self._ranks
        self._norm_f = _shift_weights(model.norm_f)
        self._memory: Tensor | None = None
        self._residual: Tensor | None = None
        self._buffers: fused_plan.Buffers | None = None

    def step(
        self, ids: Tensor, cu_seqlens: Tensor, pool: State, read_rows: Tensor, write_rows: Tensor, added: Tensor | None
    ) -> Tensor:
        """See `Backbone.step`."""
        plan = fused_plan.plan_step(index_array(cu_seqlens), index_array(read_rows), index_array(write_rows))
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
        buffers: fused_plan.Buffers,
        plan: fused_plan.Plan,
        att_shift: NDArray[np.float32],
        wkv: NDArray[np.float32],
        ffn_shift: NDArray[np.float32],
    ) -> Tensor:
        eps, slots = self._config.norm_eps, work.slots
        residual, out, mixes, middle, low = (as_array(t) for t in (work.residual, work.out, slots, work.middle, work.low))
        work.out.zero_()
        for index, layer in enumerate(self._layers):
            buffers.tasks.fill(0)
            with parallel():
                fused_shift.add_norm_shift(
                    residual, out, layer.att_shift, eps, (0, 1, 2), att_shift, index, plan, buffers, mixes[:3],
                    (0, 1, 2, 3), layer.low_rank, low,
                )  # fmt: skip
            value = work.v_first if index == 0 else slots[1]
            _multiply(layer.att.receptance, slots[0], slots[3])
            _multiply(layer.att.key, slots[1], slots[0])
            _multiply(layer.att.value, slots[2], value)
            products = fused.Products(*(as_array(t) for t in (slots[3], slots[0], value, work.v_first, work.low)))
            buffers.tasks.fill(0)
            with parallel():
                fused.mix_heads(products, products.r, index, wkv, self._shape, layer.heads, layer.low_rank, plan, buffers)
            _multiply(layer.att.output, slots[3], work.out)
            buffers.tasks.fill(0)
            with parallel():
                fused_shift.add_norm_shift(
                    residual, out, layer.ffn_shift, eps, (0,), ffn_shift, index, plan, buffers, mixes[:1],
                    (), layer.low_rank, low,
                )  # fmt: skip
            _multiply(layer.ffn.key, slots[0], work.middle)
            with parallel():
                fused_shift.square_relu(middle)
            _multiply(layer.ffn.value, work.middle, work.out)
        hidden = torch.empty_like(work.residual)
        with parallel():
            fused_shift.add_norm(residual, out, self._norm_f, eps, hidden.numpy())
        return hidden

    def _work(self, tokens: int) -> _Work:
        """Activations of `tokens` tokens, in memory that is kept."""
        c = self._config
        if self._residual is None or self._memory is None or len(self._residual) < tokens:
            self._residual = torch.empty(tokens, c.hidden_size)
            self._memory = torch.empty((tokens + TILE_ROWS) * self._width, dtype=self._dtype)
        one, rest = tokens * c.hidden_size, self._memory
        out, v_first, slots, middle = rest[:one], rest[one : 2 * one], rest[2 * one : 6 * one], rest[3 * one :]
        low = rest[-(tokens + TILE_ROWS) * self._ranks :]
        return _Work(
            self._residual[:tokens],
            out.view(tokens, c.hidden_size),
            v_first.view(tokens, c.hidden_size),
            slots.view(4, tokens, c.hidden_size),
            middle[: tokens * c.inner_size].view(tokens, c.inner_size),
            low.view(tokens + TILE_ROWS, self._ranks),
        )

    def _kernel_memory(self, rows: int) -> fused_plan.Buffers:
        workers = max(1, min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))
        if self._buffers is None or len(self._buffers.before) < rows or len(self._buffers.scratch) != workers:
            self._buffers = fused_plan.allocate(self._shape, rows, workers)
        return self._buffers

    def _layer(self, layer: Rwkv7Layer) -> _Layer:
        att, shape = layer.att, self._shape
        v0 = att.w0 if att.first else att.v0
        pairs = [] if att.first else [(att.v_down, att.v_up)]
        pairs += [(att.w_down, att.w_up), (att.a_down, att.a_up), (att.g_down, att.g_up)]
        downs, ups = ([pair[i].weight.detach() for pair in pairs] for i in range(2))
        small = (att.w0, att.a0, v0, att.k_k, att.k_a, att.r_k, att.ln_x.weight, att.ln_x.bias)
        return _Layer(
            att,
            layer.ffn,
            _shift_weights(layer.norm_att, att.x_r, att.x_k, att.x_v, att.x_w, att.x_a, att.x_g),
            fused_plan.pack_low_rank(downs, ups, shape),
            fused_plan.HeadWeights(*(fused_plan.pad_heads(float_array(weight), shape) for weight in small)),
            _shift_weights(layer.norm_ffn, layer.ffn.x_k),
        )


def _shift_weights(norm: nn.LayerNorm, *mixes: Tensor) -> fused_plan.ShiftWeights:
    stacked = torch.stack([mix.detach() for mix in mixes]) if mixes else torch.zeros(0, norm.weight.numel())
    return fused_plan.ShiftWeights(*(fused_plan.pad_columns(float_array(t)) for t in (norm.weight, norm.bias, stacked)))


def _multiply(layer: nn.Linear, x: Tensor, out: Tensor) -> None:
    torch.mm(x, layer.weight.t(), out=out)
