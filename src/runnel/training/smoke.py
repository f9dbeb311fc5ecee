"""Model and data of a smoke run: a tiny random model, and examples from the language reference that CPython includes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import nn

from runnel.backbones.base import Backbone
from runnel.backbones.encoder.model import Encoder, EncoderConfig
from runnel.backbones.mamba1.model import Mamba1, Mamba1Config
from runnel.backbones.mamba2.model import Mamba2, Mamba2Config
from runnel.errors import InputError
from runnel.models.bare import bare_templates
from runnel.models.base import BUILT_IN, Model
from runnel.models.heads import EndVector, LmHead, PlainMeanVector, TokenFeatures, VectorScore
from runnel.text.templates import Template
from runnel.text.tokenizer import Tokenizer
from runnel.training.settings import DataSet, Job
from runnel.training.triple_table import EVIDENCE

_WIDTH, _LAYERS = 32, 2
_PARAGRAPHS = 4  # used per chapter
_NEGATIVES = 16  # per triple
_BACKBONES: dict[str, Callable[[int], Backbone]] = {
    "mamba1": lambda vocabulary: Mamba1(Mamba1Config(vocabulary, _WIDTH, _LAYERS, state_size=8)),
    "mamba2": lambda vocabulary: Mamba2(Mamba2Config(vocabulary, _WIDTH, _LAYERS, state_size=16, head_size=16)),
}


def write_model(folder: Path, architecture: str, seed: int = 0) -> None:
    """Write a checkpoint with random weights and the built-in model's vocabulary: "mamba1", "mamba2", "encoder" or "bert".

    Raises:
        InputError: another architecture.
    """
    torch.manual_seed(seed)
    tokenizer = Tokenizer.load(BUILT_IN["pocket"], begin=101, end=102)
    if architecture in _BACKBONES:
        backbone = _BACKBONES[architecture](tokenizer.vocab_size)
        heads = {"embed": EndVector(), "generate": LmHead(tokenizer.vocab_size, _WIDTH, tied=True)}
        Model(backbone, tokenizer, nn.ModuleDict(heads), bare_templates(tokenizer)).save(folder)
    elif architecture == "encoder":
        _encoder(tokenizer).save(folder)
    elif architecture == "bert":
        _write_bert(folder, tokenizer.vocab_size)
    else:
        known = ", ".join([*_BACKBONES, "encoder", "bert"])
        raise InputError(f"smoke.architecture must be one of {known}, got {architecture!r}")


def _encoder(tokenizer: Tokenizer) -> Model:
    """Return a model as `pocket`, which scores stored vectors."""
    sizes = {"num_heads": 2, "intermediate_size": 2 * _WIDTH, "max_positions": 64, "passage_tokens": 32}
    backbone = Encoder(EncoderConfig(tokenizer.vocab_size, _WIDTH, _LAYERS, **sizes, begin_id=tokenizer.begin_id))
    features = TokenFeatures(tokenizer.vocab_size, _WIDTH)
    heads = {"features": features, "embed": PlainMeanVector(), "sentences": VectorScore(_WIDTH, size=8)}
    return Model(backbone, tokenizer, nn.ModuleDict(heads), {"document": Template.parse("{begin}{document}{end}")})


def _write_bert(folder: Path, vocabulary: int) -> None:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=vocabulary, hidden_size=_WIDTH, num_hidden_layers=_LAYERS, num_attention_heads=2, intermediate_size=2 * _WIDTH
    )
    BertModel(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BUILT_IN["pocket"] / name, folder / name)


def write_data(sets: tuple[DataSet, ...], job: Job) -> None:
    """Write a small file at the path of each data set.

    Titles of chapters are the queries, their paragraphs the answers. Each set has its own chapters.
    """
    chapters = _chapters()
    for number, one in enumerate(sets):
        make = _evidence if job in ("sentences", "generate") or one.format == EVIDENCE else _triple
        mine = range(number, len(chapters), len(sets))
        lines = [json.dumps(make(chapters, i, place)) for i in mine for place in range(len(chapters[i][1]))]
        Path(one.path).parent.mkdir(parents=True, exist_ok=True)
        Path(one.path).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _chapters() -> list[tuple[str, list[str]]]:
    """Return the titles of chapters with their first paragraphs of prose."""
    chapters = []
    for name in sorted(topics):
        title, *paragraphs = topics[name].strip().split("\n\n")
        prose = [" ".join(p.split()) for p in paragraphs if not p.startswith(" ") and len(p) > 60]
        if prose:
            chapters.append((title.splitlines()[0].replace('"', ""), prose[:_PARAGRAPHS]))
    return chapters


def _triple(chapters: list[tuple[str, list[str]]], index: int, place: int) -> dict[str, Any]:
    title, paragraphs = chapters[index]
    others = [chapters[(index + 7 * (n + 1) + place) % len(chapters)][1][0] for n in range(_NEGATIVES)]
    return {"query": title, "positive": paragraphs[place], "negative": [o for o in others if o not in paragraphs]}


def _evidence(chapters: list[tuple[str, list[str]]], index: int, place: int) -> dict[str, Any]:
    """Make evidence of a paragraph between paragraphs of two other chapters, and an answer of its first words."""
    title, paragraphs = chapters[index]
    before, after = (chapters[(index + step) % len(chapters)][1][0] for step in (5, 11))
    text = "\n\n".join([before, paragraphs[place], after])
    start = len(before) + 2
    evidence = [[start, start + len(paragraphs[place])]]
    answer = " ".join(paragraphs[place].split()[:5])
    return {"id": f"{title} {place}", "query": title, "document": text, "evidence": evidence, "answer": answer}
