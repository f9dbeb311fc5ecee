"""Configs, parameters and bad calls of all backbones; what they compute is in
tests/contracts/test_backbones.py.
"""

import json
import logging
import math
from dataclasses import replace

import pytest
import torch
from helpers.tiny_backbones import CONFIGS, assert_close, tiny_backbone, token_ids
from helpers.toy import Toy
from torch import nn
from torch.nn import functional as F

from runnel.backbones.config import BackboneConfig
from runnel.backbones.families import BACKBONES
from runnel.backbones.mamba1.model import Mamba1, Mamba1Config
from runnel.backbones.mamba2.model import Mamba2
from runnel.backbones.xlstm.model import Xlstm
from runnel.errors import CheckpointError, InputError, StateError

TINY = {name: configs["tiny"] for name, configs in CONFIGS.items()}


def test_published_start_values() -> None:
    first, second = Mamba1(TINY["mamba1"]).layers[0].mixer, Mamba2(TINY["mamba2"]).layers[0].mixer
    third = Xlstm(CONFIGS["xlstm"]["wide-values"]).layers[1].mlstm_layer
    assert_close(first.A_log.exp(), torch.arange(1.0, 6.0).expand(48, 5))
    assert second.A_log.exp().min() >= 1 and second.A_log.exp().max() <= 16.001
    for bias in (first.dt_proj.bias, second.dt_bias):
        assert F.softplus(bias).min() >= 0.9e-3 and F.softplus(bias).max() <= 0.11
    assert third.igate_preact.bias.tolist() == [-10] * 2 and third.fgate_preact.bias.tolist() == [
        3,
        6,
    ]
    assert not third.igate_preact.weight.any() and not third.fgate_preact.weight.any()
    assert third.q.weight.std().item() == pytest.approx((2 / (5 * 32)) ** 0.5, rel=0.1)
    assert third.out_proj.weight.std().item() == pytest.approx(1 / 32**0.5, rel=0.1)
    biased = Mamba1(Mamba1Config(10, 16, 1, proj_bias=True, conv_bias=False)).layers[0].mixer
    assert biased.out_proj.bias is not None and biased.conv1d.bias is None


def test_names_of_8_bit_layers_are_those_of_linear_layers() -> None:
    for name, config in TINY.items():
        model = BACKBONES[name](config)
        linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
        assert all(any(name.endswith(end) for name in linear) for end in model.int8_layers)


def test_odd_inner_width_runs_in_plain_torch(caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_backbone(Mamba1, Mamba1Config(50, 12, 1))
    with caplog.at_level(logging.INFO, logger="runnel"):
        model.prepare()
    assert model.fast is None and "inner width 24 is not a multiple of 16" in caplog.text
    with torch.no_grad():
        assert model(token_ids(5))[0].shape == (5, 12)


@pytest.mark.parametrize("config", TINY.values(), ids=TINY)
def test_config_round_trip_is_strict(config: BackboneConfig) -> None:
    values = json.loads(json.dumps(config.to_dict()))
    assert type(config).from_dict(values) == config
    with pytest.raises(CheckpointError, match=r"unknown: \['heads'\], missing: \['num_layers'\]"):
        type(config).from_dict(
            {k: v for k, v in values.items() if k != "num_layers"} | {"heads": 2}
        )
    with pytest.raises(InputError, match="num_layers 0"):
        replace(config, num_layers=0)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("mamba2", {"head_size": 7}, "inner_size 48 and head_size 7"),
        ("mamba2", {"groups": 5}, "num_heads 6 and groups 5"),
        ("mamba2", {"dt_min": 0.2, "dt_max": 0.1}, "dt_min 0.2 and dt_max 0.1"),
        ("rwkv7", {"ffn_size": -1}, "ffn_size -1"),
        ("rwkv7", {"head_size": 16}, "hidden_size 24 and head_size 16"),
        ("rwkv7", {"norm_eps": math.nan}, "norm_eps nan"),
        ("xlstm", {"qk_size": 25}, "qk_size 25 and num_heads 4"),
        ("xlstm", {"gate_cap": math.inf}, "gate_cap inf"),
        ("encoder", {"num_heads": 5}, "hidden_size 24 and num_heads 5"),
        ("encoder", {"passage_tokens": 71}, "passage_tokens 71 and max_positions 72"),
        ("encoder", {"sentence_layers": 4}, "sentence_layers 4 and num_layers 3"),
        ("encoder", {"judge_layers": -1}, "judge_layers -1"),
        ("encoder", {"layer_norm_eps": 0.0}, r"layer_norm_eps 0\.0"),
    ],
)
def test_shapes_that_do_not_fit(kind: str, changes: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(TINY[kind], **changes)


def test_bad_calls() -> None:
    backbone = Toy()
    with pytest.raises(InputError, match=r"3 to 50, .*expected whole numbers from 0 to 49"):
        backbone(torch.tensor([3, 50]))
    with pytest.raises(InputError, match="packed in one dimension"):
        backbone(torch.zeros(2, 2, dtype=torch.int64))
    for bad in ([0, 1], [1, 3], [0, 2, 1, 3]):
        with pytest.raises(InputError, match="cu_seqlens must rise from 0 to the 3 tokens"):
            backbone(torch.tensor([1, 2, 3]), torch.tensor(bad))
    with pytest.raises(StateError, match="the state has the tensors"):
        backbone(torch.tensor([1, 2, 3]), state=backbone.new_state(2))
