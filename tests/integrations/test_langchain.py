"""LangChain's own interfaces, stores and chains, around models of runnel."""

from __future__ import annotations

import asyncio
from functools import partial

import numpy as np
import pytest
from helpers.tiny import tiny_encoder, tiny_model

from runnel import Document as Stored
from runnel import Embedder, Index, Reranker, SentenceRetriever
from runnel.errors import CheckpointError, InputError

pytest.importorskip("langchain_core")
pytest.importorskip("lancedb")

from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore
from pydantic import ValidationError

from runnel.integrations.langchain import RunnelEmbeddings, RunnelReranker, RunnelRetriever, RunnelSentences

TEXTS = {"a": "The cat sat on the mat.\nThe river runs to the sea.", "b": "A dog ran. A cat ran."}
DOCUMENTS = [Document(text, id=name, metadata={"page": 3}) for name, text in TEXTS.items()]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_encoder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def index(model, tmp_path_factory):
    with Index.create(tmp_path_factory.mktemp("index") / "x", Embedder(model), fields={"year": "int"}) as index:
        metadata = {"a": {"year": 2020}, "b": {"year": 2024}}
        index.add([Stored(name, text, metadata[name], title=name.upper()) for name, text in TEXTS.items()])
        yield index


def test_vectors_are_those_of_the_embedder_with_its_prompts(tmp_path):
    embedder = Embedder(tiny_model(tmp_path))  # has a prompt for queries
    embeddings = RunnelEmbeddings(embedder)
    np.testing.assert_array_equal(embeddings.embed_documents(["a cat", "a dog"]), embedder.encode_document(["a cat", "a dog"]))
    np.testing.assert_array_equal(embeddings.embed_query("a cat"), embedder.encode_query("a cat"))
    assert embeddings.embed_query("a cat") != embeddings.embed_documents(["a cat"])[0]
    assert embeddings.embed_documents([]) == []
    assert asyncio.run(embeddings.aembed_query("a cat")) == embeddings.embed_query("a cat")
    with pytest.raises(InputError, match="cannot embed an empty text"):
        embeddings.embed_documents(["a cat", " "])


def test_a_vector_store_finds_by_these_vectors(model):
    store = InMemoryVectorStore(RunnelEmbeddings(Embedder(model)))
    store.add_documents(DOCUMENTS)
    assert [one.id for one in store.similarity_search(TEXTS["b"], k=1)] == ["b"]


def test_the_retriever_returns_the_documents_of_the_index(index):
    results = RunnelRetriever(index=index).invoke("a dog ran")
    hits = index.search("a dog ran", sentences=0)
    assert [(one.id, one.page_content, one.metadata["score"]) for one in results] == [(h.id, h.text, h.score) for h in hits]
    assert results[0].metadata.items() >= {"year": 2024, "source": "b", "title": "B"}.items()
    assert [one.id for one in RunnelRetriever(index=index, k=1).invoke("a dog ran")] == ["b"]
    assert [one.id for one in RunnelRetriever(index=index, where={"year": 2020}).invoke("a dog ran")] == ["a"]
    words = RunnelRetriever(index=index, options={"dense_weight": 0.0}).invoke("mat")
    assert [one.id for one in words] == [hit.id for hit in index.search("mat", dense_weight=0.0)]
    assert asyncio.run(RunnelRetriever(index=index).ainvoke("a dog ran")) == results


def test_the_retriever_returns_the_sentences_of_all_documents_found(index):
    results = RunnelRetriever(index=index, sentences=1).invoke("a dog ran")
    hits = index.search("a dog ran", sentences=1)
    assert [one.metadata["source"] for one in results] == [hit.id for hit in hits] == ["b", "a"]
    for one, hit in zip(results, hits, strict=True):
        facts = one.metadata
        assert TEXTS[facts["source"]][facts["start"] : facts["end"]] == one.page_content == hit.sentences[0].text.strip()
        assert facts["score"] == hit.score and facts["sentence_score"] == hit.sentences[0].score


def test_the_reranker_orders_copies_of_the_documents(model):
    reranker = Reranker(model)
    ranked = RunnelReranker(model=reranker).compress_documents(DOCUMENTS, "dog")
    hits = reranker.rank("dog", TEXTS)
    assert [(one.id, one.metadata) for one in ranked] == [(h.id, {"page": 3, "relevance_score": h.score}) for h in hits]
    assert all(one.metadata == {"page": 3} for one in DOCUMENTS)
    assert [one.id for one in RunnelReranker(model=reranker, top_n=1).compress_documents(DOCUMENTS, "dog")] == [hits[0].id]
    assert RunnelReranker(model=reranker).compress_documents([], "dog") == []
    assert RunnelReranker(model=reranker).compress_documents([Document("\u200b"), *DOCUMENTS], "dog") == ranked


def test_the_sentences_have_their_places(model):
    compressor = RunnelSentences(model=SentenceRetriever(model), top_n=3)
    found = compressor.compress_documents(DOCUMENTS, "dog")
    assert len(found) == 3 and {one.metadata["source"] for one in found} == {"a", "b"}
    for one in found:
        facts = one.metadata
        assert TEXTS[facts["source"]][facts["start"] : facts["end"]] == one.page_content and facts["page"] == 3
    scores = [one.metadata["score"] for one in found]
    assert scores == sorted(scores, reverse=True)
    fewer = RunnelSentences(model=SentenceRetriever(model), min_score=scores[1]).compress_documents(DOCUMENTS, "dog")
    assert fewer == found[:2]
    assert asyncio.run(compressor.acompress_documents(DOCUMENTS, "dog")) == found
    named = Document("A dog ran.", metadata={"source": "file.txt"})
    assert compressor.compress_documents([named], "dog")[0].metadata["source"] == "file.txt"
    assert compressor.compress_documents([Document("")], "dog") == []


def test_a_chain(index, model):
    """Retriever and compressor are used as LangChain's runnables and its contextual compression use them."""
    chain = RunnelRetriever(index=index) | (lambda documents: [one.page_content for one in documents])
    assert set(chain.invoke("a dog ran")) == set(TEXTS.values())
    assert [len(one) for one in chain.batch(["dog", "cat", "sea"])] == [2, 2, 2]


def test_texts_are_cut_on_request_and_never_silently(tmp_path, caplog):
    model, long = tiny_model(tmp_path), "the cat sat on the mat " * 9
    embedder, reranker = Embedder(model), Reranker(model)
    cut = RunnelEmbeddings(embedder, max_tokens=20)
    np.testing.assert_array_equal(cut.embed_documents([long]), embedder.encode_document([long], max_tokens=20))
    np.testing.assert_array_equal(cut.embed_query(long), embedder.encode_query(long, max_tokens=20))
    assert caplog.text.count("1 texts were cut to 20 tokens") == 4
    (one,) = RunnelReranker(model=reranker, max_tokens=20).compress_documents([Document(long)], "a dog")
    assert one.metadata["relevance_score"] == reranker.score("a dog", [long], max_tokens=20)[0]
    assert "1 documents were cut to fit into 20 tokens" in caplog.text
    assert one.metadata["relevance_score"] != reranker.score("a dog", [long])[0]


def test_calls_at_the_same_time_have_the_results_of_calls_alone(index, model):
    """LangChain runs batches and asynchronous calls in threads."""
    queries = ["a dog", "the cat", "a river", "the sea"] * 4
    stages = [
        RunnelRetriever(index=index, sentences=2).ainvoke,
        partial(RunnelReranker(model=Reranker(model)).acompress_documents, DOCUMENTS),
        partial(RunnelSentences(model=SentenceRetriever(model)).acompress_documents, DOCUMENTS),
    ]

    async def together(stage):
        return await asyncio.gather(*map(stage, queries))

    for stage in stages:
        for query, found in zip(queries, asyncio.run(together(stage)), strict=True):
            alone = asyncio.run(stage(query))
            assert [one.page_content for one in found] == [one.page_content for one in alone]


def test_mistakes(index):
    with pytest.raises(CheckpointError, match="no-such-model"):
        RunnelEmbeddings("no-such-model")
    with pytest.raises(ValidationError, match="no-such-model"):
        RunnelReranker(model="no-such-model")
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        RunnelSentences(top_n=0)
    with pytest.raises(ValidationError, match="top_k\n  Extra inputs are not permitted"):
        RunnelRetriever(index=index, top_k=3)
    with pytest.raises(InputError, match="cannot filter by 'color'"):
        RunnelRetriever(index=index, where={"color": "red"}).invoke("dog")
