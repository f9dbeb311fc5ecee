"""`runnel lab evaluate` on retrieval tasks: metrics, runs written, interrupted work resumed, bad input named."""

import json

import numpy as np
import pytest
from helpers.judged_tasks import ToyEmbedder, results
from helpers.tiny import tiny_encoder

from runnel.lab.evaluation import retrieval


@pytest.fixture(autouse=True)
def no_models_of_other_tests():
    retrieval._model.cache_clear()


def test_bm25(run, beir, tmp_path):
    done = run("lab", "evaluate", "bm25", "beir", "--out", "out", "--metrics", "nDCG@10,MRR,Recall@1")
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
    first = results(run("lab", "evaluate", "bm25", "beir", "--out", "out", "--json"))
    done = run("lab", "evaluate", "bm25", "beir", "--out", "out", "--json", "--metrics", "P@1")
    assert "out/beir.trec is finished already" in done.err and list(results(done)["beir"]["metrics"]) == ["P@1"]
    done = run("lab", "evaluate", "bm25", "beir", "--out", "out", "--depth", 2)
    assert done.code == 1 and "finished work with another depth (100, now 2)" in done.err
    assert results(run("lab", "evaluate", "bm25", "beir", "--json")) == first  # nothing is kept without --out


def test_a_run_with_its_judgments(run, beir, tmp_path):
    expected = results(run("lab", "evaluate", "bm25", "beir", "--out", "out", "--json"))["beir"]["metrics"]
    (tmp_path / "qrels.txt").write_text("1 0 d1 2\n1 0 d0 1\n2 0 d0 1\n2 0 d2 0\n3 0 d4 1\n")
    for task in ("beir", "beir/qrels/test.tsv", "qrels.txt"):
        (found,) = results(run("lab", "evaluate", "out/beir.trec", task, "--json")).values()
        assert found["metrics"] == expected and found["as"] == "run"


def test_qrels_with_a_corpus_and_queries(run, beir, tmp_path):
    expected = results(run("lab", "evaluate", "bm25", "beir", "--json"))["beir"]["metrics"]
    (tmp_path / "dev.tsv").write_text((beir / "qrels" / "test.tsv").read_text())
    done = run(
        "lab", "evaluate", "bm25", "dev.tsv", "--corpus", "beir/corpus.jsonl.gz", "--queries", "beir/queries.jsonl", "--json"
    )
    assert results(done)["dev"]["metrics"] == expected


def test_an_embedder(run, beir, fake, tmp_path):
    command = ("lab", "evaluate", "toy", "beir", "--out", "out", "--json")
    fake.embed = ToyEmbedder()
    found = results(run(*command))["beir"]
    assert (found["model"], found["as"]) == ("toy", "embed")
    ranked = [line.split() for line in (tmp_path / "out" / "beir.trec").read_text().splitlines()]
    assert [line[2] for line in ranked if line[0] == "2"][:2] == ["d2", "d3"]
    assert [float(line[4]) for line in ranked if line[0] == "2"][:2] == [3, 2]
    assert {line[2] for line in ranked} == {"d0", "d1", "d2", "d3"}  # d4 has no text


def test_prompts(run, beir, fake):
    fake.embed = ToyEmbedder()
    command = ("lab", "evaluate", "toy", "beir", "--prompt", "find: ", "--out", "out")
    assert run(*command).code == 0 and fake.embed.model.prompts == {"query": "find: "}
    done = run(*command[:-4], "--out", "out")
    assert done.code == 1 and "finished work with another prompts" in done.err


def test_a_reranker_reorders_the_best_of_bm25(run, beir, fake, tmp_path):
    command = ("lab", "evaluate", "toy", "beir", "--as", "rerank", "--depth", 2, "--out", "out", "--json")
    assert results(run(*command))["beir"]["as"] == "rerank"
    assert len(fake.rerank.ranked) == 2
    ranked = [line.split()[:3:2] for line in (tmp_path / "out" / "beir.trec").read_text().splitlines()]
    assert ranked == [["1", "d1"], ["1", "d3"], ["2", "d2"], ["2", "d3"]]
    assert (tmp_path / "out" / "beir.bm25.trec").exists()


def test_a_reranker_reorders_a_run(run, beir, fake, tmp_path):
    (tmp_path / "given.trec").write_text("2 Q0 d0 1 9 x\n2 Q0 d3 2 8 x\n4 Q0 d0 1 1 x\n")
    results(run("lab", "evaluate", "toy", "beir", "--as", "rerank", "--run", "given.trec", "--out", "out", "--json"))
    ranked = [line.split()[:3:2] for line in (tmp_path / "out" / "beir.trec").read_text().splitlines()]
    assert ranked == [["2", "d3"], ["2", "d0"]]  # the other judged queries are missing, and count as 0


def test_an_index(run, beir, tmp_path):
    tiny_encoder(tmp_path / "tokenizer").save(tmp_path / "tiny")
    words = results(
        run("lab", "evaluate", "tiny", "beir", "--as", "index", "--weight", 0, "--rerank", 0, "--out", "words", "--json")
    )["beir"]
    assert words["as"] == "index" and words["metrics"]["MRR@10"] == pytest.approx((1 + 1 / 3) / 3)
    first = [line.split()[2] for line in (tmp_path / "words" / "beir.trec").read_text().splitlines() if line.startswith("1 ")]
    assert first[0] == "d1"
    again = results(run("lab", "evaluate", "tiny", "beir", "--as", "index", "--out", "both", "--json"))["beir"]
    assert again["metrics"].keys() == words["metrics"].keys()


def test_an_existing_index(run, beir, tmp_path):
    tiny_encoder(tmp_path / "tokenizer").save(tmp_path / "tiny")
    words = ("--weight", 0, "--rerank", 0, "--json", "--metrics", "MRR@10")
    made = results(run("lab", "evaluate", "tiny", "beir", "--as", "index", "--out", "made", *words))["beir"]
    assert "4 added, 1 failed" in run("index", "beir/corpus.jsonl.gz", "--to", "library", "--model", "tiny").out
    command = ("lab", "evaluate", "tiny", "beir", "--in", "library", "--out", "out", *words)
    done = run(*command)
    found = results(done)["beir"]
    note = "1 relevant documents are not in library, the first is 'd4'"  # it has no text
    assert f"note: beir: {note}" in done.err and found["notes"] == [note]
    assert results(run(*command))["beir"]["notes"] == [note], "also of finished work"
    assert (found["metrics"], found["documents"], found["as"]) == (made["metrics"], 4, "index")
    ranked = [line.split()[2] for line in (tmp_path / "out" / "beir.trec").read_text().splitlines()]
    assert set(ranked) == {"d0", "d1", "d2", f"{beir}/corpus.jsonl.gz#d3"}  # d3 is not judged
    assert not (tmp_path / "out" / "beir.index").exists()
    (tmp_path / "qrels.txt").write_text((beir / "qrels" / "test.tsv").read_text())
    done = run("lab", "evaluate", "tiny", "qrels.txt", "--queries", "beir/queries.jsonl", "--in", "library", *words)
    assert results(done)["qrels"]["metrics"] == made["metrics"]
    (tmp_path / "d5.txt").write_text("another document")
    assert run("index", "d5.txt", "--to", "library").code == 0
    assert "finished work with another commit" in run(*command).err


def test_an_index_of_other_documents(run, beir, tmp_path):
    tiny_encoder(tmp_path / "tokenizer").save(tmp_path / "tiny")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "d1").write_text("cat")
    assert run("index", "beir/queries.jsonl", "--to", "library", "--model", "tiny").code == 0
    done = run("lab", "evaluate", "tiny", "beir", "--in", "library")
    assert done.code == 1 and "none of the 3 relevant documents is in the index, the first is 'd1'" in done.err
    assert run("index", "a", "b", "--to", "two", "--model", "tiny").code == 0
    done = run("lab", "evaluate", "tiny", "beir", "--in", "two")
    assert done.code == 1 and "judges 'd1', which could be" in done.err and "/a/d1' or" in done.err


def test_compare(run, beir, fake, tmp_path):
    run("lab", "evaluate", "bm25", "beir", "--out", "a")
    fake.embed = ToyEmbedder()
    run("lab", "evaluate", "toy", "beir", "--out", "b")
    done = run("lab", "compare", "a", "b")
    assert done.code == 0 and "95 % interval" in done.out and "beir" in done.out
    rows = json.loads(run("lab", "compare", "a", "b", "--json").out)["rows"]
    assert [row["value"] for row in rows] == ["nDCG@10", "MRR@10", "Recall@100"]
    assert all(row["number"] == row["comparison"]["queries"] == 3 for row in rows)
    means = {name: of["mean"] for name, of in rows[0]["systems"].items()}
    assert rows[0]["comparison"]["difference"] == pytest.approx(means["b"] - means["a"])


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("qrels/test.tsv", "9\td0\t1\n", "beir/queries.jsonl"),
        ("qrels/test.tsv", "1\tx\t1\n", "beir/corpus.jsonl.gz"),
        ("qrels/test.tsv", "1\td0\t0\n", "no document as relevant"),
        ("queries.jsonl", '{"_id": "1", "text": "a"}\n' * 2, "'1'"),
        ("corpus.jsonl.gz", '{"_id": "d1", "text": "cat"}\n{"_id": "d 2", "text": "a cat"}\n', "'d 2'"),
        ("corpus.jsonl.gz", "", "beir/corpus.jsonl.gz, and none of its 0 has text"),
        ("corpus.jsonl.gz", '{"_id": "d1", "text": " "}\n', "none of its 1 has text"),
        ("corpus.jsonl.gz", '{"_id": "d1", "text": "a"}\n' * 2, "'d1'"),
    ],
)
def test_bad_tasks(run, beir, file, content, message):
    (beir / file).write_text(content)
    done = run("lab", "evaluate", "bm25", "beir")
    assert done.code == 1 and message in done.err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "none of the 0 queries of run.trec"),
        ("8 Q0 d0 1 1 x\n", "beir/qrels/test.tsv"),
        ("1 Q0 d0 1 1 x\n1 Q0 zz 2 0 x\n", "'zz'"),
        ("1 Q0 d0 1 1 x\n1 Q0 d0 2 0 x\n", "run.trec, line 2"),
    ],
)
def test_bad_runs(run, beir, tmp_path, content, message):
    (tmp_path / "run.trec").write_text(content)
    done = run("lab", "evaluate", "run.trec", "beir")
    assert done.code == 1 and message in done.err


def test_what_does_not_fit_is_reported(run, beir):
    (beir / "qrels" / "test.tsv").write_text("1\td1\t1\n1\tgone\t1\n2\td0\t0\n77\td0\t1\n")
    done = run("lab", "evaluate", "bm25", "beir")
    assert done.code == 0
    assert "note: beir: 1 of 3 queries have no relevant document, and count as 0" in done.err
    assert "note: beir: 1 of 3 judged queries have no text, and count as 0" in done.err
    assert "note: beir: 1 of 3 relevant documents are not in the corpus, the first is 'gone'" in done.err


def test_metrics_that_look_deeper_than_the_run_are_noted(run, beir):
    done = run("lab", "evaluate", "bm25", "beir", "--depth", 2, "--metrics", "Recall@5,MRR", "--json")
    note = "2 documents of a query are kept; the metrics look at 5"
    assert results(done)["beir"]["notes"] == [note] and f"note: beir: {note}" in done.err
    assert results(run("lab", "evaluate", "bm25", "beir", "--depth", 5, "--metrics", "Recall@5", "--json"))["beir"]["notes"] == []


def test_a_folder_with_several_judgments(run, beir):
    (beir / "qrels" / "dev.tsv").write_text("1\td1\t1\n")
    assert list(results(run("lab", "evaluate", "bm25", "beir", "beir/qrels/dev.tsv", "--json"))) == ["beir", "beir-dev"]
    (beir / "qrels" / "test.tsv").rename(beir / "qrels" / "train.tsv")
    assert "'test.tsv'; expected one of dev.tsv, train.tsv" in run("lab", "evaluate", "bm25", "beir").err


def test_compare_needs_results_of_one_task(run, tmp_path):
    for name, task, query in (("a", "x", "1"), ("b", "y", "1"), ("c", "x", "2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{task}.queries.jsonl").write_text(json.dumps({"query": query, "AP": 1.0}) + "\n")
        (tmp_path / name / f"{task}.json").write_text(json.dumps({"task": task}))
    for other, what in (("b", "no task in common"), ("c", "different queries")):
        done = run("lab", "compare", "a", other)
        assert done.code == 1 and what in done.err
