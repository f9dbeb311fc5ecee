"""What is particular to Mamba-2; what all backbones share is in tests/contracts/test_backbones.py."""

from __future__ import annotations

import copy

import pytest
import torch
from helpers.tiny_backbones import assert_close, assert_states_close, tiny_backbone, token_ids
from torch.nn import functional as F

from runnel.backbones.mamba2.model import Mamba2, Mamba2Config
from runnel.errors import CheckpointError, InputError

TINY = Mamba2Config(vocab_size=50, hidden_size=24, num_layers=3, state_size=6, head_size=8, groups=3)
ONE_GROUP = Mamba2Config(50, 32, 2, state_size=16, head_size=16)


@pytest.fixture(scope="module")
def model() -> Mamba2:
    model = tiny_backbone(Mamba2, TINY)
    model.prepare()
    assert model.fast is not None
    return model


# ---- configuration and parameters ----------------------------------------------------------------------------------------


def test_config_round_trip_is_strict() -> None:
    assert (TINY.inner_size, TINY.num_heads, TINY.conv_channels, TINY.projection_size) == (48, 6, 84, 138)
    values = TINY.to_dict()
    assert values["dt_max"] is None
    assert Mamba2Config.from_dict(values) == TINY
    clamped = Mamba2Config(10, 16, 1, head_size=8, dt_min=0.01, dt_max=0.5)
    assert Mamba2Config.from_dict(clamped.to_dict()) == clamped
    with pytest.raises(CheckpointError, match=r"unknown: \['heads'\], missing: \['expand'\]"):
        Mamba2Config.from_dict({k: v for k, v in values.items() if k != "expand"} | {"heads": 2})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
        ({"head_size": 7}, "inner width 48 .* must be a multiple of head_size 7"),
        ({"groups": 4}, "6 heads cannot be shared by 4 groups"),
        ({"dt_min": 0.2, "dt_max": 0.1}, "dt_min and dt_max must satisfy .* got 0.2 and 0.1"),
    ],
)
def test_config_refuses_shapes_that_do_not_fit(changes: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Mamba2Config(**{**TINY.to_dict(), "dt_max": float("inf"), **changes})


def test_parameter_names_and_published_start_values() -> None:
    model = Mamba2(TINY)
    names = {name.replace("layers.0.", "") for name in model.state_dict() if "layers.1" not in name and "layers.2" not in name}
    mixer = "in_proj.weight conv1d.weight conv1d.bias dt_bias A_log D norm.weight out_proj.weight"
    assert names == {"embeddings.weight", "norm_f.weight", "norm.weight", *(f"mixer.{n}" for n in mixer.split())}
    start = model.layers[0].mixer
    assert start.A_log.exp().min() >= 1
    assert start.A_log.exp().max() <= 16.001
    step = F.softplus(start.dt_bias)
    assert step.min() >= 0.9e-3
    assert step.max() <= 0.11


def test_130m_shape_has_the_published_number_of_parameters() -> None:
    with torch.device("meta"):
        model = Mamba2(Mamba2Config(50288, 768, 24))
    assert sum(p.numel() for p in model.parameters()) == 128_989_632


@pytest.mark.parametrize("cut", [1, 63, 64, 65, 100, 128])
def test_segments_of_several_chunks_change_nothing(model: Mamba2, cut: int) -> None:
    ids = token_ids(150)
    with torch.no_grad():
        whole, end = model(ids)
        first, state = model(ids[:cut])
        second, state = model(ids[cut:], None, state)
    assert_close(torch.cat([first, second]), whole)
    assert_states_close(state, end)


def test_a_copy_sees_its_own_projections_at_once(model: Mamba2) -> None:
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.layers[0].mixer.in_proj.weight.zero_()
        assert not torch.equal(twin(token_ids(5))[0], model(token_ids(5))[0])
        assert_close(model(token_ids(5))[0], tiny_backbone(Mamba2, TINY)(token_ids(5))[0])


@pytest.mark.parametrize("bias", [-60.0, 60.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extreme_time_steps_give_finite_numbers(bias: float, dtype: torch.dtype) -> None:
    model = tiny_backbone(Mamba2, ONE_GROUP, dtype)
    with torch.no_grad():
        for layer in model.layers:
            layer.mixer.dt_bias[::2] = bias
    plain = copy.deepcopy(model)
    model.prepare()
    with torch.no_grad():
        hidden, state = model(token_ids(100))
        expected, _ = plain(token_ids(100))
    assert all(t.isfinite().all() for t in (hidden, *state.tensors.values()))
    # With dt = 60 an output is little but dt C.B x, and C.B of rounded factors may cancel.
    assert F.cosine_similarity(hidden, expected).min() > (0.999 if dtype == torch.float32 else 0.98)


# ---- results ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [1, 3])
def test_same_as_transformers(groups: int) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed; install the extra train")
    torch.manual_seed(1)
    theirs = transformers.Mamba2Model(
        transformers.Mamba2Config(
            vocab_size=50,
            hidden_size=24,
            num_hidden_layers=3,
            state_size=6,
            num_heads=6,
            head_dim=8,
            n_groups=groups,
            chunk_size=16,
            use_cache=False,
            pad_token_id=0,
        )
    ).eval()
    ours = tiny_backbone(Mamba2, Mamba2Config(50, 24, 3, state_size=6, head_size=8, groups=groups))
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            parameter.copy_(ours.get_parameter(name))
        ours.prepare()
        ids = token_ids(37)
        expected = theirs(ids[None]).last_hidden_state[0]
        assert_close(ours(ids)[0], expected, 1e-4)
    assert_close(ours(ids)[0], expected, 1e-4)
