"""Published checkpoints of every family: their layouts and variants, and what looks similar but is
refused.

How files are found and read is in `checkpoint`; whether what is read computes what its authors'
code does, in test_golden.py.
"""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.checkpoint_writing import built, refused
from safetensors.torch import load_file
from torch import Tensor, zeros

from runnel.backbones.checkpoint.load import load_backbone
from runnel.backbones.checkpoint.tensors import from_tensors
from runnel.backbones.mamba2.model import Mamba2, Mamba2Config
from runnel.backbones.rwkv7.formats import read_rwkv7
from runnel.backbones.rwkv7.model import Rwkv7Config
from runnel.backbones.xlstm.model import XlstmConfig

Tensors = dict[str, Tensor]
GOLDEN = Path(__file__).parents[1] / "golden"
NONE = zeros(0)  # in place of a tensor that is taken away


def tensors_of(folder: str) -> Tensors:
    path = GOLDEN / folder
    safe = path / "model.safetensors"
    return (
        load_file(safe)
        if safe.exists()
        else torch.load(next(path.glob("*.[bp][it][nh]")), weights_only=True)
    )


def config_of(folder: str) -> dict[str, Any]:
    return json.loads((GOLDEN / folder / "config.json").read_text())


def mamba2(config: Mamba2Config, prefix: str = "backbone.") -> Tensors:
    torch.manual_seed(0)
    return {prefix + name: tensor.detach() for name, tensor in Mamba2(config).state_dict().items()}


SMALL = Mamba2Config(vocab_size=64, hidden_size=32, num_layers=2, state_size=8, head_size=16)
MAMBA2 = mamba2(SMALL)
BERT = tensors_of("transformers/bert-mean")
OFFICIAL, FLA, XLSTM = (
    tensors_of(f"{name}") for name in ("rwkv7-tiny-official", "rwkv7-tiny-fla", "xlstm-tiny-hf")
)
ORIGINAL = {
    "d_model": 32,
    "n_layer": 2,
    "vocab_size": 64,
    "ssm_cfg": {"layer": "Mamba2", "d_state": 8, "headdim": 16},
}
TRANSFORMERS = {
    "model_type": "mamba2",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "vocab_size": 64,
    "state_size": 8,
}
TRANSFORMERS |= {"num_heads": 4, "head_dim": 16, "n_groups": 1}
# of xLSTM with options that choose kernels
OF_FLA = config_of("rwkv7-tiny-fla")
OF_XLSTM = config_of("xlstm-tiny-hf")
XLSTM_FOLDER = {
    "vocab_size": 256,
    "embedding_dim": 128,
    "num_blocks": 2,
    "num_heads": 4,
    "norm_eps": "1e-6",
}
SOURCES: dict[str, tuple[Tensors, dict[str, Any]]] = {  # tensors and a config that fits them
    "mamba2": (MAMBA2, TRANSFORMERS),
    "mamba2 original": (MAMBA2, ORIGINAL),
    "mamba2 bare": (MAMBA2, {}),
    "rwkv7 official": (OFFICIAL, {}),
    "rwkv7 fla": (FLA, OF_FLA),
    "xlstm": (XLSTM, OF_XLSTM),
    "xlstm official": (XLSTM, XLSTM_FOLDER),
    "bert": (BERT, config_of("transformers/bert-mean")),
    # what a config of runnel's own may say wrongly: tests/models/test_model_folder.py
    "runnel": (
        MAMBA2,
        {"runnel": {"backbone": {"architecture": "mamba2", "config": SMALL.to_dict()}}},
    ),
}


@pytest.mark.parametrize(
    ("folder", "small"),
    [
        ("rwkv7-tiny-official", r"norm|ln_x|\.(x_.|[wav]0|k_k|k_a|r_k)$"),
        ("xlstm-tiny-hf", r"norm|[if]gate_preact"),
    ],
)
def test_only_matrices_take_the_dtype(folder: str, small: str) -> None:
    """Those of Mamba-1 and Mamba-2: checkpoint/test_load.py."""
    backbone = load_backbone(GOLDEN / folder, "bfloat16", "cpu")
    assert {
        name for name, parameter in backbone.named_parameters() if parameter.dtype == torch.bfloat16
    } == {name for name in backbone.state_dict() if not re.search(small, name)}


# ---- Mamba-2 -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stray",
    # a circulating Codestral config says norm_before_gate; transformers and the published model
    # gate first
    [
        {
            "norm_before_gate": True,
            "rms_norm": False,
            "intermediate_size": 5,
            "time_step_limit": [0.0, "inf"],
            "d_inner": 9,
        },
        {"is_causal": True},
        {"bidirectional": False, "architectures": ["Mamba2ForCausalLM"]},
        {
            "auto_map": {
                "AutoConfig": "configuration.Mamba2Config",
                "AutoModel": "owner/code--modeling.Mamba2Model",
            }
        },
        {"auto_map": {"AutoTokenizer": ["tokenization.BiTokenizer", None]}},
    ],
)
def test_ignored_as_transformers_ignores_it(stray: dict[str, Any]) -> None:
    assert built(MAMBA2, TRANSFORMERS | stray).backbone.config == SMALL


# ---- RWKV-7 --------------------------------------------------------------------------------------

RWKV7 = Rwkv7Config(256, 128, 3, ffn_size=512, decay_rank=16, a_rank=16, v_rank=8, gate_rank=32)
UNEVEN = {"w": 5, "a": 3, "v": 2, "g": 7}  # ranks


def cut(tensors: Tensors, layers: int) -> Tensors:
    """The first layers of a model in either layout, with uneven ranks."""
    smaller = {}
    for name, tensor in tensors.items():
        number = re.search(r"(?:blocks|layers)\.(\d)\.", name)
        low = re.search(r"att\.([wavg])[12]$|attn\.([wavg])_lora\.lora\.[02]\.weight$", name)
        if low:
            tensor = tensor[
                tuple(
                    slice(128 if size == 128 else UNEVEN[low[1] or low[2]]) for size in tensor.shape
                )
            ]
        if number is None or int(number[1]) < layers:
            smaller[name] = tensor.contiguous()
    return smaller


def stacked(tensors: Tensors) -> Tensors:
    """As the oldest version of flash-linear-attention saves a model."""
    tensors = dict(tensors)
    for layer in [name.removesuffix("x_r") for name in tensors if name.endswith("attn.x_r")]:
        tensors[layer + "x_x"] = torch.stack(
            [tensors.pop(f"{layer}x_{name}").flatten() for name in "rwkvag"]
        )
    return tensors


@pytest.mark.parametrize("layers", [1, 3])
def test_every_variant_of_rwkv7_gives_one_backbone(layers: int) -> None:
    official = cut(OFFICIAL, layers)
    fla = cut(FLA, layers)
    used = {
        name: tensor
        for name, tensor in official.items()
        if not re.match(r"head|blocks\.0\.att\.v\d", name)
    }
    assert len(used) == len(official) - 4
    variants = [(official, None), (used, None)]
    for written in (fla, stacked(fla)):
        bare = {
            name.removeprefix("model."): tensor
            for name, tensor in written.items()
            if name != "lm_head.weight"
        }
        variants += [
            (tensors, OF_FLA | {"num_hidden_layers": layers}) for tensors in (written, bare)
        ]
    backbones = [built(*variant).backbone for variant in variants]
    ranks = {"decay_rank": 5, "a_rank": 3, "gate_rank": 7} | ({"v_rank": 2} if layers > 1 else {})
    assert {backbone.config for backbone in backbones} == {
        Rwkv7Config(256, 128, layers, ffn_size=512, **ranks)
    }
    assert len({backbone.fingerprint() for backbone in backbones}) == 1


def test_what_configs_of_rwkv7_say_wrongly_is_not_believed_but_norm_eps() -> None:
    wrong = {
        "num_heads": 32,
        "decay_low_rank_dim": 64,
        "gate_low_rank_dim": 128,
        "a_low_rank_dim": 64,
        "v_low_rank_dim": 16,
    }
    wrong |= {
        "hidden_ratio": 4.0,
        "intermediate_size": None,
        "attn_mode": "fused_recurrent",
        "attn": None,
        "fuse_norm": True,
    }
    for width in (None, 128, [128, 128, 128]):
        _, layout, config, *_ = read_rwkv7(
            OF_FLA | wrong | {"value_dim": width, "norm_eps": 1e-3}, from_tensors(FLA, "f"), "here"
        )
        assert layout == "flash-linear-attention" and config == replace(RWKV7, norm_eps=1e-3)
    assert read_rwkv7({}, from_tensors(OFFICIAL, "f"), "here")[1:3] == ("official", RWKV7)


# ---- xLSTM ---------------------------------------------------------------------------------------

SIZES = {
    "vocab_size": 256,
    "hidden_size": 128,
    "num_layers": 2,
    "num_heads": 4,
    "qk_size": 64,
    "v_size": 128,
    "ffn_size": 384,
}


def fused() -> Tensors:
    tensors = dict(XLSTM)
    for i in range(2):
        mixer = f"backbone.blocks.{i}.mlstm_layer."
        ffn = f"backbone.blocks.{i}.ffn."
        tensors[mixer + "qkv_opreact.weight"] = torch.cat(
            [tensors.pop(f"{mixer}{name}.weight") for name in ("q", "k", "v", "ogate_preact")]
        )
        for kind in ("weight", "bias"):
            tensors[f"{mixer}ifgate_preact.{kind}"] = torch.cat(
                [tensors.pop(f"{mixer}{name}gate_preact.{kind}") for name in "if"]
            )
        tensors[ffn + "proj_up_gate_z.weight"] = torch.cat(
            [tensors.pop(f"{ffn}{x}.weight") for x in ("proj_up_gate", "proj_up")]
        )
    return tensors


SOURCES["xlstm fused"] = (fused(), OF_XLSTM | {"weight_mode": "fused"})


@pytest.mark.parametrize("source", ["without a prefix", "fused", "official", "bare"])
def test_every_layout_of_xlstm_gives_one_backbone(source: str) -> None:
    tensors, config, layout = {
        "without a prefix": (
            {k.removeprefix("backbone."): t for k, t in XLSTM.items()},
            OF_XLSTM,
            "transformers",
        ),
        "fused": (*SOURCES["xlstm fused"], "transformers"),
        "official": (
            {k.replace("embeddings.", "embedding."): t for k, t in XLSTM.items()},
            XLSTM_FOLDER,
            "official",
        ),
        "bare": (XLSTM, None, "bare tensors"),
    }[source]
    found = built(tensors, config)
    assert found.layout == f"xLSTM, {layout} layout" and found.backbone.config == XlstmConfig(
        **SIZES
    )
    assert (
        found.backbone.fingerprint()
        == load_backbone(GOLDEN / "xlstm-tiny-hf", "float32", "cpu").fingerprint()
    )


def test_what_xlstm_takes_from_the_config() -> None:
    values = {"gate_soft_cap": 4.0, "norm_eps": 1e-4, "eps": 1e-3, "output_logit_soft_cap": 7.0}
    unread = {
        "chunkwise_kernel": "chunkwise--triton_xl_chunk",
        "add_out_norm": False,
        "tie_word_embeddings": True,
        "head_dim": 5,
    }
    assert built(XLSTM, OF_XLSTM | values | unread).backbone.config == XlstmConfig(
        **SIZES, gate_cap=4.0, norm_eps=1e-4, cell_eps=1e-3
    )


# ---- what is refused -----------------------------------------------------------------------------


def ssm(source: str, **options: Any) -> dict[str, Any]:
    return {"ssm_cfg": SOURCES[source][1]["ssm_cfg"] | options}


@pytest.mark.parametrize(
    ("source", "options", "part"),
    [
        ("mamba2", {"model_type": "falcon_mamba"}, "'falcon_mamba'"),
        (
            "mamba2",
            {"model_type": "rwkv7"},
            "'RWKV-7' in its config, in the weights it is 'Mamba-2'",
        ),
        (
            "mamba2",
            {"model_type": "gpt_bigcode"},
            "'gpt_bigcode' model, expected Encoder, RWKV-7, xLSTM, Mamba-1",
        ),
        ("mamba2", {"hidden_act": "relu"}, "hidden_act is 'relu'"),
        (
            "mamba2",
            {"num_hidden_layers": 3},
            "num_hidden_layers is 3 in its config, in the weights it is 2",
        ),
        ("mamba2", {"num_heads": 5}, "num_heads is 5 in its config, in the weights it is 4"),
        ("mamba2", {"n_groups": 3}, "3 groups"),
        ("mamba2", {"layer_norm_epsilon": "small"}, "layer_norm_epsilon is 'small'"),
        ("mamba2", {"vocab_size": True}, "vocab_size is True"),
        ("mamba2", {"quantization_config": {"load_in_4bit": True}}, "quantized weights"),
        # this and the next: models that may read both ways
        ("mamba2", {"is_causal": False}, "is_causal is False"),
        ("mamba2", {"bidirectional_strategy": "add"}, "bidirectional_strategy is 'add'"),
        ("mamba2", {"architectures": ["BiMamba2ForMaskedLM"]}, "BiMamba2ForMaskedLM"),
        (
            "mamba2",
            {"auto_map": {"AutoModel": "modeling.BidirectionalMamba2"}},
            "modeling.BidirectionalMamba2",
        ),
        (
            "mamba2 original",
            {"auto_map": {"AutoModel": "modeling.EmbedMamba2"}},
            "names code, modeling.EmbedMamba2",
        ),
        ("mamba2 bare", {"auto_map": "modeling.EmbedMamba2"}, "names code, modeling.EmbedMamba2"),
        (
            "mamba2",
            {"auto_map": "modeling.EmbedMamba2", "model_type": "embed_mamba2"},
            "it is a 'embed_mamba2' model",
        ),
        ("bert", {"auto_map": "modeling.OwnBert"}, "names code, modeling.OwnBert"),
        ("mamba2 original", {"attn_layer_idx": [1]}, "attn_layer_idx is [1]"),
        ("mamba2 original", {"d_intermediate": 64}, "d_intermediate is 64"),
        ("mamba2 original", {"rms_norm": False}, "rms_norm is False"),
        ("mamba2 original", {"vocab_size": None}, "vocab_size is missing"),
        (
            "mamba2 original",
            {"vocab_size": 65, "pad_vocab_size_multiple": 16},
            "vocab_size is 80 in its config, in the weights",
        ),
        (
            "mamba2 original",
            {"d_model": "32"},
            "d_model is '32' in its config, in the weights it is 32",
        ),
        ("mamba2 original", ssm("mamba2 original", layer="Mamba3"), "layer is 'Mamba3'"),
        ("mamba2 original", ssm("mamba2 original", D_has_hdim=True), "D_has_hdim is True"),
        ("mamba2 original", ssm("mamba2 original", d_ssm=16), "d_ssm is 16"),
        ("mamba2 original", ssm("mamba2 original", speed=2), "does not know: speed"),
        (
            "mamba2 original",
            ssm("mamba2 original", headdim=5),
            "headdim is 5 in its config, in the weights",
        ),
        ("mamba2 original", ssm("mamba2 original", dt_limit=[1]), "dt_limit is [1]"),
        ("rwkv7 fla", {"attn": {"layers": [1], "num_heads": 2}}, "attn is"),
        ("rwkv7 fla", {"hidden_act": "relu"}, "hidden_act is 'relu'"),
        ("rwkv7 fla", {"norm_first": False}, "norm_first is False"),
        ("rwkv7 fla", {"value_dim": [128, 96, 128]}, "value_dim is 96"),
        ("rwkv7 fla", {"norm_eps": "small"}, "norm_eps is 'small'"),
        ("rwkv7 fla", {"head_dim": 32}, "head_dim is 32 in its config, in the weights it is 64"),
        ("rwkv7 fla", {"num_hidden_layers": "3"}, "num_hidden_layers is '3'"),
        (
            "rwkv7 fla",
            {"vocab_size": 65536},
            "vocab_size is 65536 in its config, in the weights it is 256",
        ),
        ("xlstm", {"use_bias": True}, "use_bias is True"),
        ("xlstm", {"weight_mode": "shared"}, "weight_mode is 'shared'"),
        ("xlstm", {"chunkwise_kernel": "chunkwise--triton_xl_chunk_siging"}, "chunkwise_kernel is"),
        ("xlstm", {"gate_soft_cap": None}, "gate_soft_cap is None"),
        (
            "xlstm",
            {"embedding_dim": 32},
            "embedding_dim is 32 in its config, in the weights it is 128",
        ),
        ("xlstm", {"num_heads": 5}, "num_heads is 5 in its config, in the weights it is 4"),
        (
            "xlstm",
            {"model_type": "mamba2"},
            "'Mamba-2' in its config, in the weights it is 'xLSTM'",
        ),
        ("xlstm official", {"add_out_norm": False}, "add_out_norm is False"),
        ("bert", {"is_decoder": True}, "of an unknown kind"),
        ("bert", {"vocab_size": 127}, "vocab_size is 127 in its config, in the weights it is 120"),
        (
            "bert",
            {"num_attention_heads": 5},
            "its config is not a valid model: hidden_size 32 and num_heads 5",
        ),
        (
            "bert",
            {"num_hidden_layers": 3},
            "missing tensor 'encoder.layer.2.attention.self.query.weight'",
        ),
        (
            "bert",
            {"num_hidden_layers": 1},
            "unexpected tensors 'encoder.layer.1.attention.output.LayerNorm.bias'",
        ),
    ],
)
def test_configs_of_other_models_are_refused(
    source: str, options: dict[str, Any], part: str
) -> None:
    tensors, config = SOURCES[source]
    refused((tensors, config | options), part)


@pytest.mark.parametrize("source", ["mamba2", "mamba2 bare", "rwkv7 fla", "xlstm", "bert"])
@pytest.mark.parametrize(
    ("prefix", "named"),
    [("module.", "module."), ("_orig_mod.", "_orig_mod."), ("module._orig_mod.", "module.")],
)
def test_the_prefix_of_a_wrapped_model_is_named(source: str, prefix: str, named: str) -> None:
    tensors, config = SOURCES[source]
    wrapped = {prefix + name: tensor for name, tensor in tensors.items()}
    refused((wrapped, config), f"the prefix {named!r}", prefix)


HEAD = {"binary_head.weight": torch.ones(1, 32), "binary_head.bias": torch.ones(1)}


@pytest.mark.parametrize(
    ("source", "changed", "parts"),
    [
        (
            "mamba2",
            {"backbone.layers.1.mixer.dt_bias": NONE},
            ["missing tensor 'layers.1.mixer.dt_bias'"],
        ),
        (
            "mamba2",
            {"backbone.a": zeros(3), "score.weight": zeros(2)},
            ["unexpected tensors 'a', 'score"],
        ),
        (
            "mamba2",
            {"backbone.layers.1.mixer.out_proj.weight": zeros(32, 63)},
            ["is (32, 63) in", "expected (32, 64)"],
        ),
        (
            "mamba2",
            {
                "backbone.norm_f.weight": zeros(31),
                "backbone.a": zeros(1),
                "backbone.layers.0.norm.weight": NONE,
            },
            ["missing tensor", "unexpected tensor", "mis-shaped tensor"],
        ),
        (
            "mamba2 bare",
            {"backbone.embeddings.weight": NONE},
            ["missing tensor 'embeddings.weight'"],
        ),
        (
            "mamba2 bare",
            {"backbone.embedding.weight": zeros(64, 32)},
            ["same tensor twice, as 'backbone.embedding", "keep"],
        ),
        (
            "mamba2 bare",
            HEAD | {"binary_head.weight": NONE},
            ["missing tensor 'binary_head.weight'"],
        ),
        (
            "mamba2 bare",
            HEAD | {"binary_head.weight": zeros(1, 31)},
            ["'binary_head.weight' is (1, 31)", "(1, 32)"],
        ),
        (
            "mamba2 bare",
            HEAD | {"binary_head.bias": zeros(2)},
            ["'binary_head.bias' is (2,)", "expected (1,)"],
        ),
        (
            "mamba2 bare",
            HEAD | {"binary_head.scale": zeros(1)},
            ["unexpected tensor 'binary_head.scale'"],
        ),
        (
            "mamba2 bare",
            {"backbone.embeddings.weight": torch.ones(64, 32, dtype=torch.int8)},
            ["torch.int8", "originals"],
        ),
        (
            "mamba2 original",
            {"backbone.layers.1.self_attn.q_proj.weight": zeros(2)},
            ["unexpected tensor", "q_proj.weight"],
        ),
        (
            "rwkv7 fla",
            {"model.layers.2.attn.v_lora.lora.2.bias": NONE},
            ["missing tensor 'layers.2.att.v0'"],
        ),
        (
            "rwkv7 fla",
            {"model.layers.0.attn.v_lora.lora.0.weight": zeros(2, 128)},
            ["unexpected tensor", "layers.0."],
        ),
        (
            "rwkv7 fla",
            {"model.layers.1.attn.x_x": zeros(6, 128)},
            ["unexpected tensor 'layers.1.attn.x_x'"],
        ),
        (
            "rwkv7 fla",
            {k.removeprefix("model."): tensor for k, tensor in FLA.items()},
            ["the same tensor twice", "keep one"],
        ),
        ("rwkv7 official", {"emb.weight": NONE}, ["missing tensor 'embeddings.weight'"]),
        (
            "rwkv7 official",
            {"blocks.1.att.v3": zeros(2)},
            ["unexpected tensor 'blocks.1.att.v3' in some.file"],
        ),
        # 7a
        (
            "rwkv7 official",
            {"blocks.0.ffn.s_emb.weight": zeros(2)},
            ["unexpected tensor 'blocks.0.ffn.s_emb.weight'"],
        ),
        ("rwkv7 official", {"lm_head.weight": zeros(2)}, ["unexpected tensor 'lm_head.weight'"]),
        ("rwkv7 official", FLA, ["do not belong to one RWKV-7 model"]),
        (
            "rwkv7 official",
            {"blocks.0.att.r_k": zeros(128)},
            ["mis-shaped tensor", "'layers.0.att.r_k'"],
        ),
        ("rwkv7 official", {"blocks.0.att.r_k": zeros(2, 16)}, ["2 heads of 16 of 128 channels"]),
        (
            "rwkv7 official",
            {"blocks.1.att.w2": zeros(128, 16)},
            ["w_up.weight' is (16, 128)", "(128, 16)"],
        ),
        (
            "rwkv7 official",
            {"blocks.1.att.g2": zeros(7)},
            ["layers.1.att.g_up.weight' is (7,)", "(128, 32)"],
        ),
        (
            "rwkv7 official",
            {"blocks.1.att.x_r": zeros(2, 1, 128)},
            ["layers.1.att.x_r' is (2, 1, 128)", "(128,)"],
        ),
        (
            "xlstm",
            {"backbone.blocks.0.mlstm_layer.q.weight": NONE},
            ["missing tensor 'layers.0.mlstm_layer.q.weight'"],
        ),
        (
            "xlstm",
            {"backbone.embedding.weight": zeros(256, 128)},
            ["the same tensor twice", "keep one"],
        ),
        (
            "xlstm fused",
            {"backbone.blocks.1.mlstm_layer.ifgate_preact.bias": zeros(5)},
            ["is (5,), its rows must divide"],
        ),
        (
            "xlstm fused",
            {"backbone.blocks.1.ffn.proj_up_gate_z.weight": zeros(130, 128)},
            ["_up_gate.weight' is (65, 128)"],
        ),
        (
            "xlstm fused",
            {"backbone.blocks.1.mlstm_layer.qkv_opreact.weight": zeros(385, 128)},
            ["mis-shaped", "ogate_preact"],
        ),
        (
            "bert",
            {"encoder.layer.0.output.dense.bias": NONE},
            ["missing tensor 'encoder.layer.0.output.dense.bias'"],
        ),
        (
            "bert",
            {"encoder.layer.0.attention.self.key.bias": zeros(3)},
            ["mis-shaped query, key or value bias in layer 0"],
        ),
        ("bert", {"adapter.weight": zeros(3)}, ["unexpected tensor 'adapter.weight'"]),
        (
            "runnel",
            {"backbone.embeddings.weight.scale": torch.ones(1)},
            ["scale' is (1,), expected (64,)"],
        ),
        ("runnel", {"backbone.more.scale": torch.ones(1)}, ["unexpected tensor 'more.scale'"]),
    ],
)
def test_tensors_of_other_models_are_refused(
    source: str, changed: Tensors, parts: list[str]
) -> None:
    tensors, config = SOURCES[source]
    refused(
        ({name: tensor for name, tensor in (tensors | changed).items() if tensor.numel()}, config),
        *parts,
    )


@pytest.mark.parametrize(
    "name", ["blocks.0.xlstm.mlstm_cell.igate.weight", "blocks.0.attention.time_decay", "encoder.x"]
)
def test_tensors_of_no_known_family_are_refused(name: str) -> None:
    refused(({name: zeros(2)}, None), name, "of an unknown kind")


def test_sizes_of_mamba2_are_not_guessed() -> None:
    silent = {
        key: value for key, value in TRANSFORMERS.items() if key not in ("n_groups", "state_size")
    }
    refused((MAMBA2, silent), "state_size is 128")
    wide = Mamba2Config(
        vocab_size=8, hidden_size=32, num_layers=1, state_size=128, head_size=16, groups=4
    )
    refused((mamba2(wide, ""), None), "n_groups is missing in its config")
