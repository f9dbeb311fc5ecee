"""Inference of an encoder on the CPU: matrix products, and between them the kernels of `kernels.py`.

The products are torch's in fp32 and bf16, and `ops.int8_matmul`'s in 8 bits, whose inputs the kernels write as bytes. Biases
are added by the kernels, in fp32.

T  tokens    S  sequences    D  hidden_size    F  intermediate_size    H  heads
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from runnel.backbones.cpu_step import Activations, CpuStep, Floats, Indices, Product, count_groups, count_workers
from runnel.backbones.encoder.kernels import add_layer_norm, attend, attention_memory, bias_gelu, bias_gelu_bytes
from runnel.backbones.encoder.model import FORMS, Encoder, EncoderLayer, Form
from runnel.backbones.layers import LayerNorm
from runnel.ops.int8_matmul import quantize_rows
from runnel.ops.numba_math import flat_rows, float_array, index_array, parallel

_GROUP = 64  # inputs of an 8-bit layer that share a scale, where it divides their number; inputs of `out` share one per head

_Norm = tuple[Floats, Floats, float]  # weight, bias, eps


class _Layer(NamedTuple):
    """One layer's weights as the step needs them; the matrices are the model's own."""

    qkv: Product
    out: Product
    up: Product
    down: Product
    biases: list[Floats]  # of these four
    attention_norm: _Norm
    norm: _Norm


class _Work(NamedTuple):
    """A step's residual stream, the inputs and outputs of products, and what the kernels are given."""

    residual: Tensor  # (T, D) fp32
    normed: Activations | None  # (T, D): for qkv and up; None where these are fp32 and take the residual stream
    qkv: Activations  # (T, 3 D), in the same memory as the next
    up: Activations  # (T, F)
    seen: Activations  # (T, D): for out
    middle: Activations  # (T, F): for down; `up` unless in 8 bits
    out: Activations  # (T, D)
    cu_seqlens: Indices
    memory: Floats  # of attention


class EncoderCpu(CpuStep):
    """The fast step of `Encoder`, for linear layers that are all fp32, all bf16 or all in 8 bits."""

    def __init__(self, model: Encoder) -> None:
        super().__init__(model, model.blocks[0].qkv, model.embeddings.weight.dtype)
        c = self._config = model.config
        self._positions = model.positions
        self._groups, self._middle_groups = (count_groups(size, _GROUP) for size in (c.hidden_size, c.intermediate_size))
        self._norm = _norm(model.norm)
        layers = {layer: self._layer(layer) for layer in model.modules() if isinstance(layer, EncoderLayer)}
        self._forms = {form: [layers[layer] for layer in model.layers_of(form)] for form in FORMS}

    def _run(self, hidden: Tensor, states: list[Floats], cu_seqlens: Indices, read_rows: Indices, write_rows: Indices) -> Tensor:
        return self._read_forms(hidden, cu_seqlens, ("texts",))

    def step_forms(self, hidden: Tensor, cu_seqlens: Tensor, forms: Sequence[Form]) -> Tensor:
        """See `Encoder.step_forms`; `hidden` may be overwritten."""
        with self._lock:
            return self._read_forms(hidden.float().contiguous(), index_array(cu_seqlens), forms)

    def _read_forms(self, hidden: Tensor, cu: Indices, forms: Sequence[Form]) -> Tensor:
        """Run all layers of each form, the common ones once; return (T, forms D) fp32."""
        work = self._begin(hidden, cu)
        shared = self._config.shared_layers(forms) if len(forms) > 1 else 0
        self._read(work, self._forms["texts"][:shared], hidden)
        tokens, width = hidden.shape
        out = torch.empty(tokens, len(forms) * width)
        for i, (form, target) in enumerate(zip(forms, out.split(width, dim=1), strict=True)):
            if i:
                # The form before has changed the inputs of the next product, but not `hidden`.
                if self._int8 and work.normed:
                    with parallel():
                        quantize_rows(work.residual.numpy(), work.normed.array, work.normed.scale)
                elif work.normed:
                    work.normed.tensor.copy_(work.residual)
            self._read(work, self._forms[form][shared:], target)
        return out

    def _begin(self, hidden: Tensor, cu: Indices) -> _Work:
        """Write what enters the first layer to `hidden` (T, D), the residual stream."""
        lengths = np.diff(cu)
        hidden.add_(self._positions(torch.from_numpy(np.arange(cu[-1]) - cu[:-1].repeat(lengths))))
        work = self._work(hidden, cu, int(lengths.max(initial=0)))
        work.out.tensor.zero_()
        with parallel():
            self._add_norm(work, hidden, np.zeros(hidden.shape[1], np.float32), self._norm, hidden)
        return work

    def _read(self, work: _Work, layers: list[_Layer], target: Tensor) -> None:
        """Run layers; the residual stream moves to `target` (T, D) fp32, whose rows may be far apart, in the first one."""
        residual = work.residual
        for layer in layers:
            bias_qkv, bias_out, bias_up, bias_down = layer.biases
            layer.qkv(work.normed or Activations.of(residual), work.qkv)
            with parallel():
                seen = work.seen.array, work.seen.scale
                attend(work.qkv.array, bias_qkv, work.cu_seqlens, self._config.num_heads, *seen, work.memory)
            layer.out(work.seen, work.out)
            with parallel():
                self._add_norm(work, residual, bias_out, layer.attention_norm, target)
            residual = target
            layer.up(work.normed or Activations.of(residual), work.up)
            with parallel():
                if self._int8:
                    bias_gelu_bytes(work.up.array, bias_up, work.middle.array, work.middle.scale)
                else:
                    bias_gelu(work.up.array, bias_up)
            layer.down(work.middle, work.out)
            with parallel():
                self._add_norm(work, residual, bias_down, layer.norm, target)
        if not layers:
            target.copy_(residual)

    def _add_norm(self, work: _Work, residual: Tensor, bias: Floats, norm: _Norm, target: Tensor) -> None:
        """Add what a product gave to the residual stream, and norm it into `target` and the next product's inputs."""
        low = work.normed or Activations.of(residual.new_empty(len(residual), 0))
        add_layer_norm(*flat_rows(residual), work.out.array, bias, *norm, *flat_rows(target), low.array, low.scale)

    def _work(self, residual: Tensor, cu_seqlens: Indices, longest: int) -> _Work:
        c, tokens, low = self._config, len(residual), self._int8 or self._dtype != torch.float32
        widths = 3 * c.hidden_size, c.intermediate_size
        wide = self._memory.tensor("wide", tokens * max(widths), dtype=self._dtype)
        qkv, up = (Activations.of(wide[: tokens * width].view(tokens, width)) for width in widths)
        return _Work(
            residual=residual,
            normed=self._inputs("normed", tokens, c.hidden_size, self._groups) if low else None,
            qkv=qkv,
            up=up,
            seen=self._inputs("seen", tokens, c.hidden_size, c.num_heads),
            middle=self._inputs("middle", tokens, c.intermediate_size, self._middle_groups) if self._int8 else up,
            out=self._numbers("out", tokens, c.hidden_size),
            cu_seqlens=cu_seqlens,
            memory=self._memory.array("attention", count_workers(), attention_memory(c.head_size, longest)[-1]),
        )

    def _layer(self, layer: EncoderLayer) -> _Layer:
        return _Layer(
            Product(layer.qkv, self._groups, bias=False),
            Product(layer.out, self._config.num_heads, bias=False),
            Product(layer.up, self._groups, bias=False),
            Product(layer.down, self._middle_groups, bias=False),
            [float_array(linear.bias) for linear in layer.linears],
            _norm(layer.attention_norm),
            _norm(layer.norm),
        )


def _norm(norm: LayerNorm) -> _Norm:
    return float_array(norm.weight), float_array(norm.bias), norm.eps
