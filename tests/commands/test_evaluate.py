"""`runnel evaluate` on retrieval tasks: metrics, runs written, interrupted work resumed, bad input named."""

import json

import numpy as np
import pytest
from helpers.judged_tasks import ToyEmbedder, results
from helpers.tiny import tiny_encoder

from runnel.commands import evaluate_retrieval

pytest.importorskip("bm25s")
pytest.importorskip("ir_measures")


@pytest.fixture(autouse=True)
def no_models_of_other_tests():
    evaluate_retrieval._model.cache_clear()


def test_bm25(run, beir, tmp_path):
    done = run("evaluate", "bm25", "beir", "--out", "out", "--metrics", "nDCG@10,MRR,Recall@1")
    assert done.code == 0 and done.err == ""
    assert "beir" in done.out and "nDCG@10" in done.out and "bm25 as bm25" in done.out
    result = json.loads((tmp_path / "out" / "beir.json").read_text())
    assert (result["version"], result["kind"], result["queries"], result["documents"]) == (1, "retrieval", 3, 5)
    values = {
        row.pop("query"): row for row in map(json.loads, (tmp_path / "out" / "beir.queries.jsonl").read_text().splitlines())
    }
    ranked = [line.split() for line in (tmp_path / "out" / "beir.trec").read_text().splitlines()]
    assert [line[2] for line in ranked if line[0] == "1"] == ["d1", "d3", "d0"] and {line[0] for line in ranked} == {"1", "2"}
    assert values["1"] == pytest.approx({"nDCG@10": 2.5 / (2 + 1 / np.log2(3)), "MRR": 1.0, "Recall@1": 0.5})
    assert values["3"] == {"nDCG@10": 0.0, "MRR": 0.0, "Recall@1": 0.0}  # missing from the run
    assert result["metrics"]["MRR"] == pytest.approx(np.mean([v["MRR"] for v in values.values()]))
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "beir.json",
        "beir.queries.jsonl",
        "beir.trec",
        "beir.trec.json",
    ]


def test_finished_work_is_measured_again_without_a_search(run, beir):
    first = results(run("evaluate", "bm25", "beir", "--out", "out", "--json"))
    done = run("evaluate", "bm25", "beir", "--out", "out", "--json", "--metrics", "P@1")
    assert "out/beir.trec is finished already" in done.err and list(results(done)["beir"]["metrics"]) == ["P@1"]
    done = run("evaluate", "bm25", "beir", "--out", "out", "--depth", 2)
    assert done.code == 1 and "finished work with another depth (100, now 2)" in done.err
    assert results(run("evaluate", "bm25", "beir", "--json")) == first  # nothing is kept without --out


def test_a_run_with_its_judgments(run, beir, tmp_path):
    expected = results(run("evaluate", "bm25", "beir", "--out", "out", "--json"))["beir"]["metrics"]
    (tmp_path / "qrels.txt").write_text("1 0 d1 2\n1 0 d0 1\n2 0 d0 1\n2 0 d2 0\n3 0 d4 1\n")
    for task in ("beir", "beir/qrels/test.tsv", "qrels.txt"):
        (found,) = results(run("evaluate", "out/beir.trec", task, "--json")).values()
        assert found["metrics"] == expected and found["as"] == "run"


def test_an_embedder(run, beir, fake, tmp_path):
    command = ("evaluate", "toy", "beir", "--out", "out", "--json")
    fake.embed = ToyEmbedder()
    found = results(run(*command))["beir"]
    assert (found["model"], found["as"]) == ("toy", "embed")
    ranked = [line.split() for line in (tmp_path / "out" / "beir.trec").read_text().splitlines()]
    assert [line[2] for line in ranked if line[0] == "2"][:2] == ["d2", "d3"]
    assert [float(line[4]) for line in ranked if line[0] == "2"][:2] == [3, 2]
    assert {line[2] for line in ranked} == {"d0", "d1", "d2", "d3"}  # d4 has no text


def test_a_reranker_reorders_the_best_of_bm25(run, beir, fake, tmp_path):
    command = ("evaluate", "toy", "beir", "--as", "rerank", "--depth", 2, "--out", "out", "--json")
    assert results(run(*command))["beir"]["as"] == "rerank"
    assert len(fake.rerank.ranked) == 2
    ranked = [line.split()[:3:2] for line in (tmp_path / "out" / "beir.trec").read_text().splitlines()]
    assert ranked == [["1", "d1"], ["1", "d3"], ["2", "d2"], ["2", "d3"]]
    assert (tmp_path / "out" / "beir.bm25.trec").exists()


def test_an_index(run, beir, tmp_path):
    pytest.importorskip("lancedb")
    tiny_encoder(tmp_path / "tokenizer").save(tmp_path / "tiny")
    words = results(run("evaluate", "tiny", "beir", "--as", "index", "--weight", 0, "--rerank", 0, "--out", "words", "--json"))[
        "beir"
    ]
    assert words["as"] == "index" and words["metrics"]["MRR@10"] == pytest.approx((1 + 1 / 3) / 3)
    first = [line.split()[2] for line in (tmp_path / "words" / "beir.trec").read_text().splitlines() if line.startswith("1 ")]
    assert first[0] == "d1"
    again = results(run("evaluate", "tiny", "beir", "--as", "index", "--out", "both", "--json"))["beir"]
    assert again["metrics"].keys() == words["metrics"].keys()


def test_compare(run, beir, fake, tmp_path):
    run("evaluate", "bm25", "beir", "--out", "a")
    fake.embed = ToyEmbedder()
    run("evaluate", "toy", "beir", "--out", "b")
    done = run("evaluate", "--compare", "a", "b")
    assert done.code == 0 and "95 % interval" in done.out and "beir" in done.out
    found = json.loads(run("evaluate", "--compare", "a", "b", "--json").out)["comparisons"]
    assert [c["metric"] for c in found] == ["nDCG@10", "MRR@10", "Recall@100"] and all(c["queries"] == 3 for c in found)
    assert found[0]["difference"] == pytest.approx(found[0]["b"] - found[0]["a"])


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("qrels/test.tsv", "9\td0\t1\n", "beir/queries.jsonl"),
        ("qrels/test.tsv", "1\tx\t1\n", "beir/corpus.jsonl.gz"),
        ("qrels/test.tsv", "1\td0\t0\n", "no document as relevant"),
        ("queries.jsonl", '{"_id": "1", "text": "a"}\n' * 2, "'1'"),
        ("corpus.jsonl.gz", '{"_id": "d1", "text": "cat"}\n{"_id": "d 2", "text": "a cat"}\n', "'d 2'"),
        ("corpus.jsonl.gz", "", "beir/corpus.jsonl.gz has no documents"),
        ("corpus.jsonl.gz", '{"_id": "d1", "text": " "}\n', "none of the 1 documents has text"),
        ("corpus.jsonl.gz", '{"_id": "d1", "text": "a"}\n' * 2, "'d1'"),
    ],
)
def test_bad_tasks(run, beir, file, content, message):
    (beir / file).write_text(content)
    done = run("evaluate", "bm25", "beir")
    assert done.code == 1 and message in done.err
