"""Facts about the machine that figures were measured on, and the peak memory of this process."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from runnel.hardware import cores
from runnel.ops.backend import has_native_bf16


def machine() -> dict[str, Any]:
    """Return processor, cores, threads, GPU and versions, as JSON values."""
    return {
        "processor": _processor(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "native_bf16": has_native_bf16(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in ("runnel", "torch", "numba", "transformers", "llama-cpp-python")},
    }


def in_words(facts: dict[str, Any]) -> str:
    """Return the facts of `machine` as one line."""
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items() if number)
    bf16 = "bf16 in hardware" if facts["native_bf16"] else "bf16 emulated"
    return (
        f"{facts['processor']}, {facts['cores']} cores, {facts['threads']} threads, {bf16}, "
        f"{facts['gpu'] or 'no GPU'}; {facts['system']}, Python {facts['python']}, {versions}"
    )


def reset_peak(device: str) -> None:
    """Reset the peak that `peak_bytes` returns, if the system can."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    elif Path("/proc/self/clear_refs").exists():
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes(device: str) -> int:
    """Return the peak memory of the GPU or of this process since the last reset, or since the start."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:  # not Linux
        pass
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:  # not Linux
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
