"""Read a BERT checkpoint in the transformers layout as an `Encoder`, without the transformers library.

The names of its tensors, with or without "bert." before them:

    embeddings.{word,position,token_type}_embeddings.weight, embeddings.LayerNorm.{weight,bias}
    encoder.layer.{i}.attention.self.{query,key,value}.{weight,bias}
    encoder.layer.{i}.{attention.output,intermediate,output}.dense.{weight,bias}
    encoder.layer.{i}.{attention.output,output}.LayerNorm.{weight,bias}

The pooler and the heads of pretraining are no part of an encoder and are left unread.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from runnel.backbones.base import Backbone
from runnel.backbones.checkpoint.files import find_checkpoint, open_weights, read_config
from runnel.backbones.checkpoint.load import build_backbone
from runnel.backbones.checkpoint.tensors import Stored, read_tensor, shape_of, some
from runnel.backbones.checkpoint.values import number, whole
from runnel.backbones.encoder.model import EncoderConfig
from runnel.errors import CheckpointError, InputError

_LEFT_OUT = re.compile(r"^(pooler|cls)\.|(^|\.)position_ids$")
_OURS = {  # within a layer
    "attention.output.dense": "out",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "up",
    "output.dense": "down",
    "output.LayerNorm": "norm",
}
_EXPECTED: dict[str, Any] = {  # what a config may say otherwise, and what is computed here
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
}


def load_bert(
    folder_or_hub_id: str | Path,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
    *,
    passage_tokens: int = 160,
    begin_id: int | None = 101,
) -> Backbone:
    """Load the encoder of a BERT checkpoint, in evaluation mode.

    Args:
        folder_or_hub_id: see `load_backbone`.
        dtype: see `load_backbone`.
        device: see `load_backbone`.
        passage_tokens: the most tokens of a passage, without its markers; documents are read in passages.
        begin_id: of the marker [CLS], which begins a passage.
    """
    folder = find_checkpoint(folder_or_hub_id)
    where = str(folder)
    values = read_config(folder) or {}
    _check_kind(values, where)
    stored = {name.removeprefix("bert."): tensor for name, tensor in open_weights(folder).items()}
    stored = {name: tensor for name, tensor in stored.items() if not _LEFT_OUT.search(name)}
    config = replace(_config(values, stored, where), passage_tokens=passage_tokens, begin_id=begin_id)
    tensors = _tensors(config, stored, where)
    return build_backbone("encoder", config.to_dict(), tensors, dtype, device)


def _check_kind(values: Mapping[str, Any], where: str) -> None:
    if values.get("model_type") != "bert" or "runnel" in values:
        raise CheckpointError(f"{where} is a {values.get('model_type')!r} checkpoint; an encoder is made from BERT ones")
    if values.get("quantization_config"):
        raise CheckpointError(f"{where} holds quantized weights (quantization_config); load the unquantized checkpoint")
    for key, expected in _EXPECTED.items():
        if values.get(key, expected) != expected:
            raise CheckpointError(f"{where}: {key} is {values[key]!r} in its config; the encoder here has {expected!r}")


def _config(values: Mapping[str, Any], stored: Mapping[str, Stored], where: str) -> EncoderConfig:
    vocab_size, hidden_size = shape_of(stored, "embeddings.word_embeddings.weight", 2, where)
    positions, _ = shape_of(stored, "embeddings.position_embeddings.weight", 2, where)
    config: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "num_layers": whole(values, "num_hidden_layers", where),
        "num_heads": whole(values, "num_attention_heads", where),
        "intermediate_size": whole(values, "intermediate_size", where),
        "max_positions": positions,
        "layer_norm_eps": number(values.get("layer_norm_eps", 1e-12), "layer_norm_eps", where),
    }
    for key, ours in (("vocab_size", "vocab_size"), ("hidden_size", "hidden_size"), ("max_position_embeddings", "max_positions")):
        if values.get(key, config[ours]) != config[ours]:
            raise CheckpointError(
                f"{where}: its config says {key} is {values[key]!r}, its tensors have {config[ours]:,}; download both again"
            )
    try:
        return EncoderConfig(**config, passage_tokens=1)
    except InputError as error:  # it speaks of values that a user passes; these came from a file
        raise CheckpointError(f"{where}: its config is not a valid model: {error}") from error


def _tensors(config: EncoderConfig, stored: Mapping[str, Stored], where: str) -> dict[str, Tensor]:
    """Return the tensors by the names of `Encoder`; each is used once or named in an error."""
    left = dict(stored)

    def take(name: str) -> Tensor:
        if name not in left:
            raise CheckpointError(f"{where}: missing tensor {name!r}. The weights are incomplete, or belong to another config")
        return read_tensor(name, left.pop(name), where)

    types = take("embeddings.token_type_embeddings.weight")
    if types.ndim != 2 or types.shape[1] != config.hidden_size:
        raise CheckpointError(f"{where}: mis-shaped token types {tuple(types.shape)}, expected {config.hidden_size} columns")
    tensors = {
        "embeddings.weight": take("embeddings.word_embeddings.weight"),
        "positions.weight": take("embeddings.position_embeddings.weight").double() + types[0].double(),
    }
    for kind in ("weight", "bias"):
        tensors[f"norm.{kind}"] = take(f"embeddings.LayerNorm.{kind}")
        for layer in range(config.num_layers):
            theirs, ours = f"encoder.layer.{layer}", f"layers.{layer}"
            parts = [take(f"{theirs}.attention.self.{part}.{kind}") for part in ("query", "key", "value")]
            if len({tuple(part.shape) for part in parts}) > 1:
                raise CheckpointError(f"{where}: mis-shaped query, key or value: the {kind} shapes differ in layer {layer}")
            tensors[f"{ours}.qkv.{kind}"] = torch.cat(parts)
            for name, own in _OURS.items():
                tensors[f"{ours}.{own}.{kind}"] = take(f"{theirs}.{name}.{kind}")
    if left:
        raise CheckpointError(
            f"{where}: unexpected tensors {some(sorted(left))}: these weights belong to another config or model than an encoder's"
        )
    return tensors
