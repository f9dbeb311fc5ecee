"""Arguments of other types get an InputError that names what came; none is read as something else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.tiny import tiny_encoder, tiny_model

from runnel import Document, Embedder, Reranker, SentenceRetriever
from runnel.errors import CheckpointError, InputError

TEXT = "The cat sat on the mat."


@pytest.fixture(scope="module", params=[tiny_model, tiny_encoder], ids=["recurrent", "passages"])
def reranker(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Reranker:
    return Reranker(request.param(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    return Embedder(tiny_model(tmp_path_factory.mktemp("tiny")))


class Table(dict[str, list[str]]):
    columns = ("text",)


def refused(message: str, *calls: Callable[[], object]) -> None:
    for call in calls:
        with pytest.raises(InputError) as caught:
            call()
        assert message in str(caught.value)


@pytest.mark.parametrize("query", [None, 1, b"cat", ["cat"], float("nan")])
def test_queries(reranker: Reranker, query: Any) -> None:
    refused(
        f"the query is {query!r}; expected text",
        lambda: reranker.score(query, [TEXT]),
        lambda: reranker.rank(query, reranker.remember([TEXT])),
        lambda: SentenceRetriever(reranker.model).retrieve(query, TEXT),
    )


@pytest.mark.parametrize(
    ("values", "what"),
    [*((value, repr(value)) for value in (None, 1, "abc", b"abc", np.array("abc"))), ({TEXT}, "a set")],
    ids=repr,
)
def test_what_is_no_series(reranker: Reranker, embedder: Embedder, values: Any, what: str) -> None:
    retriever = SentenceRetriever(reranker.model)
    refused(f"documents are {what}; expected", lambda: reranker.rank("cat", values), lambda: reranker.remember(values))
    refused(f"documents are {what}; expected", lambda: list(retriever.score_many("cat", values)))
    refused(f"texts are {what}; expected", lambda: list(embedder.encode_stream(values)))
    for table, name in (({"a": TEXT}, "a dict"), (Table(text=[TEXT]), "a Table")):  # they yield names and no texts
        refused(f"documents are {name}; expected", lambda given=table: list(retriever.score_many("cat", given)))
        refused(f"texts are {name}; expected", lambda given=table: embedder.encode(given))
    if not isinstance(values, str):
        refused(f"texts are {what}; expected", *(lambda e=e: e(values) for e in (embedder.encode, embedder.encode_query)))


@pytest.mark.parametrize("text", [None, 1, b"abc", ["abc"], {"text": "abc"}])
def test_what_is_no_text(reranker: Reranker, embedder: Embedder, text: Any) -> None:
    for documents, name in (([TEXT, text], "1"), ({"a": TEXT, "b": text}, "b")):
        message = f"the text of document {name!r} is {text!r}; expected text"
        refused(message, lambda given=documents: reranker.rank("cat", given), lambda given=documents: reranker.remember(given))
    twice = [Document("a", TEXT), Document("b", TEXT), Document("a", "dog")]
    refused("two documents have the id 'a'", lambda: reranker.remember(twice))
    refused("the id of a document is 1; expected text", lambda: reranker.rank("cat", {1: TEXT}))  # type: ignore[dict-item]
    refused(f"texts[40] is {text!r}; expected text", lambda: embedder.encode([TEXT] * 40 + [text]))
    refused(f"the text is {text!r}; expected text", lambda: embedder.stream().feed(text))
    refused(f"the text is {text!r}; expected text", lambda: embedder.encode_spans(text, [(0, 3)]))


@pytest.mark.parametrize("count", [0, -1, 1.5, "3", True], ids=repr)
def test_counts(reranker: Reranker, embedder: Embedder, count: Any) -> None:
    refused(f"top_k is {count!r}; expected a whole number", lambda: reranker.rank("cat", [TEXT], count))
    refused(f"top_k is {count!r}", lambda: SentenceRetriever(reranker.model).retrieve("cat", TEXT, count))
    refused(f"max_tokens is {count!r}; expected a whole number", lambda: embedder.encode([TEXT], max_tokens=count))
    refused(f"truncate_dim is {count!r}, the model's vectors have 32", lambda: embedder.encode([TEXT], truncate_dim=count))


def test_generators_and_arrays_are_collections(reranker: Reranker) -> None:
    documents = [Document("0", TEXT), Document("1", "dog")]
    for given in ((text for text in [TEXT, "dog"]), np.array([TEXT, "dog"]), (TEXT, "dog"), documents):
        assert {hit.id for hit in reranker.rank("cat", given, np.int64(2))} == {"0", "1"}  # type: ignore[arg-type]
    by_name = {"a": TEXT, "b": "dog"}
    assert np.array_equal(reranker.score("cat", by_name), reranker.score("cat", [TEXT, "dog"]))  # type: ignore[arg-type]
    assert {hit.id for hit in reranker.rank("cat", by_name)} == {"a", "b"}


@pytest.mark.parametrize("job", [Embedder, Reranker, SentenceRetriever])
def test_names_of_models(job: Any, embedder: Embedder) -> None:
    refused(f"use {job.__name__}.load('pocket')", lambda: job("pocket"))
    for name in (None, 3, ""):
        with pytest.raises(CheckpointError, match=f"unknown model {name!r}: .*Expected"):
            job.load(name)


@pytest.mark.parametrize("ids", [[1, 2], None, torch.tensor([1.0]), torch.tensor([True])], ids=repr)
def test_token_ids(reranker: Reranker, ids: Any) -> None:
    kind = str(ids.dtype).removeprefix("torch.") if isinstance(ids, torch.Tensor) else type(ids).__name__
    refused(f"{kind} of shape", lambda: reranker.model.backbone(ids))


def test_spans(embedder: Embedder) -> None:
    for spans in (
        *([(0, float("nan"))], [(0.0, 3.0)], [("0", "3")], [(0, None)], [(0, 1), (2,)]),
        *([0, 3], [(0, 3, 5)], "03", None, 3, [[[0, 3]]], [(0, 2**64)]),
    ):
        given: Any = spans
        refused(f"spans are {given!r}; expected pairs of whole numbers", lambda given=given: embedder.encode_spans(TEXT, given))
    assert embedder.encode_spans(TEXT, np.array([[0, 7]], dtype=np.uint8)).shape == (1, 32)
    assert embedder.encode_spans(TEXT, []).shape == (0, 32)


def test_a_prompt_that_looks_like_a_name_must_be_one(embedder: Embedder, tmp_path: Path) -> None:
    refused(
        "this model has no prompt 'qurey' (it has: query)",
        lambda: embedder.encode([TEXT], prompt="qurey"),
        lambda: embedder.stream(prompt="qurey"),
        lambda: embedder.encode_spans(TEXT, [(0, 3)], prompt="qurey"),
    )
    refused("the prompt is 1; expected text", lambda: embedder.encode([TEXT], prompt=1))  # type: ignore[arg-type]
    written = embedder.encode(TEXT, prompt="a river runs: ")
    assert np.array_equal(embedder.encode(TEXT, prompt="query"), written)
    assert np.array_equal(embedder.encode_query(TEXT), written)
    assert np.array_equal(embedder.encode(TEXT, prompt=""), embedder.encode(TEXT))
    model = tiny_model(tmp_path)
    model.prompts = {"query": "river"}  # one word that is the model's
    assert np.array_equal(Embedder(model).encode(TEXT, prompt="river"), Embedder(model).encode_query(TEXT))
