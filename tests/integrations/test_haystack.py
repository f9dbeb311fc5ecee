"""Haystack's own pipelines and document stores, around models of runnel."""

from __future__ import annotations

import asyncio
from functools import partial

import numpy as np
import pytest
from haystack import Document, Pipeline
from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
from haystack.core.serialization import component_from_dict, component_to_dict
from haystack.document_stores.in_memory import InMemoryDocumentStore
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


def search_pipeline(store):
    pipeline = Pipeline()
    pipeline.add_component("embedder", RunnelTextEmbedder())
    pipeline.add_component("retriever", InMemoryEmbeddingRetriever(store, top_k=2))
    pipeline.add_component("ranker", RunnelRanker(top_k=1))
    pipeline.add_component("sentences", RunnelSentences(top_k=1))
    pipeline.connect("embedder.embedding", "retriever.query_embedding")
    pipeline.connect("retriever.documents", "ranker.documents")
    pipeline.connect("ranker.documents", "sentences.documents")
    return pipeline


def test_a_pipeline_runs_and_is_stored(documents):
    store = InMemoryDocumentStore()
    store.write_documents(RunnelDocumentEmbedder().run(documents)["documents"])
    pipeline, query = search_pipeline(store), "What does the river do?"
    inputs = {"embedder": {"text": query}, "ranker": {"query": query}, "sentences": {"query": query}}
    (found,) = pipeline.run(inputs)["sentences"]["documents"]
    assert found.content == "The river runs to the sea." and found.meta["source_id"] == "a"
    again = Pipeline.loads(pipeline.dumps(), allowed_modules=["runnel.integrations.haystack"])
    assert again.to_dict()["components"] == pipeline.to_dict()["components"]
    again.get_component("retriever").document_store = store
    assert again.run(inputs) == asyncio.run(pipeline.run_async(inputs)) == {"sentences": {"documents": [found]}}


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
