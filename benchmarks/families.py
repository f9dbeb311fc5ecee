"""Random backbones of several families with nearly the same number of active parameters, and models
made of them.

Active parameters are those that every token passes through: all but the embedding tables, of which
a token reads one row.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.shapes import ShapeConfig, TransformerConfig, transformer
from runnel.backbones.base import Backbone
from runnel.backbones.checkpoint.load import meta_backbone
from runnel.backbones.config import BackboneConfig
from runnel.backbones.families import BACKBONES
from runnel.backbones.library import require_library
from runnel.config import arguments
from runnel.errors import InputError
from runnel.models.folder import BUILT_IN
from runnel.models.foreign.bare import bare_templates
from runnel.models.recurrent.heads import EndVector
from runnel.models.recurrent.model import TorchModel
from runnel.text.tokenizer import Tokenizer
from runnel.text.tokenizers import read_tokenizer

TOLERANCE = 0.05  # by which the largest count of active parameters may exceed the smallest
_RECURRENT = ("mamba1", "mamba2", "rwkv7", "xlstm")
_TRANSFORMERS = (
    "bert",
    "roberta",
    "electra",
    "modernbert",
    "opt",
    "gpt_neox",
    "llama",
    "mistral",
    "qwen2",
)
_CHOSEN = ("vocab_size", "hidden_size", "num_layers", "num_hidden_layers")  # by the experiment


@dataclass(frozen=True)
class Shape:
    """A backbone of an experiment: its family, its config as plain values, and what it costs.

    Attributes:
        active: parameters except embedding tables.
        total: all parameters.
        flops: floating-point operations of the forward pass for a text of `tokens` tokens.
    """

    family: str
    architecture: str
    config: dict[str, Any]
    layers: int
    active: int
    total: int
    tokens: int
    flops: int


def match(
    families: Mapping[str, Mapping[str, Any]],
    hidden_size: int,
    parameters: int,
    vocab_size: int,
    tokens: int,
    place: str,
) -> list[Shape]:
    """Return a shape of each family, with the number of layers that comes closest to `parameters`
    active ones.

    Args:
        families: name of the family -> its settings, except the vocabulary, the width and the
            number of layers.
        tokens: the length of the text that `Shape.flops` is for.
        place: names the settings in messages.

    Raises:
        InputError: a family or one of its settings is unknown or missing, or the numbers of active
            parameters differ by more than `TOLERANCE`.
    """
    shapes = []
    for family, settings in families.items():
        _check(family, settings, place)
        at = partial(_shape, family, settings, vocab_size, hidden_size, tokens, place)
        two, three = at(2).active, at(3).active  # a first layer may lack a part
        guess = max(1, round((parameters - two) / (three - two)) + 2)
        shapes.append(
            min(
                (at(n) for n in (guess - 1, guess, guess + 1) if n > 0),
                key=lambda s: abs(s.active - parameters),
            )
        )
    low = min(shapes, key=lambda s: s.active)
    high = max(shapes, key=lambda s: s.active)
    if high.active > (1 + TOLERANCE) * low.active:
        counts_text = ", ".join(f"{s.family} {s.active:,} ({s.layers} layers)" for s in shapes)
        raise InputError(
            f"{place}: with whole layers of width {hidden_size} the active parameters nearest to"
            f" parameters = {parameters:,} are {counts_text}: {high.family} has"
            f" {high.active / low.active - 1:.1%} more than {low.family}, at most {TOLERANCE:.0%}"
            " is allowed. Change parameters, or the feed-forward or state sizes of a family"
        )
    return shapes


def write_random_model(shape: Shape, vocabulary: str, folder: Path, seed: int) -> None:
    """Write a model folder with random weights and a head for vectors, unless it is there; whole or
    not at all.
    """
    if folder.exists():
        return
    torch.manual_seed(seed)
    tokenizer = load_vocabulary(vocabulary)
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    if shape.architecture == "library":
        tokenizer.save(partial)
        transformer(TransformerConfig(**shape.config)).model.transformers_model.save_pretrained(
            partial
        )
    else:
        config_class: Any = BACKBONES[shape.architecture].config_class
        backbone: Backbone = BACKBONES[shape.architecture](config_class.from_dict(shape.config))
        TorchModel(
            backbone,
            tokenizer,
            nn.ModuleDict({"embed": EndVector()}),
            bare_templates(tokenizer),
        ).save(partial)
    partial.rename(folder)


def load_vocabulary(name: str) -> Tokenizer:
    """Return the tokenizer of a built-in model or of a folder, with its begin and end ids.

    Raises:
        InputError: there is none.
    """
    folder = BUILT_IN.get(name, Path(name))
    if not folder.is_dir():
        raise InputError(
            f"vocabulary {name!r} is no folder; expected a folder with a tokenizer, or one of"
            f" {', '.join(BUILT_IN)}"
        )
    if name in BUILT_IN:
        return read_tokenizer(folder, begin=101, end=102)  # [CLS] and [SEP]
    tokenizer = read_tokenizer(folder)
    if tokenizer.end_id is None:
        raise InputError(
            f"the tokenizer in {folder} has no end marker, whose vector represents a text; use"
            " another vocabulary"
        )
    return tokenizer


def _check(family: str, settings: object, place: str) -> None:
    """Raise InputError for an unknown family, or for settings that are no table or that the
    experiment chooses.
    """
    known = (*_RECURRENT, *_TRANSFORMERS)
    if family not in known or not isinstance(settings, dict):
        raise InputError(
            f"{place}: expected tables of {', '.join(known)}, got families.{family} = {settings!r}"
        )
    if taken := [name for name in _CHOSEN if name in settings]:
        raise InputError(
            f"{place}: families.{family} has {taken[0]!r}, which the experiment chooses for all"
            " families; remove it"
        )


def _shape(
    family: str,
    settings: Mapping[str, Any],
    vocab_size: int,
    hidden_size: int,
    tokens: int,
    place: str,
    layers: int,
) -> Shape:
    backbone: Backbone
    config: ShapeConfig
    where = f"{place}: families.{family}"
    sizes = {"vocab_size": vocab_size, "hidden_size": hidden_size}
    if family in _RECURRENT:
        architecture = family
        try:
            kind: type[BackboneConfig] = BACKBONES[family].config_class
            config = kind(
                **arguments(
                    kind,
                    {**sizes, "num_layers": layers, **settings},
                    where,
                    defaults=True,
                    error=InputError,
                )
            )
        except InputError as error:
            raise (
                error if str(error).startswith(where) else InputError(f"{where}: {error}")
            ) from error
        backbone = meta_backbone(architecture, config)
    else:
        known = require_library(family).AutoConfig.for_model(family)
        architecture = "library"
        if unknown := [name for name in settings if not hasattr(known, name)]:
            raise InputError(
                f"{where}: unknown key {unknown[0]!r}; expected fields of the transformers"
                f" library's {family} config"
            )
        config = TransformerConfig(
            {"model_type": family, **sizes, "num_hidden_layers": layers, **settings}
        )
        try:
            with torch.device("meta"):
                backbone = transformer(config)
        except Exception as error:  # each of the library's checks has errors of its own kind
            raise InputError(f"{where}: {' '.join(str(error).split())}") from error
    tables = sum(
        module.weight.numel() for module in backbone.modules() if isinstance(module, nn.Embedding)
    )
    total = sum(parameter.numel() for parameter in backbone.parameters())
    return Shape(
        family,
        architecture,
        config.to_dict(),
        layers,
        total - tables,
        total,
        tokens,
        backbone.flops(tokens),
    )
