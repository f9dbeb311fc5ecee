"""The commands with a transformer of 40 positions: one flag for each choice of the papers."""

import json

import numpy as np
import pytest
from helpers.files import write_rows
from helpers.tiny import write_tokenizer
from helpers.tiny_transformers import write_transformer

from runnel import Embedder, Reranker

pytestmark = pytest.mark.filterwarnings("ignore:::transformers")
DOCUMENTS = {
    "a": "a river runs to the sea",
    "b": "the cat sat",
    "c": "the finally clause is executed " * 10,
}


@pytest.fixture
def corpus(tmp_path):
    return write_rows(
        tmp_path / "corpus.tsv", [f"{name}\t{text}" for name, text in DOCUMENTS.items()]
    )


def write(folder, kind, **changes):
    write_transformer(folder, "bert", kind, **changes)
    write_tokenizer(folder)
    return folder


def test_embed_with_a_pooling(run, corpus, tmp_path):
    model = write(tmp_path / "bert", "Model")
    done = run(
        "embed",
        corpus,
        "--to",
        "eos.npy",
        "--model",
        model,
        "--pooling",
        "eos",
        "--max-tokens",
        512,
    )
    assert done.code == 0 and "1 of 3 texts were cut to 40 tokens" in done.err
    eos, mean = (
        Embedder.load(model, pooling=name).encode(DOCUMENTS.values(), max_tokens=40)
        for name in ("eos", "mean")
    )
    np.testing.assert_allclose(np.load(tmp_path / "eos.npy"), eos, atol=1e-5)
    assert np.abs(eos - mean).max() > 1e-2


def test_rerank_with_a_template(run, corpus, tmp_path):
    model = write(tmp_path / "bert", "ForSequenceClassification", num_labels=1)
    command = (
        "rerank",
        "a cat",
        corpus,
        "--model",
        model,
        "--max-tokens",
        512,
        "--json",
        "--template",
        "rankmamba",
    )
    done = run(*command)
    assert (
        done.code == 0
        and "cut 1 document: query and document together have at most 40 tokens" in done.err
    )
    expected = Reranker.load(model, template="rankmamba").rank("a cat", DOCUMENTS, max_tokens=40)
    found = [(hit["id"], hit["score"]) for hit in json.loads(done.out)["hits"]]
    assert [name for name, _ in found] == [hit.id for hit in expected]
    assert [score for _, score in found] == pytest.approx([hit.score for hit in expected], abs=1e-4)
