"""Configs that name code of their own, and decoders that read both ways: never another reading in silence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny_backbones import assert_close, cumulative
from helpers.tiny_transformers import LONGEST, VOCABULARY, write_transformer
from torch import Tensor
from torch.nn.functional import linear, silu

from runnel.backbones.checkpoint.facts import describe_checkpoint
from runnel.backbones.transformer.formats import load
from runnel.errors import CheckpointError

pytestmark = pytest.mark.filterwarnings("ignore:::transformers")

GTE = {"AutoModel": "modeling_qwen.Qwen2Model", "AutoModelForCausalLM": "modeling_qwen.Qwen2ForCausalLM"}


def with_config(folder: Path, **values: Any) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))
    return folder


def random_ids(length: int, seed: int) -> Tensor:
    return torch.randint(4, VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed))


def read_both_ways(model: Any, ids: Tensor) -> Tensor:
    """A Llama, Mistral or Qwen2 of rotary positions, grouped queries and gated feed-forwards, written out: no mask anywhere."""
    config, weights = model.config, model.state_dict()
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    size = config.hidden_size // heads

    def norm(x: Tensor, name: str) -> Tensor:
        return x * (x.square().mean(dim=-1, keepdim=True) + config.rms_norm_eps).rsqrt() * weights[name]

    angles = torch.arange(len(ids))[:, None] * 10000.0 ** (-torch.arange(0, size, 2) / size)
    cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)

    def project(x: Tensor, layer: str, name: str, count: int) -> Tensor:  # (heads, T, size)
        at = f"{layer}.self_attn.{name}_proj"
        return linear(x, weights[f"{at}.weight"], weights.get(f"{at}.bias")).view(len(x), count, size).transpose(0, 1)

    def turned(x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        return x * cos + torch.cat([-b, a], dim=-1) * sin

    h = weights["embed_tokens.weight"][ids]
    for number in range(config.num_hidden_layers):
        layer = f"layers.{number}"
        x = norm(h, f"{layer}.input_layernorm.weight")
        q, k = turned(project(x, layer, "q", heads)), turned(project(x, layer, "k", groups))
        k, v = (part.repeat_interleave(heads // groups, dim=0) for part in (k, project(x, layer, "v", groups)))
        seen = (q @ k.transpose(1, 2) / size**0.5).softmax(dim=-1) @ v
        h = h + seen.transpose(0, 1).reshape(len(ids), -1) @ weights[f"{layer}.self_attn.o_proj.weight"].T
        x = norm(h, f"{layer}.post_attention_layernorm.weight")
        gate, up, down = (weights[f"{layer}.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
        h = h + (silu(x @ gate.T) * (x @ up.T)) @ down.T
    return norm(h, "norm.weight")


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2"])
def test_decoders_that_read_both_ways(tmp_path: Path, architecture: str, attention: str) -> None:
    model = write_transformer(tmp_path, architecture, **({"sliding_window": None} if architecture == "mistral" else {}))
    causal = load(tmp_path, "float32", "cpu").backbone
    backbone = load(with_config(tmp_path, is_causal=False), "float32", "cpu", attention=attention).backbone
    texts = [random_ids(length, seed) for seed, length in enumerate((LONGEST, 0, 1, 7, 30, 31, 2, 9))]
    hidden = backbone(torch.cat(texts), cumulative(tuple(map(len, texts))))[0]  # some rows are padded, some are not
    for text, got in zip(texts, hidden.split([len(text) for text in texts]), strict=True):
        if len(text):
            assert_close(got, read_both_ways(model, text), 1e-5)
    assert (causal(texts[0])[0] - hidden[:LONGEST])[0].abs().max() > 0.1, "the first token sees the rest"


def test_gte_qwen2_is_read_both_ways(tmp_path: Path) -> None:
    model = write_transformer(tmp_path, "qwen2")
    found = load(with_config(tmp_path, auto_map=GTE, is_causal=False), "float32", "cpu").backbone
    ids = random_ids(9, 0)
    assert_close(found(ids)[0], read_both_ways(model, ids), 1e-5)
    assert "auto_map" not in found.config.library


@pytest.mark.parametrize(
    ("architecture", "code", "title"),
    [
        ("mistral", "modeling_gritlm7b.MistralModel", "Mistral"),  # GritLM: both ways, which its config does not say
        ("bert", "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel", "BERT"),  # Jina v2: ALiBi
        ("qwen2", "modeling_qwen.Qwen2Model", "Qwen2"),  # GTE's without is_causal
    ],
)
def test_code_of_a_folder_is_refused_by_name(tmp_path: Path, architecture: str, code: str, title: str) -> None:
    write_transformer(tmp_path, architecture)
    with_config(tmp_path, auto_map={"AutoModel": code})
    message = rf"auto_map names code, {code}, .* never run here .* from {title}.*remove auto_map from config\.json.*is_causal"
    for read in (lambda: load(tmp_path), lambda: describe_checkpoint(tmp_path)):
        with pytest.raises(CheckpointError, match=message):
            read()
    with_config(tmp_path, auto_map={"AutoTokenizer": ["tokenization.A", None]})
    load(tmp_path)  # what makes ids is read from the tokenizer's own files


@pytest.mark.parametrize("positions", ["alibi", "relative_key"])
def test_positions_that_the_library_ignores_are_refused(tmp_path: Path, positions: str) -> None:
    write_transformer(tmp_path, "bert")
    load(with_config(tmp_path, position_embedding_type="absolute"))
    with pytest.raises(CheckpointError, match=f"position_embedding_type is '{positions}' in this BERT config"):
        load(with_config(tmp_path, position_embedding_type=positions))


@pytest.mark.parametrize(("architecture", "title"), [("opt", "OPT"), ("gpt_neox", "GPT-NeoX")])
def test_reading_both_ways_is_for_decoders_that_were_checked(tmp_path: Path, architecture: str, title: str) -> None:
    write_transformer(tmp_path, architecture)
    with pytest.raises(CheckpointError, match=f"is_causal is False in this {title} config; .*Llama, Mistral and Qwen2"):
        load(with_config(tmp_path, is_causal=False))


@pytest.mark.parametrize(
    "said",
    [
        {"architectures": ["LlamaBiForMNTP"]},
        {"architectures": ["LlamaBidirectionalModel"]},
        {"bidirectional": True},
        {"use_bidirectional_attention": "all"},
        {"bi_directional": 1},
    ],
)
def test_decoders_that_say_otherwise_that_they_read_both_ways(tmp_path: Path, said: dict[str, Any]) -> None:
    """Never causally in silence: the message asks for is_causal, and then it is read as asked."""
    (key,) = said
    model = write_transformer(tmp_path, "llama")
    text = "names the class LlamaBi" if key == "architectures" else f"{key} is {said[key]!r}"
    with pytest.raises(CheckpointError, match=rf"{text}.* authors read a text both ways, .*LlamaModel reads it causally; add"):
        load(with_config(tmp_path, **said))
    ids = random_ids(9, 0)
    assert_close(load(with_config(tmp_path, is_causal=False), "float32").backbone(ids)[0], read_both_ways(model, ids), 1e-5)
    causal = load(with_config(tmp_path, is_causal=True), "float32").backbone
    assert_close(causal(ids)[0], model(ids[None]).last_hidden_state[0], 1e-5)


@pytest.mark.parametrize("said", [{"bidirectional": False}, {"architectures": ["LlamaForCausalLM"]}, {"architectures": None}])
def test_decoders_that_read_one_way(tmp_path: Path, said: dict[str, Any]) -> None:
    write_transformer(tmp_path, "llama")
    assert load(with_config(tmp_path, **said)).backbone.config.causal
