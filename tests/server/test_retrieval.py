"""/v1/find, /v1/search and /v1/verify answer as `SentenceRetriever`, `Index.search` and
`verify_quote` do.
"""

import shutil

import numpy as np
import pytest
from helpers.serving import serving
from helpers.texts import repeat
from helpers.tiny import judging_encoder

from runnel import Document, Embedder, Index, SentenceRetriever
from runnel.errors import StoreError
from runnel.server.context import OpenIndex

TEXTS = [
    "The finally clause is always executed. A tuple cannot be changed. 🌧 Rain fell.",
    (
        "Names\n\nDel removes a name. <script>alert(1)</script> is text. Names are bound by"
        " assignment."
    ),
    "",
]
QUERY = "what removes a name?"


@pytest.fixture(scope="module")
def embedder(tmp_path_factory):
    return Embedder(judging_encoder(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def place(embedder, tmp_path_factory):
    place = tmp_path_factory.mktemp("index") / "library"
    with Index.create(place, embedder, fields={"year": "int"}) as index:
        index.add(
            [
                Document("a", TEXTS[0], {"year": 2020}),
                Document("b", TEXTS[1], {"year": 2024}, title="Names"),
            ]
        )
    return place


@pytest.fixture(scope="module")
def server(embedder, place):
    with serving(embedder.model, index=place) as client:
        yield client


def test_find(server, embedder):
    done = server.post(
        "/v1/find",
        json={
            "query": QUERY,
            "documents": [{"id": "first", "text": TEXTS[0]}, *TEXTS[1:]],
            "top_k": 4,
        },
    )
    assert done.headers["content-type"] == "application/json"
    found = done.json()["sentences"]
    scored = SentenceRetriever(embedder.model).rank(QUERY, TEXTS)
    expected = sorted(
        ((place, one) for place, document in enumerate(scored) for one in document.sentences()),
        key=lambda pair: -pair[1].score,
    )[:4]
    assert [(one["document"], one["index"]) for one in found] == [
        (place, one.index) for place, one in expected
    ]
    np.testing.assert_allclose(
        [one["score"] for one in found], [one.score for _, one in expected], atol=1e-4
    )
    for one in found:
        assert TEXTS[one["document"]][one["start"] : one["end"]] == one["text"]
        assert one["id"] == ("first" if one["document"] == 0 else None)
    assert done.json()["answers"] == pytest.approx(max(one.answers for one in scored), rel=1e-4)
    assert done.json()["tokens"] == sum(
        len(embedder.model.tokenizer.encode(text)) for text in (QUERY, *TEXTS)
    )


def test_find_in_other_units_text_without_a_token_and_long_queries(server):
    found = server.post(
        "/v1/find", json={"query": QUERY, "documents": TEXTS, "unit": "paragraph"}
    ).json()["sentences"]
    assert {one["text"] for one in found} == {
        "Names\n\n",
        TEXTS[1].removeprefix("Names\n\n"),
        TEXTS[0],
    }
    body = {"query": QUERY, "documents": ["\u200b", "\ufeff\n\nRain fell.\n\n\0"], "top_k": 9}
    assert [
        one["text"].strip() for one in server.post("/v1/find", json=body).json()["sentences"]
    ] == ["Rain fell."]
    longest = repeat("a", 20_000)
    done = server.post("/v1/find", json={"query": f"{longest}a", "documents": ["b"]})
    assert done.status_code == 413 and done.json()["error"]["param"] == "query"
    assert server.post("/v1/find", json={"query": longest, "documents": ["b"]}).status_code == 200
    assert server.post("/v1/find", json={"query": " ", "documents": ["b"]}).status_code == 400


def test_search(server, embedder, place):
    searched = server.post("/v1/search", json={"query": QUERY, "top_k": 2, "sentences": 9}).json()
    found = searched["documents"]
    expected = Index.open(place, embedder).search(QUERY, 2, sentences=9)
    assert [(one["id"], one["rank"], one["title"], one["metadata"]) for one in found] == [
        (hit.id, hit.rank, hit.title, hit.metadata) for hit in expected
    ]
    np.testing.assert_allclose(
        [one["score"] for one in found], [hit.score for hit in expected], rtol=1e-6
    )
    assert [s["text"] for s in found[0]["sentences"]] == [s.text for s in expected[0].sentences]
    assert [one["answers"] for one in found] == pytest.approx(
        [hit.answers for hit in expected], rel=1e-4
    )
    assert (
        searched["answers"] == max(one["answers"] for one in found) and 0 < searched["answers"] < 1
    )
    below = {one["text"]: one["after"] for hit in found for one in hit["sentences"]}
    assert below["Names\n\n"] == "Del removes a name. " and below["Del removes a name. "] == ""
    only = server.post(
        "/v1/search", json={"query": QUERY, "where": {"year": {"<": 2021}}, "sentences": 0}
    ).json()["documents"]
    assert [(one["id"], one["sentences"]) for one in only] == [("a", [])]
    for body in (
        {"query": " "},
        {"query": "a", "where": {"color": "red"}},
        {"query": "a", "dense_weight": -1},
    ):
        assert server.post("/v1/search", json=body).status_code == 400
    with Index.open(place, embedder) as index:
        index.add(
            [Document("c", "The walrus operator assigns inside an expression.", {"year": 2025})]
        )
    found = server.post(
        "/v1/search", json={"query": "walrus operator", "where": {"year": 2025}}
    ).json()["documents"]
    assert [one["id"] for one in found] == ["c"], "it was added later"
    with serving(embedder.model) as without:
        done = without.post("/v1/search", json={"query": "a"})
    assert (
        done.status_code == 404
        and done.json()["error"]["message"] == "this server has no index; start it with --in INDEX"
    )


def test_no_commit_is_missed_while_another_is_opened(embedder, tmp_path, monkeypatch):
    place = tmp_path / "index"
    Index.create(place, embedder).close()
    index = OpenIndex(str(place), embedder)
    assert len(index.newest()) == 0

    def add(name):
        with real(place, embedder) as writer:
            writer.add([Document(name, TEXTS[0])])

    def open_and_add(*arguments):
        opened = real(*arguments)
        monkeypatch.undo()
        add("b")
        return opened

    real = Index.open
    add("a")
    monkeypatch.setattr(Index, "open", open_and_add)
    earlier = index.newest()
    assert len(earlier) == 1 and len(index.newest()) == 2 and len(earlier) == 1


def test_an_index_that_cannot_be_opened_now_is_opened_later(embedder, tmp_path, monkeypatch):
    place = tmp_path / "index"
    Index.create(place, embedder).close()
    index = OpenIndex(str(place), embedder)
    assert len(index.newest()) == 0
    with Index.open(place, embedder) as writer:
        writer.add([Document("a", TEXTS[0])])

    def fail(*arguments):
        raise StoreError("too many open files")

    with monkeypatch.context() as failing, pytest.raises(StoreError):
        failing.setattr(Index, "open", fail)
        index.newest()
    assert len(index.newest()) == 1


def test_an_index_that_is_made_again_is_searched(embedder, tmp_path):
    place = tmp_path / "index"
    index = None
    for name in "ab":
        with Index.create(place, embedder) as made:
            made.add([Document(name, TEXTS[0])])
        index = index or OpenIndex(str(place), embedder)
        assert index.newest().search(QUERY)[0].id == index.document(name).id == name
        shutil.rmtree(place)
        with pytest.raises(StoreError, match=f"no index at {place}"):
            index.newest()


def test_verify(server):
    body = {"quote": "The finally  clause is always executed", "text": TEXTS[0]}
    done = server.post("/v1/verify", json=body).json()
    assert (done["match"], done["word_for_word"], done["similarity"]) == ("normalized", True, 1.0)
    assert [(one["start"], one["end"], one["text"]) for one in done["places"]] == [
        (0, 37, TEXTS[0][:37])
    ]
    done = server.post(
        "/v1/verify", json={"quote": "A tuple can be changed.", "document": "a"}
    ).json()
    (place,) = done["places"]
    assert (done["match"], done["word_for_word"]) == ("changed", False)
    assert [(one["quote"], one["text"]) for one in place["changes"]] == [("can", "cannot")]
    assert server.post("/v1/verify", json={"quote": "a", "document": "nothing"}).status_code == 404
    for body in (
        {"quote": "a"},
        {"quote": "a", "text": "b", "document": "a"},
        {"quote": " ", "text": "b"},
    ):
        assert server.post("/v1/verify", json=body).status_code == 400
