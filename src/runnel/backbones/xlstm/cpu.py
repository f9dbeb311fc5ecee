"""xLSTM inference on the CPU: torch's matrix products and the fused kernels of `kernels` between them.

T  tokens    D  hidden_size    H  heads    K, V  key and value size of a head    F  ffn_size
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from runnel.backbones.cpu_step import CpuStep, count_workers, pool_arrays
from runnel.backbones.state import State
from runnel.backbones.xlstm import kernel_plan, kernels
from runnel.backbones.xlstm.model import FeedForward, MlstmLayer, Xlstm, XlstmLayer
from runnel.ops.chunks import Plan, plan_chunks
from runnel.ops.numba_math import as_array, float_array, index_array, parallel
from runnel.ops.rms_norm import add_rms_norm
from runnel.ops.simd import TILE_ROWS, round_up

_Pool = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]  # C, n, m


class _Block(NamedTuple):
    """One block's weights as the step needs them; the linear layers are the model's own."""

    mlstm: MlstmLayer
    ffn: FeedForward
    norm_mlstm: NDArray[np.float32]
    norm_ffn: NDArray[np.float32]
    kernels: kernel_plan.Weights


class _Work(NamedTuple):
    """Activations of one step, (T, ...); all but two in the weights' dtype."""

    residual: Tensor  # D, fp32
    y: Tensor  # H V, fp32
    normed: Tensor  # D
    out: Tensor  # D
    q: Tensor  # H K
    k: Tensor  # H K
    v: Tensor  # H V
    o: Tensor  # H V
    gated: Tensor  # H V
    gate: Tensor  # F
    up: Tensor  # F


class XlstmCpu(CpuStep):
    """The `FastPath` of xLSTM for fp32 or bf16 linear layers.

    Small weights are copied: build a new one after changing the model's. Memory grows to the largest step seen and is
    reused. Steps may be called from several threads; one runs at a time, on as many cores as torch uses.
    """

    own = ("_work", "_buffers")

    def __init__(self, model: Xlstm) -> None:
        super().__init__()
        c = model.config
        self._config, self._embeddings = c, model.embeddings
        self._dtype: torch.dtype = model.blocks[0].mlstm_layer.q.weight.dtype
        self._shape = kernel_plan.Shape(c.num_heads, c.key_size, c.value_size, c.gate_cap, c.cell_eps, c.norm_eps)
        self._blocks = [_block(layer) for layer in model.blocks]
        self._norm_f = float_array(model.norm_f.weight)
        self._work: _Work | None = None
        self._buffers: kernel_plan.Buffers | None = None

    def step(
        self, ids: Tensor, cu_seqlens: Tensor, pool: State, read_rows: Tensor, write_rows: Tensor, added: Tensor | None
    ) -> Tensor:
        """See `Backbone.step`."""
        plan = plan_chunks(index_array(cu_seqlens), index_array(read_rows), index_array(write_rows))
        with self._lock, pool_arrays(pool, "C", "n", "m") as (C, n, m):
            work, buffers = self._memory(ids.numel(), int(plan.row[-1]))
            work.residual.copy_(self._embeddings(ids))
            if added is not None:
                work.residual.add_(added)
            return self._layers(work, buffers, plan, (C, n, m))

    def _layers(self, work: _Work, buffers: kernel_plan.Buffers, plan: Plan, pool: _Pool) -> Tensor:
        eps = self._config.norm_eps
        residual, normed, out, gate, up = (as_array(t) for t in (work.residual, work.normed, work.out, work.gate, work.up))
        hidden = torch.empty_like(work.residual)
        nothing = residual[:, :0]  # no norm is put off
        work.out.zero_()
        for index, block in enumerate(self._blocks):
            with parallel():
                add_rms_norm(residual, out, nothing, 1, block.norm_mlstm, eps, normed)
                kernels.project_gates(residual, self._shape, block.kernels, buffers)
            self._mlstm(index, block, work, buffers, plan, pool)
            with parallel():
                add_rms_norm(residual, out, nothing, 1, block.norm_ffn, eps, normed)
            _multiply(block.ffn.proj_up_gate, work.normed, work.gate)
            _multiply(block.ffn.proj_up, work.normed, work.up)
            with parallel():
                kernels.multiply_silu(gate, up)
            _multiply(block.ffn.proj_down, work.gate, work.out)
        with parallel():
            add_rms_norm(residual, out, nothing, 1, self._norm_f, eps, hidden.numpy())
        return hidden

    def _mlstm(self, index: int, block: _Block, work: _Work, buffers: kernel_plan.Buffers, plan: Plan, pool: _Pool) -> None:
        """`work.out` from `work.normed` and the gates."""
        layer, shape = block.mlstm, self._shape
        for linear, target in ((layer.q, work.q), (layer.k, work.k), (layer.v, work.v), (layer.ogate_preact, work.o)):
            _multiply(linear, work.normed, target)
        q, k, v, o, gated = (as_array(t) for t in (work.q, work.k, work.v, work.o, work.gated))
        y = work.y.numpy()
        buffers.tasks.fill(0)
        with parallel():
            kernels.prepare_heads(q, k, index, pool[1], pool[2], shape, plan, buffers)
            kernels.scan_columns(v, y, index, pool[0], shape, plan, buffers)
            kernels.normalize_heads(y, o, shape, block.kernels, gated)
        _multiply(layer.out_proj, work.gated, work.out)

    def _memory(self, tokens: int, rows: int) -> tuple[_Work, kernel_plan.Buffers]:
        """Return memory for the activations of `tokens` tokens, and kernel buffers of at least `rows` rows."""
        c = self._config
        if self._work is None or len(self._work.residual) < tokens:
            padded = round_up(tokens, TILE_ROWS)  # for whole tiles of the gates' product
            widths = (c.hidden_size,) * 2 + (c.qk_size,) * 2 + (c.v_size,) * 3 + (c.ffn_size,) * 2
            self._work = _Work(
                torch.empty(padded, c.hidden_size),
                torch.empty(padded, c.v_size),
                *(torch.empty(padded, width, dtype=self._dtype) for width in widths),
            )
        workers = count_workers()
        held = self._buffers
        enough = held is not None and held.gates.shape[1] >= tokens and len(held.grown) >= rows * c.num_heads
        if held is None or not enough or len(held.scratch) != workers:
            held = kernel_plan.allocate(self._shape, tokens, rows, 4 // self._dtype.itemsize, workers)
            self._buffers = held
        return _Work(*(t[:tokens] for t in self._work)), held


def _block(layer: XlstmLayer) -> _Block:
    mixer = layer.mlstm_layer
    gates = (mixer.igate_preact, mixer.fgate_preact)
    norm = float_array(layer.norm_mlstm.weight)
    weight, bias = (np.concatenate([float_array(getattr(gate, name)) for gate in gates]) for name in ("weight", "bias"))
    kernels = kernel_plan.Weights(kernel_plan.pack_gates(weight, norm), bias, float_array(mixer.multihead_norm.weight))
    return _Block(mixer, layer.ffn, norm, float_array(layer.norm_ffn.weight), kernels)


def _multiply(layer: nn.Linear, x: Tensor, out: Tensor) -> None:
    torch.mm(x, layer.weight.t(), out=out)
