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
    folder = tmp_path_factory.mktemp("model")
    tiny_model(folder / "tokenizer").save(folder / "tiny")
    return folder / "tiny"


def test_find_in_one_very_long_line(run, model, tmp_path):
    (tmp_path / "a.txt").write_text("the cat sat on the mat " * 5_000)
    done = run("find", "cat", "a.txt", "--model", model, "--json", "-k", 1)
    assert done.code == 0
    (best,) = json.loads(done.out)["sentences"]
    assert best["line"] == 1 and 0 < len(best["text"]) < 5_000


@pytest.mark.parametrize(("given", "loaded"), [("fp32", "float32"), ("bf16", "bfloat16")])
def test_the_precision_of_weights(run, model, tmp_path, given, loaded):
    """Random weights round visibly: each precision gives its own numbers, and the command those of the one it was given."""
    other = "float32" if loaded == "bfloat16" else "bfloat16"
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "corpus.tsv").write_text("".join(f"{name}\t{text}\n" for name, text in DOCUMENTS.items()))
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


def test_memory_does_not_grow_with_the_document(model, tmp_path):
    def peak(words):
        (tmp_path / "a.txt").write_text("The cat sat on the mat to see a river. " * (words // 10))
        command = [sys.executable, "-m", "runnel", "find", "cat", "a.txt", "--model", model, "--json"]
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        with process.stdout, process.stderr:
            out, err = process.stdout.read(), process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0 and json.loads(out)["files"][0]["sentences"] == words // 10, err
        return usage.ru_maxrss / 1024

    assert peak(300_000) - peak(50_000) < 100
