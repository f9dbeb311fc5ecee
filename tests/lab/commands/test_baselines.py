"""The commands with a transformer: one flag for each choice of the papers, and clear words where a transformer cannot."""

import json

import numpy as np
import pytest
from helpers.tiny import write_tokenizer
from helpers.tiny_transformers import write_transformer

from runnel import Embedder, Reranker

pytestmark = pytest.mark.filterwarnings("ignore:::transformers")
DOCUMENTS = {"a": "a river runs to the sea", "b": "the cat sat", "c": "the finally clause is executed " * 10}


def write(folder, kind, **changes):
    write_transformer(folder, "bert", kind, **changes)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """An embedder of 40 positions."""
    return write(tmp_path_factory.mktemp("bert"), "Model")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """A cross-encoder of 40 positions."""
    return write(tmp_path_factory.mktemp("pairs"), "ForSequenceClassification", num_labels=1)


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.tsv"
    path.write_text("".join(f"{name}\t{text}\n" for name, text in DOCUMENTS.items()))
    return path


def test_embed_with_any_pooling(run, bert, corpus, tmp_path):
    vectors = {}
    for pooling in ("cls", "eos", "mean"):
        done = run("embed", "corpus.tsv", "--to", f"{pooling}.npy", "--model", bert, "--pooling", pooling, "--max-tokens", 512)
        assert done.code == 0 and "warning: 1 of 3 texts were cut to 40 tokens" in done.err
        vectors[pooling] = np.load(tmp_path / f"{pooling}.npy")
        expected = Embedder.load(bert, pooling=pooling).encode(DOCUMENTS.values(), max_tokens=40)
        np.testing.assert_allclose(vectors[pooling], expected, atol=1e-5)
    assert all(np.abs(vectors["cls"] - vectors[other]).max() > 1e-2 for other in ("eos", "mean"))


@pytest.mark.parametrize("template", ["rankmamba", "ssm-rerankers", None])
def test_rerank_one_query(run, pairs, corpus, template):
    flags = () if template is None else ("--template", template)
    done = run("rerank", "a cat", "corpus.tsv", "--model", pairs, "--max-tokens", 512, "--json", *flags)
    assert done.code == 0 and "warning: cut 1 document: query and document together have at most 40 tokens" in done.err
    expected = Reranker.load(pairs, template=template).rank("a cat", DOCUMENTS, max_tokens=40)
    hits = json.loads(done.out)["hits"]
    assert [hit["id"] for hit in hits] == [hit.id for hit in expected]
    np.testing.assert_allclose([hit["score"] for hit in hits], [hit.score for hit in expected], atol=1e-4)


def test_documents_are_not_remembered(run, pairs, corpus, tmp_path):
    (tmp_path / "queries.tsv").write_text("q1\triver\n")
    (tmp_path / "run.trec").write_text("q1 Q0 b 1 3 x\nq1 Q0 a 2 2 x\n")
    many = ("rerank", "--queries", "queries.tsv", "--corpus", "corpus.tsv", "--run", "run.trec", "--model", pairs)
    done = run(*many, "--to", "memory.trec", "--memory", "memory")
    assert done.code == 1 and "cannot remember documents" in done.err and not (tmp_path / "memory").exists()
    assert run(*many, "--to", "out.trec", "--max-tokens", 30).code == 0
