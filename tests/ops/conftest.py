"""Products of both kinds, in bf16 and in 8 bits, are tested by tiles and by vectors."""

from collections.abc import Callable

import pytest

from runnel.ops import int8_matmul, matmul
from runnel.ops.numba_math import Scratch, StepMemory, aligned_zeros


@pytest.fixture(params=[True, False], ids=["tiles", "vectors"])
def tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param and not int8_matmul.has_tiles():
        pytest.skip("no tiles of AMX here")
    for module in (matmul, int8_matmul):
        monkeypatch.setattr(module, "has_tiles", lambda: request.param)


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that sets into how many workers kernels divide their work."""

    scratch = StepMemory.scratch

    def divide(count: int) -> None:
        def of_count(self: StepMemory, name: str, numbers: int) -> Scratch:
            rows, tasks = scratch(self, name, numbers)
            return Scratch(aligned_zeros(count, rows.shape[1]), tasks)

        monkeypatch.setattr(StepMemory, "scratch", of_count)

    return divide
