"""The commands with a transformer of 40 positions: one flag for each choice of the papers."""

import json

import numpy as np
import pytest
from helpers.tiny import write_tokenizer
from helpers.tiny_transformers import write_transformer

from runnel import Embedder, Reranker

pytestmark = pytest.mark.filterwarnings("ignore:::transformers")
DOCUMENTS = {"a": "a river runs to the sea", "b": "the cat sat", "c": "the finally clause is executed " * 10}


@pytest.fixture
def write(tmp_path):
    (tmp_path / "corpus.tsv").write_text("".join(f"{name}\t{text}\n" for name, text in DOCUMENTS.items()))

    def make(kind, **changes):
        write_transformer(tmp_path / "bert", "bert", kind, **changes)
        write_tokenizer(tmp_path / "bert")
        return tmp_path / "bert"

    return make


def test_embed_with_any_pooling(run, write, tmp_path):
    model, vectors = write("Model"), {}
    for pooling in ("cls", "eos", "mean"):
        done = run("embed", "corpus.tsv", "--to", f"{pooling}.npy", "--model", model, "--pooling", pooling, "--max-tokens", 512)
        assert done.code == 0 and "1 of 3 texts were cut to 40 tokens" in done.err
        vectors[pooling] = np.load(tmp_path / f"{pooling}.npy")
        expected = Embedder.load(model, pooling=pooling).encode(DOCUMENTS.values(), max_tokens=40)
        np.testing.assert_allclose(vectors[pooling], expected, atol=1e-5)
    assert all(np.abs(vectors["cls"] - vectors[other]).max() > 1e-2 for other in ("eos", "mean"))


@pytest.mark.parametrize("template", ["rankmamba", "ssm-rerankers", None])
def test_rerank_with_any_template(run, write, tmp_path, template):
    model, flags = write("ForSequenceClassification", num_labels=1), () if template is None else ("--template", template)
    done = run("rerank", "a cat", "corpus.tsv", "--model", model, "--max-tokens", 512, "--json", *flags)
    assert done.code == 0 and "cut 1 document: query and document together have at most 40 tokens" in done.err
    expected, hits = Reranker.load(model, template=template).rank("a cat", DOCUMENTS, max_tokens=40), json.loads(done.out)["hits"]
    assert [hit["id"] for hit in hits] == [hit.id for hit in expected]
    np.testing.assert_allclose([hit["score"] for hit in hits], [hit.score for hit in expected], atol=1e-4)
