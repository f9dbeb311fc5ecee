"""Mamba-2 inference on the CPU: matrix products, and everything between them in the fused kernels
of `kernels.py`.

The gated norm before out_proj divides by a root mean square of all heads. With one group, the
division waits until after out_proj, which is linear: the next norm of the residual stream makes it
(`deferred`, the sums of squares), and no pass over the heads' outputs is needed.

`CpuStep` (`cpu_step.py`) calls `_run` and gives it the states conv (R, L, Cd, w-1) and ssm (R, L,
H, P, N) of all rows of the pool, with the letters of `kernels.py`. For each block:

    stream.norm, in_proj    the inputs of the block, z, x, B, C and dt
    prepare_chunks          what all heads of a group share, for each chunk of up to 64 tokens
    scan_heads              the recurrence and its gate, for each head of each sequence
    normalize_groups        the gated norm's division, unless it waits
    out_proj                the outputs of the block, which the next norm adds to the stream
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from runnel.backbones.cpu_step import CpuStep, Floats, Indices, Product
from runnel.backbones.layers import MixerLayer
from runnel.backbones.mamba2 import kernels
from runnel.backbones.mamba2.kernels import Shape, Weights, allocate, pad_conv
from runnel.backbones.mamba2.model import Mamba2, Mamba2Mixer
from runnel.ops.chunks import plan_chunks
from runnel.ops.numba_math import LINE, float_array, parallel
from runnel.ops.simd import has_tiles, round_up


class _Block(NamedTuple):
    """One block's weights as the step needs them; the matrices are the model's own."""

    norm: Floats
    in_proj: Product
    out_proj: Product
    weights: Weights  # of the kernels


class Mamba2Cpu(CpuStep):
    """The fast step of Mamba-2."""

    def __init__(self, model: Mamba2) -> None:
        super().__init__(model, model.blocks[0].mixer.in_proj, model.embeddings.weight.dtype)
        c = self._config = model.config
        self._shape = Shape(c.num_heads, c.head_size, c.groups, c.state_size, c.dt_min, c.dt_max)
        self._taps = tuple(range(c.conv_width))
        # whether the processor's matrix tiles multiply
        self._tiles = self._dtype == torch.bfloat16 and has_tiles()
        self._blocks = [self._block(layer) for layer in model.blocks]
        self._norm_f = float_array(model.norm_f.weight)
        # whether the gated norm's division waits until after out_proj
        self._defer = c.groups == 1 and not c.proj_bias

    def _run(
        self,
        hidden: Tensor,
        states: list[Floats],
        cu_seqlens: Indices,
        read_rows: Indices,
        write_rows: Indices,
    ) -> Tensor:
        c = self._config
        shape = self._shape
        tokens = len(hidden)
        conv, ssm = states
        plan = plan_chunks(cu_seqlens, read_rows, write_rows)
        stream = self._stream(hidden, c.norm_eps)
        # so that rows begin on cache lines
        width = round_up(c.projection_size, LINE // self._dtype.itemsize)
        projected = self._outputs("projected", tokens, width)
        gated = self._inputs("gated", tokens, c.inner_size, c.num_heads)
        squares = self._tensor("squares", tokens, c.num_heads).numpy()
        rows = int(plan.row[-1])  # of all chunks together, each rounded up to whole blocks
        per_word = 4 // self._dtype.itemsize  # numbers in 4 bytes
        buffers = allocate(self._memory, shape, c.conv_width, rows, self._tiles, per_word)
        outputs = kernels.Outputs(gated.array, gated.scale, squares)
        deferred = None
        for index, block in enumerate(self._blocks):
            stream.norm(block.norm, deferred, c.inner_size)  # the count is of `deferred`, if any
            block.in_proj(stream.normed, projected)
            buffers.tasks.fill(0)
            with parallel():
                common = (shape, self._taps, block.weights, plan, buffers)
                kernels.prepare_chunks(projected.array, index, conv, *common)
                kernels.scan_heads(projected.array, outputs, index, conv, ssm, *common)
                if not self._defer:
                    # in 8 bits, dividing a head's scale divides its bytes
                    divided = gated.scale if self._int8 else gated.array
                    kernels.normalize_groups(
                        divided, squares, c.groups, c.inner_size // c.groups, c.norm_eps
                    )
            block.out_proj(gated, stream.out)
            deferred = squares if self._defer else None
        return stream.end(self._norm_f, deferred, c.inner_size)

    def _block(self, layer: MixerLayer[Mamba2Mixer]) -> _Block:
        c, mixer = self._config, layer.mixer
        taps = float_array(mixer.conv1d.weight.squeeze(1))
        return _Block(
            norm=float_array(layer.norm.weight),
            in_proj=self._product(mixer.in_proj),
            out_proj=self._product(mixer.out_proj, c.num_heads),
            weights=Weights(
                conv=pad_conv(taps, float_array(mixer.conv1d.bias, c.conv_channels), self._shape),
                dt_bias=float_array(mixer.dt_bias),
                A=-np.exp(float_array(mixer.A_log)),
                D=float_array(mixer.D),
                norm=float_array(mixer.norm.weight),
            ),
        )
