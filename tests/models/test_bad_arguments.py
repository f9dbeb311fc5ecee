"""Arguments of other types get an InputError that says what came and what was expected; none is read as something else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.tiny import tiny_model

from runnel import Document, Embedder, Reranker, SentenceRetriever
from runnel.errors import InputError

TEXT = "The cat sat on the mat."


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Reranker:
    return Reranker(tiny_model(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def embedder(reranker: Reranker) -> Embedder:
    return Embedder(reranker.model)


def refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    assert message in str(caught.value)


@pytest.mark.parametrize("query", [None, 1, b"cat", ["cat"], float("nan")])
def test_queries_of_a_reranker(reranker: Reranker, query: Any) -> None:
    message = f"the query is {query!r}; expected text (str)"
    refused(lambda: reranker.score(query, [TEXT]), message)
    refused(lambda: reranker.rank(query, [TEXT]), message)
    refused(lambda: reranker.rank(query, reranker.remember([TEXT])), message)


@pytest.mark.parametrize("documents", [None, 1, "abc", b"abc"])
def test_what_is_no_collection_of_documents(reranker: Reranker, documents: Any) -> None:
    message = f"documents are {documents!r}; expected a list of texts or Documents, or a mapping from ids to texts"
    for call in (reranker.score, reranker.rank):
        refused(lambda call=call: call("cat", documents), message)
    refused(lambda: reranker.remember(documents), message)


@pytest.mark.parametrize("document", [None, 1, b"abc", ["abc"], {"text": "abc"}])
def test_what_is_no_document(reranker: Reranker, document: Any) -> None:
    for documents, name in (([TEXT, document], "1"), ({"a": TEXT, "b": document}, "b")):
        message = f"the text of document {name!r} is {document!r}; expected text (str)"
        refused(lambda documents=documents: reranker.rank("cat", documents), message)
        refused(lambda documents=documents: reranker.remember(documents), message)
    refused(lambda: reranker.score("cat", [TEXT, document]), f"the text of document '1' is {document!r}; expected text (str)")
    refused(lambda: reranker.rank("cat", {1: TEXT}), "the id of a document is 1; expected text (str)")


@pytest.mark.parametrize("top_k", [0, -1, 1.5, "3", True])
def test_top_k(reranker: Reranker, top_k: Any) -> None:
    message = f"top_k is {top_k!r}; expected a whole number from 1"
    refused(lambda: reranker.rank("cat", [TEXT], top_k), message)
    refused(lambda: SentenceRetriever(reranker.model).retrieve("cat", TEXT, top_k), message)


def test_generators_and_arrays_are_collections(reranker: Reranker) -> None:
    for documents in (
        (text for text in [TEXT, "dog"]),
        np.array([TEXT, "dog"]),
        (TEXT, "dog"),
        [Document("0", TEXT), Document("1", "dog")],
    ):
        assert {hit.id for hit in reranker.rank("cat", documents, np.int64(2))} == {"0", "1"}


@pytest.mark.parametrize("texts", [None, 1, b"cat"])
def test_texts_of_an_embedder(embedder: Embedder, texts: Any) -> None:
    for call in (embedder.encode, embedder.encode_query, embedder.encode_document):
        refused(lambda call=call: call(texts), f"texts are {texts!r}; expected a string or an iterable of strings")
    refused(lambda: embedder.encode([TEXT, texts]), f"a text is {texts!r}; expected text (str)")
    refused(lambda: embedder.stream().feed(texts), f"the text is {texts!r}; expected text (str)")
    refused(lambda: embedder.encode_spans(texts, [(0, 3)]), f"the text is {texts!r}; expected text (str)")


SPANS = [
    [(0, float("nan"))],
    [(0.0, 3.0)],
    [("0", "3")],
    [(0, None)],
    [(0, 1), (2,)],
    [0, 3],
    [(0, 3, 5)],
    "03",
    None,
    3,
    [[[0, 3]]],
]


@pytest.mark.parametrize("spans", SPANS, ids=repr)
def test_spans(embedder: Embedder, spans: Any) -> None:
    refused(lambda: embedder.encode_spans(TEXT, spans), f"spans are {spans!r}; expected pairs of whole numbers, (n, 2)")


def test_spans_of_any_integer_type(embedder: Embedder) -> None:
    assert embedder.encode_spans(TEXT, np.array([[0, 7]], dtype=np.uint8)).shape == (1, 32)
    assert embedder.encode_spans(TEXT, []).shape == (0, 32)
    refused(lambda: embedder.encode_spans(TEXT, [(0, 2**64)]), "expected pairs of whole numbers")


def test_a_prompt_that_looks_like_a_name_must_be_one(embedder: Embedder) -> None:
    message = (
        "this model has no prompt 'qurey' (it has: query); end a prompt given as text with a space or punctuation: 'qurey: '"
    )
    refused(lambda: embedder.encode([TEXT], prompt="qurey"), message)
    refused(lambda: embedder.stream(prompt="qurey"), message)
    refused(lambda: embedder.encode_spans(TEXT, [(0, 3)], prompt="qurey"), message)
    refused(lambda: embedder.encode([TEXT], prompt=1), "the prompt is 1; expected text (str)")  # type: ignore[arg-type]
    written = embedder.encode(TEXT, prompt="a river runs: ")
    assert np.array_equal(embedder.encode(TEXT, prompt="query"), written)
    assert np.array_equal(embedder.encode_query(TEXT), written)
    assert np.array_equal(embedder.encode(TEXT, prompt=""), embedder.encode(TEXT))


def test_a_prompt_may_be_one_word_if_it_is_the_models(tmp_path: Path) -> None:
    model = tiny_model(tmp_path)
    model.prompts = {"query": "river"}
    assert np.array_equal(Embedder(model).encode(TEXT, prompt="river"), Embedder(model).encode_query(TEXT))
