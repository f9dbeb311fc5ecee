"""Tiny shapes of every architecture, and comparing hidden vectors."""

import pytest
from torch import Tensor

from benchmarks import shapes
from benchmarks.measure import compare
from runnel.backbones.mamba1.model import Mamba1Config
from runnel.backbones.mamba2.model import Mamba2Config
from runnel.backbones.rwkv7.model import Rwkv7Config
from runnel.backbones.xlstm.model import XlstmConfig


@pytest.fixture
def tiny_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        "tiny-mamba1": ("mamba1", Mamba1Config(64, 32, 2)),
        "tiny-mamba2": ("mamba2", Mamba2Config(64, 32, 2, state_size=16, head_size=16, groups=2)),
        "tiny-rwkv7": ("rwkv7", Rwkv7Config(64, 64, 2, decay_rank=8, a_rank=8, v_rank=8, gate_rank=8)),
        "tiny-xlstm": ("xlstm", XlstmConfig(64, 128, 2, num_heads=2, qk_size=64, v_size=128, ffn_size=192)),
    }
    monkeypatch.setattr(shapes, "SHAPES", found)


def same(found: Tensor, expected: Tensor, dtype: str = "fp32") -> None:
    """Assert that hidden vectors agree as closely as the dtype allows."""
    checked = compare("s", "m", dtype, found.numpy(), expected.numpy())
    assert checked.passed, checked
