"""Mamba-1 inference on the CPU: matrix products, and everything between them in the fused kernels
of `kernels.py`, which has the equations.

T  tokens      D  hidden_size      Di inner_size      N  state_size      w  conv_width
R  dt_rank
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from runnel.backbones.cpu_step import CpuStep, Floats, Indices, Product
from runnel.backbones.layers import MixerLayer
from runnel.backbones.mamba1.kernels import (
    ScanInputs,
    ScanWeights,
    Sequences,
    conv_silu,
    gated_scan,
    tiles_per_item,
)
from runnel.backbones.mamba1.model import Mamba1, Mamba1Mixer
from runnel.ops.int8_matmul import count_groups, quantize_rows
from runnel.ops.numba_math import LOG2_E, as_array, float_array, parallel
from runnel.ops.simd import LANES

_GROUP = 64  # inputs of an 8-bit out_proj that share a scale, where it divides their number


class _Block(NamedTuple):
    """One block's weights as the step needs them; the matrices are the model's own."""

    norm: Floats
    in_proj: Product
    x_proj: Product
    dt_proj: Tensor  # (R, Di), a view of the model's: it reads columns of `x_proj`'s output
    out_proj: Product
    conv: Floats  # (w+1, Di): taps, then the bias
    scan: ScanWeights


class Mamba1Cpu(CpuStep):
    """The fast step of Mamba-1, for linear layers that are all fp32, all bf16, or in 8 bits except
    for x_proj and dt_proj.
    """

    def __init__(self, model: Mamba1) -> None:
        mixer = model.blocks[0].mixer
        super().__init__(model, mixer.in_proj, mixer.x_proj.weight.dtype)
        self._config = model.config
        self._taps = tuple(range(model.config.conv_width))
        self._groups = count_groups(model.config.inner_size, _GROUP)  # of inputs of out_proj
        self._blocks = [self._block(layer) for layer in model.blocks]
        self._norm_f = float_array(model.norm_f.weight)

    def _run(
        self,
        hidden: Tensor,
        states: list[Floats],
        cu_seqlens: Indices,
        read_rows: Indices,
        write_rows: Indices,
    ) -> Tensor:
        # 1. the memory of the step
        c = self._config
        tokens = len(hidden)
        conv_pool, state_pool = states
        sequences = Sequences(cu_seqlens, read_rows, write_rows)
        group = tiles_per_item(len(read_rows), c.inner_size // LANES)  # tiles of a work item
        stream = self._stream(hidden, c.norm_eps)
        projected = self._outputs("projected", tokens, 2 * c.inner_size)
        x, dt, y = (self._outputs(name, tokens, c.inner_size) for name in ("x", "dt", "y"))
        low_rank = self._outputs("low rank", tokens, c.dt_rank + 2 * c.state_size)
        gated = self._inputs("gated", tokens, c.inner_size, self._groups) if self._int8 else y
        for layer, block in enumerate(self._blocks):
            # 2. norm and input projection, then the convolution
            stream.norm(block.norm)
            block.in_proj(stream.normed, projected)
            with parallel():
                scratch = self._memory.scratch("inputs", (c.conv_width - 1) * group * LANES)
                conv_silu(
                    projected.array,
                    block.conv,
                    self._taps,
                    conv_pool,
                    layer,
                    sequences,
                    x.array,
                    group,
                    scratch,
                )
            # 3. dt, B and C
            block.x_proj(x, low_rank)
            torch.mm(low_rank.tensor[:, : c.dt_rank], block.dt_proj, out=dt.tensor)
            coefficients = low_rank.tensor[:, c.dt_rank :].float().contiguous()
            inputs = ScanInputs(x.array, dt.array, as_array(coefficients), projected.array)
            # 4. the recurrence and its gate, then the output projection
            with parallel():
                scratch = self._memory.scratch("states", group * c.state_size * LANES)
                gated_scan(
                    inputs, block.scan, state_pool, layer, sequences, y.array, group, scratch
                )
                if self._int8:
                    quantize_rows(y.array, gated.array, gated.scale)
            block.out_proj(gated, stream.out)
        return stream.end(self._norm_f)

    def _block(self, layer: MixerLayer[Mamba1Mixer]) -> _Block:
        mixer = layer.mixer
        taps = float_array(mixer.conv1d.weight.squeeze(1).t())
        # A log2(e), so that the kernel's exp2 gives exp(dt A)
        rates = -np.exp(float_array(mixer.A_log)) * np.float32(LOG2_E)
        return _Block(
            norm=float_array(layer.norm.weight),
            in_proj=self._product(mixer.in_proj),
            x_proj=self._product(mixer.x_proj),
            dt_proj=mixer.dt_proj.weight.detach().t(),
            out_proj=self._product(mixer.out_proj, self._groups),
            conv=np.concatenate([taps, float_array(mixer.conv1d.bias, taps.shape[1])[None]]),
            scan=ScanWeights(
                dt_bias=float_array(mixer.dt_proj.bias),
                # (Di, N) -> (tiles, N, LANES)
                rates=np.ascontiguousarray(
                    rates.reshape(-1, LANES, rates.shape[1]).transpose(0, 2, 1)
                ),
                skip=float_array(mixer.D),
            ),
        )
