"""Properties of this machine: native bf16, processor cores, free memory. No state, no settings."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

import torch

_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})  # x86 flags, x86 tiles, Arm "Features"


@cache
def has_native_bf16() -> bool:
    """Return whether the CPU multiplies bf16 matrices in hardware (AVX512_BF16, AMX or Arm BF16).

    Without such instructions bf16 is emulated and slower than fp32.
    """
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()  # newer torch only
    if any(capabilities.get(flag, False) for flag in ("avx512_bf16", "amx_bf16", "arm_bf16", "bf16")):
        return True
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:  # not Linux
        return False
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return not _BF16_FLAGS.isdisjoint(flags.split())


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_memory() -> int:
    """Return the bytes of memory usable without swapping: the system's free memory, or less under a container's limit."""
    limits = [_system_memory()]
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            limits.append(int(Path(limit).read_text()) - int(Path(used).read_text()))
        except (OSError, ValueError):  # no such control group, or the limit is "max"
            continue
    return max(0, min(limits))


def _system_memory() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:  # not Linux
        pass
    if sys.platform != "win32" and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2  # only the total is known: take half
    return 4 << 30  # unknown
