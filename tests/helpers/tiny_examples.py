"""Tiny runs of shipped recipes: random models, and made-up examples."""

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from helpers.evidence_examples import examples
from helpers.files import write_rows
from helpers.tiny_transformers import write_transformer
from torch import nn

from runnel.backbones.base import Backbone
from runnel.backbones.encoder.config import EncoderConfig
from runnel.backbones.encoder.model import Encoder
from runnel.backbones.mamba1.model import Mamba1, Mamba1Config
from runnel.backbones.mamba2.model import Mamba2, Mamba2Config
from runnel.lab.training import recipes
from runnel.lab.training.recipes import Recipe
from runnel.models.folder import BUILT_IN
from runnel.models.foreign.bare import bare_templates
from runnel.models.model import Model
from runnel.models.pocket.heads import VectorScore
from runnel.models.recurrent.heads import (
    EndVector,
    HeldHead,
    LmHead,
    PlainMeanVector,
    TokenFeatures,
)
from runnel.models.recurrent.model import TorchModel
from runnel.text.templates import Template
from runnel.text.tokenizer import Tokenizer
from runnel.text.tokenizers import read_tokenizer

_WIDTH, _LAYERS = 32, 2
_NEGATIVES = 16  # of a triple
_BACKBONES: dict[str, Callable[[int], Backbone]] = {
    "mamba1": lambda vocabulary: Mamba1(Mamba1Config(vocabulary, _WIDTH, _LAYERS, state_size=8)),
    "mamba2": lambda vocabulary: Mamba2(
        Mamba2Config(vocabulary, _WIDTH, _LAYERS, state_size=16, head_size=16)
    ),
}
_MADE = tempfile.TemporaryDirectory()
_LONG = "train.min_learning_rate=1e-3 train.batch=4 train.max_steps=10 long.segment_tokens=128"
TINY = {  # recipe: the model, and the settings
    "pairs": ("mamba2", "train.learning_rate=5e-3 train.batch=4 train.max_steps=10"),
    "evidence": ("mamba2", f"model.new_head=true train.learning_rate=5e-3 {_LONG}"),
    "evidence-vectors": ("encoder", "train.learning_rate=1e-3 train.batch=4 train.max_steps=10"),
    "generator": ("mamba2", f"train.learning_rate=5e-3 train.group=4 {_LONG}"),
    "sentence-baseline": (
        "bert",
        (
            "data.negatives=2 data.max_query_tokens=32 data.max_document_tokens=32"
            " train.learning_rate=1e-3 train.batch=4 train.max_steps=8"
        ),
    ),
    "rankmamba-documents": (
        "mamba1",
        (
            "data.max_tokens=48 data.negatives=3 train.learning_rate=5e-3 train.max_steps=20"
            " train.batch=2 train.warmup=2"
        ),
    ),
    "linear-time-embeddings": (
        "mamba2",
        (
            "data.max_query_tokens=32 data.max_document_tokens=32 data.held_out=2 train.batch=4"
            " train.group=2 train.max_steps=3 train.warmup=1 train.learning_rate=5e-3"
            " search.learning_rates=[1e-3,5e-3] search.share=2"
        ),
    ),
}
JOBS = {
    "embed": "pairs",
    "rerank": "rankmamba-documents",
    "sentences": "evidence",
    "generate": "generator",
}


def tiny_recipe(name: str, *changes: str) -> Recipe:
    """A recipe, or that of a job, for seconds on a tiny model and examples of its own."""
    name = JOBS.get(name, name)
    architecture, settings = TINY[name]
    recipe = recipes.read(
        name, changes=(*settings.split(), f"model.name={tiny_checkpoint(architecture)}", *changes)
    )
    made = []
    for number, one in enumerate(recipe.data.sets):
        evidence = recipe.job in ("sentences", "generate") or one.format == "evidence"
        made.append(replace(one, path=str(_examples(Path(one.path).stem, evidence, number))))
    return replace(recipe, data=replace(recipe.data, sets=tuple(made)))


@cache
def _examples(stem: str, evidence: bool, number: int) -> Path:
    path = Path(_MADE.name, f"{evidence}-{number}", f"{stem}.jsonl")
    write_examples(path, evidence=evidence, number=number)
    return path


@cache
def tiny_checkpoint(architecture: str) -> Path:
    """Random weights and the built-in model's vocabulary: "mamba1", "mamba2", "encoder", or one of
    transformers.
    """
    folder = Path(_MADE.name, architecture)
    torch.manual_seed(0)
    tokenizer = read_tokenizer(BUILT_IN["pocket"], begin=101, end=102)
    if architecture == "encoder":
        _encoder(tokenizer).save(folder)
    elif architecture not in _BACKBONES:
        write_transformer(
            folder, architecture, vocab_size=tokenizer.vocab_size, max_position_embeddings=256
        )
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(BUILT_IN["pocket"] / name, folder / name)
    else:
        backbone = _BACKBONES[architecture](tokenizer.vocab_size)
        heads = {
            "embed": EndVector(),
            "generate": LmHead(tokenizer.vocab_size, _WIDTH, tied=True),
        }
        TorchModel(backbone, tokenizer, nn.ModuleDict(heads), bare_templates(tokenizer)).save(
            folder
        )
    return folder


def _encoder(tokenizer: Tokenizer) -> Model:
    """A model as `pocket`, which scores stored vectors."""
    sizes = {
        "num_heads": 2,
        "intermediate_size": 2 * _WIDTH,
        "max_positions": 64,
        "passage_tokens": 32,
    }
    backbone = Encoder(
        EncoderConfig(tokenizer.vocab_size, _WIDTH, _LAYERS, **sizes, begin_id=tokenizer.begin_id)
    )
    heads = {
        "features": TokenFeatures(tokenizer.vocab_size, _WIDTH),
        "embed": PlainMeanVector(),
        "sentences": HeldHead(VectorScore(_WIDTH, size=8)),
    }
    return TorchModel(
        backbone,
        tokenizer,
        nn.ModuleDict(heads),
        {"document": Template.parse("{begin}{document}{end}")},
    )


def write_examples(path: Path, *, evidence: bool, number: int = 0) -> None:
    """Made-up examples, others for each set. A query of triples has two positives, a sentence and
    its document.
    """
    made = examples(100, seed=number, sentences=(3, 6))
    rows = list[dict[str, Any]]()
    for place, one in enumerate(made):
        [(start, end)] = one.spans
        sentence = one.document[start:end]
        if evidence:
            row = {
                "id": one.id,
                "query": one.query,
                "document": one.document,
                "evidence": [[start, end]],
                "answer": sentence,
            }
            rows.append(row)
        else:
            others = [
                made[(place + step) % len(made)].document for step in range(1, _NEGATIVES + 1)
            ]
            rows += [
                {"query": one.query, "positive": text, "negative": others}
                for text in (sentence, one.document)
            ]
    write_rows(path, rows)
