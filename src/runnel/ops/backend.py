"""Which implementation of an operator runs, and why.

Every operator has three: `reference` (a loop over time, for tests), `torch` (parallel form, any device and dtype,
differentiable) and `cpu` (numba kernels, fp32 and bf16, differentiable). "auto" takes the kernels where they can run.
"""

from __future__ import annotations

import functools
import logging
from typing import Literal

import torch
from torch import Tensor

from runnel.errors import BackendUnavailable, InputError

Backend = Literal["reference", "torch", "cpu"]
BACKENDS: tuple[Backend, ...] = ("reference", "torch", "cpu")

_log = logging.getLogger("runnel")


def choose(operator: str, requested: str, x: Tensor) -> Backend:
    """The backend to run `operator` with.

    Args:
        operator: its name, for messages.
        requested: "auto" or one of `BACKENDS`.
        x: the operator's main input; its device and dtype decide.

    Raises:
        BackendUnavailable: "cpu" was asked for and cannot run here; the message says why.
        InputError: there is no such backend.
    """
    if requested in ("reference", "torch"):
        return requested  # type: ignore[return-value]
    if requested not in ("auto", "cpu"):
        raise InputError(f"{operator}: no backend {requested!r}; expected 'auto' or one of {', '.join(BACKENDS)}")
    problem = _kernel_problem(x)
    if problem is None:
        _say(f"{operator}: compiled CPU kernels")
        return "cpu"
    if requested == "cpu":
        raise BackendUnavailable(f"{operator}: the CPU kernels cannot run because {problem}; use backend='auto' or 'torch'")
    _say(f"{operator}: plain torch, because {problem}")
    return "torch"


def _kernel_problem(x: Tensor) -> str | None:
    if x.device.type != "cpu":
        return f"the input is on {x.device.type}"
    if x.dtype not in (torch.float32, torch.bfloat16):
        return f"the input is {str(x.dtype).removeprefix('torch.')} (they take float32 and bfloat16)"
    return numba_problem()


@functools.cache
def numba_problem() -> str | None:
    """Why numba kernels cannot run here, or None if they can."""
    try:
        import numba
    except ImportError as error:
        return f"numba cannot be imported ({error})"
    if numba.config.DISABLE_JIT:
        return "NUMBA_DISABLE_JIT is set"
    return None


@functools.cache
def _say(message: str) -> None:
    _log.info(message)
