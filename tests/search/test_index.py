"""An index of real documents by a model: what goes in, what changes, what is found, at any kind of
place.
"""

import os
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.stored_documents import passages_of
from helpers.texts import repeat
from helpers.tiny import tiny_model

from runnel import Document, Embedder
from runnel.errors import InputError, StoreError
from runnel.search.index import Index

TEXTS = {
    "river": "A river runs to the sea. The river is executed finally.",
    "cat": repeat("The cat sat on the mat. The dog sat on the cat. ", 12),
    "clause": "The finally clause is executed on the mat.",
}


@pytest.fixture
def index(embedder, tmp_path):
    made = Index.create(tmp_path / "index", embedder, fields={"year": "int"}, passage_tokens=20)
    yield made
    made.close()


def documents(**changed: str):
    return [
        Document(name, text, {"year": 2000 + i, "note": [i]})
        for i, (name, text) in enumerate((TEXTS | changed).items())
    ]


def test_the_vectors_of_the_embedder_are_stored_and_only_what_has_changed_is_read_again(
    index, embedder
):
    changes = index.add(documents())
    assert changes.added == list(TEXTS) and not changes.failed and len(index) == 3
    assert changes.tokens == changes.tokens_read > 100
    rows = passages_of(index.store)
    for name, text in TEXTS.items():
        passages = [rows[key] for key in sorted(rows) if key[0] == name and key[1] >= 0]
        assert "".join(row.text for row in passages) == text
        np.testing.assert_allclose(
            np.stack([row.vector for row in passages]),
            embedder.encode_spans(text, [(row.start, row.end) for row in passages]),
            atol=2e-5,
        )
        np.testing.assert_allclose(rows[name, -1].vector, embedder.encode_document(text), atol=2e-5)
    stored = index.store.documents(["cat"])["cat"]
    assert stored.text == TEXTS["cat"] and stored.metadata == {"year": 2001, "note": [1]}
    changes = index.add(documents(river="Another river."))
    assert (
        changes.updated == ["river"]
        and changes.unchanged == ["cat", "clause"]
        and changes.added == []
    )
    assert changes.tokens == 11
    # other metadata
    assert index.add([Document("cat", TEXTS["cat"], {"year": 1990})]).updated == ["cat"]
    assert index.search("cat", where={"year": {"<": 2000}})[0].id == "cat"
    changes = index.delete(["river", "nothing"])
    assert changes.deleted == ["river"] and changes.failed == {
        "nothing": "there is no such document"
    }
    assert "river" not in {hit.id for hit in index.search("river")} and len(index) == 2
    log = repeat("The cat sat on the mat. ", 2500)  # more than 16,384 tokens
    index.add([Document("log", log)])
    # costs the last passage and the new tokens
    changes = index.add([Document("log", log + "The dog sat.")])
    assert changes.tokens_read < 60 and changes.tokens > 16_384


def test_search_finds_by_words_and_by_vectors_and_shows_sentences(index):
    assert index.search("cat", 2**33) == []
    index.add([*documents(), Document("letters", "a b c d")])
    timings: dict[str, float] = {}
    hits = index.search("the finally clause", top_k=2, sentences=1, timings=timings)
    assert (
        [hit.rank for hit in hits] == [1, 2]
        and hits[0].id == "clause"
        and hits[0].score > hits[1].score
    )
    for hit in hits:
        assert hit.text == TEXTS[hit.id]
        assert len(hit.sentences) == 1 and all(
            hit.text[s.start : s.end] == s.text for s in hit.sentences
        )
    assert list(timings) == ["query", "dense", "lexical", "fetch", "sentences"]
    assert index.search("river", sentences=0)[0].sentences == ()
    assert [hit.id for hit in index.search("river", where={"year": 2002})] == ["clause"]
    assert len(index.search("the cat", 2**33)) == 4
    for among in ({"river", "cat", "no"}, ["cat", "river"]):
        found = {hit.id for hit in index.search("the finally clause", among=among)}
        assert found == {"cat", "river"}
    assert [hit.id for hit in index.search("the finally clause", among="cat")] == ["cat"]
    assert index.search("cat", among=["cat"], where={"year": 2002}) == []
    assert index.search("cat", among=[]) == []
    assert index.search("b", top_k=1, sentences=0)[0].id == "letters"  # it has no word that counts


BAD = [
    (Document("cat", "again"), "'cat'"),
    (Document("a\ud800", "text"), "id contains U+D800"),
    (Document("a", "te\udfffxt"), "text contains U+DFFF"),
    (Document("a", "text", {"title": "\ud800"}), "title contains U+D800"),
    (Document("a", "text", {"by": ["\ud800"]}), "metadata contains U+D800"),
    (Document("a", "text", {"year": 2**63}), "9223372036854775808"),
    (Document("a", "text", {"year": "x"}), "'x'"),
    (Document("a", "text", {"thing": object()}), "JSON"),
    (Document("a", "text", {1: "b"}), "key 1 "),
    (Document("a", " \n"), "empty document"),
]


def test_a_document_that_cannot_be_stored_does_not_stop_the_others(index, caplog):
    for bad, reason in BAD:
        caplog.clear()
        for _ in range(2):  # repeatable
            changes = index.add([documents()[1], bad, Document("last", "the last one")])
            assert list(changes.failed) == [bad.id] and reason in changes.failed[bad.id]
            assert set(index.store.content_hashes()) == {"cat", "last"}
        assert caplog.text.count("left out: ") == 2


OWN = {
    "blocks": 3,
    "title": "Cats",
    "source": "a book",
    "source_hash": "x",
    "content_hash": [1],
    "tokens": None,
    "id": "b",
}


def test_metadata_comes_back_as_it_was_whatever_its_keys_and_any_key_can_be_a_field(
    index, embedder, tmp_path
):
    # has a title of its own
    of_a_play = Document("c", "A play.", {"title": "of a play"}, title="Cats")
    given = [
        Document("a", "The cat.", OWN),
        Document("b", "The dog.", {"title": None, "blocks": "intro"}),
        of_a_play,
    ]
    assert index.add(given).failed == {} and index.add(given).unchanged == ["a", "b", "c"]
    hits = {hit.id: hit for hit in index.search("the cat")}
    for row in (index.store.documents(["a", "b", "c"]), hits):
        assert {name: value.metadata for name, value in row.items()} == {
            document.id: document.metadata for document in given
        }
        titles = {name: (value.title, value.source) for name, value in row.items()}
        assert titles == {"a": ("Cats", ""), "b": ("", ""), "c": ("Cats", "")}
    assert index.add([replace(of_a_play, title="Dogs")]).updated == ["c"]
    with Index.create(
        tmp_path / "fields", embedder, fields={"blocks": "int", "title": "str", "source": "str"}
    ) as fields:
        fields.add(
            [
                Document("a", "The cat.", OWN),
                Document("b", "The cat.", {"blocks": 4, "title": "Dogs"}),
            ]
        )
        for where in ({"blocks": 3}, {"title": "Cats"}, {"source": "a book"}, {"blocks": {"<": 4}}):
            assert [hit.id for hit in fields.search("cat", where=where)] == ["a"]


def test_an_index_opens_again_with_its_model_only(index, embedder, tmp_path):
    index.add(documents())
    index.close()
    with Index.open(tmp_path / "index", embedder) as again:
        assert again.search("river")[0].id == "river"
    for other in (
        Embedder(tiny_model(tmp_path / "other", seed=1)),
        Embedder(embedder.model, truncate_dim=8),
    ):
        with pytest.raises(StoreError, match=r"'tiny'.*'tiny'"):
            Index.open(tmp_path / "index", other)
    with Index.create(tmp_path / "named", "pocket") as named:
        named.add(
            [
                Document("a", "The heart pumps blood."),
                Document("b", "Rivers carry water to the sea."),
            ]
        )
    with Index.open(tmp_path / "named") as again:
        assert again.search("cardiac muscle")[0].id == "a"


REFUSED = [
    (lambda index: index.add([("a", "text")]), "got tuple"),
    (lambda index: index.add("cat"), "'cat'"),
    (lambda index: index.add({"a": "text"}), "a dict"),
    (lambda index: index.add(None), "None"),
    (lambda index: index.add(documents()[0]), "a list"),
    (lambda index: index.add_files("notes"), "'notes'"),
    (lambda index: index.search(" "), "empty"),
    (lambda index: index.search("\x00\u202e"), "no tokens"),
    (lambda index: index.search("cat", top_k=0), "top_k is 0"),
    (lambda index: index.search("cat", top_k=2.5), "top_k is 2.5"),
    (lambda index: index.search("cat", where=[1]), "[1]"),
    (lambda index: index.search("cat", where={"size": 1}), "'size'"),
    (lambda index: index.search("cat", where={"year": {}}), "'year'"),
    (lambda index: index.search("cat", dense_weight=float("nan")), "dense_weight"),
    (lambda index: index.search("cat", dense_weight="x"), "'x'"),
    (lambda index: index.search("cat", rerank=-5), "rerank"),
    (lambda index: index.search("cat", read=1.5), "1.5"),
    (lambda index: index.search("cat", sentences=-1), "sentences"),
]


def test_bad_input_is_refused(index):
    for call, part in REFUSED:
        with pytest.raises(InputError) as refused:
            call(index)
        assert part in str(refused.value)


def test_bad_places_and_settings_are_refused_and_a_new_folder_is_private(embedder, tmp_path):
    for wrong in (None, "", 3):
        for call in (Index.open, lambda place: Index.create(place, embedder)):
            with pytest.raises(InputError, match=f"place is {wrong!r}"):
                call(wrong)
    for options, part in (
        ({"fields": ["year"]}, "year"),
        ({"fields": {"when": "date"}}, "date"),
        ({"passage_tokens": "x"}, "'x'"),
    ):
        with pytest.raises(InputError, match=part):
            Index.create(tmp_path / "no", embedder, **options)
    (tmp_path / "there").mkdir()
    (tmp_path / "there").chmod(0o750)
    for name, mode in (("new", 0o700), ("there", 0o750)):
        Index.create(tmp_path / name, embedder).close()
        # Windows has no such modes
        assert (tmp_path / name).stat().st_mode & 0o777 == mode or os.name == "nt"


@pytest.fixture
def open_folder():
    """An empty folder that all users can enter; pytest's own cannot be entered."""
    with tempfile.TemporaryDirectory() as outer:
        folder = Path(outer) / "lib"
        folder.mkdir()
        for path in (folder, folder.parent):
            path.chmod(0o755)
        yield folder


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
@pytest.mark.parametrize("mask", [0o000, 0o022])
def test_an_index_in_a_folder_that_others_can_enter_is_closed_to_them(embedder, open_folder, mask):
    before = os.umask(mask)
    try:
        with Index.create(open_folder, embedder, remember=True) as index:
            expect_private(open_folder)
            index.add(documents())
            index.optimize()
            expect_private(open_folder)
            for number in range(22):  # the commits' table is compacted too
                index.add([Document("cat", f"A bird flies {number}.")])
            index.delete(["clause"])
            index.optimize()
        with Index.open(open_folder, embedder) as index:
            index.add([Document("new", "A secret dog.")])
    finally:
        os.umask(before)
    expect_private(open_folder)
    if os.geteuid() == 0:
        for command, code in (("ls", 0), ("cat *.lance/*/*", 1), ("cat writer.lock", 1)):
            other = {"user": 65534, "group": 65534, "extra_groups": []}
            done = subprocess.run(["sh", "-c", command], cwd=open_folder, **other)
            assert done.returncode == code


def expect_private(folder):
    """Expect that no other user can read a file below a folder, which they can enter."""
    for at, folders, files in os.walk(folder):
        assert [
            name for name in (*folders, *files) if os.stat(Path(at, name)).st_mode & 0o077
        ] == []
        folders.clear()  # nobody else comes below them


def test_a_reader_keeps_what_it_opened_until_a_writer_tidies_it_away(index, embedder, tmp_path):
    """The files of a commit are kept while 20 newer ones can be gone back to; then the reader moves
    to the newest.
    """
    index.add(documents())
    with Index.open(tmp_path / "index", embedder) as reader:
        assert reader.search("the cat")[0].id == "cat"
        for round_ in range(2):
            for number in range(22):
                index.add([Document("cat", f"A bird flies {round_} {number}.", {"year": 2001})])
            index.optimize()
            hits = {hit.id: hit.text for hit in reader.search("a bird that flies")}
            assert hits["cat"] in (TEXTS["cat"], "A bird flies 1 21.")
        index.add([Document("dog", "The dog sleeps.")])
        reader.refresh()
        assert reader.search("dog sleeps")[0].id == "dog" and not reader.store.refresh()


def test_an_index_that_another_process_has_just_made_is_opened(embedder, tmp_path, monkeypatch):
    """The place was empty when the caller looked, and is not when it creates the index."""
    place = tmp_path / "index"
    with Index.open_or_create(place, embedder, fields={"year": "int"}) as index:
        index.add([Document("a", "The mill burned.", {"year": 1911})])
    seen = iter([False, True])
    monkeypatch.setattr("runnel.search.index.holds_index", lambda place: next(seen))
    opened = Index.open_or_create(place, embedder)
    assert len(opened) == 1 and opened.store.settings.fields == {"year": "int"}
    monkeypatch.setattr("runnel.search.index.holds_index", lambda place: False)
    with pytest.raises(StoreError, match="already holds an index"):
        Index.open_or_create(place, embedder)
