"""Load the model that a run starts from.

In: a recipe. Out: a `Model` in fp32 on the CPU, with a head for the job and the recipe's adapters.

A head computes scores or vectors from what a model has read (`models/head.py`). Which heads a run
can train:

    job         the model's own head                            a new one (model.new_head = true)
    embed       any                                             none
    generate    its LM head (`load_generator`)                  none
    rerank      one that scores a query and a document that     `EndScore`; `Scores` for a model of
    sentences   are read together as one text, by a template    the transformers library
    sentences   `VectorScore`, which scores stored vectors:     `VectorScore`
                the vectors of a query and of sentences that
                were read separately before (`HeldHead` has
                its weights as torch parameters)

With model.layers = true a `VectorScore` stays, and the layers that make its vectors are trained.
"""

from dataclasses import asdict
from pathlib import Path

import torch

from runnel.backbones.library import Library
from runnel.checks import refuse_when
from runnel.errors import CheckpointError, needing
from runnel.jobs.progress import inform
from runnel.lab.training.recipes import LongTable, Recipe
from runnel.lab.training.tables import trained_prompts
from runnel.lab.training.trainers import long
from runnel.models.folder import load_model
from runnel.models.foreign.transformers import Scores
from runnel.models.model import Model
from runnel.models.pocket.heads import VectorScore
from runnel.models.recurrent.adapters import add_lora
from runnel.models.recurrent.graph import check_segments
from runnel.models.recurrent.heads import EndScore, HeldHead
from runnel.models.recurrent.language_model import load_generator


def load_start(recipe: Recipe) -> Model:
    """Load the model that a recipe starts from, with a head for the job and the
    recipe's adapters.
    """
    torch.manual_seed(recipe.train.seed)  # for a new head and adapters
    # 1. Load the weights.
    name = recipe.model.name
    if recipe.job == "generate":
        model = load_generator(name, "float32", "cpu")
        if model.tokenizer.end_id is None:
            raise CheckpointError(
                f"{name}: its tokenizer has no end marker, to learn where replies end; use another"
                " model"
            )
    else:
        model = _load_reader(recipe)
    check_segments(model, long(recipe))
    # 2. Add adapters.
    if recipe.lora is not None:
        with needing("lora.four_bit needs bitsandbytes", "lab"):
            if recipe.lora.four_bit:
                import bitsandbytes  # noqa: F401  # it is needed later
        add_lora(model, **asdict(recipe.lora))
    # 3. Set what is saved with the model.
    model.prompts = trained_prompts(recipe.data, model.prompts)
    model.card = (
        f"# {Path(name).name}, fine-tuned\n\nTrained by `runnel lab train` for {recipe.job!r} from"
        f" {name}.\n"
    )
    return model


def _load_reader(recipe: Recipe) -> Model:
    """Load a model that reads texts to compare them, and give it the head that is trained."""
    table = recipe.model
    model = load_model(
        table.name,
        "float32",
        "cpu",
        pooling=table.pooling,
        template=table.template,
        # how transformers are loaded: for "rerank" with a layer for pairs, and else without one
        job="rerank" if recipe.job == "rerank" else "embed",
    )
    model.unit = table.unit or model.unit
    missing = recipe.job not in model.heads
    stored = not missing and model.head(recipe.job).inputs == "vectors"
    # "features" has weights of tokens that the other heads use, for no job
    have = ", ".join(sorted(set(model.heads) - {"features"})) or "none"
    refuse_when(
        (
            missing and (recipe.job == "embed" or not table.new_head),
            f"{table.name} has no head for {recipe.job!r} (it has: {have}); use another model or,"
            " for a new head, --set model.new_head=true",
        ),
        (
            # a template says how query and document are read together; an embedder reads single
            # texts
            not (stored or recipe.job in ("embed", *model.templates)),
            f"{table.name} has no template for {recipe.job!r}; use a recurrent model, which reads"
            " whole documents",
        ),
        error=CheckpointError,
    )
    _check_stored(recipe, model, stored=stored)
    if missing:
        # the library's model gets its own new layer for pairs when it is loaded: `Scores` only
        # turns the layer's outputs into scores
        from_library = isinstance(model.backbone, Library)
        model.heads[recipe.job] = Scores() if from_library else EndScore(model.backbone.hidden_size)
        inform(f"{table.name} gets a new head for {recipe.job!r}, with random weights")
    elif stored and table.new_head:
        model.heads[recipe.job] = HeldHead(VectorScore(model.backbone.hidden_size))
    return model


def _check_stored(recipe: Recipe, model: Model, *, stored: bool) -> None:
    """Raise InputError if the recipe trains a part of the model that it does not have, or has
    settings without effect for a head that scores stored vectors (`stored`: the model has such a
    head for the job).
    """
    name = recipe.model.name
    layers = recipe.model.layers
    without_effect = {
        "[long]": recipe.long != LongTable(),
        "[lora]": recipe.lora is not None,
        "data.lengths": bool(recipe.data.lengths),
        "train.normalization": recipe.train.normalization == "code",
        "train.precision": recipe.train.precision == "bf16" and not layers,
    }
    settings = ", ".join(setting for setting, used in without_effect.items() if used)
    refuse_when(
        (
            layers
            and (recipe.model.new_head or not stored or not model.backbone.config.sentence_layers),
            "model.layers trains layers for sentences through a head that stays:"
            f" {name} needs such layers, as pocket has, and model.new_head = false",
        ),
        (
            stored and not isinstance(model.head(recipe.job), VectorScore),
            f"the head of {name} for {recipe.job!r} scores stored vectors, which no recipe trains;"
            " start from a model that reads query and document together: --model pocket-mamba2",
        ),
        (
            stored and settings,
            f"{name} scores stored vectors: only its head is trained, so {settings} would have no"
            " effect; remove it, or use the recipe evidence-vectors",
        ),
    )
