"""What is particular to Mamba-3; what all backbones share is in tests/contracts/test_backbones.py."""

import copy

import pytest
import torch
from helpers.tiny_backbones import tiny_backbone, token_ids
from torch.nn import functional as F

from runnel.backbones.mamba3.model import Mamba3, Mamba3Config

SISO = Mamba3Config(50, 24, 2, state_size=8, head_size=8, groups=3)
MIMO = Mamba3Config(50, 32, 2, state_size=12, head_size=16, ranks=3, angles=6, out_norm=True)


@pytest.fixture(scope="module", params=[SISO, MIMO], ids=["siso", "mimo"])
def model(request: pytest.FixtureRequest) -> Mamba3:
    return tiny_backbone(Mamba3, request.param)


@pytest.mark.parametrize("bias", [-60.0, 60.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extreme_time_steps_give_finite_numbers(model: Mamba3, bias: float, dtype: torch.dtype) -> None:
    """Half of the heads read hardly anything, or forget everything and turn by many times pi at each token."""
    plain = tiny_backbone(Mamba3, model.config, dtype)
    with torch.no_grad():
        for layer in plain.blocks:
            layer.mixer.dt_bias[::2] = bias
        hidden, state = plain(token_ids(100))
        expected, _ = copy.deepcopy(plain).double()(token_ids(100))
    assert all(t.isfinite().all() for t in (hidden, *state.tensors.values()))
    assert F.cosine_similarity(hidden, expected.float()).min() > (0.999 if dtype == torch.float32 else 0.98)
