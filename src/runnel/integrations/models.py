"""Models as the classes of other libraries take them: loaded, or by name."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from runnel.errors import InputError
from runnel.models.embedder import Embedder
from runnel.models.reranker import Reranker
from runnel.models.sentence_retriever import SentenceRetriever

Kind = TypeVar("Kind", Embedder, Reranker, SentenceRetriever)


def loaded(kind: type[Kind], model: object) -> Kind:
    """Return a model of a kind: `model` itself, or the result of `kind.load(model)`.

    Raises:
        InputError: `model` is neither of this kind nor a name.
        CheckpointError: the model is missing or cannot do this job.
    """
    return model if isinstance(model, kind) else kind.load(name_of(kind, model))


def name_of(kind: type[Kind], model: object) -> str:
    """Return what a model is loaded from, to store it by name; raises InputError as `loaded` does."""
    if isinstance(model, kind):
        return model.model.source
    if not isinstance(model, str | Path):
        raise InputError(f"the model is of type {type(model).__name__}; expected {kind.__name__}, or a name, folder or hub id")
    return str(model)
