"""Where the time goes: parts that add up, and kernels that are themselves again afterwards."""

import pytest
import torch

from benchmarks.profile import PRODUCTS, REST, time_parts
from benchmarks.subject import Subject
from runnel.backbones.mamba2 import cpu as mamba2_cpu

IDS = torch.randint(0, 100, (1, 300), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_parts_of_a_step(dtype):
    try:
        system = Subject("tiny", dtype, "cpu")
    except RuntimeError as error:
        pytest.skip(f"no 8-bit kernels here: {error}")
    system.run(IDS, 1024)
    kernel, product = mamba2_cpu.kernels.scan_heads, torch.mm
    parts = time_parts(system.backbone, lambda: system.run(IDS, 1024))
    norm = "add_rms_norm_bytes" if dtype == "int8" else "add_rms_norm"
    assert {PRODUCTS, REST, "scan_heads", "prepare_chunks", norm} <= set(parts)
    assert all(seconds > 0 for seconds in parts.values())
    assert list(parts.values()) == sorted(parts.values(), reverse=True)
    assert (mamba2_cpu.kernels.scan_heads, torch.mm) == (kernel, product)
