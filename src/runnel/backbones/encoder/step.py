"""Inference of an encoder on the CPU: matrix products, and between them the kernels of `kernels.py`. No torch here.

In 8 bits the kernels write the inputs of products as bytes. The kernels add biases, in fp32. bf16 is held as bits (uint16).

T  tokens    S  sequences    D  hidden_size    F  intermediate_size    H  heads    K  inputs, N  outputs of a product
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from runnel.backbones.encoder.kernels import add_layer_norm, attend, attention_memory, bias_gelu, bias_gelu_bytes, copy_rows
from runnel.backbones.encoder.layout import FORMS, EncoderConfig, Form
from runnel.ops.int8_matmul import bytes_per_group, count_groups, quantize_rows
from runnel.ops.numba_math import StepMemory, count_workers, flat_rows, parallel

_GROUP = 64  # inputs of an 8-bit layer that share a scale, where it divides their number; inputs of `out` share one per head

Floats = NDArray[np.float32]
_Norm = tuple[Floats, Floats, float]  # weight, bias, eps


class ProductInputs(NamedTuple):
    """The inputs of a product: numbers, or bytes with their scales."""

    array: NDArray[Any]  # (T, K) fp32 or bf16 bits; in 8 bits (T, G bytes_per_group) uint8
    scale: Floats  # (T, G) of bytes; (T, 0) of numbers


Product = Callable[[ProductInputs, NDArray[Any]], None]  # out (T, N) = x (T, K) weight^T


class EncoderWeights(Protocol):
    """Where the weights of an encoder come from: arrays (`arrays.py`), or torch's `Encoder` (`cpu.py`)."""

    config: EncoderConfig
    numbers: type[np.generic]  # of what products give: float32, or uint16 for bf16
    in_8_bits: bool  # the linear layers

    def floats(self, name: str) -> Floats:
        """Return a small weight."""

    def product(self, name: str, groups: int) -> Product:
        """Return the product with a linear layer, whose inputs have G scales in 8 bits."""


class _Layer(NamedTuple):
    """One layer's weights as the step needs them."""

    qkv: Product
    out: Product
    up: Product
    down: Product
    biases: list[Floats]  # of these four
    attention_norm: _Norm
    norm: _Norm


class _Work(NamedTuple):
    """A step's residual stream, the inputs and outputs of products, and what the kernels are given."""

    residual: Floats  # (T, D)
    normed: ProductInputs | None  # (T, D): for qkv and up; None where these are fp32 and take the residual stream
    qkv: NDArray[Any]  # (T, 3 D), in the same memory as the next
    up: NDArray[Any]  # (T, F)
    seen: ProductInputs  # (T, D): for out
    middle: ProductInputs  # (T, F): for down; `up` unless in 8 bits
    out: NDArray[Any]  # (T, D)
    cu_seqlens: NDArray[np.int64]
    memory: Floats  # of attention


class EncoderStep:
    """The steps of an encoder whose linear layers are all fp32, all bf16 or all in 8 bits.

    Small weights are copied: build a new one after changing the model's. Memory grows to the largest step seen and is
    reused. Steps may be called from several threads; one runs at a time, on `count_workers` cores.
    """

    def __init__(self, weights: EncoderWeights) -> None:
        c = self._config = weights.config
        self._numbers, self._in_8_bits = weights.numbers, weights.in_8_bits
        self._positions = weights.floats("positions.weight")
        self._groups, self._middle_groups = (count_groups(size, _GROUP) for size in (c.hidden_size, c.intermediate_size))
        self._norm = self._read_norm(weights, "norm")
        layers = {name: self._layer(weights, name) for name in dict.fromkeys(n for form in FORMS for n in c.layer_names(form))}
        self._forms = {form: [layers[name] for name in c.layer_names(form)] for form in FORMS}
        self._memory = StepMemory()

    def step_forms(self, hidden: Floats, cu_seqlens: NDArray[np.int64], forms: Sequence[Form]) -> Floats:
        """Run all layers of each form, the common ones once.

        Args:
            hidden: (T, D) the embeddings of the tokens, which may be overwritten.
            cu_seqlens: (S+1,).

        Returns:
            (T, forms D).
        """
        with self._memory.lock:
            work = self._begin(hidden, cu_seqlens)
            shared = self._config.shared_layers(forms) if len(forms) > 1 else 0
            self._read(work, self._forms["texts"][:shared], hidden)
            tokens, width = hidden.shape
            out = np.empty((tokens, len(forms) * width), np.float32)
            for i, form in enumerate(forms):
                if i and work.normed:
                    # The form before has changed the inputs of the next product, but not `hidden`.
                    with parallel():
                        if self._in_8_bits:
                            quantize_rows(hidden, *work.normed)
                        else:
                            copy_rows(hidden, work.normed.array)
                self._read(work, self._forms[form][shared:], out[:, i * width : (i + 1) * width])
            return out

    def _begin(self, hidden: Floats, cu: NDArray[np.int64]) -> _Work:
        """Write what enters the first layer to `hidden` (T, D), the residual stream."""
        lengths = np.diff(cu)
        hidden += self._positions[np.arange(cu[-1]) - cu[:-1].repeat(lengths)]
        work = self._work(hidden, cu, int(lengths.max(initial=0)))
        work.out[...] = 0
        with parallel():
            self._add_norm(work, hidden, np.zeros(hidden.shape[1], np.float32), self._norm, hidden)
        return work

    def _read(self, work: _Work, layers: list[_Layer], target: Floats) -> None:
        """Run layers; the residual stream moves to `target` (T, D), whose rows may be far apart, in the first one."""
        residual = work.residual
        for layer in layers:
            bias_qkv, bias_out, bias_up, bias_down = layer.biases
            layer.qkv(work.normed or _rows(residual), work.qkv)
            with parallel():
                attend(work.qkv, bias_qkv, work.cu_seqlens, self._config.num_heads, *work.seen, work.memory)
            layer.out(work.seen, work.out)
            with parallel():
                self._add_norm(work, residual, bias_out, layer.attention_norm, target)
            residual = target
            layer.up(work.normed or _rows(residual), work.up)
            with parallel():
                if self._in_8_bits:
                    bias_gelu_bytes(work.up, bias_up, *work.middle)
                else:
                    bias_gelu(work.up, bias_up)
            layer.down(work.middle, work.out)
            with parallel():
                self._add_norm(work, residual, bias_down, layer.norm, target)
        if not layers:
            target[...] = residual

    def _add_norm(self, work: _Work, residual: Floats, bias: Floats, norm: _Norm, target: Floats) -> None:
        """Add what a product gave to the residual stream, and norm it into `target` and the next product's inputs."""
        low = work.normed or _rows(np.empty((len(residual), 0), np.float32))
        add_layer_norm(*flat_rows(residual), work.out, bias, *norm, *flat_rows(target), *low)

    def _work(self, residual: Floats, cu_seqlens: NDArray[np.int64], longest: int) -> _Work:
        c, tokens, low = self._config, len(residual), self._in_8_bits or self._numbers is not np.float32
        widths, reserve = (3 * c.hidden_size, c.intermediate_size), self._memory.array
        wide = reserve("wide", tokens * max(widths), dtype=self._numbers)
        qkv, up = (wide[: tokens * width].reshape(tokens, width) for width in widths)
        return _Work(
            residual=residual,
            normed=self._inputs("normed", tokens, c.hidden_size, self._groups) if low else None,
            qkv=qkv,
            up=up,
            seen=self._inputs("seen", tokens, c.hidden_size, c.num_heads),
            middle=self._inputs("middle", tokens, c.intermediate_size, self._middle_groups) if self._in_8_bits else _rows(up),
            out=reserve("out", tokens, c.hidden_size, dtype=self._numbers),
            cu_seqlens=cu_seqlens,
            memory=reserve("attention", count_workers(), attention_memory(c.head_size, longest)[-1]),
        )

    def _inputs(self, name: str, tokens: int, columns: int, groups: int) -> ProductInputs:
        """Return memory for the inputs of a product, (T, K) in G groups."""
        if not self._in_8_bits:
            return _rows(self._memory.array(name, tokens, columns, dtype=self._numbers))
        read = self._memory.array(name, tokens, groups * bytes_per_group(columns, groups), dtype=np.uint8)
        return ProductInputs(read, self._memory.array(f"{name} scales", tokens, groups))

    def _layer(self, weights: EncoderWeights, name: str) -> _Layer:
        return _Layer(
            weights.product(f"{name}.qkv", self._groups),
            weights.product(f"{name}.out", self._config.num_heads),
            weights.product(f"{name}.up", self._groups),
            weights.product(f"{name}.down", self._middle_groups),
            [weights.floats(f"{name}.{linear}.bias") for linear in ("qkv", "out", "up", "down")],
            self._read_norm(weights, f"{name}.attention_norm"),
            self._read_norm(weights, f"{name}.norm"),
        )

    def _read_norm(self, weights: EncoderWeights, name: str) -> _Norm:
        return weights.floats(f"{name}.weight"), weights.floats(f"{name}.bias"), self._config.layer_norm_eps


def _rows(numbers: NDArray[Any]) -> ProductInputs:
    return ProductInputs(numbers, np.empty((len(numbers), 0), np.float32))
