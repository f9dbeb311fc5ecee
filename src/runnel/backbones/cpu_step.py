"""Shared by the CPU fast paths: one step at a time, copies with their own memory, and the pool as arrays."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numba
import torch
from numpy.typing import NDArray

from runnel.backbones.state import State


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
