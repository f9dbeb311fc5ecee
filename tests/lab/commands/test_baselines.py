"""The commands with a transformer of 40 positions: one flag for each choice of the papers."""

import json

import numpy as np
import pytest
from helpers.tiny import write_tokenizer
from helpers.tiny_transformers import write_transformer

from runnel import Embedder, Reranker
from tests.helpers.qa_files import write_rows

pytestmark = pytest.mark.filterwarnings("ignore:::transformers")
DOCUMENTS = {"a": "a river runs to the sea", "b": "the cat sat", "c": "the finally clause is executed " * 10}


@pytest.fixture
def corpus(tmp_path):
    return write_rows(tmp_path / "corpus.tsv", [f"{name}\t{text}" for name, text in DOCUMENTS.items()])


def write(folder, kind, **changes):
    write_transformer(folder, "bert", kind, **changes)
    write_tokenizer(folder)
    return folder


def test_embed_with_any_pooling(run, corpus, tmp_path):
    model, vectors = write(tmp_path / "bert", "Model"), {}
    for pooling in ("cls", "eos", "mean"):
        done = run("embed", corpus, "--to", f"{pooling}.npy", "--model", model, "--pooling", pooling, "--max-tokens", 512)
        assert done.code == 0 and "1 of 3 texts were cut to 40 tokens" in done.err
        vectors[pooling] = np.load(tmp_path / f"{pooling}.npy")
        expected = Embedder.load(model, pooling=pooling).encode(DOCUMENTS.values(), max_tokens=40)
        np.testing.assert_allclose(vectors[pooling], expected, atol=1e-5)
    assert all(np.abs(vectors["cls"] - vectors[other]).max() > 1e-2 for other in ("eos", "mean"))


@pytest.mark.parametrize("template", ["rankmamba", None])
def test_rerank_with_any_template(run, corpus, tmp_path, template):
    model, flags = (
        write(tmp_path / "bert", "ForSequenceClassification", num_labels=1),
        ("--template", template) if template else (),
    )
    done = run("rerank", "a cat", corpus, "--model", model, "--max-tokens", 512, "--json", *flags)
    assert done.code == 0 and "cut 1 document: query and document together have at most 40 tokens" in done.err
    expected = Reranker.load(model, template=template).rank("a cat", DOCUMENTS, max_tokens=40)
    found = {hit["id"]: hit["score"] for hit in json.loads(done.out)["hits"]}
    assert list(found) == [hit.id for hit in expected] and found == pytest.approx(
        {hit.id: hit.score for hit in expected}, abs=1e-4
    )
