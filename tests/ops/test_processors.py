"""Kernels compiled for x86 processors without AVX-512, and for Arm, where only the assembly is
checked.
"""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.children import PATHS, PROGRAMS
from llvmlite import binding

pytestmark = pytest.mark.slow

HASWELL = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma"}
# 8-bit products in 256 bits
ALDERLAKE = {"NUMBA_CPU_NAME": "alderlake", "NUMBA_CPU_FEATURES": "+avx2,+fma,+avxvnni"}
CONTRACTS = (
    "tests/contracts/test_ops.py",
    "tests/contracts/test_backbones.py",
    "tests/ops/test_int8_matmul.py",
)
EVERY_KERNEL = (
    "(cpu and (test_values or test_gradients)) or fast_step_equals_forward or"
    " linear_layers_stay_close"
)


def start(
    folder: Path, environment: dict[str, str], *arguments: str
) -> subprocess.CompletedProcess[str]:
    variables = os.environ | PATHS | {"NUMBA_CACHE_DIR": str(folder)} | environment
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=PROGRAMS.parents[1],
        env=variables,
        capture_output=True,
        text=True,
        timeout=1800,
    )


def run_tests(folder: Path, environment: dict[str, str], *arguments: str) -> dict[str, Any]:
    """Return what `programs/other_processor.py` found out; skip where this processor cannot run the
    other one's code.
    """
    missing = {name.strip("+") for name in environment["NUMBA_CPU_FEATURES"].split(",")}
    missing -= {name for name, exists in binding.get_host_cpu_features().items() if exists}
    if missing:
        pytest.skip(f"this processor has no {', '.join(sorted(missing))}")
    options = ["-q", "-p", "no:cacheprovider", "-m", "not gpu and not network and not release"]
    done = start(folder, environment, str(PROGRAMS / "other_processor.py"), *options, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["status"] == 0, done.stdout
    return found


def check_code(found: dict[str, Any], multiply_adds: int) -> None:
    assert found["kernels"]
    assert found["wide"] == []
    assert found["calls"] == found["arm_calls"] == []
    assert found["narrow"] >= multiply_adds  # of 256 bits
    assert found["arm"] >= 2 * multiply_adds  # of 128 bits


def test_a_matrix_product_of_another_processor(tmp_path: Path) -> None:
    found = run_tests(tmp_path, HASWELL, "tests/ops/test_numba_math.py", "-k", "multiply")
    check_code(found, 4 * 16 // 8)  # a tile of 4 rows and 16 columns, in a loop
    assert found["x86"] == []


@pytest.mark.release
def test_contracts_hold_without_avx_512(tmp_path: Path) -> None:
    found = run_tests(tmp_path, HASWELL, *CONTRACTS, "-k", EVERY_KERNEL)
    check_code(found, 50)
    assert len(set(found["kernels"])) > 100
    assert found["x86"] == []


@pytest.mark.release
def test_8_bit_products_of_256_bits(tmp_path: Path) -> None:
    found = run_tests(tmp_path, ALDERLAKE, *CONTRACTS, "-k", "test_int8 or 8_bit")
    check_code(found, 50)
    assert {name.rpartition(".")[0] for name in found["x86"]} == {"runnel.ops.int8_matmul"}


PLAIN = """
import logging
logging.basicConfig(format="%(levelname)s: %(message)s")
from runnel import Embedder
for _ in range(2):
    embedder = Embedder.load("pocket", device="cpu")
print(embedder.model.backbone.fast, embedder.encode(["a text"]).shape)
"""


@pytest.mark.skipif(
    platform.machine().lower() not in ("x86_64", "amd64"),
    reason="other processors always have these instructions",
)
def test_without_fused_multiply_adds_models_run_in_plain_torch_and_say_so_once(
    tmp_path: Path,
) -> None:
    done = start(tmp_path, {"NUMBA_CPU_NAME": "generic"}, "-c", PLAIN)
    assert done.stdout == "None (1, 384)\n", done.stderr
    reason = "the processor has no FMA instructions, or numba is configured not to use them"
    assert [line for line in done.stderr.splitlines() if line.startswith("WARNING")] == [
        f"WARNING: Encoder runs in plain torch, because {reason}"
    ]
    assert list(tmp_path.iterdir()) == []  # no kernel was compiled
