"""The model that a run starts from, with a head for the job and the recipe's adapters."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, cast

import torch

from runnel.backbones.library import Library
from runnel.errors import CheckpointError, InputError, needing
from runnel.lab.training.settings import LongTable, Recipe
from runnel.lab.training.trainers import long
from runnel.lab.training.triple_table import trained_prompts
from runnel.models.adapters import add_lora
from runnel.models.base import Model, load_model
from runnel.models.graph import check_segments
from runnel.models.heads import EndScore, VectorScore
from runnel.models.language_model import load_generator
from runnel.models.readers import has_sentence_layers, stores_vectors
from runnel.models.transformers import Scores

log = logging.getLogger("runnel")


def prepared(recipe: Recipe) -> Model:
    """Load the model that a recipe starts from, with a head for the job and the recipe's adapters."""
    torch.manual_seed(recipe.train.seed)  # for a new head and adapters
    table = recipe.model
    model = load_generator(table.name, "float32", "cpu") if recipe.job == "generate" else _load_reader(recipe)
    if recipe.job == "generate" and model.tokenizer.end_id is None:
        raise CheckpointError(
            f"{table.name}: its tokenizer has no end marker, so it cannot learn where replies end; use another model"
        )
    check_segments(model, long(recipe))
    if recipe.lora is not None:
        lora = recipe.lora
        with needing("lora.four_bit needs bitsandbytes", "lab"):
            if lora.four_bit:
                import bitsandbytes  # noqa: F401  # it is needed later
        add_lora(model, lora.r, lora.alpha, dropout=lora.dropout, four_bit=lora.four_bit)
    model.prompts = trained_prompts(recipe.data, model.prompts)
    model.card = f"# {Path(table.name).name}, fine-tuned\n\nTrained by `runnel lab train` for {recipe.job!r} from {table.name}.\n"
    return model


def _load_reader(recipe: Recipe) -> Model:
    table = recipe.model
    reads = "rerank" if recipe.job == "rerank" else "embed"
    model = load_model(table.name, "float32", "cpu", pooling=table.pooling, template=table.template, job=cast(Any, reads))
    model.unit = table.unit or model.unit
    missing = recipe.job not in model.heads
    stored = not missing and stores_vectors(model, recipe.job)
    refused = missing and (recipe.job == "embed" or not table.new_head)
    if refused or not (stored or recipe.job in ("embed", *model.templates)):
        have = ", ".join(sorted(set(model.heads) - {"features"})) or "none"
        no_head = (
            f"head for {recipe.job!r} (it has: {have}); use another model or, to train a new head, --set model.new_head=true"
        )
        no_template = f"template for {recipe.job!r}; use a recurrent model, which reads whole documents"
        raise CheckpointError(f"{table.name} has no {no_head if refused else no_template}")
    _check_stored(recipe, model, stored=stored)
    if missing:
        own = isinstance(model.backbone, Library)  # sentence-transformers has made the layer
        model.heads[recipe.job] = Scores() if own else EndScore(model.backbone.hidden_size)
        log.info("%s gets a new head for %r, with random weights", table.name, recipe.job)
    elif stored and table.new_head:
        model.heads[recipe.job] = VectorScore(model.backbone.hidden_size)
    return model


def _check_stored(recipe: Recipe, model: Model, *, stored: bool) -> None:
    """Raise InputError if a head over stored vectors, or the layers below one, cannot be trained as the recipe says."""
    name, layers = recipe.model.name, recipe.model.layers
    unused = {"[long]": recipe.long != LongTable(), "[lora]": recipe.lora is not None, "data.lengths": bool(recipe.data.lengths)}
    unused |= {"train.precision": recipe.train.precision == "bf16" and not layers}
    settings = ", ".join(setting for setting, used in unused.items() if used)
    for message, wrong in {
        f"model.layers trains layers for sentences through a head that stays: {name} needs such layers, as pocket has, and "
        "model.new_head = false": layers and (recipe.model.new_head or not stored or not has_sentence_layers(model)),
        f"the head of {name} for {recipe.job!r} scores stored vectors, which no recipe trains; start from a model that reads "
        "query and document together: --model pocket-mamba2": stored and not isinstance(model.head(recipe.job), VectorScore),
        f"{name} scores stored vectors: only its head is trained, so {settings} would have no effect; remove it, or use the "
        "recipe evidence-vectors": stored and settings,
    }.items():
        if wrong:
            raise InputError(message)
