"""What is particular to Mamba-1; what all backbones share is in tests/contracts/test_backbones.py."""

import logging

import pytest
import torch
from helpers.tiny_backbones import assert_close, tiny_backbone, token_ids
from torch.nn import functional as F

from runnel.backbones.mamba1.model import Mamba1, Mamba1Config

TINY = Mamba1Config(vocab_size=50, hidden_size=24, num_layers=3, state_size=5)


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


def test_odd_inner_width_runs_in_plain_torch(caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_backbone(Mamba1, Mamba1Config(50, 12, 1))
    with caplog.at_level(logging.INFO, logger="runnel"):
        model.prepare()
    assert model.fast is None
    assert "inner width 24 is not a multiple of 16" in caplog.text
    with torch.no_grad():
        assert model(token_ids(5))[0].shape == (5, 12)
