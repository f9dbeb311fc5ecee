"""The dtype is chosen by what the processor says of itself."""

from pathlib import Path

import pytest

from runnel.ops.backend import has_native_bf16


def test_native_bf16_agrees_with_cpuinfo() -> None:
    info = Path("/proc/cpuinfo")
    if not info.exists():
        pytest.skip("no /proc/cpuinfo on this system")
    text = info.read_text()
    listed = any(flag in text.split() for flag in ("avx512_bf16", "amx_bf16", "bf16"))
    assert has_native_bf16() == listed
