"""Arguments of other types get an InputError that says what came and what was expected; none is read as something else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.tiny import tiny_encoder, tiny_model

from runnel import Document, Embedder, Index, Reranker, SentenceRetriever
from runnel.errors import CheckpointError, InputError

TEXT = "The cat sat on the mat."


@pytest.fixture(scope="module", params=[tiny_model, tiny_encoder], ids=["recurrent", "passages"])
def reranker(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Reranker:
    return Reranker(request.param(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    return Embedder(tiny_model(tmp_path_factory.mktemp("tiny")))


class Table(dict[str, list[str]]):
    """As the tables of pandas: iterating over it yields the names of its columns."""

    columns = ("text",)


NO_SERIES = [({"a": TEXT}, "a dict"), ({TEXT}, "a set"), (Table(text=[TEXT]), "a Table")]


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
    refused(lambda: SentenceRetriever(reranker.model).retrieve(query, TEXT), message)


@pytest.mark.parametrize("documents", [None, 1, "abc", b"abc", np.array("abc")], ids=repr)
def test_what_is_no_collection_of_documents(reranker: Reranker, documents: Any) -> None:
    message = f"documents are {documents!r}; expected a list of texts or Documents, or a mapping from ids to texts"
    for call in (reranker.score, reranker.rank):
        refused(lambda call=call: call("cat", documents), message)
    refused(lambda: reranker.remember(documents), message)
    message = f"documents are {documents!r}; expected a list of texts"
    refused(lambda: list(SentenceRetriever(reranker.model).score_many("cat", documents)), message)


@pytest.mark.parametrize(("values", "what"), NO_SERIES, ids=["dict", "set", "table"])
def test_what_yields_no_texts_in_an_order(reranker: Reranker, embedder: Embedder, values: Any, what: str) -> None:
    retriever = SentenceRetriever(reranker.model)
    refused(lambda: list(retriever.score_many("cat", values)), f"documents are {what}; expected a list of texts")
    message = f"texts are {what}; expected a string or an iterable of strings, in an order"
    refused(lambda: embedder.encode(values), message)
    refused(lambda: list(embedder.encode_stream(values)), message)
    if isinstance(values, set):
        refused(lambda: reranker.rank("cat", values), "documents are a set; expected a list of texts or Documents, or a mapping")


def test_a_text_is_no_series_of_texts(embedder: Embedder) -> None:
    refused(lambda: list(embedder.encode_stream("cat")), "texts are 'cat'; expected a string or an iterable of strings")


def test_an_id_names_one_remembered_document(reranker: Reranker) -> None:
    documents = [Document("a", TEXT), Document("b", TEXT), Document("a", "dog")]
    refused(lambda: reranker.remember(documents), "two documents have the id 'a'; an id must name one document")


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
    by_name = {"a": TEXT, "b": "dog"}
    assert np.array_equal(reranker.score("cat", by_name), reranker.score("cat", [TEXT, "dog"]))  # type: ignore[arg-type]
    assert {hit.id for hit in reranker.rank("cat", by_name)} == {"a", "b"}


@pytest.mark.parametrize("texts", [None, 1, b"cat"])
def test_texts_of_an_embedder(embedder: Embedder, texts: Any) -> None:
    for call in (embedder.encode, embedder.encode_query, embedder.encode_document):
        refused(lambda call=call: call(texts), f"texts are {texts!r}; expected a string or an iterable of strings, in an order")
    refused(lambda: embedder.encode([TEXT, texts]), f"texts[1] is {texts!r}; expected text (str)")
    refused(lambda: embedder.encode([TEXT] * 40 + [texts]), f"texts[40] is {texts!r}; expected text (str)")
    refused(lambda: embedder.stream().feed(texts), f"the text is {texts!r}; expected text (str)")
    refused(lambda: embedder.encode_spans(texts, [(0, 3)]), f"the text is {texts!r}; expected text (str)")


@pytest.mark.parametrize("count", [0, -1, 2.5, "5", True], ids=repr)
def test_counts(embedder: Embedder, count: Any) -> None:
    refused(lambda: embedder.encode([TEXT], max_tokens=count), f"max_tokens is {count!r}; expected a whole number from 1")
    refused(
        lambda: embedder.encode([TEXT], truncate_dim=count),
        f"truncate_dim is {count!r}, the model's vectors have 32; choose from 1 to 32",
    )


@pytest.mark.parametrize("job", [Embedder, Reranker, SentenceRetriever])
def test_names_of_models(job: Any) -> None:
    refused(lambda: job("pocket"), f"{job.__name__}('pocket'): expected a loaded model; use {job.__name__}.load('pocket')")
    for name in (None, 3, ""):
        with pytest.raises(CheckpointError, match=f"the model is {name!r}; expected a folder, a weights file or a hub id"):
            job.load(name)


def test_names_of_folders(embedder: Embedder) -> None:
    index: Any = Index
    refused(lambda: index("library", embedder), "Index('library'): expected an opened store; use Index.open or Index.create")


@pytest.mark.parametrize(
    ("ids", "what"),
    [
        ([1, 2], "a list"),
        (None, "a NoneType"),
        (np.array([1, 2]), "a ndarray"),
        (torch.tensor([1.0]), "a tensor of torch.float32"),
        (torch.tensor([True]), "a tensor of torch.bool"),
    ],
    ids=repr,
)
def test_token_ids(reranker: Reranker, ids: Any, what: str) -> None:
    refused(lambda: reranker.model.backbone(ids), f"ids are {what}; expected a tensor of int32 or int64, for example")


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
