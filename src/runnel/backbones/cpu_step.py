"""The parts of the CPU fast paths that Mamba-1, Mamba-2 and RWKV-7 share.

A family subclasses `CpuStep` and writes `_run`, one step over all layers. Its order:

    stream = self._stream(hidden, eps)          # the residual stream, and its `normed` and `out`
    for each layer:
        stream.norm(weight)                     # hidden += out; normed = RMSNorm(hidden)
        in_product(stream.normed, x)            # a `Product`, made once, by `self._product`
        the family's own kernels: x -> y        # memory from `self._outputs` and `self._inputs`
        out_product(y, stream.out)
    return stream.end(weight)                   # hidden += out; the last norm

T  tokens      S  sequences      K  inputs of a product      N  outputs of a product
D  hidden_size
G  groups of inputs that share a scale, in 8 bits
"""

from abc import ABC, abstractmethod
from typing import NamedTuple, Self

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
    """A buffer with the inputs or outputs of a product, and two views of its memory: `tensor` for
    torch, `array` for the numba kernels. It holds numbers, or, in 8 bits, bytes with a scale for
    each group.
    """

    tensor: Tensor  # (..., T, K) fp32 or bf16; in 8 bits (..., T, G * bytes_per_group) uint8
    array: np.ndarray  # the view of the kernels, bf16 as bit patterns (uint16)
    scale: Floats  # in 8 bits (..., T, G); for numbers, which have no scale, (T, 0)

    @classmethod
    def of(cls, tensor: Tensor) -> Self:
        """Return fp32 or bf16 numbers (T, K) with their two views."""
        return cls(tensor, as_array(tensor), np.empty((len(tensor), 0), np.float32))


class Product:
    """A linear layer in fp32, bf16 or 8 bits that writes its outputs into given memory. The weight
    is the model's own, not a copy.

    Args:
        memory: the memory of the step that the product is part of.
        groups: in 8 bits, the groups of inputs that have a scale each.
        bias: add the layer's bias, if it has one; False where the next kernel adds it.
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
            layer.packed(groups)  # packs the weight now; otherwise the first step would

    def __call__(self, x: Activations, out: Activations) -> None:
        """Set the first N columns of `out` to x (T, K) weight^T + bias; `out` may have more."""
        columns = out.tensor[:, : self._outputs]
        if isinstance(self._layer, Int8Linear):
            weights = self._layer.packed(self._groups)
            with parallel():
                int8_matmul.multiply(x.array, x.scale, weights, out.array, self._memory)
        else:
            torch.mm(x.tensor, self._layer.weight.t(), out=columns)
        if self._bias is not None:
            columns.add_(self._bias)


class ResidualStream(NamedTuple):
    """The residual stream of a step, its normed copy, which products read, and the output of the
    latest block, which the next norm adds to it.

    `squares` and `count` of `norm` and `end` are for Mamba-2 alone, whose block divides its output
    late; `add_rms_norm` explains them. The defaults add `out` as it is.
    """

    tensor: Tensor  # (T, D) fp32
    array: Floats  # a view of `tensor`
    normed: Activations  # (T, D)
    out: Activations  # (T, D), zero before the first block
    eps: float  # of the norms
    nothing: Floats  # (T, 0): stands for squares and for scales where there are none
    memory: StepMemory

    def norm(self, weight: Floats, squares: Floats | None = None, count: int = 1) -> None:
        """Add `out` to the residual stream and set `normed` to its RMSNorm."""
        self._add(weight, squares, count, self.normed.array, self.normed.scale)

    def end(self, weight: Floats, squares: Floats | None = None, count: int = 1) -> Tensor:
        """Add `out` to the residual stream and return its RMSNorm, (T, D) fp32."""
        hidden = torch.empty_like(self.tensor)
        self._add(weight, squares, count, hidden.numpy(), self.nothing)
        return hidden

    def _add(
        self,
        weight: Floats,
        squares: Floats | None,
        count: int,
        out: np.ndarray,
        scales: Floats,
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


class CpuStep(ABC):
    """The `FastPath` of a backbone on the CPU, for linear layers in fp32, bf16 or 8 bits.

    Small weights are copied: build a new one after changing the model's. Memory grows to the
    largest step seen and is reused. Steps may be called from several threads; one runs at a time,
    on as many cores as torch uses.

    Args:
        layer: a linear layer of the model. Its dtype (fp32, bf16 or 8 bits) is taken for all
            layers that can be in 8 bits.
        between: for a layer in 8 bits, the dtype of the numbers between products, fp32 or bf16;
            otherwise not used, because these numbers have the layer's own dtype.
    """

    def __init__(
        self, model: Backbone, layer: nn.Linear | Int8Linear, between: torch.dtype
    ) -> None:
        self._memory = StepMemory()
        self._states = tuple(model.state_shapes())  # their names
        self._int8 = weight_dtype(layer) == torch.int8
        self._dtype = between if self._int8 else weight_dtype(layer)

    def step(
        self, hidden: Tensor, cu_seqlens: Tensor, pool: State, read_rows: Tensor, write_rows: Tensor
    ) -> Tensor:
        """Read the next tokens of several sequences, and update their states.

        hidden (T, D) fp32 are their embeddings, one sequence after another with the bounds
        cu_seqlens (S+1,). `pool` has the states of all open sequences, a row for each: sequence s
        continues from row read_rows[s] (-1: from zeros) and leaves its state in row write_rows[s].
        Returns the hidden vectors (T, D) after the last norm.
        """
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
        """Return the product with a linear layer; in 8 bits its inputs have G = `groups` scales."""
        return Product(layer, self._memory, groups)

    def _tensor(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return uninitialized memory as a tensor of fp32, bf16 or uint8; one name, one buffer."""
        kinds = {torch.bfloat16: np.uint16, torch.uint8: np.uint8}
        return torch.from_numpy(
            self._memory.array(name, *shape, dtype=kinds.get(dtype, np.float32))
        ).view(dtype)

    def _outputs(self, name: str, tokens: int, columns: int) -> Activations:
        """Return uninitialized memory for the outputs of a product, (T, N)."""
        return Activations.of(self._tensor(name, tokens, columns, dtype=self._dtype))

    def _inputs(self, name: str, tokens: int, columns: int, groups: int = 1) -> Activations:
        """Return uninitialized memory for the inputs of a product, (T, K) in G groups."""
        if not self._int8:
            return self._outputs(name, tokens, columns)
        size = groups * int8_matmul.bytes_per_group(columns, groups)
        x = self._tensor(name, tokens, size, dtype=torch.uint8)
        return Activations(x, x.numpy(), self._tensor(f"{name} scales", tokens, groups).numpy())

    def _stream(self, residual: Tensor, eps: float) -> ResidualStream:
        """Return the residual stream of a step, which begins as `residual` (T, D) fp32 and is
        updated in place.
        """
        tokens, width = residual.shape
        normed = self._inputs("normed", tokens, width)
        out = self._outputs("out", tokens, width)
        out.tensor.zero_()
        nothing = np.empty((tokens, 0), np.float32)
        return ResidualStream(residual, residual.numpy(), normed, out, eps, nothing, self._memory)
