"""The parts of a step's time: matrix products, each compiled kernel, and the rest.

The CPU fast paths call their kernels as attributes of modules; during the measurement these are
replaced by functions that record their time.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from runnel.backbones.base import Backbone
from runnel.errors import InputError

PRODUCTS, REST = "matrix products", "all else"


def time_parts(backbone: Backbone, run: Callable[[], None]) -> dict[str, float]:
    """Return the seconds of `run` by part, largest first: `PRODUCTS`, kernels by name, `REST`.

    All kernels must be compiled already.

    Raises:
        InputError: the backbone has no compiled kernels here.
    """
    if backbone.fast is None:
        raise InputError(f"{backbone.title} has no compiled kernels here")
    from runnel.ops import int8_matmul  # imports numba, which is installed, as there are kernels

    seconds: dict[str, float] = defaultdict(float)
    kernels: list[tuple[ModuleType, str, Callable[..., Any]]] = [
        *_kernels(sys.modules[type(backbone.fast).__module__]),
        (torch, "mm", torch.mm),
        (int8_matmul, "multiply", int8_matmul.multiply),
    ]
    try:
        for place, name, kernel in kernels:
            setattr(
                place,
                name,
                _noting(kernel, PRODUCTS if name in ("mm", "multiply") else name, seconds),
            )
        start = time.perf_counter()
        run()
        whole = time.perf_counter() - start
    finally:
        for place, name, kernel in kernels:
            setattr(place, name, kernel)
    seconds[REST] = whole - sum(seconds.values())
    return dict(sorted(seconds.items(), key=lambda part: -part[1]))


def _kernels(module: ModuleType) -> list[tuple[ModuleType, str, Callable[..., Any]]]:
    """Return (module, name, function) of the compiled kernels that a module and the modules that it
    imports call.
    """
    from numba.core.dispatcher import Dispatcher  # installed, as there are kernels

    from runnel.backbones import cpu_step  # calls what all families share

    called = [
        value
        for value in vars(module).values()
        if isinstance(value, ModuleType) and value.__name__.startswith("runnel.")
    ]
    places = (module, *called, cpu_step)
    return [
        (place, name, value)
        for place in places
        for name, value in vars(place).items()
        if isinstance(value, Dispatcher)
    ]


def _noting(
    function: Callable[..., Any], part: str, seconds: dict[str, float]
) -> Callable[..., Any]:
    def noted(*args: Any, **options: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*args, **options)
        finally:
            seconds[part] += time.perf_counter() - start

    return noted
