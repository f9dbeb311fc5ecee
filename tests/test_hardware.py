"""What the machine offers is read, not guessed."""

import os
from pathlib import Path

import pytest

from runnel import hardware


def test_cores_and_memory_are_plausible() -> None:
    assert 1 <= hardware.cores() <= (os.cpu_count() or 1)
    assert 1 << 20 < hardware.available_memory() < 1 << 50


def test_native_bf16_agrees_with_cpuinfo() -> None:
    info = Path("/proc/cpuinfo")
    if not info.exists():
        pytest.skip("no /proc/cpuinfo on this system")
    text = info.read_text()
    listed = any(flag in text.split() for flag in ("avx512_bf16", "amx_bf16", "bf16"))
    assert hardware.has_native_bf16() == listed
