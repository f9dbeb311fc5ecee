"""The index in Qdrant: the same answers as LanceDB's, and what a crash leaves is mended."""

import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise

import numpy as np
import pytest
from helpers.children import GIVE_UP_S
from helpers.local_qdrant import URI, LocalQdrant, local_qdrant
from helpers.stored_documents import SETTINGS, add, document, passages_of, seen, unit
from qdrant_client import models

from runnel.errors import InputError, StoreError
from runnel.search import qdrant
from runnel.search.filters import IDS, conditions
from runnel.search.lance import LanceStore
from runnel.search.qdrant import QdrantStore
from runnel.search.records import WHOLE, IndexSettings
from runnel.search.stores import create_store, holds_index, open_store
from runnel.text.words import bm25, words_of

FIELDS = {"year": "int", "size": "float", "language": "str", "draft": "bool"}
WORDS = "river mountain zebra engine tax novel apple winter harbour violin".split()


@pytest.fixture
def place(place_of):
    return place_of("qdrant")


def collection(rng, count):
    """Documents of three passages with fields, some of them left out."""
    made = []
    for i in range(count):
        texts = [" ".join(rng.choice(WORDS, size=int(rng.integers(4, 9)))) + ". " for _ in range(3)]
        fields = {"year": int(rng.integers(0, 4)), "size": float(rng.integers(0, 3)) / 3}
        fields |= {
            "language": str(rng.choice(["en", "de", "it's"])),
            "draft": bool(rng.integers(0, 2)),
        }
        kept = {name: value for name, value in fields.items() if rng.random() < 0.8}
        made.append(document(f"d{i}", texts, [unit(*rng.normal(size=4)) for _ in texts], **kept))
    return made


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("both")
    settings = IndexSettings("pocket", [], 4, fields=FIELDS, passage_tokens=16)
    with local_qdrant():
        stores = [LanceStore.create(str(folder / "lance"), settings), create_store(URI, settings)]
    documents = collection(np.random.default_rng(0), 40)
    for store in stores:
        add(store, *documents)
        store.close()
    return stores


FILTERS = [
    {},
    {"year": {">=": 1, "<": 3}},
    {"year": []},
    {"size": 1 / 3},
    {"size": {"!=": 1 / 3, ">": 0.2}},
    {"size": [0, 2 / 3], "year": {"<=": 2}},
    {"language": "it's"},
    {"language": {"!=": "en"}, "draft": True},
    {"language": ["en", "de"], "draft": {"!=": True}},
]


@pytest.mark.parametrize("among", [None, [], ["d3", "d17", "it's"]], ids=str)
@pytest.mark.parametrize("where", FILTERS, ids=str)
def test_both_stores_find_the_same(both, where, among):
    lance, qdrant = both
    assert qdrant.documents(None) == lance.documents(None)
    wanted = conditions(where, FIELDS)
    if among is not None:
        wanted.append((IDS, "in", among))
    for vector in (unit(1, 0, 0, 0), unit(1, -2, 3, 0.5)):
        ours = lance.nearest(vector, 500, wanted)
        theirs = qdrant.nearest(vector, 500, wanted)
        assert {(one.document, one.number) for one in theirs} == {
            (one.document, one.number) for one in ours
        }
        scores = {(one.document, one.number): one.score for one in ours}
        assert all(
            one.score == pytest.approx(scores[one.document, one.number], abs=1e-5) for one in theirs
        )
        assert [one.score for one in theirs] == sorted((one.score for one in theirs), reverse=True)
    for query in ("zebra", "river tax novel", "the zebra and a VIOLIN"):
        ours = lance.lexical(query, 500, wanted)
        theirs = qdrant.lexical(query, 500, wanted)
        assert {(one.document, one.number) for one in theirs} == {
            (one.document, one.number) for one in ours
        }


@pytest.mark.parametrize("where", [{"language": {"<": "en"}}, {"draft": {">=": True}}])
def test_an_order_that_qdrant_has_not_is_refused(both, where):
    with pytest.raises(
        InputError,
        match=r"Qdrant cannot compare '\w+' with .*; of texts and bools it knows =, != and lists",
    ):
        both[1].nearest(unit(1, 0, 0, 0), 5, conditions(where, FIELDS))


def test_words_are_weighed_as_by_bm25(both):
    """The mean length of a passage is taken from the settings and not from the texts; the rest of
    the formula is the same.
    """
    _, qdrant = both
    rows = [row for rows in qdrant.scan() for row in rows if row.number != WHOLE]
    library = bm25().BM25()
    library.index(words_of([row.text for row in rows]), show_progress=False)
    for query in ("zebra", "river tax novel", "zebra violin"):
        theirs = qdrant.lexical(query, 500, [])
        found = library.get_scores(words_of([query])[0])
        scores = {(row.document, row.number): score for row, score in zip(rows, found, strict=True)}
        assert theirs[0].score == pytest.approx(
            scores[theirs[0].document, theirs[0].number], rel=0.05
        )
        order = [scores[one.document, one.number] for one in theirs]
        assert all(a > b - 0.03 * order[0] for a, b in pairwise(order))


def test_memories_and_large_commits_come_back(place, monkeypatch):
    assert not holds_index(place.uri)
    monkeypatch.setattr("runnel.search.qdrant._BATCH_POINTS", 7)
    store = place.create(replace(SETTINGS, remember=True))
    documents = collection(np.random.default_rng(1), 20)
    assert holds_index(place.uri)
    documents[3] = (replace(documents[3][0], memory=b"\0\xff" * 50), documents[3][1])
    assert (add(store, *documents).documents, store.last_commit().passages) == (20, 60)
    assert store.memories(["d3", "d4", "none"]) == {"d3": b"\0\xff" * 50}
    assert (
        set(store.content_hashes())
        == set(store.documents([f"d{i}" for i in range(30)]))
        == {f"d{i}" for i in range(20)}
    )
    assert len(passages_of(store)) == 80


class Crash(BaseException):
    """Not an error that anyone handles."""


def version(name, texts, vector):
    row, passages = document(name, texts, [vector] * len(texts))
    return replace(row, content_hash=f"t{row.text}", source_hash=f"s{row.text}"), passages


OLD = [
    version("a", ["apples are red. ", "and green. ", "always."], unit(1, 0, 0, 0)),
    version("c", ["cherries."], unit(0, 0, 0, 1)),
]
NEW = [
    version("a", ["pears are yellow."], unit(0, 1, 0, 0)),
    version("b", ["bees."], unit(0, 0, 1, 0)),
]


@pytest.mark.parametrize("wanted", [OLD, NEW], ids=["back to the old", "the same again"])
@pytest.mark.parametrize("step", range(1, 8))
def test_what_a_crash_leaves_is_mended_by_the_next_add(place, monkeypatch, tmp_path, step, wanted):
    store = place.create()
    add(store, *OLD)
    calls = []

    def counted(method):
        def call(*arguments, **options):
            calls.append(method)
            if len(calls) == step:
                raise Crash
            return method(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        for name in ("upsert", "delete", "set_payload", "batch_update_points"):
            patch.setattr(store._client, name, counted(getattr(store._client, name)))
        with pytest.raises(Crash):
            add(store, *NEW, delete=["c"])
    reader = place.open()
    documents, texts, *_ = seen(reader, "apples")
    assert {name for name, _ in texts} <= set(documents)  # no passage without its document
    for name, row in documents.items():
        if row.content_hash:
            assert (
                row.source_hash
                and "".join(texts[key] for key in sorted(texts) if key[0] == name and key[1] >= 0)
                == row.text
            )
    known = reader.content_hashes()
    changed = [
        one
        for one in wanted
        if one[0].id not in known or known[one[0].id].content_hash != one[0].content_hash
    ]
    add(
        reader,
        *changed,
        delete=[name for name in known if name not in {row.id for row, _ in wanted}],
    )
    expected = LanceStore.create(str(tmp_path / "expected"), SETTINGS)
    add(expected, *wanted)
    expected.close()
    assert seen(reader, "apples always bees") == seen(expected, "apples always bees")
    assert reader.last_commit().passages == sum(len(some) - 1 for _, some in wanted)


def test_places_are_checked():
    for uri in (
        "qdrant+http://host",
        "qdrant+http://host/",
        "qdrant+ftp://host/a",
        "qdrant+http:///a",
    ):
        with pytest.raises(InputError, match="is not a Qdrant collection"):
            open_store(uri)
    with pytest.raises(
        StoreError,
        match=r"qdrant\+http://127.0.0.1:9/index cannot be reached",
    ):
        open_store("qdrant+http://127.0.0.1:9/index")


def test_a_collection_of_another_program_is_left_alone(place):
    store = place.create()
    other = place.uri.replace("/index", "/other")
    store._client.create_collection(
        "other", vectors_config=models.VectorParams(size=4, distance=models.Distance.DOT)
    )
    store._client.upsert("other", [models.PointStruct(id=1, vector=[1, 0, 0, 0])])
    with pytest.raises(StoreError, match="another program"):
        create_store(other, SETTINGS)
    assert store._client.count("other").count == 1


def test_of_two_that_create_an_index_one_waits_for_the_other(place, monkeypatch):
    """And never removes what the other has made so far."""
    monkeypatch.setattr(qdrant, "_CREATION_S", GIVE_UP_S)
    reached = threading.Event()
    go_on = threading.Event()
    write = QdrantStore._write_state

    def write_late(store, number):
        reached.set()
        assert go_on.wait(GIVE_UP_S)
        write(store, number)

    monkeypatch.setattr(QdrantStore, "_write_state", write_late)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(place.create)
        assert reached.wait(GIVE_UP_S)
        with monkeypatch.context() as before:  # both look before there is a collection
            before.setattr(LocalQdrant, "collection_exists", lambda *arguments: False)
            with pytest.raises(StoreError, match="another process is making an index"):
                place.create()
        second = pool.submit(create_store, place.uri, replace(SETTINGS, dimension=8))
        go_on.set()
        store = first.result(GIVE_UP_S)
        with pytest.raises(StoreError, match="already holds an index"):
            second.result(GIVE_UP_S)
    add(store, *OLD)
    assert place.open().settings == SETTINGS and place.open().last_commit().documents == 2


def test_what_an_interrupted_creation_has_left_is_replaced(place, monkeypatch):
    monkeypatch.setattr(qdrant, "_CREATION_S", 0.0)
    with monkeypatch.context() as interrupted:
        interrupted.setattr(QdrantStore, "_write_state", lambda *arguments: None)
        create_store(place.uri, replace(SETTINGS, dimension=8))
    assert not holds_index(place.uri)
    add(place.create(), *OLD)
    assert place.open().last_commit().documents == 2


def test_the_key_is_sent_and_a_wrong_one_is_told(monkeypatch):
    keys = []

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self):
            keys.append((self.path, self.headers["api-key"]))
            self.send_response(403)
            self.end_headers()
            self.wfile.write(f"forbidden: {'x' * 120} {self.headers['api-key']}".encode())

        def log_message(self, *arguments):
            pass

    monkeypatch.setenv("QDRANT_API_KEY", "s3cr3t-of-a-user")
    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        refused = pytest.raises(
            StoreError, match=r"qdrant\+http://127.0.0.1:\d+/index.*QDRANT_API_KEY"
        )
        with pytest.warns(UserWarning, match="insecure connection"), refused as caught:
            open_store(f"qdrant+http://127.0.0.1:{server.server_port}/index")
        server.shutdown()
    assert keys == [("/collections/index/exists", "s3cr3t-of-a-user")]
    shown = "".join(traceback.format_exception(caught.value))
    assert "***" in shown and "s3cr3t" not in shown, "the server has repeated it"
