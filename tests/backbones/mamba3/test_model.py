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
    model = tiny_backbone(Mamba3, request.param)
    model.prepare()
    assert model.fast is not None
    return model


@pytest.mark.parametrize("cut", [1, 20, 21, 22, 63, 64, 65, 128])
def test_segments_of_several_chunks_change_nothing(model: Mamba3, cut: int) -> None:
    """A chunk of the kernels has 64 tokens, or 21 of three ranks; the next token's share crosses chunks and steps."""
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
    fused = copy.deepcopy(plain)
    fused.prepare()
    with torch.no_grad():
        hidden, state = fused(token_ids(100))
        expected, _ = plain(token_ids(100))
    assert all(t.isfinite().all() for t in (hidden, *state.tensors.values()))
    assert F.cosine_similarity(hidden, expected).min() > (0.999 if dtype == torch.float32 else 0.98)


def test_angles_of_long_texts_stay_close_in_the_kernels() -> None:
    """They are summed in fp64, as in plain torch: after 3,000 tokens both agree, in any split."""
    plain = tiny_backbone(Mamba3, SISO)
    fused, ids = copy.deepcopy(plain), token_ids(3000)
    fused.prepare()
    with torch.no_grad():
        _, expected = plain(ids)
        _, state = fused(ids[:1711])
        _, state = fused(ids[1711:], None, state)
    assert_close((state["angle"] - expected["angle"]).sin(), torch.zeros_like(state["angle"]), 3e-4)
    assert state["angle"].abs().max() <= torch.pi + 1e-6


def test_more_ranks_than_rows_of_a_chunk_run_in_plain_torch() -> None:
    model = tiny_backbone(Mamba3, Mamba3Config(50, 16, 1, state_size=2, head_size=16, expand=1, ranks=65, angles=1))
    model.prepare()
    assert model.fast is None
    assert model.kernel_problem() == "it has 65 ranks, and the kernels take at most 64"
