"""xLSTM checkpoints: transformers' layout, the official folder's, bare and fused tensors; and what is refused."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.checkpoint_writing import built, refused
from safetensors.torch import load_file
from torch import Tensor

from runnel.backbones.checkpoint.load import load_backbone
from runnel.backbones.xlstm.model import XlstmConfig

GOLDEN = Path(__file__).parents[2] / "golden" / "xlstm-tiny-hf"
PUBLISHED = load_file(GOLDEN / "model.safetensors")
DECLARED = json.loads((GOLDEN / "config.json").read_text())  # both names of sizes, and options that choose kernels
OFFICIAL = {"vocab_size": 256, "embedding_dim": 128, "num_blocks": 2, "num_heads": 4, "norm_eps": "1e-6"}
SIZES = {"vocab_size": 256, "hidden_size": 128, "num_layers": 2, "num_heads": 4, "qk_size": 64, "v_size": 128, "ffn_size": 384}


def fused() -> dict[str, Tensor]:
    tensors = dict(PUBLISHED)
    for i in range(2):
        mixer, ffn = f"backbone.blocks.{i}.mlstm_layer.", f"backbone.blocks.{i}.ffn."
        parts = [tensors.pop(f"{mixer}{name}.weight") for name in ("q", "k", "v", "ogate_preact")]
        tensors[mixer + "qkv_opreact.weight"] = torch.cat(parts)
        for kind in ("weight", "bias"):
            gates = [tensors.pop(f"{mixer}{name}gate_preact.{kind}") for name in "if"]
            tensors[f"{mixer}ifgate_preact.{kind}"] = torch.cat(gates)
        tensors[ffn + "proj_up_gate_z.weight"] = torch.cat([tensors.pop(f"{ffn}{x}.weight") for x in ("proj_up_gate", "proj_up")])
    return tensors


BARE = {name.removeprefix("backbone."): tensor for name, tensor in PUBLISHED.items()}
EMBEDDING = {name.replace("embeddings.", "embedding."): tensor for name, tensor in PUBLISHED.items()}


@pytest.mark.parametrize(
    ("tensors", "config", "layout"),
    [
        (BARE, DECLARED, "transformers"),
        (fused(), DECLARED | {"weight_mode": "fused"}, "transformers"),
        (EMBEDDING, OFFICIAL, "official"),
        (PUBLISHED, None, "bare tensors"),
    ],
    ids=["without a prefix", "fused", "official", "bare"],
)
def test_every_layout_gives_one_backbone(tensors: dict[str, Tensor], config: dict[str, Any] | None, layout: str) -> None:
    found = built(tensors, config)
    assert found.layout == f"xLSTM, {layout} layout" and found.backbone.config == XlstmConfig(**SIZES)
    assert found.backbone.fingerprint() == load_backbone(GOLDEN, "float32", "cpu").fingerprint()


def test_what_the_module_takes_from_the_config() -> None:
    values = {"gate_soft_cap": 4.0, "norm_eps": 1e-4, "eps": 1e-3, "output_logit_soft_cap": 7.0}
    unread = {"chunkwise_kernel": "chunkwise--triton_xl_chunk", "add_out_norm": False, "tie_word_embeddings": True, "head_dim": 5}
    found = built(PUBLISHED, DECLARED | values | unread)
    assert found.backbone.config == XlstmConfig(**SIZES, gate_cap=4.0, norm_eps=1e-4, cell_eps=1e-3)


def test_only_matrices_take_the_dtype() -> None:
    backbone = load_backbone(GOLDEN, "bfloat16", "cpu")
    low = {name for name, parameter in backbone.named_parameters() if parameter.dtype == torch.bfloat16}
    assert low == {name for name in backbone.state_dict() if not re.search(r"norm|[if]gate_preact", name)}


@pytest.mark.parametrize(
    ("config", "part"),
    [
        (DECLARED | {"use_bias": True}, "use_bias is True"),
        (DECLARED | {"weight_mode": "shared"}, "weight_mode is 'shared'"),
        (DECLARED | {"chunkwise_kernel": "chunkwise--triton_xl_chunk_siging"}, "chunkwise_kernel is"),
        (DECLARED | {"gate_soft_cap": None}, "gate_soft_cap is None"),
        (DECLARED | {"gate_soft_cap": 0}, "gate_cap 0"),
        (DECLARED | {"embedding_dim": 32}, "embedding_dim is 32 in its config, in the weights it is 128"),
        (DECLARED | {"num_heads": 5}, "num_heads is 5 in its config, in the weights it is 4"),
        (DECLARED | {"model_type": "mamba2"}, "'Mamba-2' in its config, in the weights it is 'xLSTM'"),
        (OFFICIAL | {"add_out_norm": False}, "add_out_norm is False"),
        (OFFICIAL | {"use_bias": True}, "use_bias is True"),
    ],
)
def test_near_misses(config: dict[str, Any], part: str) -> None:
    refused((PUBLISHED, config), part)


NONE = torch.zeros(0)  # in place of a tensor that is taken away


@pytest.mark.parametrize(
    ("tensors", "name", "changed", "parts"),
    [
        (PUBLISHED, "blocks.0.mlstm_layer.q.weight", NONE, ["missing tensor 'layers.0.mlstm_layer.q.weight'"]),
        (PUBLISHED, "embedding.weight", torch.zeros(256, 128), ["the same tensor twice", "keep one"]),
        (fused(), "blocks.1.mlstm_layer.ifgate_preact.bias", torch.zeros(5), ["is (5,), its rows must divide into 2 parts"]),
        (fused(), "blocks.1.ffn.proj_up_gate_z.weight", torch.zeros(130, 128), ["1.ffn.proj_up_gate.weight' is (65, 128)"]),
        (fused(), "blocks.1.mlstm_layer.qkv_opreact.weight", torch.zeros(385, 128), ["mis-shaped", "mlstm_layer.ogate_preact.w"]),
    ],
)
def test_wrong_tensors(tensors: dict[str, Tensor], name: str, changed: Tensor, parts: list[str]) -> None:
    left = {key: tensor for key, tensor in (tensors | {f"backbone.{name}": changed}).items() if tensor.numel()}
    refused((left, DECLARED), *parts)
