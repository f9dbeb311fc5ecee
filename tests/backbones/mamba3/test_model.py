"""What is particular to Mamba-3; what all backbones share is in tests/contracts/test_backbones.py."""

from __future__ import annotations

import copy

import pytest
import torch
from helpers.tiny_backbones import assert_close, assert_states_close, tiny_backbone, token_ids
from torch.nn import functional as F

from runnel.backbones.mamba3.model import Mamba3, Mamba3Config

SISO = Mamba3Config(50, 24, 2, state_size=8, head_size=8, groups=3)
MIMO = Mamba3Config(50, 32, 2, state_size=12, head_size=16, ranks=3, angles=6, out_norm=True)


@pytest.fixture(scope="module", params=[SISO, MIMO], ids=["siso", "mimo"])
def model(request: pytest.FixtureRequest) -> Mamba3:
    return tiny_backbone(Mamba3, request.param)


@pytest.mark.parametrize("cut", [1, 20, 21, 22, 63, 64, 65, 128])
def test_segments_of_several_chunks_change_nothing(model: Mamba3, cut: int) -> None:
    """The next token's share crosses chunks and steps."""
    ids = token_ids(150)
    with torch.no_grad():
        whole, end = model(ids)
        first, state = model(ids[:cut])
        second, state = model(ids[cut:], None, state)
    assert_close(torch.cat([first, second]), whole)
    assert_states_close(state, end)


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


def test_angles_of_long_texts_stay_close_in_any_split() -> None:
    """They are summed in fp64, so that 3,000 tokens give those of a model in fp64."""
    plain, ids = tiny_backbone(Mamba3, SISO), token_ids(3000)
    with torch.no_grad():
        _, expected = copy.deepcopy(plain).double()(ids)
        _, state = plain(ids[:1711])
        _, state = plain(ids[1711:], None, state)
    assert_close((state["angle"] - expected["angle"].float()).sin(), torch.zeros_like(state["angle"]), 3e-4)
    assert state["angle"].abs().max() <= torch.pi + 1e-6
