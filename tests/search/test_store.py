"""All stores keep the same promises."""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from helpers.children import PATHS, PROGRAMS, run_python
from helpers.stored_documents import SETTINGS, add, document, passages_of, seen, unit
from lancedb.table import LanceTable
from programs.killed_writer import text_of

from runnel.errors import InputError, StoreError
from runnel.search.filters import conditions
from runnel.search.lance import LanceStore, connect
from runnel.search.records import WHOLE, IndexSettings
from runnel.search.stores import create_store, holds_index, open_store


@pytest.fixture(params=["lance", pytest.param("s3", marks=pytest.mark.slow), "qdrant"])
def place(request, place_of):
    return place_of(request.param)


@pytest.fixture
def store(place):
    made = place.create()
    yield made
    made.close()


APPLE = document(
    "apple",
    ["apples are red. ", "some are green."],
    [unit(1, 0, 0, 0), unit(1, 1, 0, 0)],
    b"\0\1",
    year=2020,
)
ZEBRA = document(
    "zebra's", ["a zebra runs."], [unit(0, 0, 1, 0)], year=2024, language="en", draft=False
)


def test_what_was_put_in_comes_back(store, place):
    assert store.nearest(unit(1, 0, 0, 0), 5, []) == [] == store.lexical("zebra", 5, [])
    assert store.content_hashes() == {} == store.documents(["a"]) == passages_of(store)
    commit = add(store, APPLE, ZEBRA)
    assert (commit.number, commit.documents, commit.passages) == (1, 2, 3)
    store.close()
    again = place.open()
    assert again.settings == SETTINGS
    assert again.documents(["apple", "nothing"], saved=True) == {"apple": APPLE[0]}
    found = passages_of(again)
    assert len(found) == 5
    for row in (*ZEBRA[1], *APPLE[1]):
        have = found[row.document, row.number]
        assert np.array_equal(have.vector, row.vector)
        assert (have.start, have.end, have.text, have.page, have.heading) == (
            row.start,
            row.end,
            row.text,
            row.page,
            row.heading,
        )
    assert again.content_hashes() == {
        name: (f"/{name}.txt", "s" + name, "t" + name) for name in ("apple", "zebra's")
    }


def test_searches_are_exact_filters_hold_in_both_and_replaced_documents_are_gone(store):
    add(store, APPLE, ZEBRA)
    found = store.nearest(unit(1, 0.1, 0, 0), 10, [])
    assert len(found) == 5  # three passages, two whole documents
    assert (found[0].document, found[0].number) == ("apple", 0)
    assert found[0].score == pytest.approx(float(unit(1, 0.1, 0, 0) @ unit(1, 0, 0, 0)), abs=1e-6)
    assert [f.score for f in found] == sorted((f.score for f in found), reverse=True)
    assert [(row.document, row.number) for row in store.lexical("green", 5, [])] == [("apple", 1)]
    assert [(row.document, row.number) for row in store.lexical("zebra", 5, [])] == [("zebra's", 0)]
    assert store.lexical("unknown", 5, []) == [] == store.lexical("  ", 5, [])
    for wanted, names in (
        ({"year": {">=": 2021}}, {"zebra's"}),
        ({"year": 2020}, {"apple"}),
        ({"language": ["en", "it's"]}, {"zebra's"}),
        ({"draft": False, "year": {"<": 2030, "!=": 2000}}, {"zebra's"}),
        ({"language": []}, set()),
    ):
        where = conditions(wanted, SETTINGS.fields)
        assert {row.document for row in store.nearest(unit(1, 1, 1, 0), 10, where)} == names
        assert {row.document for row in store.lexical("apples zebra", 10, where)} == names
    add(
        store,
        document("apple", ["only pears."], [unit(0, 0, 0, 1)]),
        delete=["zebra's", "not there"],
    )
    assert set(store.content_hashes()) == {"apple"}
    assert {(row.document, row.number) for row in store.nearest(unit(1, 0, 0, 0), 10, [])} == {
        ("apple", 0),
        ("apple", WHOLE),
    }
    assert store.lexical("green zebra", 5, []) == []
    assert store.documents(["apple"], saved=True)["apple"].saved is None


UNSPACED = {
    "zh": ("北京大学是中国的一所大学。", "中国"),
    "ja": ("東京都庁は新宿にあります。", "新宿"),
    "th": ("ภาษาไทยเป็นภาษาราชการของประเทศ", "ราชการ"),
    "mixed": ("Das iPhone手机 ist neu", "手机"),
}


def test_words_of_scripts_without_spaces_are_found(store):
    add(store, APPLE)
    assert [row.document for row in store.lexical("green 新宿", 5, [])] == ["apple"]
    add(
        store, *(document(name, [text], [unit(1, 0, 0, 0)]) for name, (text, _) in UNSPACED.items())
    )
    add(store, document("later", ["later 電話番号 here"], [unit(1, 0, 0, 0)]))
    for name, (_, word) in UNSPACED.items():
        assert [row.document for row in store.lexical(word, 5, [])] == [name]
    assert [row.document for row in store.lexical("電話", 5, [])] == ["later"]
    assert [row.document for row in store.lexical("green 新宿", 5, [])] in (
        ["apple", "ja"],
        ["ja", "apple"],
    )
    assert [row.document for row in store.lexical("iphone", 5, [])] == ["mixed"]
    assert (
        store.lexical("上海", 5, [])
        == []
        == store.lexical("green 新宿", 5, conditions({"year": 7}, SETTINGS.fields))
    )
    store.optimize()
    assert [row.document for row in store.lexical("電話", 5, [])] == ["later"]


def test_words_are_also_their_parts_and_a_whole_word_counts_more(store):
    """Also in rows that came after the first commit."""
    texts = {
        "camel": "Call refreshTokenForUser to renew it.",
        "snake": "Call refresh_token_for_user to renew it.",
        "prose": "You can refresh the token for a user.",
        "pump": "Pump E-1107 leaks.",
    }
    later = {"other pump": "Pump E-1108 leaks, and so does 1109.", "other": "A token is a sign."}
    for part in (texts, later):
        add(store, *(document(name, [text], [unit(1, 0, 0, 0)]) for name, text in part.items()))
    found = {
        query: [row.document for row in store.lexical(query, 6, [])]
        for query in ("refreshTokenForUser", "refresh token", "e1107", "E-1107")
    }
    assert found["refreshTokenForUser"][0] == "camel"
    assert set(found["refresh token"][:3]) == {"camel", "snake", "prose"}
    assert found["e1107"][0] == found["E-1107"][0] == "pump"


def test_a_reader_sees_a_commit_when_it_refreshes_and_writes_after_the_writer(store, place):
    reader = place.open()
    add(store, APPLE)
    assert reader.content_hashes() == {} or place.kind == "qdrant"  # is read live
    reader.refresh()
    assert (
        set(reader.content_hashes()) == {"apple"}
        and reader.nearest(unit(1, 0, 0, 0), 1, [])[0].document == "apple"
    )
    if place.kind == "lance":  # others have no lock, see test_object_storage.py
        with pytest.raises(StoreError, match=r"is being written by process \d+"):
            add(reader, ZEBRA)
    store.close()
    assert add(reader, ZEBRA).documents == 2
    reader.close()


def test_optimize_and_a_new_connection_change_nothing_that_can_be_seen(store, place, monkeypatch):
    for i in range(6):
        add(store, document(f"d{i}", [f"number {i} here."], [unit(1, i, 0, 0)], year=i))

    before = seen(store, "number")
    with monkeypatch.context() as patch:
        # as after a correction of the clock
        patch.setattr("runnel.search.lance.time.time", lambda: 0.0)
        store.optimize()
    assert seen(store, "number") == before
    opened = []  # a connection of LanceDB caches what it reads of every version
    monkeypatch.setattr(
        "runnel.search.lance.connect", lambda *a, **more: opened.append(a) or connect(*a, **more)
    )
    for _ in range(25):
        add(store, document("d0", ["number 0 here."], [unit(1, 0, 0, 0)], year=0))
    assert seen(store, "number") == before and (place.kind == "qdrant" or len(opened) == 1)
    assert place.open().last_commit() == store.last_commit()


def test_opening_says_what_is_wrong(place):
    with pytest.raises(StoreError, match="there is no index at"):
        replace(place, uri=place.uri + "-missing").open()
    place.create()
    with pytest.raises(StoreError, match="already holds an index"):
        place.create()
    old = replace(place, uri=place.uri + "-old")
    old.create(replace(SETTINGS, format=1))
    with pytest.raises(StoreError, match=r"has index format 1, .*; index the documents again"):
        old.open()


def test_of_many_that_create_an_index_at_once_one_does(tmp_path):
    for turn in range(5):
        uri = str(tmp_path / str(turn))
        ready = threading.Barrier(4)

        def create(uri=uri, ready=ready):
            ready.wait()
            try:
                return LanceStore.create(uri, SETTINGS)
            except StoreError as error:
                assert "already holds an index" in str(error)
                return None

        with ThreadPoolExecutor(4) as pool:
            made = [future.result() for future in [pool.submit(create) for _ in range(4)]]
        (store,) = filter(None, made)
        add(store, APPLE)
        store.close()
        assert LanceStore.open(uri).last_commit().documents == 1


def test_a_search_reads_one_commit_while_another_thread_moves_to_the_next(tmp_path, monkeypatch):
    store = LanceStore.create(str(tmp_path), SETTINGS)
    add(store, APPLE)
    store.close()
    reader = LanceStore.open(str(tmp_path))
    search = LanceTable.search
    calls = []

    def search_and_move(table, *arguments, **options):
        calls.append(table)
        if len(calls) == 1:  # of the reader's passages, before its documents
            add(store, delete=["apple"])
            store.close()
            assert reader.refresh()
        return search(table, *arguments, **options)

    monkeypatch.setattr(LanceTable, "search", search_and_move)
    assert [row.document for row in reader.nearest(unit(1, 0, 0, 0), 1, [])] == ["apple"]
    assert reader.nearest(unit(1, 0, 0, 0), 1, []) == []


def test_an_index_that_replaces_another_is_not_taken_for_it(tmp_path):
    """Both have as many commits."""
    uri = str(tmp_path / "index")
    old = LanceStore.create(uri, SETTINGS)
    add(old, APPLE)
    old.close()
    shutil.rmtree(uri)
    for change in (lambda: add(old, APPLE), old.refresh):
        with pytest.raises(StoreError, match=f"{uri} has lost files.*Open it again"):
            change()
    new = LanceStore.create(uri, SETTINGS)
    add(new, ZEBRA)
    new.close()
    for change in (old.refresh, lambda: add(old, APPLE), old.optimize):
        with pytest.raises(StoreError, match=f"{uri} .*replaced.*open it again"):
            change()
    old.close()
    assert not new.refresh() and list(new.documents(None)) == ["zebra's"]


def test_threads_change_a_store_in_turn(tmp_path, monkeypatch):
    """One looks for a newer commit, and another commits before it has moved to what it saw."""
    store = LanceStore.create(str(tmp_path), SETTINGS)
    read = store._read_commits
    writer = threading.Thread(target=add, args=(store, APPLE))

    def read_and_commit():
        rows = read()
        monkeypatch.undo()
        writer.start()
        writer.join(1)  # it is done, or waits
        return rows

    monkeypatch.setattr(store, "_read_commits", read_and_commit)
    store.refresh()
    writer.join()
    store.close()
    assert store.last_commit().number == store.last_commit().documents == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"color": 3}, "'color'"),
        ({"year": {"~": 3}}, "'~'"),
        ({"year": "2020"}, "'2020'"),
        ({"year": True}, "True"),
        ({"year": {"<": float("inf")}}, "inf"),
        ({"year": [2020, 2**63]}, "9223372036854775808"),
        ({"year": -(2**63) - 1}, "-9223372036854775809"),
        ({"year": 10**5000}, "16,610 bits"),
        ({"size": float("nan")}, "nan"),
        ({"size": 10**400}, "1,329 bits"),
        ({"language": ["a", "\ud800"]}, "half of a surrogate pair"),
    ],
)
def test_bad_filters_are_refused(given, message):
    with pytest.raises(InputError) as refused:
        conditions(given, SETTINGS.fields | {"size": "float"})
    assert message in str(refused.value)


def test_the_ends_of_64_bits_are_found(store, place):
    add(
        store,
        *(
            document(f"d{year}", ["a text"], [unit(1, 0, 0, 0)], year=year)
            for year in (-(2**63), 0, 2**63 - 1)
        ),
    )
    # Qdrant compares as floats
    between = {"<": 2**63 - (1 if place.kind != "qdrant" else 1025), ">": -(2**63)}
    for wanted, count in ((-(2**63), 1), (2**63 - 1, 1), ({">=": -(2**63)}, 3), (between, 1)):
        where = conditions({"year": wanted}, SETTINGS.fields)
        assert len({row.document for row in store.nearest(unit(1, 0, 0, 0), 10, where)}) == count
        assert len({row.document for row in store.lexical("text", 10, where)}) == count


def test_many_passages_are_searched_by_an_index_of_vectors(tmp_path, monkeypatch):
    """Beyond `EXACT_ROWS` the table's own index is asked; its best are scored exactly."""
    monkeypatch.setattr("runnel.search.lance.EXACT_ROWS", 500)
    store = LanceStore.create(
        str(tmp_path / "index"), IndexSettings("pocket", [], 64, fields={"year": "int"})
    )
    vectors = np.random.default_rng(0).normal(size=(600, 64)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    add(
        store,
        *(
            document(f"d{i}", [f"text {i}"], [vector], year=i % 2)
            for i, vector in enumerate(vectors)
        ),
    )
    store.optimize()
    hits = 0
    for i in range(50):
        found = store.nearest(vectors[i], 5, conditions({"year": i % 2}, store.settings.fields))
        assert all(int(one.document[1:]) % 2 == i % 2 for one in found)
        assert found[0].score == pytest.approx(1, abs=1e-3) and found[0].document == f"d{i}"
        exact = np.argsort(-(vectors[i % 2 :: 2] @ vectors[i]))[:3] * 2 + i % 2
        hits += len({f"d{n}" for n in exact} & {one.document for one in found[:6]})
    assert hits > 0.9 * 150 * 5 / 6
    # is found before the index knows it
    add(store, document("new", ["a new text"], [vectors[0]], year=0))
    assert {row.document for row in store.nearest(vectors[0], 4, [])} >= {"d0", "new"}
    store.close()


@pytest.mark.slow
def test_a_process_that_sees_many_commits_does_not_grow(tmp_path):
    """LanceDB caches what it reads of every version, and Arrow's own allocators grow with its
    threads: 23 MB in 20 commits.
    """
    measured = run_python(PROGRAMS / "many_commits.py", tmp_path / "index", 20, 40)
    early, late = map(float, measured.split())
    assert late - early < 5


# ---- kill -9 at any moment: what was acknowledged is there, and the next writer goes on ----------


def run_and_kill(uri: str, after: float) -> list[int]:
    """The versions that a writer acknowledged before it was killed, `after` seconds behind its
    first one.
    """
    command = [sys.executable, str(PROGRAMS / "killed_writer.py"), uri]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, env=os.environ | PATHS, text=True
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        time.sleep(after)
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.readlines()
    return [int(line) for line in lines if line.endswith("\n")]


def check_killed(uri: str, acknowledged: int) -> None:
    store = LanceStore.open(uri)
    documents = store.documents(list(store.content_hashes()))
    version = max(int(name[1:]) for name in documents) - 2
    # the last commit may be done and not yet told
    assert version in (acknowledged, acknowledged + 1)
    expected = {f"d{n}": text_of(n, version) for n in range(version, version + 3)}
    assert {name: row.text for name, row in documents.items()} == expected
    passages = passages_of(store)
    assert len(passages) == 6 == len(store.nearest(np.ones(4, dtype=np.float32), 50, []))
    assert all(
        np.array_equal(row.vector, np.eye(4, dtype=np.float32)[version % 4])
        for row in passages.values()
    )
    assert {(row.document, row.number) for row in store.lexical(f"edition{version}", 50, [])} == {
        (name, 0) for name in documents
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "times", "seconds"),
    [("lance", 4, 0.4), pytest.param("lance", 20, 0.4, marks=pytest.mark.release), ("s3", 2, 1.0)],
)
def test_a_killed_writer_loses_nothing_that_it_acknowledged(place_of, kind, times, seconds):
    place = place_of(kind)
    rng = random.Random(7)
    last = -1
    place.create().close()
    for _ in range(times):
        told = run_and_kill(place.uri, rng.uniform(0, seconds))
        assert told and told[0] > last
        last = told[-1]
        check_killed(place.uri, last)


@pytest.mark.parametrize(
    "uri",
    [
        "s3://AKIA:s3cr3t@bucket/library",
        "s3://AKIA:s3/cr3t@bucket/library",
        "az://c/library?sig=s3cr3t",
        "gs://b/l?x=1&Key=s3cr3t",
        "qdrant+http://me:s3cr3t@localhost:1/index",
        "qdrant+https://s3cr3t@localhost/index",
        "qdrant+http://h/i?api_key=s3cr3t",
        "qdrant+http://s3cr3t@localhost/",
    ],
)
def test_a_place_with_a_password_or_a_key_is_refused_without_them(uri):
    """No store uses them, and the place would be shown by later errors."""
    for use in (open_store, holds_index, lambda place: create_store(place, SETTINGS)):
        with pytest.raises(InputError, match=uri.partition("://")[0].replace("+", r"\+")) as caught:
            use(uri)
        assert "cr3t" not in str(caught.value)
