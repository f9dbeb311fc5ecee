"""An index of a model's vectors at each kind of place answers as one in a folder does."""

from __future__ import annotations

import json
import os

import pytest

from runnel import Document
from runnel.search.encoding import new_settings
from runnel.search.index import Index
from runnel.search.stores import create_store, open_store

TEXTS = {
    "river": "A river runs to the sea. The zebra drinks from it.",
    "cat": "The cat sat on the mat. The dog sat on the cat. " * 12,
    "clause": "The finally clause is executed on the mat.",
}


def documents(texts):
    return [Document(name, text, {"year": 2000 + i, "note": [i]}) for i, (name, text) in enumerate(texts.items())]


def made(place, embedder):
    return Index(create_store(place, new_settings(embedder, {"year": "int"}, 20)), embedder)


def answers(index):
    """What a user sees of some searches; documents without a word of the query are ranked by vectors alone."""
    found = []
    for query, options in (("zebra", {}), ("mat", {"where": {"year": {">=": 2001}}}), ("executed sea", {"dense_weight": 0})):
        for hit in index.search(query, sentences=1, **options):
            assert hit.text == TEXTS[hit.id] and all(hit.text[s.start : s.end] == s.text for s in hit.sentences)
            found.append((query, hit.id, [s.text for s in hit.sentences]))
    return found


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_a_new_folder_is_private_and_an_existing_one_keeps_its_mode(embedder, tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there").chmod(0o750)
    for name, mode in (("new", 0o700), ("there", 0o750)):
        made(tmp_path / name, embedder).close()
        assert (tmp_path / name).stat().st_mode & 0o777 == mode


@pytest.mark.parametrize("kind", [pytest.param("s3", marks=pytest.mark.slow), "qdrant"])
def test_an_index_elsewhere_answers_as_in_a_folder(kind, place_of, embedder, tmp_path):
    place = place_of(kind).uri
    with made(tmp_path / "folder", embedder) as here, made(place, embedder) as there:
        for index in (here, there):
            assert index.add(documents(TEXTS | {"cat": "An earlier text.", "gone": "Nobody reads this."})).added == [
                *TEXTS,
                "gone",
            ]
            changes = index.add(documents(TEXTS))
            assert changes.updated == ["cat"] and changes.unchanged == ["river", "clause"]
            assert index.delete(["gone", "never"]).failed == {"never": "there is no such document"}
            index.optimize()
            assert len(index) == 3
        assert answers(there) == answers(here)
    with Index(open_store(place), embedder) as again, Index.open(tmp_path / "folder", embedder) as here:
        assert answers(again) == answers(here) and not again.add(documents(TEXTS)).added


@pytest.mark.slow
def test_the_command_line_takes_a_uri(run, place_of, tmp_path):
    place = place_of("s3").uri
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("The treaty was signed in Vienna. Nobody spoke.")
    for added in (1, 0):
        ended = run("index", tmp_path / "notes", "--to", place, "--json")
        assert ended.code == 0, ended.err
        assert json.loads(ended.out)["added"] == added
    ended = run("search", "where was the treaty signed?", "--in", place, "--json")
    assert ended.code == 0 and "Vienna" in ended.out
    ended = run("search", "treaty", "--in", place + "-missing")
    assert ended.code == 2 and "there is no index at" in ended.err
