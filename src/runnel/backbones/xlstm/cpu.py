"""xLSTM inference on the CPU: matrix products, and everything between them in the fused kernels of `kernels`.

T  tokens    D  hidden_size    H  heads    K, V  key and value size of a head    F  ffn_size
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import Tensor

from runnel.backbones.cpu_step import CpuStep, Floats, Indices, Product, count_workers
from runnel.backbones.xlstm import kernels
from runnel.backbones.xlstm.kernel_parts import Shape, Weights, allocate, pack_gates
from runnel.backbones.xlstm.model import Xlstm, XlstmLayer
from runnel.ops.chunks import plan_chunks
from runnel.ops.numba_math import float_array, parallel
from runnel.ops.simd import TILE_ROWS, round_up


class _Block(NamedTuple):
    """One block's weights as the step needs them; the matrices are the model's own."""

    norm_mlstm: Floats
    projections: list[Product]  # q, k, v, o
    out_proj: Product
    norm_ffn: Floats
    gate: Product
    up: Product
    down: Product
    kernels: Weights


class XlstmCpu(CpuStep):
    """The fast step of xLSTM, for linear layers in fp32 or bf16."""

    def __init__(self, model: Xlstm) -> None:
        super().__init__(model, model.blocks[0].mlstm_layer.q, model.embeddings.weight.dtype)
        c = self._config = model.config
        self._shape = Shape(c.num_heads, c.key_size, c.value_size, c.gate_cap, c.cell_eps, c.norm_eps)
        self._blocks = [_block(layer) for layer in model.blocks]
        self._norm_f = float_array(model.norm_f.weight)

    def _run(self, hidden: Tensor, states: list[Floats], cu_seqlens: Indices, read_rows: Indices, write_rows: Indices) -> Tensor:
        c, shape, tokens, (C, n, m) = self._config, self._shape, len(hidden), states
        plan = plan_chunks(cu_seqlens, read_rows, write_rows)
        padded = self._memory.tensor("residual", round_up(tokens, TILE_ROWS), c.hidden_size)  # whole tiles of the gates' product
        stream = self._stream(padded[:tokens].copy_(hidden), c.norm_eps)
        q, k = (self._numbers(name, tokens, c.qk_size) for name in ("q", "k"))
        v, o, gated = (self._numbers(name, tokens, c.v_size) for name in ("v", "o", "gated"))
        gate, up = (self._numbers(name, tokens, c.ffn_size) for name in ("gate", "up"))
        y = self._memory.tensor("y", tokens, c.v_size).numpy()
        rows, per_word = int(plan.row[-1]), 4 // self._dtype.itemsize
        buffers = allocate(self._memory, shape, tokens, rows, per_word, count_workers())
        for index, block in enumerate(self._blocks):
            stream.norm(block.norm_mlstm)
            for product, out in zip(block.projections, (q, k, v, o), strict=True):
                product(stream.normed, out)
            buffers.tasks.fill(0)
            with parallel():
                kernels.project_gates(stream.array, shape, block.kernels, buffers)
                kernels.prepare_heads(q.array, k.array, index, n, m, shape, plan, buffers)
                kernels.scan_columns(v.array, y, index, C, shape, plan, buffers)
                kernels.normalize_heads(y, o.array, shape, block.kernels, gated.array)
            block.out_proj(gated, stream.out)
            stream.norm(block.norm_ffn)
            block.gate(stream.normed, gate)
            block.up(stream.normed, up)
            with parallel():
                kernels.multiply_silu(gate.array, up.array)
            block.down(gate, stream.out)
        return stream.end(self._norm_f)


def _block(layer: XlstmLayer) -> _Block:
    mixer, ffn, norm = layer.mlstm_layer, layer.ffn, float_array(layer.norm_mlstm.weight)
    gates = (mixer.igate_preact, mixer.fgate_preact)
    weight, bias = (np.concatenate([float_array(getattr(gate, name)) for gate in gates]) for name in ("weight", "bias"))
    return _Block(
        norm_mlstm=norm,
        projections=[Product(linear) for linear in (mixer.q, mixer.k, mixer.v, mixer.ogate_preact)],
        out_proj=Product(mixer.out_proj),
        norm_ffn=float_array(layer.norm_ffn.weight),
        gate=Product(ffn.proj_up_gate),
        up=Product(ffn.proj_up),
        down=Product(ffn.proj_down),
        kernels=Weights(pack_gates(weight, norm), bias, float_array(mixer.multihead_norm.weight)),
    )
