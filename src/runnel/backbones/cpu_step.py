"""Shared by the CPU fast paths: one step at a time with memory of its own, matrix products, the
residual stream.

T  tokens      K  inputs      N  outputs      D  hidden_size
G  groups of inputs that share a scale, in 8 bits
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from runnel.backbones.base import Backbone, weight_dtype
from runnel.backbones.int8 import Int8Linear
from runnel.backbones.state import State
from runnel.ops import int8_matmul
from runnel.ops.numba_math import StepMemory, as_array, index_array, parallel
from runnel.ops.rms_norm import add_rms_norm

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]


class Activations(NamedTuple):
    """Numbers of each token, or bytes with their scales, as torch's products and as the kernels
    read them: the same memory.
    """

    tensor: Tensor  # (..., T, K) fp32 or bf16; in 8 bits (..., T, G bytes_per_group) uint8
    array: NDArray[Any]  # the same, bf16 as bit patterns
    scale: Floats  # (..., T, G) of bytes; (T, 0) of numbers

    @staticmethod
    def of(tensor: Tensor) -> Activations:
        """Return numbers (T, K)."""
        return Activations(tensor, as_array(tensor), np.empty((len(tensor), 0), np.float32))


class Product:
    """A linear layer in fp32, bf16 or 8 bits that writes into given memory. Its weight stays the
    model's own.

    `memory`: of the step that it is part of. `bias`: whether to add the layer's, if it has one;
    False where the kernel that comes next does.
    """

    def __init__(
        self,
        layer: nn.Linear | Int8Linear,
        memory: StepMemory,
        groups: int = 1,
        *,
        bias: bool = True,
    ) -> None:
        self._layer, self._memory, self._groups = layer, memory, groups
        self._bias = layer.bias if bias else None
        self._outputs = layer.out_features
        if isinstance(layer, Int8Linear):
            layer.packed(groups)

    def __call__(self, x: Activations, out: Activations) -> None:
        """Set the first N columns of out, whose rows may be longer, to x (T, K) weight^T + bias."""
        columns = out.tensor[:, : self._outputs]
        if isinstance(self._layer, Int8Linear):
            weights = self._layer.packed(self._groups)
            with parallel():
                int8_matmul.multiply(x.array, x.scale, weights, out.array, self._memory)
        else:
            torch.mm(x.tensor, self._layer.weight.t(), out=columns)
        if self._bias is not None:
            columns.add_(self._bias)


class CpuStep(ABC):
    """The `FastPath` of a backbone on the CPU, for linear layers in fp32, bf16 or 8 bits.

    Small weights are copied: build a new one after changing the model's. Memory grows to the
    largest step seen and is reused. Steps may be called from several threads; one runs at a time,
    on as many cores as torch uses.

    `layer` is one of the model's that may be in 8 bits; then `wide` is the dtype of the numbers
    between products.
    """

    def __init__(self, model: Backbone, layer: nn.Linear | Int8Linear, wide: torch.dtype) -> None:
        self._memory = StepMemory()
        self._states = tuple(model.state_shapes())
        self._int8 = weight_dtype(layer) == torch.int8
        self._dtype = wide if self._int8 else weight_dtype(layer)

    def step(
        self, hidden: Tensor, cu_seqlens: Tensor, pool: State, read_rows: Tensor, write_rows: Tensor
    ) -> Tensor:
        """See `FastPath.step`."""
        rows = [index_array(tensor) for tensor in (cu_seqlens, read_rows, write_rows)]
        with self._memory.lock:
            tensors = [pool[name].to(torch.float32).contiguous() for name in self._states]
            hidden = self._run(
                hidden.float().contiguous(), [tensor.numpy() for tensor in tensors], *rows
            )
            for name, tensor in zip(self._states, tensors, strict=True):
                if tensor.data_ptr() != pool[name].data_ptr():  # not the pool's own memory
                    pool[name].copy_(tensor)
            return hidden

    @abstractmethod
    def _run(
        self,
        hidden: Tensor,
        states: list[Floats],
        cu_seqlens: Indices,
        read_rows: Indices,
        write_rows: Indices,
    ) -> Tensor:
        """Run all layers on hidden (T, D) fp32, which may be overwritten; update the pool's states,
        ordered as `state_shapes`.
        """

    def _product(self, layer: nn.Linear | Int8Linear, groups: int = 1) -> Product:
        """Return the product with a linear layer, whose inputs have G scales in 8 bits."""
        return Product(layer, self._memory, groups)

    def _tensor(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return memory of any content as a tensor of fp32, bf16 or uint8."""
        kinds = {torch.bfloat16: np.uint16, torch.uint8: np.uint8}
        return torch.from_numpy(
            self._memory.array(name, *shape, dtype=kinds.get(dtype, np.float32))
        ).view(dtype)

    def _numbers(self, name: str, tokens: int, columns: int) -> Activations:
        """Return memory for what a product gives: (T, N)."""
        return Activations.of(self._tensor(name, tokens, columns, dtype=self._dtype))

    def _inputs(self, name: str, tokens: int, columns: int, groups: int = 1) -> Activations:
        """Return memory for what a product takes: (T, K) in G groups."""
        if not self._int8:
            return self._numbers(name, tokens, columns)
        size = groups * int8_matmul.bytes_per_group(columns, groups)
        x = self._tensor(name, tokens, size, dtype=torch.uint8)
        return Activations(x, x.numpy(), self._tensor(f"{name} scales", tokens, groups).numpy())

    def _stream(self, residual: Tensor, eps: float) -> ResidualStream:
        """Return the residual stream of a step that begins with (T, D)."""
        tokens, width = residual.shape
        nothing = np.empty((len(residual), 0), np.float32)
        normed = self._inputs("normed", tokens, width)
        out = self._numbers("out", tokens, width)
        out.tensor.zero_()
        return ResidualStream(residual, residual.numpy(), normed, out, eps, nothing, self._memory)


class ResidualStream(NamedTuple):
    """The residual stream, what products read of it, and what they add to it."""

    tensor: Tensor  # (T, D) fp32
    array: Floats  # the same
    normed: Activations  # (T, D)
    out: Activations  # (T, D), zero in the beginning
    eps: float  # of the norms
    nothing: Floats  # (T, 0)
    memory: StepMemory

    def norm(self, weight: Floats, squares: Floats | None = None, count: int = 1) -> None:
        """Add `out` to the residual stream and fill `normed`; for `squares` and `count` see
        `add_rms_norm`.
        """
        self._add(weight, squares, count, self.normed.array, self.normed.scale)

    def end(self, weight: Floats, squares: Floats | None = None, count: int = 1) -> Tensor:
        """Add `out` to the residual stream and return (T, D) fp32 after the last norm."""
        hidden = torch.empty_like(self.tensor)
        self._add(weight, squares, count, hidden.numpy(), self.nothing)
        return hidden

    def _add(
        self, weight: Floats, squares: Floats | None, count: int, out: NDArray[Any], scales: Floats
    ) -> None:
        squares = self.nothing if squares is None else squares
        with parallel():
            scratch = self.memory.scratch("row", self.array.shape[1])
            add_rms_norm(
                self.array,
                self.out.array,
                squares,
                count,
                weight,
                self.eps,
                out,
                scales,
                scratch,
            )
