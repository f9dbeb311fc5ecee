"""Mamba-1 inference on CPU: matrix products by torch, everything between them in fused kernels, states in a pool.

T  tokens     S  sequences     D  hidden_size     Di inner_size     R  dt_rank     N  state_size     w  conv_width
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from runnel.backbones.mamba1 import Mamba1, Mamba1Layer
from runnel.backbones.state import State
from runnel.ops.numba_math import parallel
from runnel.ops.rms_norm import add_rms_norm
from runnel.ops.selective_scan.fused import conv_silu, gated_scan
from runnel.ops.selective_scan.tiles import rate_tiles, tiles_per_item
from runnel.ops.simd import LANES

_Array = np.ndarray[Any, Any]


class Mamba1Cpu:
    """The `FastPath` of a Mamba-1 whose linear layers are all fp32 or all bf16.

    It keeps copies of the small fp32 parameters: build it anew (`prepare`) after changing weights.
    """

    def __init__(self, backbone: Mamba1) -> None:
        self.embed = backbone.embed
        self.config = backbone.config
        self.dtype = backbone.blocks[0].mixer.in_proj.weight.dtype
        self.layers = [_Layer(layer) for layer in backbone.blocks]
        self.final_norm = _array(backbone.norm_f.weight)

    def step(
        self, ids: Tensor, cu_seqlens: Tensor, pool: State, read_rows: Tensor, write_rows: Tensor, added: Tensor | None
    ) -> Tensor:
        """See `Backbone.step`."""
        c, eps = self.config, self.config.norm_eps
        conv, ssm = (pool[name].to(torch.float32).contiguous() for name in ("conv", "ssm"))  # as a rule the pool's own memory
        rows = [tensor.to(torch.int64).contiguous().numpy() for tensor in (read_rows, write_rows, cu_seqlens)]
        group = tiles_per_item(len(read_rows), c.inner_size // LANES)
        residual = self.embed(ids)
        residual = residual.clone() if added is None else residual + added
        residual = residual.float().contiguous()
        tokens = len(ids)

        def room(columns: int) -> Tensor:
            return torch.empty(tokens, columns, dtype=self.dtype)

        u, out, projected = room(c.hidden_size), room(c.hidden_size).zero_(), room(2 * c.inner_size)
        x, dt, y = room(c.inner_size), room(c.inner_size), room(c.inner_size)
        low_rank = room(c.rank + 2 * c.state_size)
        squares = np.empty((tokens, 0), np.float32)
        for index, layer in enumerate(self.layers):
            with parallel():
                add_rms_norm(_bits(residual), _bits(out), squares, 1, layer.norm, eps, _bits(u))
            layer.in_proj(u, projected)
            with parallel():
                conv_silu(_bits(projected), 0, layer.taps, layer.conv_bias, conv.numpy(), index, *rows, _bits(x), group)
            layer.x_proj(x, low_rank)
            layer.dt_proj(low_rank[:, : c.rank], dt)
            coefficients = low_rank[:, c.rank :].float().contiguous()
            with parallel():
                gated_scan(
                    _bits(x), _bits(dt), layer.dt_bias, layer.rates, _bits(coefficients), layer.skip,
                    _bits(projected), c.inner_size, ssm.numpy(), index, *rows, _bits(y), group,
                )  # fmt: skip
            layer.out_proj(y, out)
        hidden = torch.empty_like(residual)
        with parallel():
            add_rms_norm(_bits(residual), _bits(out), squares, 1, self.final_norm, eps, _bits(hidden))
        for name, tensor in (("conv", conv), ("ssm", ssm)):
            if tensor.data_ptr() != pool[name].data_ptr():
                pool[name].copy_(tensor)
        return hidden


class _Layer:
    """One block's parameters as the kernels take them."""

    def __init__(self, layer: Mamba1Layer) -> None:
        mixer = layer.mixer
        self.norm = _array(layer.norm.weight)
        self.in_proj, self.out_proj = _Product(mixer.in_proj), _Product(mixer.out_proj)
        self.x_proj, self.dt_proj = _Product(mixer.x_proj), _Product(mixer.dt_proj, bias=False)
        self.dt_bias = _array(mixer.dt_proj.bias)
        self.taps = _array(mixer.conv1d.weight.squeeze(1).t())  # (w, Di)
        self.conv_bias = np.zeros(self.taps.shape[1], np.float32) if mixer.conv1d.bias is None else _array(mixer.conv1d.bias)
        self.rates = rate_tiles(-torch.exp(mixer.A_log.detach().float())).numpy()
        self.skip = _array(mixer.D)


class _Product:
    """A linear layer that writes into memory given to it; `bias=False` leaves its bias to a kernel."""

    def __init__(self, layer: nn.Linear, *, bias: bool = True) -> None:
        self.weight = layer.weight.detach().t()  # a view
        self.bias = layer.bias.detach().to(layer.weight.dtype) if bias and layer.bias is not None else None

    def __call__(self, x: Tensor, out: Tensor) -> None:
        if self.bias is None:
            torch.mm(x, self.weight, out=out)
        else:
            torch.addmm(self.bias, x, self.weight, out=out)


def _array(parameter: Tensor) -> _Array:
    return parameter.detach().float().contiguous().numpy()


def _bits(tensor: Tensor) -> _Array:
    """The tensor's memory as the kernels take it: fp32, or bf16 as uint16."""
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
