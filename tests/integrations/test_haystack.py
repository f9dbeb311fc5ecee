"""Haystack's own pipelines and document stores, around models of runnel."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from haystack import Document
from haystack.core.serialization import component_from_dict, component_to_dict
from helpers.tiny import tiny_model

from runnel import Embedder, Reranker
from runnel.errors import CheckpointError, InputError, StoreError
from runnel.integrations.haystack import (
    RunnelDocumentEmbedder,
    RunnelRanker,
    RunnelRetriever,
    RunnelSentences,
    RunnelTextEmbedder,
)

TEXTS = {"a": "The cat sat on the mat.\nThe river runs to the sea.", "b": "A dog ran. A cat ran."}


@pytest.fixture
def documents():
    return [Document(id=name, content=text, meta={"title": name.upper(), "year": 2020}) for name, text in TEXTS.items()]


def test_metadata_come_before_the_text(tmp_path, documents):
    embedder = Embedder(tiny_model(tmp_path))
    titled = RunnelDocumentEmbedder(embedder, ["title", "year", "none"], embedding_separator=" | ").run(documents)["documents"]
    whole = [f"{name.upper()} | 2020 | {text}" for name, text in TEXTS.items()]
    np.testing.assert_array_equal([one.embedding for one in titled], embedder.encode_document(whole))
    assert all(one.embedding is None for one in documents) and [one.id for one in titled] == ["a", "b"]


@pytest.mark.parametrize(
    "component",
    [
        RunnelTextEmbedder("some/model", 64),
        RunnelDocumentEmbedder("some/model", ["title"], " ", 64),
        RunnelRanker("some/model", top_k=3, max_tokens=64),
        RunnelSentences("some/model", top_k=3, min_score=-1.0),
        RunnelRetriever("some/index", 3, sentences=2, where={"year": 2020}, options={"dense_weight": 0}),
    ],
    ids=lambda one: type(one).__name__,
)
def test_components_are_stored_by_name_and_loaded_when_needed(component):
    data = component_to_dict(component, "component")
    assert next(iter(data["init_parameters"].values())).startswith("some/") and data == component.to_dict()
    assert component_from_dict(type(component), data, "component").to_dict() == data
    with pytest.raises((CheckpointError, StoreError), match="some/"):
        component.warm_up()


def test_mistakes(model):
    with pytest.raises(InputError, match=r"\['a'\]"):
        RunnelTextEmbedder(Embedder(model)).run(["a"])
    for call in (RunnelDocumentEmbedder(Embedder(model)).run, lambda one: RunnelRanker(Reranker(model)).run("dog", one)):
        with pytest.raises(InputError, match="document 'x' is None"):
            call([Document(id="x")])
    for make in (RunnelRanker, RunnelSentences, partial(RunnelRetriever, "some/index")):
        with pytest.raises(InputError, match="top_k is 0"):
            make(top_k=0)
    with pytest.raises(InputError, match="type int; expected Reranker"):
        RunnelRanker(3)
