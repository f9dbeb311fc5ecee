"""Arguments of other types get an InputError that names what came; none is read
as something else.
"""

import re
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
NO_TEXTS: list[Any] = [None, 1, b"cat", ["cat"], {"text": "cat"}, float("nan")]
NO_COUNTS: list[Any] = [0, -1, 1.5, "3", True]


class Table(dict[str, list[str]]):
    columns = ("text",)


NO_SERIES: list[tuple[Any, str]] = [
    *((value, repr(value)) for value in (None, 1, b"abc", np.array("abc"))),
    ({TEXT}, "a set"),
]
# they yield names and no texts
NAMES: list[tuple[Any, str]] = [({"a": TEXT}, "a dict"), (Table(text=[TEXT]), "a Table")]


@pytest.fixture(scope="module", params=[tiny_model, tiny_encoder], ids=["recurrent", "passages"])
def reranker(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Reranker:
    return Reranker(request.param(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    return Embedder(tiny_model(tmp_path_factory.mktemp("tiny")))


def refused(message: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        call(*arguments, **options)


def test_rerankers_and_retrievers(reranker: Reranker) -> None:
    retriever = SentenceRetriever(reranker.model)
    memory = reranker.remember([TEXT])
    for query in NO_TEXTS:
        for call, document in (
            (reranker.score, [TEXT]),
            (reranker.rank, memory),
            (retriever.retrieve, TEXT),
        ):
            refused(f"the query is {query!r}; expected text", call, query, document)
    for values, what in [*NO_SERIES, ("abc", "'abc'")]:
        refused(f"documents are {what}; expected", reranker.rank, "cat", values)
        refused(f"documents are {what}; expected", reranker.remember, values)
    for values, what in [*NO_SERIES, *NAMES, ("abc", "'abc'")]:
        refused(f"documents are {what}; expected", next, retriever.score_many("cat", values))
    for text in NO_TEXTS:
        for documents, name in (([TEXT, text], "1"), ({"a": TEXT, "b": text}, "b")):
            refused(
                f"the text of document {name!r} is {text!r}; expected text",
                reranker.rank,
                "cat",
                documents,
            )
            refused(
                f"the text of document {name!r} is {text!r}; expected text",
                reranker.remember,
                documents,
            )
    refused("the id of a document is 1; expected text", reranker.rank, "cat", {1: TEXT})
    refused(
        "two documents have the id 'a'", reranker.remember, [Document(name, TEXT) for name in "aba"]
    )
    for count in NO_COUNTS:
        refused(f"top_k is {count!r}; expected a whole number", reranker.rank, "cat", [TEXT], count)
        refused(
            f"top_k is {count!r}; expected a whole number", retriever.retrieve, "cat", TEXT, count
        )
    for ids, kind in (
        ([1, 2], "list"),
        (None, "NoneType"),
        (torch.tensor([1.0]), "float32"),
        (torch.tensor([True]), "bool"),
    ):
        refused(f"{kind} of shape", reranker.model.backbone, ids)


def test_embedders(embedder: Embedder) -> None:
    for values, what in NO_SERIES + NAMES:
        refused(f"texts are {what}; expected", embedder.encode, values)
        refused(f"texts are {what}; expected", embedder.encode_query, values)
    refused("texts are 'abc'; expected", next, embedder.encode_stream("abc"))
    for text in NO_TEXTS:
        refused(f"texts[40] is {text!r}; expected text", embedder.encode, [TEXT] * 40 + [text])
        refused(f"the text is {text!r}; expected text", embedder.stream().feed, text)
        refused(f"the text is {text!r}; expected text", embedder.encode_spans, text, [(0, 3)])
    for count in NO_COUNTS:
        refused(
            f"max_tokens is {count!r}; expected a whole number",
            embedder.encode,
            [TEXT],
            max_tokens=count,
        )
        refused(
            f"truncate_dim is {count!r}, the model's vectors have 32",
            embedder.encode,
            [TEXT],
            truncate_dim=count,
        )
    for spans in (
        *([(0, float("nan"))], [(0.0, 3.0)], [("0", "3")], [(0, None)], [(0, 1), (2,)]),
        *([0, 3], [(0, 3, 5)], "03", None, 3, [[[0, 3]]], [(0, 2**64)]),
    ):
        refused(
            f"spans are {spans!r}; expected pairs of whole numbers",
            embedder.encode_spans,
            TEXT,
            spans,
        )
    assert embedder.encode_spans(TEXT, np.array([[0, 7]], dtype=np.uint8)).shape == (1, 32)
    assert embedder.encode_spans(TEXT, []).shape == (0, 32)


def test_generators_and_arrays_are_collections(reranker: Reranker) -> None:
    documents = [Document("0", TEXT), Document("1", "dog")]
    for given in (
        (text for text in [TEXT, "dog"]),
        np.array([TEXT, "dog"]),
        (TEXT, "dog"),
        documents,
    ):
        assert {hit.id for hit in reranker.rank("cat", given, np.int64(2))} == {"0", "1"}
    by_name = {"a": TEXT, "b": "dog"}
    assert np.array_equal(reranker.score("cat", by_name), reranker.score("cat", [TEXT, "dog"]))
    assert {hit.id for hit in reranker.rank("cat", by_name)} == {"a", "b"}


@pytest.mark.parametrize("job", [Embedder, Reranker, SentenceRetriever])
def test_names_of_models(job: Any) -> None:
    refused(f"use {job.__name__}.load('pocket')", job, "pocket")
    for name in (None, 3, ""):
        with pytest.raises(CheckpointError, match=f"unknown model {name!r}: .*Expected"):
            job.load(name)


def test_a_prompt_that_looks_like_a_name_must_be_one(embedder: Embedder, tmp_path: Path) -> None:
    for call, given in (
        (embedder.encode, ([TEXT],)),
        (embedder.stream, ()),
        (embedder.encode_spans, (TEXT, [(0, 3)])),
    ):
        refused("this model has no prompt 'qurey' (it has: query)", call, *given, prompt="qurey")
    refused("the prompt is 1; expected text", embedder.encode, [TEXT], prompt=1)
    written = embedder.encode(TEXT, prompt="a river runs: ")
    assert np.array_equal(embedder.encode(TEXT, prompt="query"), written)
    assert np.array_equal(embedder.encode_query(TEXT), written)
    assert np.array_equal(embedder.encode(TEXT, prompt=""), embedder.encode(TEXT))
    model = tiny_model(tmp_path)
    model.prompts = {"query": "river"}  # one word that is the model's
    assert np.array_equal(
        Embedder(model).encode(TEXT, prompt="river"), Embedder(model).encode_query(TEXT)
    )
