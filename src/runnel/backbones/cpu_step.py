"""Shared by the CPU fast paths: one step at a time with memory of its own, the pool as arrays, and matrix products.

T  tokens      K  inputs      N  outputs      G  groups of inputs that share a scale, in 8 bits
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numba
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from runnel.backbones.int8 import Int8Linear
from runnel.backbones.state import State
from runnel.ops.int8_matmul import bytes_per_group, multiply
from runnel.ops.numba_math import parallel


class CpuStep:
    """A fast path with memory that is kept between steps: `own` names those attributes, None until the first step."""

    own: ClassVar[tuple[str, ...]]

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out memory and lock, so that a deep copy of the model has its own."""
        return {**self.__dict__, "_lock": None, **dict.fromkeys(self.own)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()


def count_workers() -> int:
    """Return the number of threads that a kernel runs on: torch's, as far as numba has them."""
    return max(1, min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))


@contextmanager
def pool_arrays(pool: State, *names: str) -> Iterator[list[NDArray[Any]]]:
    """Yield the pool's tensors as fp32 arrays to change: its own memory where possible, else written back at the end."""
    tensors = [pool[name].to(torch.float32).contiguous() for name in names]
    yield [tensor.numpy() for tensor in tensors]
    for name, tensor in zip(names, tensors, strict=True):
        if tensor.data_ptr() != pool[name].data_ptr():
            pool[name].copy_(tensor)


class Product:
    """A linear layer in fp32, bf16 or 8 bits that writes into given memory. Its weight stays the model's own.

    Args:
        layer: the layer.
        groups: G.
        bias: add the layer's bias, if it has one; False where the kernel that comes next does.
    """

    def __init__(self, layer: nn.Linear | Int8Linear, groups: int, *, bias: bool = True) -> None:
        self._layer, self._groups, self._bias = layer, groups, layer.bias if bias else None
        if isinstance(layer, Int8Linear):
            layer.packed(groups)

    def __call__(self, x: Tensor, scale: Tensor, out: Tensor) -> None:
        """out (T, N) = x (T, K) weight^T + bias. In 8 bits x is bytes with their scale (T, G): memory as from `input_room`."""
        if isinstance(self._layer, Int8Linear):
            weights = self._layer.packed(self._groups)
            bits = out.view(torch.uint16) if out.dtype == torch.bfloat16 else out
            with parallel():
                multiply(x.numpy(), scale.numpy(), weights, bits.numpy(), torch.get_num_threads())
        else:
            torch.mm(x, self._layer.weight.t(), out=out)
        if self._bias is not None:
            out.add_(self._bias)


def input_room(tokens: int, inputs: int, groups: int, int8: bool, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return memory for a `Product`'s x and scale: (T, K) of `dtype` and nothing, or bytes and (T, G) fp32."""
    if not int8:
        return torch.empty(tokens, inputs, dtype=dtype), torch.empty(tokens, 0)
    return torch.empty(tokens, groups * bytes_per_group(inputs, groups), dtype=torch.uint8), torch.empty(tokens, groups)
