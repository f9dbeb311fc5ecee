"""The commands with a real model (tiny, random weights): they give what the library gives."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from helpers.tiny import tiny_model

from runnel import Embedder, Reranker, SentenceRetriever

pytestmark = pytest.mark.slow

TEXT = "The cat sat on the mat. A river runs to the sea.\n\nThe dog sat on the cat. Is the clause executed?\n"
DOCUMENTS = {"a": "a river runs to the sea", "b": "the cat sat", "c": "the finally clause is executed"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model folder."""
    folder = tmp_path_factory.mktemp("model")
    tiny_model(folder / "tokenizer").save(folder / "tiny")
    return folder / "tiny"


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.tsv"
    path.write_text("".join(f"{name}\t{text}\n" for name, text in DOCUMENTS.items()))
    return path


def start(*arguments, cwd):
    """The command line in a process of its own."""
    command = [sys.executable, "-m", "runnel", *map(str, arguments)]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)


def test_find(run, model, tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    done = run("find", "does the river run", "a.txt", "--model", model, "--json", "-k", 2)
    found = json.loads(done.out)["sentences"]
    expected = SentenceRetriever.load(model).retrieve("does the river run", TEXT, top_k=2)
    assert [(s["start"], s["end"], s["index"]) for s in found] == [(s.start, s.end, s.index) for s in expected]
    np.testing.assert_allclose([s["score"] for s in found], [s.score for s in expected], atol=1e-4)


@pytest.mark.parametrize("size", [100_000, pytest.param(5_000_000, marks=pytest.mark.release)])
def test_find_in_one_very_long_line(run, model, tmp_path, size):
    (tmp_path / "a.txt").write_text("the cat sat on the mat " * (size // 23))
    done = run("find", "cat", "a.txt", "--model", model, "--json", "-k", 1)
    assert done.code == 0
    (best,) = json.loads(done.out)["sentences"]
    assert best["line"] == 1 and 0 < len(best["text"]) < 5_000


def test_embed(run, model, corpus, tmp_path):
    assert run("embed", "corpus.tsv", "--to", "out.npy", "--model", model, "--query").code == 0
    expected = Embedder.load(model).encode_query(DOCUMENTS.values())
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, atol=1e-5)
    run("embed", "corpus.tsv", "--to", "out.jsonl", "--model", model, "--max-tokens", 3)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    expected = Embedder.load(model).encode_document(DOCUMENTS.values(), max_tokens=3)
    np.testing.assert_allclose([row["vector"] for row in rows], expected, atol=1e-5)
    assert json.loads((tmp_path / "out.jsonl.json").read_text())["truncated"] == 2


@pytest.mark.parametrize(("given", "loaded"), [("fp32", "float32"), ("bf16", "bfloat16")])
def test_the_precision_of_weights(run, model, corpus, tmp_path, given, loaded):
    """Random weights round visibly: each precision gives its own numbers, and the command those of the one it was given."""
    other = "float32" if loaded == "bfloat16" else "bfloat16"
    (tmp_path / "a.txt").write_text(TEXT)
    chosen = ("--model", model, "--dtype", given)

    def check(found, run_with):
        expected, others = (np.array(run_with(dtype)) for dtype in (loaded, other))
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert np.abs(found - others).max() > 1e-4

    assert run("embed", "corpus.tsv", "--to", "out.npy", *chosen).code == 0
    check(
        np.load(tmp_path / "out.npy"), lambda dtype: Embedder.load(model, dtype=dtype).encode_document(list(DOCUMENTS.values()))
    )
    found = json.loads(run("find", "river", "a.txt", "--json", "-k", 1, *chosen).out)["sentences"]
    check(
        [s["score"] for s in found],
        lambda dtype: [s.score for s in SentenceRetriever.load(model, dtype=dtype).retrieve("river", TEXT, top_k=1)],
    )
    hits = json.loads(run("rerank", "river", "corpus.tsv", "--json", *chosen).out)["hits"]
    check(
        [h["score"] for h in sorted(hits, key=lambda h: h["id"])],
        lambda dtype: Reranker.load(model, dtype=dtype).score("river", list(DOCUMENTS.values())),
    )


def test_rerank(run, model, corpus, tmp_path):
    (tmp_path / "queries.tsv").write_text("q1\triver\nq2\tcat clause\n")
    (tmp_path / "run.trec").write_text("q1 Q0 b 1 3 x\nq1 Q0 a 2 2 x\nq2 Q0 c 1 2 x\nq2 Q0 b 2 1 x\n")
    many = ("rerank", "--queries", "queries.tsv", "--corpus", "corpus.tsv", "--run", "run.trec", "--model", model)
    assert run(*many, "--to", "out.trec", "--memory-dtype", "fp32", "--memory", "memory").code == 0
    lines = [line.split() for line in (tmp_path / "out.trec").read_text().splitlines()]
    reranker = Reranker.load(model)
    expected = [
        (query, hit.id, hit.score)
        for query, text, ids in (("q1", "river", "ba"), ("q2", "cat clause", "cb"))
        for hit in reranker.rank(text, {i: DOCUMENTS[i] for i in ids})
    ]
    assert [(line[0], line[2]) for line in lines] == [(query, name) for query, name, _ in expected]
    np.testing.assert_allclose([float(line[4]) for line in lines], [score for *_, score in expected], atol=1e-3)
    done = run("rerank", "cat clause", "corpus.tsv", "--model", model, "--json")
    assert [h["id"] for h in json.loads(done.out)["hits"]] == [h.id for h in reranker.rank("cat clause", DOCUMENTS)]


@pytest.mark.release
def test_a_million_words_in_bounded_memory(model, tmp_path):
    """Peak memory of `find` on 1,000,000 words, less that on 50,000, is a few copies of the text and its sentences."""

    def peak(words):
        (tmp_path / "a.txt").write_text("The cat sat on the mat to see a river. " * (words // 10))
        process = start("find", "cat", "a.txt", "--model", model, "--json", cwd=tmp_path)
        with process.stdout, process.stderr:
            out, err = process.stdout.read(), process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0 and json.loads(out)["files"][0]["sentences"] == words // 10, err
        return usage.ru_maxrss / 1024

    assert peak(1_000_000) - peak(50_000) < 300
