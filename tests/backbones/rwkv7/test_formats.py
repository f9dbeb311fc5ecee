"""RWKV-7 checkpoints: both published layouts in all their variants, and what looks similar but is refused."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.checkpoint_writing import built, refused
from safetensors.torch import load_file
from torch import Tensor

from runnel.backbones.checkpoint.load import load_backbone
from runnel.backbones.checkpoint.tensors import from_tensors
from runnel.backbones.rwkv7.formats import read_rwkv7
from runnel.backbones.rwkv7.model import Rwkv7Config

GOLDEN = Path(__file__).parents[2] / "golden"
OFFICIAL: dict[str, Tensor] = torch.load(GOLDEN / "rwkv7-tiny-official/rwkv7-golden-0.0b.pth", weights_only=True)
FLA = load_file(GOLDEN / "rwkv7-tiny-fla/model.safetensors")
DECLARED = json.loads((GOLDEN / "rwkv7-tiny-fla/config.json").read_text())
CONFIG = Rwkv7Config(256, 128, 3, ffn_size=512, decay_rank=16, a_rank=16, v_rank=8, gate_rank=32)
UNEVEN = {"w": 5, "a": 3, "v": 2, "g": 7}  # ranks


def cut(tensors: dict[str, Tensor], layers: int) -> dict[str, Tensor]:
    """The first layers of a model in either layout, with uneven ranks."""
    smaller = {}
    for name, tensor in tensors.items():
        number = re.search(r"(?:blocks|layers)\.(\d)\.", name)
        low = re.search(r"att\.([wavg])[12]$|attn\.([wavg])_lora\.lora\.[02]\.weight$", name)
        if low:
            tensor = tensor[tuple(slice(128 if size == 128 else UNEVEN[low[1] or low[2]]) for size in tensor.shape)]
        if number is None or int(number[1]) < layers:
            smaller[name] = tensor.contiguous()
    return smaller


def stacked(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """As the oldest version of flash-linear-attention saves a model."""
    tensors = dict(tensors)
    for layer in [name.removesuffix("x_r") for name in tensors if name.endswith("attn.x_r")]:
        tensors[layer + "x_x"] = torch.stack([tensors.pop(f"{layer}x_{name}").flatten() for name in "rwkvag"])
    return tensors


@pytest.mark.parametrize("layers", [1, 3])
def test_every_variant_gives_one_backbone(layers: int) -> None:
    """What the golden outputs are of, with less: tests/backbones/test_golden.py has the whole model in both layouts."""
    official, fla = cut(OFFICIAL, layers), cut(FLA, layers)
    used = {name: tensor for name, tensor in official.items() if not re.match(r"head|blocks\.0\.att\.v\d", name)}
    assert len(used) == len(official) - 4
    variants = [(official, None), (used, None)]
    for written in (fla, stacked(fla)):
        bare = {name.removeprefix("model."): tensor for name, tensor in written.items() if name != "lm_head.weight"}
        variants += [(tensors, DECLARED | {"num_hidden_layers": layers}) for tensors in (written, bare)]
    backbones = [built(*variant).backbone for variant in variants]
    ranks = {"decay_rank": 5, "a_rank": 3, "gate_rank": 7} | ({"v_rank": 2} if layers > 1 else {})
    assert backbones[0].config == Rwkv7Config(256, 128, layers, ffn_size=512, **ranks)
    assert {backbone.config for backbone in backbones} == {backbones[0].config}
    assert {backbone.fingerprint() for backbone in backbones} == {backbones[0].fingerprint()}


def test_what_configs_say_wrongly_is_not_believed_but_norm_eps() -> None:
    wrong = {"num_heads": 32, "decay_low_rank_dim": 64, "gate_low_rank_dim": 128, "a_low_rank_dim": 64, "v_low_rank_dim": 16}
    wrong |= {"hidden_ratio": 4.0, "intermediate_size": None, "attn_mode": "fused_recurrent", "attn": None, "fuse_norm": True}
    for width in (None, 128, [128, 128, 128]):
        declared = DECLARED | wrong | {"value_dim": width, "norm_eps": 1e-3}
        _, layout, config, *_ = read_rwkv7(declared, from_tensors(FLA, "f"), "here")
        assert layout == "flash-linear-attention" and config == replace(CONFIG, norm_eps=1e-3)
    assert read_rwkv7({}, from_tensors(OFFICIAL, "f"), "here")[1:3] == ("official", CONFIG)


def test_only_matrices_take_the_dtype() -> None:
    backbone = load_backbone(GOLDEN / "rwkv7-tiny-official", "bfloat16", "cpu")
    for name, parameter in backbone.named_parameters():
        matrix = parameter.ndim == 2 and not name.endswith("r_k")
        assert parameter.dtype == (torch.bfloat16 if matrix else torch.float32), name


@pytest.mark.parametrize("name", ["ffn.s_emb.weight", "ffn.enn.weight", "att.time_state", "att.key.weight_mx"])
def test_relatives_are_refused(name: str) -> None:
    """RWKV-7a, RWKV-8, a start state, quantized weights."""
    name = f"blocks.0.{name}"
    refused((OFFICIAL | {name: torch.zeros(2)}, None), f"unexpected tensor {name!r}")
    refused(({name: torch.zeros(2)}, None), name)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"attn": {"layers": [1], "num_heads": 2}}, "attn is"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu'"),
        ({"norm_first": False}, "norm_first is False"),
        ({"value_dim": [128, 96, 128]}, "value_dim is 96"),
        ({"norm_eps": "small"}, "norm_eps is 'small'"),
        ({"norm_eps": -1}, "norm_eps -1"),
        ({"head_dim": 32}, "head_dim is 32 in its config, in the weights it is 64"),
        ({"num_hidden_layers": "3"}, "num_hidden_layers is '3'"),
        ({"vocab_size": 65536}, "vocab_size is 65536 in its config, in the weights it is 256"),
    ],
)
def test_other_options_are_refused(options: dict[str, Any], part: str) -> None:
    refused((FLA, DECLARED | options), part)


@pytest.mark.parametrize(
    ("tensors", "gone", "more", "parts"),
    [
        (FLA, "model.layers.2.attn.v_lora.lora.2.bias", {}, ["missing tensor 'layers.2.att.v0'"]),
        (OFFICIAL, "emb.weight", {}, ["missing tensor 'embeddings.weight'"]),
        (OFFICIAL, None, {"blocks.1.att.v3": torch.zeros(2)}, ["unexpected tensor 'blocks.1.att.v3' in some.file"]),
        (OFFICIAL, None, {"lm_head.weight": torch.zeros(2)}, ["unexpected tensor 'lm_head.weight'"]),
        (FLA, None, {"model.layers.0.attn.v_lora.lora.0.weight": torch.zeros(2, 128)}, ["unexpected tensor", "layers.0."]),
        (FLA, None, {"model.layers.1.attn.x_x": torch.zeros(6, 128)}, ["unexpected tensor 'layers.1.attn.x_x'"]),
        (OFFICIAL, None, FLA, ["do not belong to one RWKV-7 model"]),
        (FLA, None, {name.removeprefix("model."): t for name, t in FLA.items()}, ["the same tensor twice", "keep one"]),
        (OFFICIAL, None, {"blocks.0.att.r_k": torch.zeros(128)}, ["mis-shaped tensor", "'layers.0.att.r_k'"]),
        (OFFICIAL, None, {"blocks.0.att.r_k": torch.zeros(2, 16)}, ["2 heads of 16 of 128 channels"]),
        (OFFICIAL, None, {"blocks.1.att.w2": torch.zeros(128, 16)}, ["w_up.weight' is (16, 128)", "(128, 16)"]),
        (OFFICIAL, None, {"blocks.1.att.g2": torch.zeros(7)}, ["layers.1.att.g_up.weight' is (7,)", "(128, 32)"]),
        (OFFICIAL, None, {"blocks.1.att.x_r": torch.zeros(2, 1, 128)}, ["layers.1.att.x_r' is (2, 1, 128)", "(128,)"]),
    ],
)
def test_other_tensors_are_refused(
    tensors: dict[str, Tensor], gone: str | None, more: dict[str, Tensor], parts: list[str]
) -> None:
    left = {name: tensor for name, tensor in tensors.items() if gone is None or not name.startswith(gone)}
    refused((left | more, None), *parts)
