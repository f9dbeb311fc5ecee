"""Mamba-2 inference on the CPU: matrix products and the fused kernels of `kernels` between them.

The products are torch's in fp32 and bf16, and `ops.int8_matmul`'s in 8 bits, whose inputs the kernels write as bytes.

T  tokens    D  hidden_size    Di  inner_size    H  heads    W  projection_size
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runnel.backbones.base import weight_dtype
from runnel.backbones.cpu_step import CpuStep, Product, count_workers, input_room, pool_arrays
from runnel.backbones.mamba2 import kernel_plan, kernels
from runnel.backbones.mamba2.model import Mamba2, Mamba2Layer
from runnel.backbones.state import State
from runnel.ops.chunks import Plan, plan_chunks
from runnel.ops.numba_math import as_array, float_array, index_array, parallel
from runnel.ops.rms_norm import add_rms_norm, add_rms_norm_bytes


class _Block(NamedTuple):
    """One block's weights as the step needs them; the projections are the model's own."""

    in_proj: Product
    out_proj: Product
    norm: NDArray[np.float32]
    kernels: kernel_plan.Weights


class _Work(NamedTuple):
    """Activations of one step, (T, ...)."""

    residual: Tensor  # D, fp32
    normed: Tensor  # D, in the weights' dtype; bytes if these are 8 bits
    normed_scale: Tensor  # 1, fp32: of those bytes
    projected: Tensor  # W, in the weights' dtype, or the embeddings' if these are 8 bits
    gated: Tensor  # Di, like normed
    gated_scale: Tensor  # H, fp32: of those bytes
    out: Tensor  # D, like projected
    squares: Tensor  # H, fp32


class Mamba2Cpu(CpuStep):
    """The `FastPath` of Mamba-2 for fp32, bf16 or 8-bit projections.

    Small weights are copied: build a new one after changing the model's. Memory grows to the
    largest step seen and is reused. Steps may be called from several threads; one runs at a time, on as many cores as torch uses.
    """

    own = ("_work", "_buffers")

    def __init__(self, model: Mamba2) -> None:
        super().__init__()
        c = model.config
        self._config, self._embeddings = c, model.embeddings
        dtype = weight_dtype(model.blocks[0].mixer.in_proj)
        self._int8 = dtype == torch.int8
        self._dtype: torch.dtype = model.embeddings.weight.dtype if self._int8 else dtype
        self._shape = kernel_plan.Shape(c.num_heads, c.head_size, c.groups, c.state_size, c.dt_min, c.dt_max)
        self._taps = tuple(range(c.conv_width))
        self._blocks = [self._block(layer) for layer in model.blocks]
        self._norm_f = float_array(model.norm_f.weight)
        self._defer = c.groups == 1 and not c.proj_bias  # the gated norm's division can wait until after out_proj
        self._work: _Work | None = None
        self._buffers: kernel_plan.Buffers | None = None

    def step(
        self, ids: Tensor, cu_seqlens: Tensor, pool: State, read_rows: Tensor, write_rows: Tensor, added: Tensor | None
    ) -> Tensor:
        """See `Backbone.step`."""
        plan = plan_chunks(index_array(cu_seqlens), index_array(read_rows), index_array(write_rows))
        with self._lock, pool_arrays(pool, "conv", "ssm") as (conv, ssm):
            work, buffers = self._memory(ids.numel(), int(plan.row[-1]))
            work.residual.copy_(self._embeddings(ids))
            if added is not None:
                work.residual.add_(added)
            return self._layers(work, buffers, plan, conv, ssm)

    def _layers(
        self, work: _Work, buffers: kernel_plan.Buffers, plan: Plan, conv: NDArray[np.float32], ssm: NDArray[np.float32]
    ) -> Tensor:
        c, shape, taps = self._config, self._shape, self._taps
        residual, normed, normed_scale, projected, gated, gated_scale, out, squares = (as_array(t) for t in work)
        hidden = torch.empty_like(work.residual)
        none = squares[:, :0]
        deferred = none
        work.out.zero_()
        for index, block in enumerate(self._blocks):
            with parallel():
                before = (residual, out, deferred, c.inner_size, block.norm, c.norm_eps, normed)
                if self._int8:
                    add_rms_norm_bytes(*before, normed_scale)
                else:
                    add_rms_norm(*before)
            block.in_proj(work.normed, work.normed_scale, work.projected)
            buffers.tasks.fill(0)
            with parallel():
                given = (index, conv, ssm, shape, taps, block.kernels, plan, buffers)
                kernels.prepare_chunks(projected, index, conv, *given[3:])
                kernels.scan_heads(projected, gated, gated_scale, squares, *given)
                if not self._defer:
                    divided = gated_scale if self._int8 else gated
                    kernels.normalize_groups(divided, squares, c.groups, c.inner_size // c.groups, c.norm_eps)
            block.out_proj(work.gated, work.gated_scale, work.out)
            deferred = squares if self._defer else none
        with parallel():
            add_rms_norm(residual, out, deferred, c.inner_size, self._norm_f, c.norm_eps, hidden.numpy())
        return hidden

    def _memory(self, tokens: int, rows: int) -> tuple[_Work, kernel_plan.Buffers]:
        """Return memory for the activations of `tokens` tokens, and kernel buffers of at least `rows` rows."""
        c = self._config
        if self._work is None or len(self._work.residual) < tokens:
            residual, squares = torch.empty(tokens, c.hidden_size), torch.empty(tokens, c.num_heads)
            projected, out = (torch.empty(tokens, width, dtype=self._dtype) for width in (c.projection_size, c.hidden_size))
            normed, normed_scale = input_room(tokens, c.hidden_size, 1, self._int8, self._dtype)
            gated, gated_scale = input_room(tokens, c.inner_size, c.num_heads, self._int8, self._dtype)
            self._work = _Work(residual, normed, normed_scale, projected, gated, gated_scale, out, squares)
        workers = count_workers()
        if self._buffers is None or len(self._buffers.dt) < rows * c.num_heads or len(self._buffers.scratch) != workers:
            self._buffers = kernel_plan.allocate(self._shape, c.conv_width, rows, 4 // self._dtype.itemsize, workers)
        return _Work(*(t[:tokens] for t in self._work)), self._buffers

    def _block(self, layer: Mamba2Layer) -> _Block:
        mixer = layer.mixer
        bias = torch.zeros(self._config.conv_channels) if mixer.conv1d.bias is None else mixer.conv1d.bias
        kernels = kernel_plan.Weights(
            kernel_plan.pad_conv(float_array(mixer.conv1d.weight.squeeze(1)), float_array(bias), self._shape),
            float_array(mixer.dt_bias),
            -np.exp(float_array(mixer.A_log)),
            float_array(mixer.D),
            float_array(mixer.norm.weight),
        )
        return _Block(
            Product(mixer.in_proj, 1), Product(mixer.out_proj, self._config.num_heads), float_array(layer.norm.weight), kernels
        )
