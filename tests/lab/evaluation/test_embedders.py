"""Embedders behind an API rank the sentences of evidence."""

import numpy as np
import pytest
from helpers.files import write_rows
from helpers.judged_tasks import results

from runnel.errors import EndpointError
from runnel.lab.evaluation import retrieval
from runnel.lab.evaluation.retrieval import ApiEmbedder

WORDS = ("red", "blue", "cat", "dog")
DOCUMENT = "A bird sang.\n\nThe red cat sat.\n\nA dog ran far away.\n\nThe blue bird flew."
EVIDENCE = [
    {"id": "a", "question": "red cat", "document": DOCUMENT, "evidence": [[14, 30]]},
    {"id": "b", "question": "dog", "document": DOCUMENT, "evidence": [[32, 51]]},
]


rule = None  # of `stub`: it gives vectors alone


@pytest.fixture
def server(stub, monkeypatch):
    """An endpoint that counts words."""
    stub.vector = lambda text: [0.5 + text.lower().count(word) for word in WORDS]
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    retrieval._model.cache_clear()
    return stub


def test_an_api_gives_unit_vectors_in_the_order_of_the_texts(server):
    texts = [f"{i} red cats" if i % 2 else "a dog" for i in range(129)]
    vectors = ApiEmbedder("toy", prompts={"query": "cat: "}).encode_document(texts)
    expected = np.array(
        [[1.5, 0.5, 1.5, 0.5] if i % 2 else [0.5, 0.5, 0.5, 1.5] for i in range(129)]
    )
    np.testing.assert_allclose(
        vectors, expected / np.linalg.norm(expected, axis=1, keepdims=True), rtol=1e-6
    )
    assert [len(request["input"]) for request in server.asked] == [128, 1]
    assert server.headers[0]["Authorization"] == "Bearer secret"
    assert server.asked[0]["model"] == "toy"
    ApiEmbedder("toy", prompts={"query": "cat: "}).encode_query(["dog"])
    assert server.asked[-1]["input"] == ["cat: dog"]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (401, "did not give embeddings: 401"),
        ("malformed", "did not give embeddings as expected"),
        ("other texts", "expected one for each of 1 texts"),
    ],
)
def test_refusals_and_other_answers_are_reported(server, fault, message):
    server.faults.append(fault)
    with pytest.raises(EndpointError, match=message):
        ApiEmbedder("toy").encode_query(["red"])
    assert len(server.asked) == 1


@pytest.fixture
def evaluate(run, server, tmp_path):
    path = write_rows(tmp_path / "evidence.jsonl", EVIDENCE)
    return lambda model, *options: run("lab", "evaluate", model, path, *options)


def test_sentences_and_chunks_are_ranked_by_an_api(evaluate, server):
    result = results(evaluate("api:toy", "--as", "embed", "--metrics", "Recall@1", "--json"))[
        "evidence"
    ]
    assert result["metrics"] == {"Recall@1": 1.0} and result["sentences"] == 8
    assert [len(asked["input"]) for asked in server.asked] == [4, 1, 1], "the document is read once"
    done = evaluate("api:toy", "--as", "embed", "--chunk-words", "5", "--out", "out")
    assert done.code == 0 and "8 chunks of 5 words ranked" in done.out, done.err
    done = evaluate("api:toy", "--as", "embed", "--chunk-words", "6", "--out", "out")
    assert done.code == 1 and "another chunk_words (5, now 6)" in done.err
    result = results(evaluate("bm25", "--chunk-words", "5", "--metrics", "Recall@1", "--json"))[
        "evidence"
    ]
    assert result["chunk_words"] == 5 and result["metrics"] == {"Recall@1": 1.0}
