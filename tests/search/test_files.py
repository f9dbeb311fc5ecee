"""A folder of files of many kinds: what is new, changed, appended, gone or unreadable."""

from __future__ import annotations

import json
import os

import pytest
from tiny import tiny_model

from runnel import Embedder
from runnel.errors import InputError
from runnel.search.index import Index


@pytest.fixture(scope="module")
def embedder(tmp_path_factory):
    return Embedder(tiny_model(tmp_path_factory.mktemp("tiny")))


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "files"
    (root / "deep").mkdir(parents=True)
    (root / ".git").mkdir()
    (root / ".git" / "hidden.txt").write_text("hidden")
    (root / "plain.txt").write_text("The cat sat on the mat.")
    (root / "deep" / "page.html").write_text(
        "<html><title>Rivers</title><body><h1>The river</h1><p>A river runs to the sea.</p></body></html>"
    )
    (root / "rows.jsonl").write_text("".join(json.dumps({"id": i, "text": f"row {i} of the dog"}) + "\n" for i in range(3)))
    return root


@pytest.fixture(params=["lance", "local"])
def index(request, embedder, tmp_path):
    with Index.create(tmp_path / "index", embedder, store=request.param, fields={"kind": "str"}) as made:
        yield made


def names(ids, folder):
    return sorted(os.path.relpath(name, folder.resolve()) for name in ids)


def test_a_folder_is_indexed_and_kept_up_to_date(index, folder):
    every = ["deep/page.html", "plain.txt", "rows.jsonl#0", "rows.jsonl#1", "rows.jsonl#2"]
    changes = index.add_files([folder])
    assert names(changes.added, folder) == every and not changes.failed
    assert names(index.add_files([folder]).unchanged, folder) == every

    (folder / "plain.txt").write_text("The dog sat on the mat.")
    (folder / "deep" / "page.html").unlink()
    (folder / "rows.jsonl").write_text(json.dumps({"id": 1, "text": "row 1 of the dog"}) + "\n")
    changes = index.add_files([folder])
    assert names(changes.updated, folder) == ["plain.txt"] and changes.added == []
    assert names(changes.deleted, folder) == ["deep/page.html", "rows.jsonl#0", "rows.jsonl#2"]
    assert len(index) == 2


def test_places_are_kept(index, folder):
    index.add_files([folder])
    found = index.search("a river", where={"kind": "html"})
    assert names([hit.id for hit in found], folder) == ["deep/page.html"]
    row = index.store.passages([(found[0].id, 0)])[found[0].id, 0]
    assert row.heading == "The river"
    assert index.store.documents([found[0].id])[found[0].id].title == "Rivers"


def test_what_is_elsewhere_is_not_pruned(index, folder):
    index.add_files([folder])
    assert index.add_files([folder / "deep"]).deleted == []
    (folder / "plain.txt").unlink()
    assert index.add_files([folder], prune=False).deleted == []
    assert len(index) == 5


def test_files_that_cannot_be_read_are_reported_and_keep_what_is_known(index, folder, caplog):
    index.add_files([folder])
    (folder / "plain.txt").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    (folder / "broken.pdf").write_bytes(b"%PDF-1.4 cut off")
    (folder / "empty.txt").write_text("")
    changes = index.add_files([folder])
    assert names(changes.failed, folder) == ["broken.pdf", "empty.txt", "plain.txt"]
    assert all(name in caplog.text for name in changes.failed)
    assert len(index) == 5 and changes.deleted == []


def test_a_path_that_is_not_there_is_refused(index, tmp_path):
    with pytest.raises(InputError, match=r"no file or folder .*missing"):
        index.add_files([tmp_path / "missing"])
