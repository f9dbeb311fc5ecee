"""LangChain's own interfaces, stores and chains, around models of runnel."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from langchain_core.documents import Document
from pydantic import ValidationError

from runnel import Document as Stored
from runnel import Embedder, Index, Reranker, SentenceRetriever
from runnel.errors import CheckpointError
from runnel.integrations.langchain import RunnelEmbeddings, RunnelReranker, RunnelRetriever, RunnelSentences

TEXTS = {"a": "The cat sat on the mat.\nThe river runs to the sea.", "b": "A dog ran. A cat ran."}
DOCUMENTS = [Document(text, id=name, metadata={"page": 3}) for name, text in TEXTS.items()]


@pytest.fixture(scope="module")
def index(model, tmp_path_factory):
    with Index.create(tmp_path_factory.mktemp("index") / "x", Embedder(model), fields={"year": "int"}) as index:
        metadata = {"a": {"year": 2020}, "b": {"year": 2024}}
        index.add([Stored(name, text, metadata[name], title=name.upper()) for name, text in TEXTS.items()])
        yield index


def test_calls_at_the_same_time_have_the_results_of_calls_alone(index, model):
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
    with pytest.raises(ValidationError, match="top_k"):
        RunnelRetriever(index=index, top_k=3)
