"""Haystack's own pipelines and document stores, around models of runnel."""

from __future__ import annotations

import asyncio
from functools import partial

import numpy as np
import pytest
from helpers.tiny import tiny_encoder, tiny_model

from runnel import Document as Stored
from runnel import Embedder, Index, Reranker, SentenceRetriever
from runnel.errors import CheckpointError, InputError, StoreError

pytest.importorskip("haystack")
pytest.importorskip("lancedb")

from haystack import Document, Pipeline
from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
from haystack.core.serialization import component_from_dict, component_to_dict
from haystack.document_stores.in_memory import InMemoryDocumentStore

from runnel.integrations.haystack import (
    RunnelDocumentEmbedder,
    RunnelRanker,
    RunnelRetriever,
    RunnelSentences,
    RunnelTextEmbedder,
)

TEXTS = {"a": "The cat sat on the mat.\nThe river runs to the sea.", "b": "A dog ran. A cat ran."}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_encoder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def documents():
    return [Document(id=name, content=text, meta={"title": name.upper(), "year": 2020}) for name, text in TEXTS.items()]


def test_vectors_are_those_of_the_embedder_with_its_prompts(tmp_path, documents):
    embedder = Embedder(tiny_model(tmp_path))  # has a prompt for queries
    np.testing.assert_array_equal(RunnelTextEmbedder(embedder).run("a cat")["embedding"], embedder.encode_query("a cat"))
    embedded = RunnelDocumentEmbedder(embedder).run(documents)["documents"]
    np.testing.assert_array_equal([one.embedding for one in embedded], embedder.encode_document(TEXTS.values()))
    assert all(one.embedding is None for one in documents) and [one.id for one in embedded] == ["a", "b"]
    assert RunnelDocumentEmbedder(embedder).run([])["documents"] == []
    titled = RunnelDocumentEmbedder(embedder, ["title", "year", "none"], embedding_separator=" | ").run(documents)["documents"]
    whole = [f"{name.upper()} | 2020 | {text}" for name, text in TEXTS.items()]
    np.testing.assert_array_equal([one.embedding for one in titled], embedder.encode_document(whole))


def test_the_ranker_orders_copies_of_the_documents(model, documents):
    reranker = Reranker(model)
    hits = reranker.rank("dog", TEXTS)
    ranked = RunnelRanker(reranker).run(query="dog", documents=documents)["documents"]
    assert [(one.id, one.score, one.meta["year"]) for one in ranked] == [(hit.id, hit.score, 2020) for hit in hits]
    assert all(one.score is None for one in documents)
    assert RunnelRanker(reranker, top_k=1).run(query="dog", documents=documents)["documents"] == ranked[:1]
    assert RunnelRanker(reranker, top_k=1).run(query="dog", documents=documents, top_k=2)["documents"] == ranked
    assert RunnelRanker(reranker).run(query="dog", documents=[])["documents"] == []


def test_sentences_have_their_places(model, documents):
    finder = RunnelSentences(SentenceRetriever(model), top_k=3)
    found = finder.run(query="dog", documents=documents)["documents"]
    assert len(found) == 3 and [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    for one in found:
        assert TEXTS[one.meta["source_id"]][one.meta["start"] : one.meta["end"]] == one.content and one.meta["year"] == 2020
    assert finder.run(query="dog", documents=documents, top_k=1)["documents"] == found[:1]
    best = RunnelSentences(SentenceRetriever(model), min_score=found[1].score).run(query="dog", documents=documents)
    assert best["documents"] == found[:2]


def test_an_index_of_runnel_is_searched(tmp_path):
    with Index.create(tmp_path / "x", fields={"year": "int"}) as index:
        index.add([Stored("a", TEXTS["a"], {"year": 2020}), Stored("b", TEXTS["b"], {"year": 2024}, title="B")])
        hits = index.search("What does the river do?", sentences=1)
    retriever = RunnelRetriever(tmp_path / "x")
    found = retriever.run("What does the river do?")["documents"]
    assert [(one.id, one.content, one.score) for one in found] == [(hit.id, hit.text, hit.score) for hit in hits]
    assert found[1].meta == {"year": 2024, "source": "b", "title": "B"}
    assert retriever.run("river", top_k=1)["documents"][0].id == "a"
    assert [one.id for one in retriever.run("river", where={"year": 2024})["documents"]] == ["b"]
    (one,) = RunnelRetriever(tmp_path / "x", top_k=1, sentences=1).run("What does the river do?")["documents"]
    assert one.content == "The river runs to the sea." == TEXTS["a"][one.meta["start"] : one.meta["end"]]
    assert one.meta["sentence_score"] == hits[0].sentences[0].score and one.score == hits[0].score


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


def test_texts_are_cut_on_request(tmp_path):
    model, long = tiny_model(tmp_path), "the cat sat on the mat " * 9
    embedder, reranker = Embedder(model), Reranker(model)
    vector = RunnelTextEmbedder(embedder, max_tokens=20).run(long)["embedding"]
    np.testing.assert_array_equal(vector, embedder.encode_query(long, max_tokens=20))
    (one,) = RunnelDocumentEmbedder(embedder, max_tokens=20).run([Document(content=long)])["documents"]
    np.testing.assert_array_equal(one.embedding, embedder.encode_document(long, max_tokens=20))
    (one,) = RunnelRanker(reranker, max_tokens=20).run("a dog", [Document(content=long)])["documents"]
    assert one.score == reranker.score("a dog", [long], max_tokens=20)[0] != reranker.score("a dog", [long])[0]


def test_mistakes(model):
    with pytest.raises(InputError, match="the text to embed is \\['a'\\]; expected text"):
        RunnelTextEmbedder(Embedder(model)).run(["a"])
    with pytest.raises(InputError, match="cannot embed an empty text"):
        RunnelDocumentEmbedder(Embedder(model)).run([Document(content=" ")])
    for call in (RunnelDocumentEmbedder(Embedder(model)).run, lambda one: RunnelRanker(Reranker(model)).run("dog", one)):
        with pytest.raises(InputError, match="document 'x' has no text; convert its file to text first"):
            call([Document(id="x")])
    for make in (RunnelRanker, RunnelSentences, partial(RunnelRetriever, "some/index")):
        with pytest.raises(InputError, match="top_k is 0; expected a whole number from 1"):
            make(top_k=0)
    with pytest.raises(InputError, match="the model is of type int; expected Reranker, or a name"):
        RunnelRanker(3)
