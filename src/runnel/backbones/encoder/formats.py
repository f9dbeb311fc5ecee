"""Read BERT, RoBERTa and XLM-R checkpoints in the transformers layout, without the transformers
library.

The names of their tensors, with or without "bert." or "roberta." before them:

    embeddings.{word,position,token_type}_embeddings.weight, embeddings.LayerNorm.{weight,bias}
    encoder.layer.{i}.attention.self.{query,key,value}.{weight,bias}
    encoder.layer.{i}.{attention.output,intermediate,output}.dense.{weight,bias}
    encoder.layer.{i}.{attention.output,output}.LayerNorm.{weight,bias}

The pooler and the heads of pretraining are no part of an encoder and are left unread. The first
rows of RoBERTa's and XLM-R's position table, up to the row with the id of the padding token, are
for padding alone and are left out.
"""

import re
from collections.abc import Collection, Mapping

import torch

from runnel.backbones.checkpoint.config_values import (
    code_classes,
    expect_agreement,
    number,
    whole_number,
)
from runnel.backbones.checkpoint.tensors import (
    Recognized,
    Stored,
    expect_fit,
    shape_of,
)
from runnel.backbones.encoder.config import EncoderConfig
from runnel.backbones.encoder.model import Encoder

_LEFT_OUT = re.compile(r"^(pooler|cls|lm_head|classifier)\.|(^|\.)position_ids$")
_OURS = {  # within a layer
    "attention.output.dense": "out",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "up",
    "output.dense": "down",
    "output.LayerNorm": "norm",
}
# what is computed here; a config that has other values of these keys is of another model
_EXPECTED: dict[str, object] = {
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
}


def recognizes(config: Mapping[str, object], names: Collection[str] = ()) -> bool:
    """See `Recognized`: whether a config.json is of a model that computes what
    an `Encoder` does.
    """
    return (
        config.get("model_type") in Encoder.model_types
        and all(config.get(key, expected) == expected for key, expected in _EXPECTED.items())
        and not code_classes(config)
        and "runnel" not in config
    )


def read(config: Mapping[str, object], tensors: Mapping[str, Stored], where: str) -> Recognized:
    """See `Recognized`; the encoder's texts are read whole."""
    remaining: dict[str, Stored] = {}
    for name, tensor in tensors.items():  # the first published files have gamma and beta
        plain = re.sub(r"^(bert|roberta)\.", "", name)
        plain = plain.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
            "LayerNorm.beta", "LayerNorm.bias"
        )
        if not _LEFT_OUT.search(plain):
            remaining[plain] = tensor
    vocab_size, hidden_size = shape_of(remaining, "embeddings.word_embeddings.weight", 2, where)
    rows, _ = shape_of(remaining, "embeddings.position_embeddings.weight", 2, where)
    expect_agreement(
        config,
        {"vocab_size": vocab_size, "hidden_size": hidden_size, "max_position_embeddings": rows},
        where,
    )
    padding = (
        0 if config["model_type"] == "bert" else whole_number(config, "pad_token_id", where, 1) + 1
    )
    parsed = EncoderConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=whole_number(config, "num_hidden_layers", where),
        num_heads=whole_number(config, "num_attention_heads", where),
        intermediate_size=whole_number(config, "intermediate_size", where),
        max_positions=rows - padding,
        layer_norm_eps=number(config.get("layer_norm_eps", 1e-12), "layer_norm_eps", where),
        passage_tokens=1,  # not used, because texts are read whole; 1 fits any max_positions
    )
    return Recognized(
        Encoder.architecture,
        "transformers",
        parsed,
        _tensors(parsed, remaining, padding, where),
        {},
    )


def _tensors(
    config: EncoderConfig, remaining: dict[str, Stored], padding: int, where: str
) -> dict[str, Stored]:
    """Return the tensors by the names of `Encoder`; those that it does not know
    keep their names.
    """

    def take(name: str) -> Stored:
        shape_of(remaining, name, None, where)  # raises if it is missing
        return remaining.pop(name)

    positions = take("embeddings.position_embeddings.weight")
    types = take("embeddings.token_type_embeddings.weight")
    width = config.hidden_size
    expect_fit(
        len(types.shape) == 2 and positions.shape[1] == types.shape[1] == width,
        f"positions or token types {positions.shape}, {types.shape}, expected {width} columns",
        where,
    )
    tensors = {
        "embeddings.weight": take("embeddings.word_embeddings.weight"),
        "positions.weight": Stored(
            (config.max_positions, width), positions.file,
            # in fp64, so that the sum is rounded once
            lambda: positions.read()[padding:].double() + types.read()[0].double(),
        ),
    }  # fmt: skip
    for kind in ("weight", "bias"):
        tensors[f"norm.{kind}"] = take(f"embeddings.LayerNorm.{kind}")
        for layer in range(config.num_layers):
            theirs = f"encoder.layer.{layer}"
            ours = f"layers.{layer}"
            parts = [
                take(f"{theirs}.attention.self.{part}.{kind}") for part in ("query", "key", "value")
            ]
            expect_fit(
                len({part.shape for part in parts}) == 1,
                f"query, key or value {kind} in layer {layer}",
                where,
            )
            tensors[f"{ours}.qkv.{kind}"] = _joined(parts)
            for name, own in _OURS.items():
                tensors[f"{ours}.{own}.{kind}"] = take(f"{theirs}.{name}.{kind}")
    return tensors | remaining


def _joined(parts: list[Stored]) -> Stored:
    """Return the rows of several tensors of one shape as one tensor."""
    rows, *rest = parts[0].shape
    return Stored(
        (len(parts) * rows, *rest),
        parts[0].file,
        lambda: torch.cat([part.read() for part in parts]),
    )
