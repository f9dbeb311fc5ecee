"""Embedders behind an API rank the sentences of evidence."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import openai
import pytest

from runnel.errors import EndpointError
from runnel.lab.evaluation import retrieval
from runnel.lab.evaluation.retrieval import ApiEmbedder
from tests.helpers.qa_files import write_rows

WORDS = ("red", "blue", "cat", "dog")
DOCUMENT = "A bird sang.\n\nThe red cat sat.\n\nA dog ran far away.\n\nThe blue bird flew."
EVIDENCE = [
    {"id": "a", "question": "red cat", "document": DOCUMENT, "evidence": [[14, 30]]},
    {"id": "b", "question": "dog", "document": DOCUMENT, "evidence": [[32, 51]]},
]


class Stub(BaseHTTPRequestHandler):
    """Counts words; answers in reversed order; first with the `problems` of the server: (status, body)."""

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, self.headers["Authorization"], request))
        rows = [{"index": i, "embedding": [0.5 + t.lower().count(w) for w in WORDS]} for i, t in enumerate(request["input"])]
        status, body = self.server.problems.pop(0) if self.server.problems else (200, json.dumps({"data": rows[::-1]}))
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(monkeypatch):
    with HTTPServer(("127.0.0.1", 0), Stub) as server:
        server.requests, server.problems = [], []
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{server.server_port}/v1/")
        monkeypatch.setenv("OPENAI_API_KEY", "secret")
        monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.001)
        retrieval._model.cache_clear()
        yield server
        server.shutdown()
        thread.join()


def test_an_api_gives_unit_vectors_in_the_order_of_the_texts(server):
    texts = [f"{i} red cats" if i % 2 else "a dog" for i in range(129)]
    vectors = ApiEmbedder("toy", prompts={"query": "cat: "}).encode_document(texts)
    expected = np.array([[1.5, 0.5, 1.5, 0.5] if i % 2 else [0.5, 0.5, 0.5, 1.5] for i in range(129)])
    np.testing.assert_allclose(vectors, expected / np.linalg.norm(expected, axis=1, keepdims=True), rtol=1e-6)
    assert [len(request["input"]) for _, _, request in server.requests] == [128, 1]
    path, key, request = server.requests[0]
    assert (path, key, request["model"]) == ("/v1/embeddings", "Bearer secret", "toy")
    ApiEmbedder("toy", prompts={"query": "cat: "}).encode_query(["dog"])
    assert server.requests[-1][2]["input"] == ["cat: dog"]


def test_a_busy_api_is_asked_again(server):
    server.problems = [(503, "busy"), (429, "slow down")]
    assert ApiEmbedder("toy").encode_query(["red"]).shape == (1, 4) and len(server.requests) == 3


@pytest.mark.parametrize(
    ("problems", "message"),
    [
        ([(503, "busy")] * 6, "did not give embeddings: 503"),
        ([(401, '{"error": "no such key"}')], "did not give embeddings: 401"),
        ([(200, '{"data": []}')], "expected one for each of 1 texts"),
        ([(200, "<html>")], "did not give embeddings as expected"),
        ([(200, '{"data": [{"index": 1, "embedding": [1.0]}]}')], "expected one for each of 1 texts"),
    ],
)
def test_refusals_and_other_answers_are_reported(server, problems, message):
    server.problems = list(problems)
    with pytest.raises(EndpointError, match=message):
        ApiEmbedder("toy").encode_query(["red"])
    assert len(server.requests) == len(problems)


@pytest.fixture
def evidence(tmp_path):
    write_rows(tmp_path / "evidence.jsonl", EVIDENCE)
    return "evidence.jsonl"


def test_sentences_and_chunks_are_ranked_by_an_api(run, server, evidence):
    done = run("lab", "evaluate", "api:toy", evidence, "--as", "embed", "--metrics", "Recall@1", "--json")
    assert done.code == 0, done.err
    (result,) = json.loads(done.out)["results"]
    assert result["metrics"] == {"Recall@1": 1.0} and result["sentences"] == 8
    done = run("lab", "evaluate", "api:toy", evidence, "--as", "embed", "--chunk-words", "5", "--out", "out")
    assert done.code == 0 and "8 chunks of 5 words ranked" in done.out, done.err
    done = run("lab", "evaluate", "api:toy", evidence, "--as", "embed", "--chunk-words", "6", "--out", "out")
    assert done.code == 1 and "another chunk_words (5, now 6)" in done.err
    done = run("lab", "evaluate", "bm25", evidence, "--chunk-words", "5", "--metrics", "Recall@1", "--json")
    (result,) = json.loads(done.out)["results"]
    assert result["chunk_words"] == 5 and result["metrics"] == {"Recall@1": 1.0}


def test_other_tasks_are_refused(run, evidence):
    done = run("lab", "evaluate", "api:toy", evidence)
    assert done.code == 1 and "with --as embed" in done.err
    done = run("lab", "evaluate", "api:toy", evidence, "--as", "embed", "--max-tokens", "5")
    assert done.code == 1 and "--max-tokens" in done.err
    assert run("lab", "evaluate", "pocket", evidence, "--chunk-words", "5").code == 1
