"""Collections of Chroma with models of runnel."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.tiny import tiny_model

from runnel import Embedder
from runnel.errors import InputError

pytest.importorskip("chromadb")

import chromadb
from chromadb.config import Settings

from runnel.integrations.chroma import RunnelEmbeddingFunction

TEXTS = {"gc": "Objects may be garbage-collected.", "del": "Deletion of a name removes its binding.", "train": "A train leaves."}


def client(folder):
    return chromadb.PersistentClient(str(folder), settings=Settings(anonymized_telemetry=False))


def test_a_collection_embeds_documents_and_queries_and_is_opened_again(tmp_path):
    embedder = Embedder.load("pocket")
    collection = client(tmp_path).create_collection("notes", embedding_function=RunnelEmbeddingFunction(embedder))
    collection.add(ids=list(TEXTS), documents=list(TEXTS.values()))
    stored = collection.get(list(TEXTS), include=["embeddings"])
    vectors = dict(zip(stored["ids"], stored["embeddings"], strict=True))
    np.testing.assert_allclose([vectors[name] for name in TEXTS], embedder.encode_document(TEXTS.values()), atol=1e-6)
    again = client(tmp_path).get_collection("notes")  # the stored configuration names the function and its model
    found = again.query(query_texts=["when does the train leave", "what happens to a name"], n_results=1)
    assert found["ids"] == [["train"], ["del"]]
    similarity = embedder.encode_query("when does the train leave") @ embedder.encode_document(TEXTS["train"])
    assert found["distances"][0][0] == pytest.approx(1 - similarity, abs=1e-5), "the distance is not that of cosines"


def test_queries_have_the_prompt_of_queries(monkeypatch):
    embedder = Embedder.load("pocket")
    monkeypatch.setitem(embedder.model.prompts, "query", "find: ")
    function = RunnelEmbeddingFunction(embedder)
    np.testing.assert_array_equal(function.embed_query(["a"])[0], embedder.encode("find: a"))
    np.testing.assert_array_equal(function(["a"])[0], embedder.encode("a"))


def test_texts_are_cut_on_request(tmp_path):
    embedder, long = Embedder(tiny_model(tmp_path)), "the cat sat on the mat " * 9
    cut = RunnelEmbeddingFunction(embedder, max_tokens=20)
    np.testing.assert_array_equal(cut([long])[0], embedder.encode_document(long, max_tokens=20))
    np.testing.assert_array_equal(cut.embed_query([long])[0], embedder.encode_query(long, max_tokens=20))
    again = RunnelEmbeddingFunction.build_from_config({"model": "pocket", "max_tokens": 20})
    assert again.get_config() == {"model": "pocket", "max_tokens": 20}


def test_mistakes():
    function = RunnelEmbeddingFunction()
    with pytest.raises(InputError, match="cannot embed an empty text"):
        function([" "])
    with pytest.raises(ValueError, match="the collection has vectors of pocket; create another one for other"):
        function.validate_config_update(function.get_config(), {"model": "other"})
    function.validate_config_update(function.get_config(), {"model": "pocket"})
