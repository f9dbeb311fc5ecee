"""Choose what runs where: the device, the dtype, and the implementation of an operator, and log
why.

Every operator has the backends `reference` (a loop over time, for tests) and `torch` (parallel
form, any device and dtype, differentiable). The operators in `KERNELS` also have `cpu` (numba
kernels) or `gpu` (Triton kernels, our own or flash-linear-attention's), for fp32 and bf16,
differentiable. "auto" uses the kernels if they can run. The function of operator NAME and backend
BACKEND is `NAME_BACKEND`, in ops/NAME/BACKEND.py or ops/reference.py.

The order in this file: devices and dtypes (`wanted_device`, `wanted_dtype`); the settings of torch
during a computation (`plain_numbers`, `inference`); the choice of a backend (`implementation`).
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from runnel.errors import (
    BackendUnavailable,
    InputError,
    MissingDependency,
    install_command,
    needing,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Backend = Literal["reference", "torch", "cpu", "gpu"]
_THROUGH_FLA = {  # operators whose GPU kernels are from another package
    "causal_conv1d": "fla.modules.causal_conv1d",
    "gated_rms_norm": "fla.modules.norm.layernorm_gated",
    "ssd": "fla.ops.simple_gla",
    "wkv7": "fla.ops.rwkv7",
}
# Operators that have kernels. On the CPU these are the ones that pocket-mamba2 is trained with, and
# mlstm. Other families read on the CPU with kernels that fuse whole layers (`backbones`).
KERNELS = {
    "cpu": frozenset({"causal_conv1d", "gated_rms_norm", "mlstm", "ssd"}),
    "gpu": frozenset({"causal_conv1d", "gated_rms_norm", "mlstm", "selective_scan", "ssd", "wkv7"}),
}

_DTYPES = ("float32", "bfloat16", "float64", "int8")
# Linux's names: x86 vectors, x86 tiles, Arm
_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})

_log = logging.getLogger("runnel")
chosen_device: str | None = None  # by `default_device`
_default_lock = threading.RLock()
# torch's default dtype when each `plain_numbers` that is still open began, in any thread; the first
# one is what the calling program has set, and only that is ever restored.
_defaults: list[torch.dtype] = []


@contextmanager
def default_device(device: str) -> Iterator[None]:
    """Inside, in all threads, load models on this device where none or "auto" is asked for. Raises
    what `wanted_device` raises.
    """
    global chosen_device
    before = chosen_device
    chosen_device = device if device == "cpu" else str(wanted_device(device))
    try:
        yield
    finally:
        chosen_device = before


def wanted_device(device: str | torch.device) -> torch.device:
    """Return the device of a name. "auto" is the device of `default_device`; outside of that, CUDA
    if torch sees it, else the CPU.

    Raises:
        InputError: no device has this name.
        BackendUnavailable: this machine has no such device.
        MissingDependency: torch is not installed.
    """
    with needing(f"the device {str(device)!r} needs torch", "recurrent"):
        import torch

    if device == "auto":
        return torch.device(chosen_device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if re.fullmatch(r"(cpu|cuda)(:\d{1,3})?", str(device)) is None:
        raise InputError(f'device must be "auto", "cpu", "cuda" or "cuda:1", got {str(device)!r}')
    target = torch.device(device)
    if target.type == "cpu":
        return target
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (target.index or 0) >= count:
        raise BackendUnavailable(
            f"the device {str(device)!r} does not exist: torch sees {count} CUDA device(s); use"
            " device='cpu', or install a CUDA build of torch"
        )
    return target


def gpu_name() -> str | None:
    """Return the name of the GPU that torch uses by default; None without a GPU or torch."""
    with suppress(ImportError):
        import torch

        if torch.cuda.is_available():
            return torch.cuda.get_device_name()
    return None


def wants_cpu(device: str) -> bool:
    """Return whether `wanted_device` is the CPU, without importing torch if that is possible;
    raises what `wanted_device` raises. Without torch, "auto" is the CPU.
    """
    chosen = (chosen_device or "auto") if device == "auto" else device
    # No driver, so no GPU. Where torch is imported already, it can be asked at no cost.
    no_gpu = sys.platform == "linux" and not Path("/proc/driver/nvidia").exists()
    if chosen == "cpu" or (chosen == "auto" and no_gpu and "torch" not in sys.modules):
        return True
    try:
        return wanted_device(chosen).type == "cpu"
    except MissingDependency:
        if chosen != "auto":
            raise
        return True


def wanted_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """Return the dtype of a name; "auto" is bf16 where the processor or GPU computes it natively,
    else fp32.
    """
    import torch

    if dtype == "auto":
        return torch.bfloat16 if device.type != "cpu" or has_native_bf16() else torch.float32
    dtypes = {name: getattr(torch, name) for name in _DTYPES}
    found = dtypes.get(dtype) if isinstance(dtype, str) else dtype
    if found is None or found not in dtypes.values():
        raise InputError(
            f'dtype must be "auto", {", ".join(map(repr, _DTYPES))} or that torch dtype, got'
            f" {dtype!r}"
        )
    return found


@functools.cache
def has_native_bf16() -> bool:
    """Return whether the CPU multiplies bf16 matrices in hardware (AVX512_BF16, AMX or Arm BF16).

    Without such instructions bf16 is emulated and slower than fp32.
    """
    capabilities: dict[str, object] = {}
    with suppress(ImportError):
        import torch

        capabilities = getattr(torch.cpu, "get_capabilities", dict)()  # newer torch only
    if any(
        capabilities.get(flag, False) for flag in ("avx512_bf16", "amx_bf16", "arm_bf16", "bf16")
    ):
        return True
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:  # not Linux
        return False
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return not _BF16_FLAGS.isdisjoint(flags.split())


@contextmanager
def plain_numbers() -> Iterator[None]:
    """Inside, make new tensors fp32, changeable later and without autocast, whatever the calling
    program has set for its own tensors.

    All threads share torch's default dtype. So if several threads are inside at once, the last one
    to leave restores it.
    """
    import torch

    if torch.is_inference_mode_enabled():  # tensors made in it could not be changed later
        with torch.inference_mode(False), torch.no_grad(), plain_numbers():
            yield
        return
    cast = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    for kind in cast:
        torch.set_autocast_enabled(kind, False)
    with _default_lock:
        _defaults.append(torch.get_default_dtype())
        if _defaults[-1] != torch.float32:
            torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        with _default_lock:
            default = _defaults[0]
            _defaults.pop()
            if not _defaults and default != torch.float32:
                torch.set_default_dtype(default)
        for kind in cast:
            torch.set_autocast_enabled(kind, True)


@contextmanager
def inference() -> Iterator[None]:
    """Inside, compute without autograd, and with the settings of `plain_numbers`."""
    import torch

    with plain_numbers(), torch.inference_mode():
        yield


def choose(operator: str, requested: str, x: Tensor) -> Backend:
    """Return the backend to run an operator with: "auto" or a `Backend`, by device and dtype of its
    main input.
    """
    if requested in ("reference", "torch"):
        return requested  # type: ignore[return-value]
    on_gpu = requested == "gpu" or (requested == "auto" and x.device.type == "cuda")
    problem = _gpu_problem(operator, x) if on_gpu else _cpu_problem(operator, x)
    import torch

    if problem is None and x.dtype not in (torch.float32, torch.bfloat16):
        problem = (
            f"the input is {str(x.dtype).removeprefix('torch.')} (they support float32 and"
            " bfloat16)"
        )
    kernels = "GPU kernels" if on_gpu else "compiled CPU kernels"
    if problem is None:
        say_once(f"{operator}: {kernels}")
        return "gpu" if on_gpu else "cpu"
    if requested != "auto":
        kernels = kernels.removeprefix("compiled ")
        raise BackendUnavailable(
            f"{operator}: the {kernels} cannot run because {problem}; use backend='auto' or 'torch'"
        )
    # A warning if the operator has kernels but they cannot run: that costs most of the speed.
    lost = operator in KERNELS["gpu" if on_gpu else "cpu"] and (
        on_gpu or numba_problem() is not None
    )
    say_once(
        f"{operator}: plain torch, because {problem}", logging.WARNING if lost else logging.INFO
    )
    return "torch"


def implementation(operator: str, requested: str, x: Tensor) -> Callable[..., Any]:
    """Return the function that runs `operator` on the backend that `choose` returns for the same
    arguments.
    """
    chosen = choose(operator, requested, x)
    module = importlib.import_module(
        f"runnel.ops.{chosen if chosen == 'reference' else f'{operator}.{chosen}'}"
    )
    return getattr(module, f"{operator}_{chosen}")


def _cpu_problem(operator: str, x: Tensor) -> str | None:
    """Return why the operator's CPU kernels cannot run for x, or None if they can."""
    if operator not in KERNELS["cpu"]:
        return "this operator has none"
    return f"the input is on {x.device.type}" if x.device.type != "cpu" else numba_problem()


def _gpu_problem(operator: str, x: Tensor) -> str | None:
    """Return why the operator's GPU kernels cannot run for x, or None if they can."""
    import torch

    # Triton then runs kernels on the CPU: slow, for tests
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if x.device.type != "cuda" and not interpreted:
        return f"the input is on {x.device.type}"
    if operator not in KERNELS["gpu"]:
        return "this operator has none"
    if x.device.type == "cuda" and torch.version.hip is not None:
        return "they are written for NVIDIA GPUs"
    if x.device.type == "cuda" and torch.cuda.get_device_capability(x.device) < (8, 0):
        return "the GPU is older than compute capability 8.0"
    return _import_problem("triton") or (
        _import_problem(_THROUGH_FLA[operator]) if operator in _THROUGH_FLA else None
    )


@functools.cache
def _import_problem(module: str) -> str | None:
    try:
        importlib.import_module(module)
    except (ImportError, RuntimeError, AttributeError) as error:
        # mismatched versions have raised all three
        return f"{module} cannot be imported ({error}); run `{install_command('gpu')}`"
    return None


def numba_problem() -> str | None:
    """Return why numba kernels cannot run here, or None if they can."""
    from runnel.ops.numba_math import PROBLEM  # numba takes a while to import

    return PROBLEM


@functools.cache
def say_once(message: str, level: int = logging.INFO) -> None:
    """Log a message only the first time."""
    _log.log(level, message)
