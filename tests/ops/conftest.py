"""Products of both kinds, in bf16 and in 8 bits, are tested by tiles and by vectors."""

import pytest

from runnel.ops import bf16_matmul, int8_matmul


@pytest.fixture(params=[True, False], ids=["tiles", "vectors"])
def tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param and not int8_matmul.has_tiles():
        pytest.skip("no tiles of AMX here")
    for module in (bf16_matmul, int8_matmul):
        monkeypatch.setattr(module, "has_tiles", lambda: request.param)
