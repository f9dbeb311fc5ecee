"""Every product, dtype and family gives the same bits alone and beside other threads, whatever the
allocator does, in the process that compiles its kernels and in later ones.

With one arena, all threads take memory that another has just freed; MALLOC_PERTURB_ fills what is
freed. Each case is a process of its own. Instructions that this processor does not have are
replaced by software (`helpers/stand_in_processor.py`).
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.children import PROGRAMS, TESTS, run_python

from runnel.ops.int8_matmul import vnni_problem

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the variables are of glibc's malloc"),
]
FAMILIES = "mamba1", "mamba2", "rwkv7", "xlstm"
CASES = [(name, dtype) for name in (*FAMILIES, "pocket") for dtype in ("float32", "bfloat16")]
CASES += [(name, "int8") for name in ("mamba1", "mamba2", "rwkv7", "pocket")]
REUSED = {"MALLOC_ARENA_MAX": "1", "MALLOC_PERTURB_": "165"}


def read(
    folder: Path, name: str, dtype: str, stand_in: str, environment: dict[str, str]
) -> dict[str, Any]:
    """Return what `programs/beside_threads.py` prints."""
    variables = environment | {"OMP_NUM_THREADS": str(os.cpu_count())}  # a step on all cores
    variables["NUMBA_CACHE_DIR"] = str(folder / (stand_in or "as the processor is"))
    arguments = [name, dtype, *filter(None, [stand_in])]
    out = run_python(PROGRAMS / "beside_threads.py", *arguments, **variables)
    return json.loads(out.splitlines()[-1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where kernels are compiled."""
    return tmp_path_factory.mktemp("kernels")


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_threads_and_reused_memory_change_no_bit(folder: Path, name: str, dtype: str) -> None:
    stand_in = "stand-in" if dtype == "int8" and vnni_problem() else ""
    plain = read(folder, name, dtype, stand_in, {})
    for found in (plain, read(folder, name, dtype, stand_in, REUSED)):
        assert found["finite"]
        assert found["wrong"] == 0, found["first"]
        assert found["digest"] == plain["digest"]


@pytest.mark.parametrize("name", ["mamba2", "rwkv7"])
def test_tiles_change_no_bit_either(folder: Path, name: str) -> None:
    found = read(folder, name, "int8", "stand-in tiles", REUSED)
    assert found["finite"]
    assert found["wrong"] == 0, found["first"]


PRODUCTS = """
import sys, pytest
from helpers import stand_in_processor
stand_in_processor.use(tiles=True)
files = ["tests/ops/test_matmul.py", "tests/ops/test_int8_matmul.py"]
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *files]))
"""


def test_products_are_right_with_stand_ins(folder: Path) -> None:
    """Where this processor has neither VNNI nor tiles, the tests of products would be skipped."""
    variables = REUSED | {"NUMBA_CACHE_DIR": str(folder / "stand-in tiles")}
    assert "skipped" not in run_python("-c", PRODUCTS, cwd=TESTS.parent, **variables)
