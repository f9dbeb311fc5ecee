"""The interface of the library rerankers."""

from __future__ import annotations

import asyncio

import pytest
from helpers.tiny import tiny_encoder, tiny_model

from runnel import Reranker
from runnel.errors import CheckpointError, InputError

pytest.importorskip("rerankers")

import rerankers
from rerankers.models.ranker import BaseRanker

from runnel.integrations.rerankers import RunnelRanker

TEXTS = ["The cat sat on the mat.", "A dog ran to the sea.", "The river runs."]


@pytest.fixture(scope="module")
def reranker(tmp_path_factory):
    return Reranker(tiny_encoder(tmp_path_factory.mktemp("tiny")))


def test_ranks_and_scores_are_those_of_the_reranker(reranker, capsys):
    ranker = RunnelRanker(reranker)
    assert isinstance(ranker, BaseRanker)
    hits, results = reranker.rank("a dog", TEXTS), ranker.rank("a dog", TEXTS)
    assert [(one.doc_id, one.text, one.score, one.rank) for one in results] == [
        (int(hit.id), hit.text, hit.score, hit.rank) for hit in hits
    ]
    assert [one.text for one in results.top_k(1)] == [hits[0].text]
    assert ranker.score("a dog", TEXTS[1]) == results.get_score_by_docid(1)
    assert ranker.rank("a dog", TEXTS[1]).results_count() == 1 and ranker.rank("a dog", []).results_count() == 0
    again = asyncio.run(ranker.rank_async("a dog", TEXTS))
    assert [one.doc_id for one in again] == [one.doc_id for one in results]
    assert capsys.readouterr().out == ""


def test_ids_metadata_and_documents_are_kept(reranker):
    ranker = RunnelRanker(reranker)
    named = ranker.rank("a dog", TEXTS, doc_ids=["x", "y", "z"], metadata=[{"page": i} for i in range(3)])
    assert {one.doc_id: (one.text, one.metadata["page"]) for one in named} == {
        name: (TEXTS[i], i) for i, name in enumerate("xyz")
    }
    documents = [rerankers.Document(text, doc_id=name) for text, name in zip(TEXTS, "abc", strict=True)]
    assert {one.document for one in ranker.rank("a dog", documents)} == set(documents)


def test_documents_are_cut_on_request(tmp_path):
    here, long = Reranker(tiny_model(tmp_path)), "the cat sat on the mat " * 9
    there, expected = RunnelRanker(here, max_tokens=20), here.score("a dog", [long], max_tokens=20)[0]
    assert there.score("a dog", long) == there.rank("a dog", [long])[0].score == expected != here.score("a dog", [long])[0]


def test_mistakes(reranker):
    with pytest.raises(InputError, match="a document is an image; this ranker reads text"):
        RunnelRanker(reranker).rank("a dog", [rerankers.Document(document_type="image", base64="", doc_id=1)])
    with pytest.raises(CheckpointError, match="no-such-model"):
        RunnelRanker("no-such-model")
