"""Processor cores and free memory of this machine. No state, no settings."""

import os
import sys
from contextlib import suppress
from pathlib import Path


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_memory() -> int:
    """Return the bytes of memory usable without swapping: the system's free memory, or less under a
    container's limit.
    """
    limits = [_system_memory()]
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        ),
    ):
        with suppress(OSError, ValueError):  # no such control group, or the limit is "max"
            limits.append(int(Path(limit).read_text()) - int(Path(used).read_text()))
    return max(0, min(limits))


def _system_memory() -> int:
    with suppress(OSError):  # not Linux
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    if sys.platform != "win32" and "SC_PHYS_PAGES" in os.sysconf_names:
        # only the total is known: take half
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return 4 << 30  # unknown
