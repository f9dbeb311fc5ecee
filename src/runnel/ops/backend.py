"""Choose the implementation of an operator, and log why.

Every operator has four: `reference` (a loop over time, for tests), `torch` (parallel form, any device and dtype,
differentiable), `cpu` (numba kernels) and `gpu` (Triton kernels, our own or flash-linear-attention's); the kernels support fp32
and bf16 and are differentiable. "auto" uses the kernels if they can run.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from runnel.errors import BackendUnavailable, InputError

Backend = Literal["reference", "torch", "cpu", "gpu"]
BACKENDS: tuple[Backend, ...] = ("reference", "torch", "cpu", "gpu")
_THROUGH_FLA = {"ssd": "fla.ops.simple_gla", "wkv7": "fla.ops.rwkv7"}  # operators whose GPU kernels are from another package

_log = logging.getLogger("runnel")


def choose(operator: str, requested: str, x: Tensor) -> Backend:
    """Return the backend to run `operator` with.

    Args:
        operator: its name.
        requested: "auto" or one of `BACKENDS`.
        x: the operator's main input; its device and dtype determine the choice.

    Raises:
        BackendUnavailable: "cpu" or "gpu" was requested and cannot run here; the message says why.
        InputError: unknown backend.
    """
    if requested in ("reference", "torch"):
        return requested  # type: ignore[return-value]
    if requested not in ("auto", "cpu", "gpu"):
        raise InputError(f"{operator}: no backend {requested!r}; expected 'auto' or one of {', '.join(BACKENDS)}")
    on_gpu = requested == "gpu" or (requested == "auto" and x.device.type == "cuda")
    problem = (_gpu_problem(operator, x) if on_gpu else _cpu_problem(x)) or _dtype_problem(x)
    kernels = "GPU kernels" if on_gpu else "compiled CPU kernels"
    if problem is None:
        say_once(f"{operator}: {kernels}")
        return "gpu" if on_gpu else "cpu"
    if requested != "auto":
        kernels = kernels.removeprefix("compiled ")
        raise BackendUnavailable(f"{operator}: the {kernels} cannot run because {problem}; use backend='auto' or 'torch'")
    # On a GPU, missing kernels cost most of its speed, so this is a warning.
    say_once(f"{operator}: plain torch, because {problem}", logging.WARNING if on_gpu else logging.INFO)
    return "torch"


def implementation(operator: str, requested: str, x: Tensor) -> Callable[..., Any]:
    """Return the function that runs `operator` on the backend of `choose`, which has the same arguments."""
    chosen = choose(operator, requested, x)
    function: Callable[..., Any] = getattr(importlib.import_module(f"runnel.ops.{operator}.{chosen}"), f"{operator}_{chosen}")
    return function


def _dtype_problem(x: Tensor) -> str | None:
    if x.dtype not in (torch.float32, torch.bfloat16):
        return f"the input is {str(x.dtype).removeprefix('torch.')} (they support float32 and bfloat16)"
    return None


def _cpu_problem(x: Tensor) -> str | None:
    return f"the input is on {x.device.type}" if x.device.type != "cpu" else numba_problem()


def _gpu_problem(operator: str, x: Tensor) -> str | None:
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"  # Triton then runs kernels on the CPU: slow, for tests
    if x.device.type != "cuda" and not interpreted:
        return f"the input is on {x.device.type}"
    if x.device.type == "cuda" and torch.version.hip is not None:
        return "they are written for NVIDIA GPUs"
    if x.device.type == "cuda" and torch.cuda.get_device_capability(x.device) < (8, 0):
        return "the GPU is older than compute capability 8.0"
    return _import_problem("triton") or (_import_problem(_THROUGH_FLA[operator]) if operator in _THROUGH_FLA else None)


@functools.cache
def _import_problem(module: str) -> str | None:
    try:
        importlib.import_module(module)
    except (ImportError, RuntimeError, AttributeError) as error:  # mismatched versions have raised all three
        return f"{module} cannot be imported ({error}); run pip install 'runnel[gpu]'"
    return None


@functools.cache
def numba_problem() -> str | None:
    """Return why numba kernels cannot run here, or None if they can."""
    try:
        import numba
    except ImportError as error:
        return f"numba cannot be imported ({error})"
    if numba.config.DISABLE_JIT:
        return "NUMBA_DISABLE_JIT is set"
    return None


@functools.cache
def say_once(message: str, level: int = logging.INFO) -> None:
    """Log a message only the first time."""
    _log.log(level, message)
