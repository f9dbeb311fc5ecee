"""Pipelines and experiments of PyTerrier with models of runnel."""

from __future__ import annotations

import pytest
from helpers.tiny import tiny_encoder, tiny_model

from runnel import Document, Embedder, Index, Reranker
from runnel.errors import InputError

pytest.importorskip("pyterrier")

import pandas as pd
import pyterrier as pt

from runnel.integrations.pyterrier import RunnelReranker, RunnelRetriever

TEXTS = {"a": "The cat sat on the mat.", "b": "A dog ran to the sea.", "c": "The river runs."}
TOPICS = pd.DataFrame([("q2", "a dog ran"), ("q1", "the river")], columns=["qid", "query"])
QRELS = pd.DataFrame([("q1", "c", 1), ("q2", "b", 1)], columns=["qid", "docno", "label"])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_encoder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def index(model, tmp_path_factory):
    with Index.create(tmp_path_factory.mktemp("index") / "x", Embedder(model), store="local") as index:
        index.add([Document(name, text) for name, text in TEXTS.items()])
        yield index


def test_a_search_of_an_index(index):
    results = RunnelRetriever(index, num_results=2)(TOPICS)
    assert list(results.columns) == ["qid", "query", "docno", "score", "rank", "text"]
    expected = [
        (qid, query, hit.id, hit.score, hit.rank - 1, hit.text)
        for qid, query in TOPICS.itertuples(index=False)
        for hit in index.search(query, 2, sentences=0)
    ]
    assert list(results.itertuples(index=False, name=None)) == expected
    words = RunnelRetriever(index, options={"dense_weight": 0}).search("dog")
    assert words["docno"].tolist() == ["b"]


def test_a_reranker(model, index):
    reranker = Reranker(model)
    results = (RunnelRetriever(index) >> RunnelReranker(reranker))(TOPICS)
    for qid, query in TOPICS.itertuples(index=False):
        mine = results[results["qid"] == qid]
        hits = reranker.rank(query, {one: TEXTS[one] for one in TEXTS})
        assert mine["docno"].tolist() == [hit.id for hit in hits] and mine["rank"].tolist() == [0, 1, 2]
        assert mine["score"].tolist() == pytest.approx([hit.score for hit in hits])
    bodies = results.rename(columns={"text": "body"})
    again = RunnelReranker(reranker, text_field="body")(bodies)
    assert again["docno"].tolist() == results["docno"].tolist()


def test_an_experiment(model, index):
    search = RunnelRetriever(index)
    systems = [search, search >> RunnelReranker(Reranker(model))]
    table = pt.Experiment(systems, TOPICS, QRELS, ["recip_rank"], plan="tree")
    assert table["recip_rank"].between(1 / 3, 1).all() and len(table) == 2


def test_frames_without_rows_and_inspection(model, index):
    pipeline = RunnelRetriever(index) >> RunnelReranker(Reranker(model))
    empty = pipeline(TOPICS.iloc[:0])
    assert len(empty) == 0 and {"qid", "query", "docno", "score", "rank", "text"} == set(empty.columns)
    assert set(pt.inspect.transformer_outputs(pipeline, ["qid", "query"])) == set(empty.columns)


def test_runs_are_exchanged_as_files(index, run, tmp_path):
    results = RunnelRetriever(index)(TOPICS)
    pt.io.write_results(results, str(tmp_path / "pt.run"), run_name="pt")
    (tmp_path / "corpus.tsv").write_text("id\ttext\n" + "".join(f"{name}\t{text}\n" for name, text in TEXTS.items()))
    (tmp_path / "queries.tsv").write_text("".join(f"{qid}\t{query}\n" for qid, query in TOPICS.itertuples(index=False)))
    files = {"--queries": "queries.tsv", "--corpus": "corpus.tsv", "--run": "pt.run", "--to": "runnel.run"}
    done = run("rerank", *(str(one) for name, file in files.items() for one in (name, tmp_path / file)))
    assert done.code == 0, done.err
    back = pt.io.read_results(str(tmp_path / "runnel.run"))
    assert set(zip(back["qid"], back["docno"], strict=True)) == set(zip(results["qid"], results["docno"], strict=True))


def test_documents_are_cut_on_request(tmp_path):
    reranker, long = Reranker(tiny_model(tmp_path)), "the cat sat on the mat " * 9
    frame = pd.DataFrame([("q", "a dog", "d", long)], columns=["qid", "query", "docno", "text"])
    (score,) = RunnelReranker(reranker, max_tokens=20)(frame)["score"]
    expected = float(reranker.score("a dog", [long], max_tokens=20)[0])
    assert score == pytest.approx(expected) and score != pytest.approx(float(reranker.score("a dog", [long])[0]))


def test_mistakes(index, model):
    with pytest.raises(InputError, match="num_results is 0; expected a whole number from 1"):
        RunnelRetriever(index, num_results=0)
    with pytest.raises(pt.validate.InputValidationError, match="query"):
        RunnelRetriever(index)(TOPICS[["qid"]])
    with pytest.raises(pt.validate.InputValidationError, match="text"):
        RunnelReranker(Reranker(model))(QRELS.assign(query="a", score=1.0, rank=0))
