"""A GPU that is not there: its tensors are computed by the CPU, under a GPU's rule of one device
per operation.

Its name is `GPU`. It works inside `stand_in_gpu()` only, and has no kernels, so operators run in
plain torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache
from multiprocessing import get_context
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils import backend_registration
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

GPU = "stand_in"
REAL = torch.cuda.is_available()
DEVICE = "cuda" if REAL else GPU  # of the tests that run on either
_aten = torch.ops.aten
_BETWEEN_DEVICES = {_aten._to_copy.default, _aten.copy_.default}
# by indices that may be on the CPU
_INDEXED = {_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default}


class OnGpu(Tensor):
    """A tensor of the device, around the one on the CPU that has the numbers."""

    numbers: Tensor

    @staticmethod
    def __new__(cls, numbers: Tensor) -> OnGpu:
        shape: dict[str, Any] = {
            "strides": numbers.stride(),
            "storage_offset": numbers.storage_offset(),
            "dtype": numbers.dtype,
        }
        made = Tensor._make_wrapper_subclass(
            cls, numbers.shape, device=torch.device(GPU, 0), **shape
        )
        made.numbers = numbers
        return made

    def tolist(self) -> Any:
        return self.numbers.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("a tensor of a GPU cannot be converted to numpy")

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.numpy()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    free = {id(x) for x in args[1]} if func in _INDEXED else set()
    places = {isinstance(x, OnGpu) for x in tensors if x.ndim and id(x) not in free}
    if len(places) > 1 and func not in _BETWEEN_DEVICES:
        raise RuntimeError(f"{func}: expected all tensors to be on the same device")
    on_gpu = any(isinstance(x, OnGpu) for x in tensors)
    if kwargs.get("device") is not None:
        on_gpu = torch.device(kwargs["device"]).type == GPU
        kwargs = kwargs | {"device": torch.device("cpu")}
    inner, named = pytree.tree_map_only(OnGpu, lambda x: x.numbers, (args, kwargs))
    out = func(*inner, **named)
    if torch.Tag.inplace_view in func.tags:  # the wrapper's own shape
        with no_dispatch():
            func(*args, **kwargs)
    if func._schema.is_mutable:
        return kwargs.get("out", args[0])
    return pytree.tree_map_only(Tensor, OnGpu, out) if on_gpu else out


class _Mode(TorchDispatchMode):
    """Also what has no tensor on the device yet: `torch.zeros(3, device=GPU)`."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Module(backend_registration._DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


@cache
def register() -> None:
    """Tell torch of the device: before the first backward pass of the process, if there is to be
    one on it.
    """
    backend_registration._setup_privateuseone_for_python_backend(GPU, _Module())


@contextmanager
def stand_in_gpu() -> Iterator[None]:
    """Let tensors be on `DEVICE`, which needs nothing where there is a GPU."""
    if REAL:
        yield
        return
    register()
    # In inference mode a view is an inference tensor, but a wrapper of one that is none cannot be.
    with mock.patch("torch.inference_mode", torch.no_grad), _Mode():
        yield


def in_a_process(function: Callable[..., object], *arguments: object) -> None:
    """Call in a process of its own: autograd counts the devices at its first backward pass."""
    begin = None if REAL else register
    with ProcessPoolExecutor(1, get_context("spawn"), begin) as pool:
        pool.submit(function, *arguments).result()
