"""Inference of an encoder on the CPU: matrix products, and between them the kernels of `kernels.py`.

The products are torch's in fp32 and bf16, and `ops.int8_matmul`'s in 8 bits, whose inputs the kernels write as bytes. Biases
are added by the kernels, in fp32.

T  tokens    S  sequences    D  hidden_size    F  intermediate_size    H  heads
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runnel.backbones.base import weight_dtype
from runnel.backbones.cpu_step import CpuStep, Product, count_workers, input_room
from runnel.backbones.encoder.kernels import add_layer_norm, attend, bias_gelu, bias_gelu_bytes, scratch
from runnel.backbones.encoder.model import Encoder, EncoderLayer, LayerNorm
from runnel.backbones.state import State
from runnel.ops.numba_math import as_array, float_array, index_array, parallel

_GROUP = 64  # inputs of an 8-bit layer that share a scale, where it divides their number; inputs of `out` share one per head

_Norm = tuple[NDArray[np.float32], NDArray[np.float32], float]  # weight, bias, eps


class _Layer(NamedTuple):
    """One layer's weights as the step needs them; the matrices are the model's own."""

    qkv: Product
    out: Product
    up: Product
    down: Product
    biases: list[NDArray[np.float32]]  # of these four
    attention_norm: _Norm
    norm: _Norm


class _Work(NamedTuple):
    """Activations of one step. Inputs of products are pairs: numbers in the weights' dtype, or bytes and their fp32 scales."""

    residual: Tensor  # (T, D) fp32
    normed: tuple[Tensor, Tensor]  # (T, D): for qkv and up; (T, 0) where these are fp32 and take the residual stream
    wide: Tensor  # (T, max(3 D, F)) numbers: what qkv gives, later what up gives
    seen: tuple[Tensor, Tensor]  # (T, D): for out
    middle: tuple[Tensor, Tensor]  # (T, F) in 8 bits: for down; (T, 0) where that takes what up gave
    out: Tensor  # (T, D)


class EncoderCpu(CpuStep):
    """The `FastPath` of `Encoder` for linear layers that are all fp32, all bf16 or all in 8 bits.

    Small weights are copied: build a new one after changing the model's. Memory grows to the largest step seen and is
    reused. Steps may be called from several threads; one runs at a time, on as many cores as torch uses.
    """

    own = ("_kept", "_scratch")

    def __init__(self, model: Encoder) -> None:
        super().__init__()
        c = model.config
        self._config, self._embed, self._positions = c, model.embed, model.positions
        dtype = weight_dtype(model.blocks[0].qkv)
        self._int8 = dtype == torch.int8
        self._dtype: torch.dtype = model.embeddings.weight.dtype if self._int8 else dtype
        self._groups, self._middle_groups = (
            size // _GROUP if size % _GROUP == 0 else 1 for size in (c.hidden_size, c.intermediate_size)
        )
        self._norm = _norm(model.norm)
        self._layers, self._sentence_layers = (
            [self._layer(layer) for layer in layers] for layers in (model.blocks, model.sentence_blocks)
        )
        self._kept: _Work | None = None
        self._scratch: NDArray[np.float32] | None = None

    def step(
        self, ids: Tensor, cu_seqlens: Tensor, pool: State, read_rows: Tensor, write_rows: Tensor, added: Tensor | None
    ) -> Tensor:
        """See `Backbone.step`; there is no state."""
        with self._lock:
            work, cu, memory = self._begin(ids, cu_seqlens, added)
            return self._run(work, self._layers, cu, memory, torch.empty_like(work.residual))

    def step_sentences(self, ids: Tensor, cu_seqlens: Tensor, added: Tensor | None, *, texts: bool) -> Tensor:
        """See `Encoder.step_sentences`."""
        shared = len(self._layers) - len(self._sentence_layers)
        with self._lock:
            work, cu, memory = self._begin(ids, cu_seqlens, added)
            self._run(work, self._layers[:shared], cu, memory, work.residual)
            if not texts:
                return self._run(work, self._sentence_layers, cu, memory, torch.empty_like(work.residual))
            inputs = (work.residual, *work.normed)
            kept = [tensor.clone() for tensor in inputs]
            whole = self._run(work, self._layers[shared:], cu, memory, torch.empty_like(work.residual))
            for tensor, value in zip(inputs, kept, strict=True):
                tensor.copy_(value)
            return torch.cat([whole, self._run(work, self._sentence_layers, cu, memory, torch.empty_like(whole))], dim=1)

    def _begin(
        self, ids: Tensor, cu_seqlens: Tensor, added: Tensor | None
    ) -> tuple[_Work, NDArray[np.int64], NDArray[np.float32]]:
        """Write what enters the first layer; return it, the sequences' ends and memory for attention."""
        cu = index_array(cu_seqlens)
        lengths = np.diff(cu)
        places = torch.from_numpy(np.arange(cu[-1]) - cu[:-1].repeat(lengths))
        work = self._work(ids.numel())
        work.residual.copy_(self._embed(ids))
        work.residual.add_(self._positions(places))
        if added is not None:
            work.residual.add_(added)
        work.out.zero_()
        with parallel():
            self._add_norm(work, np.zeros(work.residual.shape[1], np.float32), self._norm, work.residual)
        return work, cu, self._memory(int(lengths.max(initial=0)))

    def _run(
        self, work: _Work, layers: list[_Layer], cu: NDArray[np.int64], memory: NDArray[np.float32], target: Tensor
    ) -> Tensor:
        """Run layers; return `target` (T, D) fp32, to which the last one writes."""
        c, (tokens, width) = self._config, work.residual.shape
        qkv, middle = (work.wide[: tokens * columns].view(tokens, columns) for columns in (3 * width, c.intermediate_size))
        normed = work.normed if work.normed[0].shape[1] else (work.residual, work.normed[1])
        for layer in layers:
            bias_qkv, bias_out, bias_up, bias_down = layer.biases
            layer.qkv(*normed, qkv)
            with parallel():
                attend(as_array(qkv), bias_qkv, cu, c.num_heads, *(as_array(t) for t in work.seen), memory)
            layer.out(*work.seen, work.out)
            with parallel():
                self._add_norm(work, bias_out, layer.attention_norm, work.residual)
            layer.up(*normed, middle)
            with parallel():
                if self._int8:
                    bias_gelu_bytes(as_array(middle), bias_up, *(t.numpy() for t in work.middle))
                else:
                    bias_gelu(as_array(middle), bias_up)
            layer.down(*(work.middle if self._int8 else (middle, work.middle[1])), work.out)
            with parallel():
                self._add_norm(work, bias_down, layer.norm, target if layer is layers[-1] else work.residual)
        return target

    def _add_norm(self, work: _Work, bias: NDArray[np.float32], norm: _Norm, target: Tensor) -> None:
        """Add what a product gave to the residual stream, and norm it into `target` and the next product's inputs."""
        low, low_scale = (as_array(t) for t in work.normed)
        add_layer_norm(work.residual.numpy(), as_array(work.out), bias, *norm, target.numpy(), low, low_scale)

    def _work(self, tokens: int) -> _Work:
        """Return memory for the activations of `tokens` tokens; it is kept."""
        c, low = self._config, self._int8 or self._dtype != torch.float32
        widest = max(3 * c.hidden_size, c.intermediate_size)
        if self._kept is None or len(self._kept.residual) < tokens:
            self._kept = _Work(
                torch.empty(tokens, c.hidden_size),
                input_room(tokens, c.hidden_size if low else 0, self._groups, self._int8, self._dtype),
                torch.empty(tokens * widest, dtype=self._dtype),
                input_room(tokens, c.hidden_size, c.num_heads, self._int8, self._dtype),
                input_room(tokens, c.intermediate_size if self._int8 else 0, self._middle_groups, self._int8, self._dtype),
                torch.empty(tokens, c.hidden_size, dtype=self._dtype),
            )
        kept = self._kept
        pairs = [(x[:tokens], scale[:tokens]) for x, scale in (kept.normed, kept.seen, kept.middle)]
        return _Work(kept.residual[:tokens], pairs[0], kept.wide, pairs[1], pairs[2], kept.out[:tokens])

    def _memory(self, longest: int) -> NDArray[np.float32]:
        """Return the attention kernel's memory for sequences of up to `longest` tokens."""
        workers = count_workers()
        wanted = scratch(self._config.head_size, longest, workers)  # takes no memory before it is used
        if self._scratch is None or self._scratch.shape[0] != workers or self._scratch.shape[1] < wanted.shape[1]:
            self._scratch = wanted
        return self._scratch

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
