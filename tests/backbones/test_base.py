"""Configs, parameters and bad calls of all backbones; what they compute is in tests/contracts/test_backbones.py."""

import json
import logging
import math
from dataclasses import replace

import pytest
import torch
from helpers.tiny_backbones import assert_close, tiny_backbone, token_ids
from helpers.toy import Toy
from torch.nn import functional as F

from runnel.backbones.config import BackboneConfig
from runnel.backbones.encoder.layout import EncoderConfig
from runnel.backbones.mamba1.model import Mamba1, Mamba1Config
from runnel.backbones.mamba2.model import Mamba2, Mamba2Config
from runnel.backbones.mamba3.model import Mamba3Config
from runnel.backbones.rwkv7.model import Rwkv7Config
from runnel.backbones.xlstm.model import Xlstm, XlstmConfig
from runnel.errors import CheckpointError, InputError, StateError

SHAPE = {"vocab_size": 50, "hidden_size": 48, "num_layers": 3}
CONFIGS = {
    "mamba1": Mamba1Config(**SHAPE),
    "mamba2": Mamba2Config(**SHAPE, state_size=6, head_size=8, groups=3, dt_min=0.01),
    "mamba3": Mamba3Config(**SHAPE, state_size=8, head_size=8),
    "rwkv7": Rwkv7Config(**SHAPE, head_size=16),
    "xlstm": XlstmConfig(**SHAPE, num_heads=3, qk_size=24, v_size=36, ffn_size=40),
    "encoder": EncoderConfig(**SHAPE, num_heads=3, intermediate_size=40, max_positions=72, passage_tokens=16),
}


def test_published_start_values() -> None:
    first, second = Mamba1(CONFIGS["mamba1"]).layers[0].mixer, Mamba2(replace(CONFIGS["mamba2"], dt_min=0.0)).layers[0].mixer
    third = Xlstm(CONFIGS["xlstm"]).layers[1].mlstm_layer
    assert_close(first.A_log.exp(), torch.arange(1.0, 17.0).expand(96, 16))
    assert second.A_log.exp().min() >= 1 and second.A_log.exp().max() <= 16.001
    for bias in (first.dt_proj.bias, second.dt_bias):
        assert F.softplus(bias).min() >= 0.9e-3 and F.softplus(bias).max() <= 0.11
    assert third.igate_preact.bias.tolist() == [-10] * 3 and third.fgate_preact.bias.tolist() == [3, 4.5, 6]
    assert not third.igate_preact.weight.any() and not third.fgate_preact.weight.any()
    assert third.q.weight.std().item() == pytest.approx((2 / (5 * 48)) ** 0.5, rel=0.1)
    assert third.out_proj.weight.std().item() == pytest.approx(2 / 3 / 48**0.5, rel=0.1)
    biased = Mamba1(Mamba1Config(10, 16, 1, proj_bias=True, conv_bias=False)).layers[0].mixer
    assert biased.out_proj.bias is not None and biased.conv1d.bias is None


def test_odd_inner_width_runs_in_plain_torch(caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_backbone(Mamba1, Mamba1Config(50, 12, 1))
    with caplog.at_level(logging.INFO, logger="runnel"):
        model.prepare()
    assert model.fast is None and "inner width 24 is not a multiple of 16" in caplog.text
    with torch.no_grad():
        assert model(token_ids(5))[0].shape == (5, 12)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_config_round_trip_is_strict(config: BackboneConfig) -> None:
    values = json.loads(json.dumps(config.to_dict()))
    assert type(config).from_dict(values) == config
    with pytest.raises(CheckpointError, match=r"unknown: \['heads'\], missing: \['num_layers'\]"):
        type(config).from_dict({k: v for k, v in values.items() if k != "num_layers"} | {"heads": 2})
    with pytest.raises(InputError, match="num_layers 0"):
        replace(config, num_layers=0)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("mamba2", {"head_size": 7}, "inner_size 96 and head_size 7"),
        ("mamba2", {"groups": 5}, "num_heads 12 and groups 5"),
        ("mamba2", {"dt_min": 0.2, "dt_max": 0.1}, "dt_min 0.2 and dt_max 0.1"),
        ("mamba3", {"state_size": 7}, "state_size 7"),
        ("mamba3", {"angles": 5}, "state_size 8 and angles 5"),
        ("mamba3", {"ranks": 0}, "ranks 0"),
        ("rwkv7", {"ffn_size": -1}, "ffn_size -1"),
        ("rwkv7", {"head_size": 32}, "hidden_size 48 and head_size 32"),
        ("rwkv7", {"norm_eps": math.nan}, "norm_eps nan"),
        ("xlstm", {"qk_size": 25}, "qk_size 25 and num_heads 3"),
        ("xlstm", {"gate_cap": math.inf}, "gate_cap inf"),
        ("encoder", {"num_heads": 5}, "hidden_size 48 and num_heads 5"),
        ("encoder", {"passage_tokens": 71}, "passage_tokens 71 and max_positions 72"),
        ("encoder", {"sentence_layers": 4}, "sentence_layers 4 and num_layers 3"),
        ("encoder", {"judge_layers": -1}, "judge_layers -1"),
        ("encoder", {"layer_norm_eps": 0.0}, r"layer_norm_eps 0\.0"),
    ],
)
def test_shapes_that_do_not_fit(kind: str, changes: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(CONFIGS[kind], **changes)


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
