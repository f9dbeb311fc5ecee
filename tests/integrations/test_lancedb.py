"""Tables and searches of LanceDB with models of runnel."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.tiny import tiny_model

from runnel import Embedder, Reranker
from runnel.errors import CheckpointError, InputError

pytest.importorskip("lancedb")

import lancedb
from lancedb.embeddings import get_registry
from lancedb.index import FTS
from lancedb.pydantic import LanceModel, Vector

from runnel.integrations.lancedb import RunnelReranker

TEXTS = ["Objects may be garbage-collected.", "Deletion of a name removes its binding.", "A train leaves at noon."]
pocket = get_registry().get("runnel").create(name="pocket")


class Row(LanceModel):
    text: str | None = pocket.SourceField()
    vector: Vector(pocket.ndims()) | None = pocket.VectorField(default=None)


@pytest.fixture
def table(tmp_path):
    table = lancedb.connect(tmp_path).create_table("t", schema=Row)
    table.add([{"text": text} for text in TEXTS])
    return table


def test_a_table_embeds_its_rows_and_queries(table, tmp_path):
    embedder = Embedder.load("pocket")
    np.testing.assert_allclose(np.stack(table.to_pandas()["vector"]), embedder.encode_document(TEXTS), atol=1e-6)
    again = lancedb.connect(tmp_path).open_table("t")  # names its function and model
    assert [row["text"] for row in again.search("when does the train leave").limit(1).to_list()] == TEXTS[2:]
    again.add([{"text": "The bus leaves at one."}])
    assert again.search("bus").limit(1).to_list()[0]["text"] == "The bus leaves at one."


def test_the_model_stays_loaded(table, monkeypatch):
    table.search("train").limit(1).to_list()
    monkeypatch.setattr("runnel.models.embedder.load_model", lambda *arguments, **options: pytest.fail("loaded again"))
    table.search("name").limit(1).to_list()


def test_queries_have_the_prompt_of_queries(monkeypatch):
    embedder = Embedder.load("pocket")
    monkeypatch.setitem(embedder.model.prompts, "query", "find: ")
    monkeypatch.setattr("runnel.integrations.lancedb._load", lambda name: embedder)
    np.testing.assert_array_equal(pocket.compute_query_embeddings("a")[0], embedder.encode("find: a"))
    np.testing.assert_array_equal(pocket.compute_source_embeddings(["a"])[0], embedder.encode("a"))


def test_rows_without_text(table):
    with pytest.raises(RuntimeError, match="Set on_bad_vectors='drop' to remove them"):
        table.add([{"text": None}, {"text": "A cat."}])
    table.add([{"text": " "}, {"text": "A cat."}], on_bad_vectors="drop")
    assert table.to_pandas()["text"].to_list() == [*TEXTS, "A cat."]
    vectors = pocket.generate_embeddings(["", None, "A cat.", " "])
    assert [vector is None for vector in vectors] == [True, True, False, True]
    assert pocket.generate_embeddings([]) == []


@pytest.mark.parametrize("score", ["relevance", "all"])
def test_results_are_reranked(table, score):
    table.create_index("text", config=FTS())
    query = "what does deletion remove"
    reranker = Reranker.load("pocket")
    expected = {hit.text: pytest.approx(hit.score, abs=1e-4) for hit in reranker.rank(query, TEXTS)}
    ours = RunnelReranker(reranker, return_score=score)
    for kind in ("vector", "fts", "hybrid"):
        rows = table.search(query, query_type=kind).rerank(ours).limit(3).to_list()
        assert rows[0]["text"] == TEXTS[1] and len(rows) == (1 if kind == "fts" else 3)
        assert {row["text"]: row["_relevance_score"] for row in rows} == {row["text"]: expected[row["text"]] for row in rows}
        scores = [row["_relevance_score"] for row in rows]
        assert scores == sorted(scores, reverse=True)
        assert ("_distance" in rows[0] or "_score" in rows[0]) == (score == "all")
    assert table.search("zebra", query_type="fts").rerank(ours).to_list() == []


def test_texts_are_cut_on_request(tmp_path, monkeypatch):
    model, long = tiny_model(tmp_path), "the cat sat on the mat " * 9
    embedder, reranker = Embedder(model), Reranker(model)
    monkeypatch.setattr("runnel.integrations.lancedb._load", lambda name: embedder)
    cut = get_registry().get("runnel").create(max_tokens=20)
    np.testing.assert_array_equal(cut.compute_source_embeddings([long])[0], embedder.encode_document(long, max_tokens=20))
    np.testing.assert_array_equal(cut.compute_query_embeddings(long)[0], embedder.encode_query(long, max_tokens=20))
    table = lancedb.connect(tmp_path).create_table("t", [{"text": long, "vector": [1.0]}])
    (row,) = table.search([1.0]).rerank(RunnelReranker(reranker, max_tokens=20), "a dog").to_list()
    assert row["_relevance_score"] == reranker.score("a dog", [long], max_tokens=20)[0] != reranker.score("a dog", [long])[0]


def test_mistakes(table):
    with pytest.raises(CheckpointError, match="no-such-model"):
        get_registry().get("runnel").create(name="no-such-model").ndims()
    with pytest.raises(InputError, match="cannot embed an empty text"):
        table.search(" ").to_list()
    with pytest.raises(CheckpointError, match="no-such-model"):
        RunnelReranker("no-such-model")
