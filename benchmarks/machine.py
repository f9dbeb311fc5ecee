"""Facts about the machine that figures were measured on, and the peak memory of this process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch


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
    """Return the peak memory of the GPU or of this process since the last reset, or since the
    start.
    """
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
