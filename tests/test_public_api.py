"""The public names. A change here is a change for users: say so in CHANGELOG.md."""

import inspect

import pytest

import runnel

NAMES = [
    "Document",
    "Embedder",
    "Engine",
    "Hit",
    "Index",
    "Request",
    "Reranker",
    "Result",
    "RunnelError",
    "Sentence",
]
NAMES += ["SentenceRetriever", "State", "Template", "load_backbone", "verify_quote"]


def test_names_are_pinned_resolve_and_say_what_they_are():
    assert runnel.__all__ == NAMES
    assert dir(runnel) == sorted([*NAMES, "__version__"])
    assert [getattr(runnel, name).__name__ for name in NAMES] == NAMES
    assert (
        all(getattr(runnel, name).__doc__ for name in NAMES) and runnel.__version__.count(".") == 2
    )
    with pytest.raises(
        AttributeError, match=r"no attribute 'Embeder'; its public names are Document, Embedder"
    ):
        runnel.Embeder  # noqa: B018


PROMISED = """
Embedder encode texts
Embedder encode_query texts
Embedder encode_stream texts
Embedder encode_spans text spans
Reranker score query documents
Reranker rank query documents top_k
Reranker remember documents path dtype
SentenceRetriever score query document
SentenceRetriever retrieve query document top_k
"""


def test_signatures_start_as_promised():
    for owner, method, *parameters in map(str.split, PROMISED.strip().splitlines()):
        found = list(inspect.signature(getattr(getattr(runnel, owner), method)).parameters)
        assert found[: len(parameters) + 1] == ["self", *parameters], method
