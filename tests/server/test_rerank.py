"""Scores and spans over HTTP equal those of the models, for Cohere's own clients, and in the shapes
of Jina and TEI.
"""

import cohere
import numpy as np
import pytest
from cohere import RerankRelevantSpans
from helpers.serving import serving

from runnel import Reranker, SentenceRetriever

DOCUMENTS = [
    "A context manager is entered and left by the with statement.",
    (
        "🌧 Rain fell.  The finally clause is always executed, 🎉 also after a return"
        " statement.\n\nNothing else."
    ),
    "Deletion of a name removes its binding from the namespace. ",
    "A context manager is entered and left by the with statement.",
    "",
]
QUERY = "When is the finally clause executed?"
TOLERANCE = 1e-4  # of a logit: other texts in a step change the order of sums


def sigmoid(scores):
    return 1 / (1 + np.exp(-np.asarray(scores, dtype=np.float64)))


@pytest.fixture(scope="module", params=["pocket", "pocket-mamba2", "minilm-mamba2"])
def server(request):
    """Encoder: documents are read once for scores and spans. Recurrent: with the query."""
    with serving(request.param, name=request.param) as client:
        client.name = request.param
        client.reranker = Reranker.load(request.param)
        yield client


def expected(server):
    scores = sigmoid(server.reranker.score(QUERY, DOCUMENTS))
    return scores, np.argsort(-scores, kind="stable").tolist()


@pytest.fixture(scope="module")
def client(server):
    with cohere.ClientV2("none", base_url=str(server.base_url)) as one:
        yield one


def check(results, server, count=None):
    scores, order = expected(server)
    assert [one.index for one in results] == order[:count]
    np.testing.assert_allclose(
        [one.relevance_score for one in results], scores[order[:count]], atol=TOLERANCE
    )


def test_clients_of_cohere(client, server):
    done = client.rerank(model=server.name, query=QUERY, documents=DOCUMENTS)
    check(done.results, server)
    assert done.meta.tokens.input_tokens > 0 and done.id and done.results[0].relevant_spans is None
    check(
        client.rerank(model=server.name, query=QUERY, documents=DOCUMENTS, top_n=2).results,
        server,
        2,
    )
    done = client.rerank(model=server.name, query=QUERY, documents=DOCUMENTS, max_tokens_per_doc=10)
    assert done.meta.warnings == ["max_tokens_per_doc has no effect: documents are read whole"]
    documents = [*DOCUMENTS[:2], *({"text": text} for text in DOCUMENTS[2:])]
    with cohere.Client("none", base_url=str(server.base_url)) as old:
        done = old.rerank(
            model=server.name, query=QUERY, documents=documents, return_documents=True
        )
    check(done.results, server)
    assert [one.document.text for one in done.results] == [
        DOCUMENTS[one.index] for one in done.results
    ]


def test_relevant_spans(client, server):
    def spans(**options):
        wanted = RerankRelevantSpans(mode="enabled", **options)
        done = client.rerank(
            model=server.name, query=QUERY, documents=DOCUMENTS, relevant_spans=wanted
        )
        check(done.results, server)
        return {one.index: one.relevant_spans for one in done.results}

    found = spans(threshold=0)
    retriever = SentenceRetriever.load(server.name)
    for place, (text, scored) in enumerate(
        zip(DOCUMENTS, retriever.rank(QUERY, DOCUMENTS), strict=True)
    ):
        best = list(scored.ranked())
        if not best:
            assert found[place] is None
            continue
        assert [text[one.start : one.end] for one in found[place]] == [
            one.text.strip() for one in best
        ]
        np.testing.assert_allclose(
            [one.score for one in found[place]], sigmoid([one.score for one in best]), atol=1e-3
        )
    sentence = found[1][0]
    text = "The finally clause is always executed, 🎉 also after a return statement."
    assert DOCUMENTS[1][sentence.start : sentence.end] == text
    assert all(one is None or len(one) == 1 for one in spans(threshold=0, max_spans=1).values())
    threshold = sentence.score * 0.999
    assert {place: len(one) for place, one in spans(threshold=threshold).items() if one}[1] == 1
    assert spans(threshold=1) == dict.fromkeys(range(len(DOCUMENTS)))


def test_shapes_of_jina_and_of_either(server):
    body = {
        "model": server.name,
        "query": QUERY,
        "documents": [{"text": text} for text in DOCUMENTS],
        "top_n": 1,
    }
    done = server.post("/v1/rerank", json=body | {"return_documents": True}).json()
    assert done["model"] == server.name and done["usage"]["total_tokens"] > 0
    (best,) = done["results"]
    scores, order = expected(server)
    assert best["index"] == order[0] and best["document"] == {"text": DOCUMENTS[order[0]]}
    assert "document" not in server.post("/v1/rerank", json=body).json()["results"][0]
    done = server.post("/rerank", json={"query": QUERY, "documents": DOCUMENTS}).json()
    assert [one["index"] for one in done["results"]] == order
    found = server.post("/rerank", json={"query": QUERY, "texts": DOCUMENTS}).json()
    assert [set(one) for one in found] == [{"index", "score"}] * len(DOCUMENTS) and [
        one["index"] for one in found
    ] == order
    np.testing.assert_allclose([one["score"] for one in found], scores[order], atol=TOLERANCE)
    assert order[-1] == DOCUMENTS.index(""), "it has no token"
    raw = server.post(
        "/rerank",
        json={"query": QUERY, "texts": DOCUMENTS, "raw_scores": True, "return_text": True},
    ).json()
    np.testing.assert_allclose(
        sigmoid([one["score"] for one in raw]), scores[order], atol=TOLERANCE
    )
    assert [one["text"] for one in raw] == [DOCUMENTS[place] for place in order]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_refused(client, server, path):
    for wrong, start in (
        ({"query": " "}, "the query is empty"),
        (
            {"documents": [1]},
            "documents.0: ",
        ),
    ):
        done = server.post(path, json={"query": "a", "documents": ["b"]} | wrong)
        assert done.status_code == (422 if path == "/rerank" else 400) and done.json()[
            "message"
        ].startswith(start)
    with pytest.raises(cohere.NotFoundError) as error:
        client.rerank(model="rerank-v3.5", query="a", documents=["b"])
    assert error.value.body == {
        "message": f"the model 'rerank-v3.5' is not served here; use '{server.name}'"
    }
