"""RWKV-7 checkpoints: both published layouts in all their variants, and what looks similar but is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.checkpoint_writing import assert_holds, write_checkpoint
from helpers.tiny_backbones import tiny_backbone
from torch import Tensor

from runnel.backbones.checkpoint.load import build, load_backbone, recognize
from runnel.backbones.checkpoint.tensors import from_tensors
from runnel.backbones.rwkv7.formats import read_rwkv7
from runnel.backbones.rwkv7.model import Rwkv7, Rwkv7Config
from runnel.errors import CheckpointError

UNEVEN = Rwkv7Config(50, 48, 3, head_size=16, ffn_size=80, decay_rank=5, a_rank=3, v_rank=2, gate_rank=7)
EQUAL = Rwkv7Config(50, 32, 2, head_size=32, decay_rank=8, a_rank=8, v_rank=8, gate_rank=8)  # only the orientation tells
SQUARE = Rwkv7Config(50, 16, 2, head_size=8, decay_rank=16, a_rank=16, v_rank=16, gate_rank=16)  # nor do shapes
ONE_LAYER = Rwkv7Config(50, 16, 1, head_size=8, decay_rank=4, a_rank=4, gate_rank=4)
PILE = Rwkv7Config(50304, 8, 1, head_size=8, decay_rank=1, a_rank=1, gate_rank=1)
CONFIGS = {"uneven": UNEVEN, "equal-ranks": EQUAL, "square-ranks": SQUARE, "one-layer": ONE_LAYER, "pile": PILE}
FLA = {"model_type": "rwkv7", "hidden_size": 48, "num_hidden_layers": 3, "head_dim": 16, "vocab_size": 50, "norm_eps": 1e-5}
FLA |= {"hidden_act": "sqrelu", "norm_first": True, "norm_bias": True, "attn": None, "num_heads": 32, "v_low_rank_dim": 16}
FLA |= {"architectures": ["RWKV7ForCausalLM"], "attn_mode": "chunk", "value_dim": [48, 48, 48], "fuse_norm": True}


def official(config: Rwkv7Config) -> dict[str, Tensor]:
    """As the official training code saves a model, with the first layer's unused v0, v1, v2."""
    ours = tiny_backbone(Rwkv7, config).state_dict()
    width = config.hidden_size
    out = {"emb.weight": ours["embeddings.weight"], "head.weight": torch.randn(config.vocab_size, width)}
    for theirs, name in (("blocks.0.ln0", "norm_0"), ("ln_out", "norm_f")):
        out |= {f"{theirs}.{part}": ours[f"{name}.{part}"] for part in ("weight", "bias")}
    for index in range(config.num_layers):
        block, layer = f"blocks.{index}.", f"layers.{index}."
        for theirs, name in (("ln1", "norm_att"), ("ln2", "norm_ffn"), ("att.ln_x", "att.ln_x")):
            out |= {f"{block}{theirs}.{part}": ours[f"{layer}{name}.{part}"] for part in ("weight", "bias")}
        for name in "att.x_r att.x_w att.x_k att.x_v att.x_a att.x_g att.w0 att.a0 att.v0 att.k_k att.k_a ffn.x_k".split():
            out[block + name] = ours.get(layer + name, torch.full((width,), 9.0)).view(1, 1, width)
        for name in "att.r_k att.receptance att.key att.value att.output ffn.key ffn.value".split():
            name += "" if name == "att.r_k" else ".weight"
            out[block + name] = ours[layer + name]
        for name in "wavg":
            down = ours.get(f"{layer}att.{name}_down.weight", torch.full((config.v_rank, width), 9.0))
            up = ours.get(f"{layer}att.{name}_up.weight", torch.full((width, config.v_rank), 9.0))
            out |= {f"{block}att.{name}1": down.T.contiguous(), f"{block}att.{name}2": up.T.contiguous()}
    return {name: tensor.clone() for name, tensor in out.items()}


def fla(config: Rwkv7Config, prefix: str = "model.", stacked: bool = False) -> dict[str, Tensor]:
    """As `save_pretrained` of flash-linear-attention writes it; `stacked` as its oldest version."""
    ours = tiny_backbone(Rwkv7, config).state_dict()
    out = {"embeddings.weight": ours["embeddings.weight"]}
    for theirs, name in (("layers.0.pre_norm", "norm_0"), ("norm", "norm_f")):
        out |= {f"{theirs}.{part}": ours[f"{name}.{part}"] for part in ("weight", "bias")}
    for index in range(config.num_layers):
        layer = f"layers.{index}."
        for theirs, name in (("attn_norm", "norm_att"), ("ffn_norm", "norm_ffn"), ("attn.g_norm", "att.ln_x")):
            out |= {f"{layer}{theirs}.{part}": ours[f"{layer}{name}.{part}"] for part in ("weight", "bias")}
        mixes = {f"{layer}attn.x_{name}": ours[f"{layer}att.x_{name}"] for name in "rwkvag"}
        if stacked:
            out[f"{layer}attn.x_x"] = torch.stack(list(mixes.values()))
        else:
            out |= {name: mix.view(1, 1, -1) for name, mix in mixes.items()}
        out |= {f"{layer}attn.{name}": ours[f"{layer}att.{name}"] for name in ("k_k", "k_a", "r_k")}
        for theirs, name in (("r", "receptance"), ("k", "key"), ("v", "value"), ("o", "output")):
            out[f"{layer}attn.{theirs}_proj.weight"] = ours[f"{layer}att.{name}.weight"]
        for name in "wavg" if index else "wag":
            lora = f"{layer}attn.{name}_lora.lora."
            out |= {f"{lora}{n}.weight": ours[f"{layer}att.{name}_{way}.weight"] for n, way in ((0, "down"), (2, "up"))}
            if name != "g":
                out[lora + "2.bias"] = ours[f"{layer}att.{name}0"]
        out |= {layer + name: ours[layer + name] for name in ("ffn.x_k", "ffn.key.weight", "ffn.value.weight")}
    out = {prefix + name: tensor.clone() for name, tensor in out.items()}
    return out | ({"lm_head.weight": torch.randn(config.vocab_size, config.hidden_size)} if prefix else {})


def assert_same(backbone: Any, config: Rwkv7Config) -> None:
    assert_holds(backbone, config, tiny_backbone(Rwkv7, config).state_dict())


def refused(tensors: dict[str, Tensor], config: dict[str, Any] | None, *parts: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        found = recognize(config, from_tensors(tensors, "some.file"), "that/folder")
        build(found.architecture, found.config, found.backbone, torch.float32, torch.device("cpu"), "that/folder")
    message = str(caught.value)
    assert message.startswith("that/folder") and len(message) < 700
    assert all(part in message for part in parts), message


@pytest.mark.parametrize("kind", CONFIGS)
def test_official_file(tmp_path: Path, kind: str) -> None:
    name = "rwkv7-g1a-0.0b-20250905-ctx4096.pth"
    folder = write_checkpoint(tmp_path, official(CONFIGS[kind]), None, name)
    assert_same(load_backbone(folder, "float32"), CONFIGS[kind])
    assert_same(load_backbone(folder / name, "float32"), CONFIGS[kind])


def test_official_file_without_what_it_does_not_use(tmp_path: Path) -> None:
    tensors = {k: v for k, v in official(UNEVEN).items() if not k.startswith("blocks.0.att.v") or k.endswith("value.weight")}
    del tensors["head.weight"]
    assert "blocks.0.att.value.weight" in tensors
    assert "blocks.0.att.v1" not in tensors
    assert_same(load_backbone(write_checkpoint(tmp_path, tensors, None, "any.pth"), "float32"), UNEVEN)


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("prefix", ["model.", ""])
@pytest.mark.parametrize("stacked", [False, True])
def test_fla_folder(tmp_path: Path, kind: str, prefix: str, stacked: bool) -> None:
    config = CONFIGS[kind]
    declared = {"hidden_size": config.hidden_size, "num_hidden_layers": config.num_layers, "head_dim": config.head_size}
    declared |= {"vocab_size": config.vocab_size, "value_dim": config.hidden_size}
    folder = write_checkpoint(tmp_path, fla(config, prefix, stacked), FLA | declared)
    assert_same(load_backbone(folder, "float32"), config)


def test_what_configs_say_wrongly_is_not_believed_but_norm_eps() -> None:
    wrong = {"num_heads": 32, "decay_low_rank_dim": 64, "gate_low_rank_dim": 128, "a_low_rank_dim": 64, "v_low_rank_dim": 16}
    wrong |= {"hidden_ratio": 4.0, "intermediate_size": None, "attn_mode": "fused_recurrent", "value_dim": None}
    assert read_rwkv7(FLA | wrong, from_tensors(fla(UNEVEN), "f"), "here").config == UNEVEN
    _, layout, config, *_ = read_rwkv7(FLA | {"norm_eps": 1e-3}, from_tensors(fla(UNEVEN), "f"), "here")
    assert layout == "flash-linear-attention" and config == replace(UNEVEN, norm_eps=1e-3)
    assert read_rwkv7({}, from_tensors(official(UNEVEN), "f"), "here")[1:3] == ("official", UNEVEN)


def test_only_matrices_take_the_dtype(tmp_path: Path) -> None:
    backbone = load_backbone(write_checkpoint(tmp_path, official(UNEVEN), None, "any.pth"), "bfloat16")
    for name, parameter in backbone.named_parameters():
        matrix = parameter.ndim == 2 and not name.endswith("r_k")
        assert parameter.dtype == (torch.bfloat16 if matrix else torch.float32), name


@pytest.mark.parametrize("name", ["ffn.s_emb.weight", "ffn.enn.weight", "att.time_state", "att.key.weight_mx"])
def test_relatives_are_refused(name: str) -> None:
    """RWKV-7a, RWKV-8, a start state, quantized weights."""
    name = f"blocks.0.{name}"
    refused(official(UNEVEN) | {name: torch.zeros(2)}, None, f"unexpected tensor {name!r}")
    refused({name: torch.zeros(2)}, None, name)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"attn": {"layers": [1], "num_heads": 2}}, "attn is"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu'"),
        ({"norm_first": False}, "norm_first is False"),
        ({"value_dim": [48, 96, 48]}, "value_dim is 96"),
        ({"norm_eps": "small"}, "norm_eps is 'small'"),
        ({"norm_eps": -1}, "norm_eps -1"),
        ({"head_dim": 32}, "head_dim is 32 in its config, in the weights it is 16"),
        ({"num_hidden_layers": "3"}, "num_hidden_layers is '3'"),
        ({"vocab_size": 65536}, "vocab_size is 65536 in its config, in the weights it is 50"),
    ],
)
def test_other_options_are_refused(options: dict[str, Any], part: str) -> None:
    refused(fla(UNEVEN), FLA | options, part)


OFFICIAL_FILE, FLA_FILE = official(UNEVEN), fla(UNEVEN)


@pytest.mark.parametrize(
    ("tensors", "gone", "more", "parts"),
    [
        (OFFICIAL_FILE, "blocks.1.att.w1", {}, ["missing tensor 'layers.1.att.w_down.weight'"]),
        (FLA_FILE, "model.layers.2.attn.v_lora.lora.2.bias", {}, ["missing tensor 'layers.2.att.v0'"]),
        (OFFICIAL_FILE, "emb.weight", {}, ["missing tensor 'embeddings.weight'"]),
        (OFFICIAL_FILE, "blocks.1.", {}, ["missing tensor 'layers.1."]),
        (OFFICIAL_FILE, None, {"blocks.1.att.v3": torch.zeros(2)}, ["unexpected tensor 'blocks.1.att.v3' in some.file"]),
        (OFFICIAL_FILE, None, {"lm_head.weight": torch.zeros(2)}, ["unexpected tensor 'lm_head.weight'"]),
        (FLA_FILE, None, {"model.layers.0.attn.v_lora.lora.0.weight": torch.zeros(2, 48)}, ["unexpected tensor", "layers.0."]),
        (FLA_FILE, None, {"model.layers.1.attn.x_x": torch.zeros(6, 48)}, ["unexpected tensor 'layers.1.attn.x_x'"]),
        (OFFICIAL_FILE, None, FLA_FILE, ["do not belong to one RWKV-7 model"]),
        (FLA_FILE, None, fla(UNEVEN, prefix=""), ["the same tensor twice", "keep one"]),
        (OFFICIAL_FILE, None, {"blocks.0.att.r_k": torch.zeros(48)}, ["mis-shaped tensor", "'layers.0.att.r_k'"]),
        (OFFICIAL_FILE, None, {"blocks.0.att.r_k": torch.zeros(2, 16)}, ["2 heads of 16 of 48 channels"]),
        (OFFICIAL_FILE, None, {"blocks.1.att.w2": torch.zeros(48, 5)}, ["layers.1.att.w_up.weight' is (5, 48)", "(48, 5)"]),
        (OFFICIAL_FILE, None, {"blocks.1.att.g2": torch.zeros(7)}, ["layers.1.att.g_up.weight' is (7,)", "(48, 7)"]),
        (OFFICIAL_FILE, None, {"blocks.1.att.x_r": torch.zeros(2, 1, 48)}, ["layers.1.att.x_r' is (2, 1, 48)", "(48,)"]),
    ],
)
def test_other_tensors_are_refused(
    tensors: dict[str, Tensor], gone: str | None, more: dict[str, Tensor], parts: list[str]
) -> None:
    left = {name: tensor for name, tensor in tensors.items() if gone is None or not name.startswith(gone)}
    refused(left | more, None, *parts)
