"""Mamba-3 inference on the CPU: matrix products and the fused kernels of `kernels` between them.

The products are torch's in fp32 and bf16, and `ops.int8_matmul`'s in 8 bits, whose inputs the kernels write as bytes.

T  tokens    D  hidden_size    Di  inner_size    H  heads    W  columns of in_proj    F  ffn_size
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runnel.backbones.base import weight_dtype
from runnel.backbones.cpu_step import CpuStep, Product, count_workers, input_room, pool_arrays
from runnel.backbones.mamba3 import kernel_plan, kernels
from runnel.backbones.mamba3.model import Mamba3, Mamba3Layer, Mamba3Mixer
from runnel.backbones.state import State
from runnel.ops.chunks import CHUNK, Plan, plan_chunks
from runnel.ops.numba_math import as_array, float_array, index_array, parallel
from runnel.ops.rms_norm import add_rms_norm, add_rms_norm_bytes
from runnel.ops.simd import LANES, TILE_COLUMNS, round_up

_GROUP = 128  # inputs of an 8-bit fc2 that share a scale, where it divides their number


class _Mlp(NamedTuple):
    """A block's feed-forward layers."""

    norm: NDArray[np.float32]
    fc1: Product
    fc2: Product


class _Block(NamedTuple):
    """One block's weights as the step needs them; the matrices are the model's own."""

    norm: NDArray[np.float32]
    in_proj: Product
    out_proj: Product
    kernels: kernel_plan.Weights
    mlp: _Mlp | None


class _Work(NamedTuple):
    """Activations of one step, (T, ...)."""

    residual: Tensor  # D, fp32
    normed: Tensor  # D, in the weights' dtype; bytes if these are 8 bits
    normed_scale: Tensor  # 1, fp32: of those bytes
    projected: Tensor  # W, in the weights' dtype, or the embeddings' if these are 8 bits
    gated: Tensor  # Di, like normed
    gated_scale: Tensor  # H, fp32: of those bytes
    out: Tensor  # D, like projected
    up: Tensor  # 2 F, like projected
    product: Tensor  # F, like normed
    product_scale: Tensor  # groups of F, fp32: of those bytes


class Mamba3Cpu(CpuStep):
    """The `FastPath` of Mamba-3 for fp32, bf16 or 8-bit linear layers.

    Small weights are copied: build a new one after changing the model's. Memory grows to the
    largest step seen and is reused. Steps may be called from several threads; one runs at a time, on as many cores as torch uses.
    """

    own = ("_work", "_buffers")

    def __init__(self, model: Mamba3) -> None:
        super().__init__()
        c = self._config = model.config
        self._embeddings = model.embeddings
        dtype = weight_dtype(model.blocks[0].mixer.in_proj)
        self._int8 = dtype == torch.int8
        self._dtype: torch.dtype = model.embeddings.weight.dtype if self._int8 else dtype
        self._ffn = c.ffn_size or 0
        self._ffn_groups = self._ffn // _GROUP if self._ffn and self._ffn % _GROUP == 0 else 1
        self._shape = kernel_plan.Shape(
            c.num_heads,
            c.head_size,
            c.groups,
            c.state_size,
            c.rank,
            c.turned,
            c.ranks is None,
            c.out_norm,
            c.decay_floor,
            c.norm_eps,
        )
        self._blocks = [self._block(layer) for layer in model.blocks]
        self._norm_f = float_array(model.norm_f.weight)
        self._work: _Work | None = None
        self._buffers: kernel_plan.Buffers | None = None

    def step(
        self, ids: Tensor, cu_seqlens: Tensor, pool: State, read_rows: Tensor, write_rows: Tensor, added: Tensor | None
    ) -> Tensor:
        """See `Backbone.step`."""
        most = CHUNK // self._config.rank
        plan = plan_chunks(index_array(cu_seqlens), index_array(read_rows), index_array(write_rows), most)
        with self._lock, pool_arrays(pool, *kernel_plan.Pools._fields) as arrays:
            work, buffers = self._memory(ids.numel())
            work.residual.copy_(self._embeddings(ids))
            if added is not None:
                work.residual.add_(added)
            return self._layers(work, buffers, plan, kernel_plan.Pools(*arrays))

    def _layers(self, work: _Work, buffers: kernel_plan.Buffers, plan: Plan, pools: kernel_plan.Pools) -> Tensor:
        projected, gated, gated_scale, up, product, product_scale = (
            as_array(t) for t in (work.projected, work.gated, work.gated_scale, work.up, work.product, work.product_scale)
        )
        work.out.zero_()
        for index, block in enumerate(self._blocks):
            self._add_norm(work, block.norm)
            block.in_proj(work.normed, work.normed_scale, work.projected)
            buffers.tasks.fill(0)
            with parallel():
                kernels.prepare_tokens(projected, self._shape, block.kernels, buffers)
                kernels.scan_heads(projected, gated, gated_scale, index, pools, self._shape, block.kernels, plan, buffers)
            block.out_proj(work.gated, work.gated_scale, work.out)
            if block.mlp is not None:
                self._add_norm(work, block.mlp.norm)
                block.mlp.fc1(work.normed, work.normed_scale, work.up)
                with parallel():
                    kernels.multiply_silu(up, product, product_scale)
                block.mlp.fc2(work.product, work.product_scale, work.out)
        hidden, out = torch.empty_like(work.residual), as_array(work.out)
        with parallel():
            residual = work.residual.numpy()
            add_rms_norm(residual, out, residual[:, :0], 1, self._norm_f, self._config.norm_eps, hidden.numpy())
        return hidden

    def _add_norm(self, work: _Work, norm: NDArray[np.float32]) -> None:
        """Add the last product's output to the residual, and fill the next one's input."""
        residual, out, normed = (as_array(t) for t in (work.residual, work.out, work.normed))
        given = (residual, out, residual[:, :0], 1, norm, self._config.norm_eps, normed)  # no norm is postponed
        with parallel():
            if self._int8:
                add_rms_norm_bytes(*given, work.normed_scale.numpy())
            else:
                add_rms_norm(*given)

    def _memory(self, tokens: int) -> tuple[_Work, kernel_plan.Buffers]:
        """Return memory for the activations of `tokens` tokens, and kernel buffers for at least as many."""
        c, workers = self._config, count_workers()
        if self._work is None or len(self._work.residual) < tokens:
            widths = (sum(c.projections), c.hidden_size, 2 * self._ffn)
            projected, out, up = (torch.empty(tokens, width, dtype=self._dtype) for width in widths)
            inputs = ((c.hidden_size, 1), (c.inner_size, c.num_heads), (self._ffn, self._ffn_groups))
            normed, gated, product = (input_room(tokens, *sizes, self._int8, self._dtype) for sizes in inputs)
            self._work = _Work(torch.empty(tokens, c.hidden_size), *normed, projected, *gated, out, up, *product)
            self._buffers = None
        if self._buffers is None or len(self._buffers.scratch) != workers:
            self._buffers = kernel_plan.allocate(self._shape, len(self._work.residual), workers)
        return _Work(*(t[:tokens] for t in self._work)), self._buffers

    def _block(self, layer: Mamba3Layer) -> _Block:
        mlp = None
        if layer.mlp is not None:
            fc1, fc2 = Product(layer.mlp.fc1, 1), Product(layer.mlp.fc2, self._ffn_groups)
            mlp = _Mlp(float_array(layer.norm2.weight), fc1, fc2)
        in_proj, out_proj = Product(layer.mixer.in_proj, 1), Product(layer.mixer.out_proj, self._config.num_heads)
        return _Block(float_array(layer.norm.weight), in_proj, out_proj, _weights(layer.mixer), mlp)


def _weights(mixer: Mamba3Mixer) -> kernel_plan.Weights:
    c = mixer.config
    ones = torch.ones(c.num_heads, c.rank, c.head_size)
    x, z, out = (ones, ones, ones) if c.ranks is None else (mixer.mimo_x, mixer.mimo_z, mixer.mimo_o)
    if c.out_norm:
        out = out * mixer.norm.weight.view(c.num_heads, 1, c.head_size)
    keys = (torch.stack(pair) for pair in ((mixer.B_norm.weight, mixer.C_norm.weight), (mixer.B_bias, mixer.C_bias)))
    return kernel_plan.Weights(
        float_array(mixer.dt_bias),
        float_array(mixer.D),
        *(_pad(weight, 2 * LANES) for weight in keys),
        *(_pad(weight, TILE_COLUMNS) for weight in (x, z, out)),
    )


def _pad(weight: Tensor, unit: int) -> NDArray[np.float32]:
    """Return fp32 weights with zeros behind each row up to a multiple of `unit`."""
    width = weight.shape[-1]
    return float_array(torch.nn.functional.pad(weight.detach().float(), (0, round_up(width, unit) - width)))
