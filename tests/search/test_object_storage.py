"""The index under a URI of an object storage, on a local S3 server."""

import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import lancedb
import pytest
from helpers.children import GIVE_UP_S
from helpers.stored_documents import SETTINGS, add, document, passages_of, seen, unit

from runnel.errors import StoreError
from runnel.search.lance import LanceStore
from runnel.search.lance_tables import schemas
from runnel.search.records import WHOLE

pytestmark = pytest.mark.slow


@pytest.fixture
def uri(place_of):
    return place_of("s3").uri


def commit(store, name, word, delete=()):
    return add(
        store,
        document(name, [f"fruit {word}. ", "fruit."], [unit(1, 2, 3, 4), unit(4, 3, 2, 1)]),
        delete=delete,
    )


def content(uri):
    """Everything that a new reader sees, after it was checked to be whole: id -> its word."""
    store = LanceStore.open(uri)
    documents, texts, found, count = seen(store, "fruit")
    assert (
        set(passages_of(store))
        == set(texts)
        == {(name, number) for name in documents for number in (0, 1, WHOLE)}
    )
    assert all(texts[name, 0] + texts[name, 1] == row.text for name, row in documents.items())
    assert found == {key for key in texts if key[1] != WHOLE} and count == len(documents)
    assert store.last_commit().passages == len(found)
    return {name: row.text.split()[1].rstrip(".") for name, row in documents.items()}


# ---- one place, many writers ---------------------------------------------------------------------


class Paused:
    """Holds a writer, known by its access key, before the n-th version it makes."""

    def __init__(self, number):
        self._left = number
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def __call__(self):
        self._left -= 1
        if self._left == 0:
            self.reached.set()
            assert self.go_on.wait(GIVE_UP_S)


def attempt(work):
    try:
        work()
    except StoreError as error:
        assert "another writer has changed" in str(error) and "nothing was written" in str(error)
        return False
    return True


STEPS = 5  # versions that a commit makes: both tables restored, both tables changed, the commit row
CROSSED = [(2, 3), (2, 4)]  # each has restored one of the tables last, so neither can go on
# step 6: it is never held
PAIRS = list(itertools.product(range(1, STEPS + 1), range(1, STEPS + 2)))
QUICK = {*CROSSED, (1, 6), (3, 1), (3, 6), (4, 4), (5, 1), (5, 5), (5, 6)}


@pytest.mark.parametrize(
    ("first", "second"),
    [pytest.param(*pair, marks=[] if pair in QUICK else pytest.mark.release) for pair in PAIRS],
)
def test_two_writers_at_any_two_points(s3, uri, monkeypatch, first, second):
    """The first is held before one of its steps, the second begins and is held before one of its
    own; then the first goes on.
    """
    store = LanceStore.create(uri, SETTINGS)
    commit(store, "a", "apples")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "second")
    other = LanceStore.open(uri)
    gates = {"first": Paused(first), "second": Paused(second)}
    s3.before = lambda key, path: gates[key]()
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(attempt, lambda: commit(store, "b", "bananas"))
        assert gates["first"].reached.wait(GIVE_UP_S)
        two = pool.submit(attempt, lambda: commit(other, "c", "cherries", delete=["a"]))
        while not (two.done() or gates["second"].reached.wait(0.01)):
            pass
        gates["first"].go_on.set()
        first_wins = one.result(GIVE_UP_S)
        gates["second"].go_on.set()
        second_wins = two.result(GIVE_UP_S)
    assert gates["second"].reached.is_set() == (second <= STEPS)
    assert (first_wins, second_wins) in (
        [(False, False)] if (first, second) in CROSSED else [(True, False), (False, True)]
    )
    seen = (
        {"a": "apples", "b": "bananas"}
        if first_wins
        else {"c": "cherries"}
        if second_wins
        else {"a": "apples"}
    )
    assert content(uri) == seen
    s3.before = lambda key, path: None
    commit(store, "d", "dates")  # and both go on
    commit(other, "e", "eggs")
    assert content(uri) == seen | {"d": "dates", "e": "eggs"}


@pytest.mark.parametrize(("step", "debris"), [(1, False), (3, False), (2, True), (3, True)])
def test_of_two_that_make_the_index_one_does(s3, uri, monkeypatch, step, debris):
    """The late one is held before it makes the first, second or third table; `debris` is of a
    creation that ended too early.
    """
    if debris:
        for name, schema in schemas(SETTINGS).items():
            lancedb.connect(uri).create_table(name, schema=schema)
    gate = Paused(step)
    s3.before = lambda key, path: gate() if key == "first" else None
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(LanceStore.create, uri, replace(SETTINGS, fields={}))
        assert gate.reached.wait(GIVE_UP_S)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "second")
        store = LanceStore.create(uri, SETTINGS)
        commit(store, "a", "apples")
        gate.go_on.set()
        with pytest.raises(StoreError, match="already holds an index"):
            late.result(GIVE_UP_S)
    assert content(uri) == {"a": "apples"} and LanceStore.open(uri).settings == SETTINGS
    commit(store, "b", "bananas")
    assert content(uri) == {"a": "apples", "b": "bananas"}


def test_of_two_that_make_the_index_in_step_one_says_that_the_other_does(s3, uri, monkeypatch):
    """The late one is held before the first table, and goes on when the other has made only it."""
    gates = {"first": Paused(1), "second": Paused(2)}
    s3.before = lambda key, path: gates[key]()
    with ThreadPoolExecutor(2) as pool:
        late = pool.submit(LanceStore.create, uri, SETTINGS)
        assert gates["first"].reached.wait(GIVE_UP_S)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "second")
        store = pool.submit(LanceStore.create, uri, SETTINGS)
        assert gates["second"].reached.wait(GIVE_UP_S)
        gates["first"].go_on.set()
        with pytest.raises(StoreError, match="another process is making an index"):
            late.result(GIVE_UP_S)
        gates["second"].go_on.set()
        assert store.result(GIVE_UP_S).last_commit().number == 0


# ---- what goes wrong -----------------------------------------------------------------------------


def test_a_lost_connection_is_told_and_what_was_committed_is_there(s3, uri, monkeypatch):
    monkeypatch.setattr("runnel.search.lance._PATIENCE", {"client_max_retries": "0"})
    store = LanceStore.create(uri, SETTINGS)
    commit(store, "a", "apples")
    made = []

    def stop_at_the_commit_row(key, path):
        made.append(path)
        s3.refuse = "InternalError" if len(made) == STEPS - 1 else None

    s3.before = stop_at_the_commit_row
    with pytest.raises(StoreError):
        commit(store, "b", "bananas")
    s3.refuse = None
    s3.before = lambda key, path: None
    assert (
        {row.document for row in store.nearest(unit(1, 1, 1, 1), 9, [])}
        == {"a"}
        == set(store.content_hashes())
    )
    assert content(uri) == {"a": "apples"}
    s3.stop()
    try:
        with pytest.raises(StoreError, match=f"{uri} cannot be reached"):
            commit(store, "b", "bananas")
        with pytest.raises(StoreError, match="cannot be reached"):
            LanceStore.open(uri)
    finally:
        s3.start()
    assert content(uri) == {"a": "apples"}
    commit(store, "b", "bananas")
    assert content(uri) == {"a": "apples", "b": "bananas"}


def test_wrong_places_and_keys_are_told(s3, uri, monkeypatch):
    with pytest.raises(StoreError, match="bucket of s3://nowhere/index does not exist"):
        LanceStore.create("s3://nowhere/index", SETTINGS)
    with pytest.raises(StoreError, match="no index at s3://bucket/none"):
        LanceStore.open("s3://bucket/none")
    with pytest.raises(StoreError, match="foo://bucket/x is not a place for an index"):
        LanceStore.open("foo://bucket/x")
    s3.refuse = "InvalidAccessKeyId"
    with pytest.raises(StoreError, match=f"no access to {uri}; check the credentials"):
        LanceStore.open(uri)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(StoreError, match=f"no access to {uri}; check the credentials"):
        LanceStore.open(uri)


def test_the_command_line_takes_a_uri(run, uri, tmp_path):
    (tmp_path / "a.txt").write_text("The treaty was signed in Vienna. Nobody spoke.")
    for added in (1, 0):
        assert (
            json.loads(run("index", tmp_path / "a.txt", "--to", uri, "--json").out)["added"]
            == added
        )
    assert "Vienna" in run("search", "where was the treaty signed?", "--in", uri).out
    assert run("search", "treaty", "--in", uri + "-missing").code == 2
