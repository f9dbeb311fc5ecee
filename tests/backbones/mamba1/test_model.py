"""What is particular to Mamba-1; what all backbones share is in tests/contracts/test_backbones.py."""

from __future__ import annotations

import logging

import pytest
import torch
from helpers.tiny_backbones import assert_close, tiny_backbone, token_ids
from torch.nn import functional as F

from runnel.backbones.mamba1.model import Mamba1, Mamba1Config
from runnel.errors import CheckpointError, InputError

TINY = Mamba1Config(vocab_size=50, hidden_size=24, num_layers=3, state_size=5)


# ---- configuration and parameters ----------------------------------------------------------------------------------------


def test_config_round_trip_is_strict() -> None:
    assert TINY.dt_rank == 2
    assert TINY.inner_size == 48
    values = TINY.to_dict()
    assert Mamba1Config.from_dict(values) == TINY
    with pytest.raises(CheckpointError, match=r"unknown: \['heads'\], missing: \['expand'\]"):
        Mamba1Config.from_dict({k: v for k, v in values.items() if k != "expand"} | {"heads": 2})
    with pytest.raises(InputError, match="num_layers must be at least 1, got 0"):
        Mamba1Config(10, 16, 0)


def test_parameter_names_and_published_start_values() -> None:
    model = Mamba1(TINY)
    names = {name.replace("layers.0.", "") for name in model.state_dict() if "layers.1" not in name and "layers.2" not in name}
    mixer = "in_proj.weight conv1d.weight conv1d.bias x_proj.weight dt_proj.weight dt_proj.bias A_log D out_proj.weight"
    assert names == {"embeddings.weight", "norm_f.weight", "norm.weight", *(f"mixer.{n}" for n in mixer.split())}
    mixer = model.layers[0].mixer
    assert_close(mixer.A_log.exp(), torch.arange(1.0, 6.0).expand(48, 5))
    step = F.softplus(mixer.dt_proj.bias)
    assert step.min() >= 0.9e-3
    assert step.max() <= 0.11
    biased = Mamba1(Mamba1Config(10, 16, 1, proj_bias=True, conv_bias=False))
    assert biased.layers[0].mixer.out_proj.bias is not None
    assert biased.layers[0].mixer.conv1d.bias is None


# ---- results ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("biases", [True, False])
def test_same_as_transformers(biases: bool) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed; install the extra train")
    torch.manual_seed(1)
    theirs = transformers.MambaModel(
        transformers.MambaConfig(
            vocab_size=50,
            hidden_size=24,
            num_hidden_layers=3,
            state_size=5,
            use_bias=biases,
            use_conv_bias=not biases,
            use_cache=False,
        )
    ).eval()
    ours = tiny_backbone(Mamba1, Mamba1Config(50, 24, 3, state_size=5, proj_bias=biases, conv_bias=not biases))
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            parameter.copy_(ours.get_parameter(name))
        ours.prepare()
        ids = token_ids(37)
        expected = theirs(ids[None]).last_hidden_state[0]
        assert_close(ours(ids)[0], expected, 1e-4)
    assert_close(ours(ids)[0], expected, 1e-4)


def test_odd_inner_width_runs_in_plain_torch(caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_backbone(Mamba1, Mamba1Config(50, 12, 1))
    with caplog.at_level(logging.INFO, logger="runnel"):
        model.prepare()
    assert model.fast is None
    assert "inner width 24 is not a multiple of 16" in caplog.text
    with torch.no_grad():
        assert model(token_ids(5))[0].shape == (5, 12)
