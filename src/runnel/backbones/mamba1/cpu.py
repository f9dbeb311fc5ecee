"""Mamba-1 inference on CPU: matrix products by torch, everything between them in fused kernels, states in a pool.

With 8-bit weights the products into and out of a block are `ops.int8_matmul`'s.

T  tokens     S  sequences     D  hidden_size     Di inner_size     R  dt_rank     N  state_size     w  conv_width
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from runnel.backbones.base import weight_dtype
from runnel.backbones.cpu_step import Product, input_room, pool_arrays
from runnel.backbones.mamba1.kernels import conv_silu, gated_scan
from runnel.backbones.mamba1.model import Mamba1, Mamba1Layer
from runnel.backbones.state import State
from runnel.ops.int8_matmul import quantize_rows
from runnel.ops.numba_math import as_array, float_array, index_array, parallel
from runnel.ops.rms_norm import add_rms_norm, add_rms_norm_bytes
from runnel.ops.selective_scan.tiles import rate_tiles, tiles_per_item
from runnel.ops.simd import LANES

_Array = np.ndarray[Any, Any]
_GROUP = 64  # inputs of an 8-bit out_proj that share a scale, where it divides their number


class Mamba1Cpu:
    """The `FastPath` of a Mamba-1 whose linear layers are all fp32, all bf16, or 8 bits but for x_proj and dt_proj.

    It keeps copies of the small fp32 parameters: call `prepare` after changing weights.
    """

    def __init__(self, backbone: Mamba1) -> None:
        self.embed = backbone.embed
        self.config = backbone.config
        self.dtype = backbone.blocks[0].mixer.x_proj.weight.dtype
        self.int8 = weight_dtype(backbone.blocks[0].mixer.in_proj) == torch.int8
        self.groups = self.config.inner_size // _GROUP if self.config.inner_size % _GROUP == 0 else 1
        self.layers = [_Layer(layer, self.groups) for layer in backbone.blocks]
        self.final_norm = float_array(backbone.norm_f.weight)

    def step(
        self, ids: Tensor, cu_seqlens: Tensor, pool: State, read_rows: Tensor, write_rows: Tensor, added: Tensor | None
    ) -> Tensor:
        """See `Backbone.step`."""
        with pool_arrays(pool, "conv", "ssm") as (conv, ssm):
            return self._step(ids, cu_seqlens, conv, ssm, read_rows, write_rows, added)

    def _step(
        self,
        ids: Tensor,
        cu_seqlens: Tensor,
        conv: _Array,
        ssm: _Array,
        read_rows: Tensor,
        write_rows: Tensor,
        added: Tensor | None,
    ) -> Tensor:
        c, eps = self.config, self.config.norm_eps
        rows = [index_array(tensor) for tensor in (read_rows, write_rows, cu_seqlens)]
        group = tiles_per_item(len(read_rows), c.inner_size // LANES)
        residual = self.embed(ids)
        residual = residual.clone() if added is None else residual + added
        residual = residual.float().contiguous()
        tokens = len(ids)

        def room(columns: int) -> Tensor:
            return torch.empty(tokens, columns, dtype=self.dtype)

        u, u_scale = input_room(tokens, c.hidden_size, 1, self.int8, self.dtype)
        gated, gated_scale = input_room(tokens, c.inner_size, self.groups, self.int8, self.dtype)
        out, projected = room(c.hidden_size).zero_(), room(2 * c.inner_size)
        x, dt = room(c.inner_size), room(c.inner_size)
        y = room(c.inner_size) if self.int8 else gated
        low_rank = room(c.rank + 2 * c.state_size)
        squares = np.empty((tokens, 0), np.float32)
        for index, layer in enumerate(self.layers):
            with parallel():
                before = (as_array(residual), as_array(out), squares, 1, layer.norm, eps, as_array(u))
                if self.int8:
                    add_rms_norm_bytes(*before, u_scale.numpy())
                else:
                    add_rms_norm(*before)
            layer.in_proj(u, u_scale, projected)
            with parallel():
                conv_silu(as_array(projected), 0, layer.taps, layer.conv_bias, conv, index, *rows, as_array(x), group)
            torch.mm(x, layer.x_proj, out=low_rank)
            torch.mm(low_rank[:, : c.rank], layer.dt_proj, out=dt)
            coefficients = low_rank[:, c.rank :].float().contiguous()
            with parallel():
                gated_scan(
                    as_array(x), as_array(dt), layer.dt_bias, layer.rates, as_array(coefficients), layer.skip,
                    as_array(projected), c.inner_size, ssm, index, *rows, as_array(y), group,
                )  # fmt: skip
                if self.int8:
                    quantize_rows(as_array(y), gated.numpy(), gated_scale.numpy())
            layer.out_proj(gated, gated_scale, out)
        hidden = torch.empty_like(residual)
        with parallel():
            add_rms_norm(as_array(residual), as_array(out), squares, 1, self.final_norm, eps, as_array(hidden))
        return hidden


class _Layer:
    """One block's parameters as the kernels take them."""

    def __init__(self, layer: Mamba1Layer, groups: int) -> None:
        mixer = layer.mixer
        self.norm = float_array(layer.norm.weight)
        self.in_proj, self.out_proj = Product(mixer.in_proj, 1), Product(mixer.out_proj, groups)
        self.x_proj, self.dt_proj = (linear.weight.detach().t() for linear in (mixer.x_proj, mixer.dt_proj))  # views
        self.dt_bias = float_array(mixer.dt_proj.bias)
        self.taps = float_array(mixer.conv1d.weight.squeeze(1).t())  # (w, Di)
        self.conv_bias = np.zeros(self.taps.shape[1], np.float32) if mixer.conv1d.bias is None else float_array(mixer.conv1d.bias)
        self.rates = rate_tiles(-torch.exp(mixer.A_log.detach().float())).numpy()
        self.skip = float_array(mixer.D)
