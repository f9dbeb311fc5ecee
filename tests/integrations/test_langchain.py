"""LangChain's own interfaces, stores and chains, around models of runnel."""

from __future__ import annotations

import pytest
from helpers.tiny import tiny_encoder

from runnel import Document as Stored
from runnel import Embedder, Index

pytest.importorskip("langchain_core")
pytest.importorskip("lancedb")

from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore

from runnel.integrations.langchain import RunnelEmbeddings, RunnelRetriever

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


def test_a_vector_store_finds_by_these_vectors(model):
    store = InMemoryVectorStore(RunnelEmbeddings(Embedder(model)))
    store.add_documents(DOCUMENTS)
    assert [one.id for one in store.similarity_search(TEXTS["b"], k=1)] == ["b"]


def test_a_chain(index, model):
    """Retriever and compressor are used as LangChain's runnables and its contextual compression use them."""
    chain = RunnelRetriever(index=index) | (lambda documents: [one.page_content for one in documents])
    assert set(chain.invoke("a dog ran")) == set(TEXTS.values())
    assert [len(one) for one in chain.batch(["dog", "cat", "sea"])] == [2, 2, 2]
