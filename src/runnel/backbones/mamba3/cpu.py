"""Mamba-3 inference on the CPU: matrix products, and everything between them in the fused kernels of `kernels`.

T  tokens    D  hidden_size    Di  inner_size    H  heads    W  columns of in_proj    F  ffn_size
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from runnel.backbones.cpu_step import CpuStep, Floats, Indices, Product, count_groups, count_workers
from runnel.backbones.mamba3 import kernels
from runnel.backbones.mamba3.kernel_parts import Pools, Shape, Weights, allocate
from runnel.backbones.mamba3.model import Mamba3, Mamba3Layer, Mamba3Mixer
from runnel.ops.chunks import CHUNK, plan_chunks
from runnel.ops.numba_math import float_array, parallel
from runnel.ops.simd import LANES, TILE_COLUMNS, round_up

_GROUP = 128  # inputs of an 8-bit fc2 that share a scale, where it divides their number


class _Mlp(NamedTuple):
    """A block's feed-forward layers."""

    norm: Floats
    fc1: Product
    fc2: Product


class _Block(NamedTuple):
    """One block's weights as the step needs them; the matrices are the model's own."""

    norm: Floats
    in_proj: Product
    out_proj: Product
    kernels: Weights
    mlp: _Mlp | None


class Mamba3Cpu(CpuStep):
    """The fast step of Mamba-3."""

    def __init__(self, model: Mamba3) -> None:
        super().__init__(model, model.blocks[0].mixer.in_proj, model.embeddings.weight.dtype)
        c = self._config = model.config
        self._ffn = c.ffn_size or 0
        self._ffn_groups = count_groups(self._ffn, _GROUP)
        self._shape = Shape(
            c.num_heads, c.head_size, c.groups, c.state_size, c.rank, c.turned, c.ranks is None, c.out_norm, c.decay_floor,
            c.norm_eps,
        )  # fmt: skip
        self._blocks = [self._block(layer) for layer in model.blocks]
        self._norm_f = float_array(model.norm_f.weight)

    def _run(self, hidden: Tensor, states: list[Floats], cu_seqlens: Indices, read_rows: Indices, write_rows: Indices) -> Tensor:
        c, tokens = self._config, len(hidden)
        plan = plan_chunks(cu_seqlens, read_rows, write_rows, CHUNK // c.rank)
        stream = self._stream(hidden, c.norm_eps)
        projected = self._numbers("projected", tokens, sum(c.projections))
        gated = self._inputs("gated", tokens, c.inner_size, c.num_heads)
        up, product = self._numbers("up", tokens, 2 * self._ffn), self._inputs("product", tokens, self._ffn, self._ffn_groups)
        buffers = allocate(self._memory, self._shape, tokens, count_workers())
        given = (Pools(*states), self._shape)
        for index, block in enumerate(self._blocks):
            stream.norm(block.norm)
            block.in_proj(stream.normed, projected)
            buffers.tasks.fill(0)
            with parallel():
                kernels.prepare_tokens(projected.array, self._shape, block.kernels, buffers)
                kernels.scan_heads(projected.array, gated.array, gated.scale, index, *given, block.kernels, plan, buffers)
            block.out_proj(gated, stream.out)
            if block.mlp is not None:
                stream.norm(block.mlp.norm)
                block.mlp.fc1(stream.normed, up)
                with parallel():
                    kernels.multiply_silu(up.array, product.array, product.scale)
                block.mlp.fc2(product, stream.out)
        return stream.end(self._norm_f)

    def _block(self, layer: Mamba3Layer) -> _Block:
        mlp = None
        if layer.mlp is not None:
            mlp = _Mlp(float_array(layer.norm2.weight), Product(layer.mlp.fc1), Product(layer.mlp.fc2, self._ffn_groups))
        in_proj, out_proj = Product(layer.mixer.in_proj), Product(layer.mixer.out_proj, self._config.num_heads)
        return _Block(float_array(layer.norm.weight), in_proj, out_proj, _weights(layer.mixer), mlp)


def _weights(mixer: Mamba3Mixer) -> Weights:
    c = mixer.config
    ones = torch.ones(c.num_heads, c.rank, c.head_size)
    x, z, out = (ones, ones, ones) if c.ranks is None else (mixer.mimo_x, mixer.mimo_z, mixer.mimo_o)
    if c.out_norm:
        out = out * mixer.norm.weight.view(c.num_heads, 1, c.head_size)
    keys = (torch.stack(pair) for pair in ((mixer.B_norm.weight, mixer.C_norm.weight), (mixer.B_bias, mixer.C_bias)))
    return Weights(
        float_array(mixer.dt_bias),
        float_array(mixer.D),
        *(_pad(weight, 2 * LANES) for weight in keys),
        *(_pad(weight, TILE_COLUMNS) for weight in (x, z, out)),
    )


def _pad(weight: Tensor, unit: int) -> Floats:
    """Return fp32 weights with zeros behind each row up to a multiple of `unit`."""
    width = weight.shape[-1]
    return float_array(torch.nn.functional.pad(weight.detach().float(), (0, round_up(width, unit) - width)))
