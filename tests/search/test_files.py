"""A folder of files of many kinds: what is new, changed, appended, gone or unreadable."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import pytest

from runnel.errors import InputError
from runnel.search import encoding
from runnel.search.files import FileHashes
from runnel.search.index import Index
from runnel.text.folders import Selection


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


@pytest.fixture
def index(embedder, tmp_path):
    with Index.create(tmp_path / "index", embedder, fields={"kind": "str"}) as made:
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
    assert found[0].title == "Rivers" and found[0].source == found[0].id
    assert {(s.page, s.headings) for s in found[0].sentences} == {(None, ("The river",))}


def test_what_is_elsewhere_is_not_pruned(index, folder):
    index.add_files([folder])
    assert index.add_files([folder / "deep"]).deleted == []
    (folder / "plain.txt").unlink()
    assert index.add_files([folder], prune=False).deleted == []
    assert len(index) == 5


def test_ignored_files_are_left_out_and_those_of_an_unreadable_folder_are_kept(index, folder, caplog, monkeypatch):
    index.add_files([folder])
    (folder / ".gitignore").write_text("*.txt\n")
    scandir = os.scandir

    def refuse(path):
        if str(path) == str(folder.resolve() / "deep"):  # permissions do not stop root
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    changes = index.add_files([folder])
    assert names(changes.deleted, folder) == ["plain.txt"] and len(index) == 4
    reason = f"{folder.resolve() / 'deep'}: Permission denied"
    assert changes.failed == {str(folder.resolve() / "deep"): reason} and caplog.messages == [f"left out: {reason}"]


def test_globs_say_which_files_are_indexed(index, folder):
    index.add_files([folder])
    assert names(index.add_files([folder], selection=Selection(exclude=("deep",))).deleted, folder) == ["deep/page.html"]
    (folder / "plain.txt").rename(folder / "new.txt")
    changes = index.add_files([f"{folder}/*.txt"])  # other files below the folder are none of its business
    assert (names(changes.added, folder), names(changes.deleted, folder)) == (["new.txt"], ["plain.txt"])
    assert len(index) == 4


def test_files_that_cannot_be_read_are_reported_and_keep_what_is_known(index, folder, caplog):
    index.add_files([folder])
    (folder / "plain.txt").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    (folder / "broken.pdf").write_bytes(b"%PDF-1.4 cut off")
    (folder / "empty.txt").write_text("")
    changes = index.add_files([folder])
    assert names(changes.failed, folder) == ["broken.pdf", "empty.txt", "plain.txt"]
    assert all(name in caplog.text for name in changes.failed)
    assert len(index) == 5 and changes.deleted == []


def test_files_that_are_not_documents_are_only_noted(index, folder, caplog):
    (folder / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    (folder / "deep" / "program").write_bytes(b"\x7fELF\0\0")
    (folder / "questions.jsonl").write_text('{"question": "where is the cat", "file": "plain.txt", "text": "on the mat"}\n')
    changes = index.add_files([folder])
    assert len(changes.added) == 5 and not changes.failed
    root = folder.resolve()
    others = ", ".join(str(root / name) for name in ("picture.png", "questions.jsonl", "deep/program"))
    assert caplog.messages == [f"note: files of kinds that are not read: {others}"]
    changes = index.add_files([folder / "picture.png"])  # the user names it
    assert "is an image" in changes.failed[str(root / "picture.png")]


def test_an_index_does_not_read_itself_or_another_one(embedder, folder):
    for name in ("library", "deep/other"):
        with Index.create(folder / name, embedder) as made:
            made.add_files([folder])
            made.optimize()
            assert len(made) == 5 and len(made.add_files([folder]).unchanged) == 5


def test_files_without_rows_are_noted(index, folder, caplog):
    (folder / "lines.tsv").write_text("one line, taken for the name of a column\n")
    (folder / "rows.jsonl").unlink()
    (folder / "names.csv").write_text("id,text\n")
    changes = index.add_files([folder])
    assert names(changes.added, folder) == ["deep/page.html", "plain.txt"] and not changes.failed
    note = "no rows; the first line of a csv or tsv file contains the column names"
    assert caplog.messages == [f"{folder.resolve() / name}: {note}" for name in ("lines.tsv", "names.csv")]
    (folder / "names.csv").write_text("id,text\n1,a text\n")
    index.add_files([folder])
    (folder / "names.csv").write_text("id,text\n")
    assert names(index.add_files([folder]).deleted, folder) == ["names.csv#1"]


def test_paths_may_come_one_by_one(index, folder):
    changes = index.add_files(folder.glob("*.txt"))
    assert names(changes.added, folder) == ["plain.txt"] and not changes.failed


def test_a_path_that_is_not_there_is_refused(index, tmp_path):
    with pytest.raises(InputError, match="no file or folder None"):
        index.add_files([None])
    with pytest.raises(InputError, match=r"no file or folder .*missing"):
        index.add_files([tmp_path / "missing"])


@pytest.mark.skipif(os.name == "nt" or sys.platform == "darwin", reason="file names of this system are always Unicode")
def test_a_file_whose_name_is_not_utf_8_is_left_out_and_named(index, folder, caplog):
    bad = os.fsencode(folder) + b"/bad\xff\xfename.txt"
    with open(bad, "w") as file:
        file.write("The cat.")
    for _ in range(2):  # repeatable
        changes = index.add_files([folder])
        [(name, reason)] = changes.failed.items()
        assert os.fsencode(name) == os.fsencode(folder.resolve()) + b"/bad\xff\xfename.txt"
        assert reason == f"{name} has a name that is not UTF-8; rename the file"
        assert len(index) == 5
    assert caplog.text.count("left out: ") == 2


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_a_row_with_a_bad_id_is_left_out_and_named_with_its_line(index, folder, caplog, kind):
    rows = [("a", "first"), ("b", "second"), ("a", "third"), ("", "fourth"), ("a", "fifth")]
    if kind == "jsonl":
        rows[1] = ("b\ud800", "second")
        (folder / "rows.jsonl").write_text("".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in rows))
    else:
        (folder / "rows.jsonl").unlink()
        (folder / "rows.csv").write_text("id,text\n" + "".join(f"{i},{text}\n" for i, text in rows))
    file = (folder / f"rows.{kind}").resolve()
    lines, good = ((1, 2, 4), ["a", "4"]) if kind == "jsonl" else ((2, 4), ["a", "b", "4"])
    expected = {f"{file}, line {(1 if kind == 'jsonl' else 2) + n}" for n in lines}
    for round_ in range(2):
        changes = index.add_files([folder])
        assert changes.failed.keys() == expected and all(reason.startswith(name) for name, reason in changes.failed.items())
        assert names(changes.added if round_ == 0 else changes.unchanged, folder) == sorted(
            ["deep/page.html", "plain.txt", *(f"rows.{kind}#{name}" for name in good)]
        )
    assert caplog.text.count("left out: ") == 2 * len(expected)
    (folder / f"rows.{kind}").write_text('{"id": "a", "text": "first"}\n' if kind == "jsonl" else "id,text\na,first\n")
    changes = index.add_files([folder])
    assert names(changes.deleted, folder) == sorted(f"rows.{kind}#{name}" for name in good[1:]) and not changes.failed


def test_a_file_that_is_named_twice_is_read_once(index, folder):
    assert len(index.add_files([folder, folder / "plain.txt"]).added) == 5


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_pipes_sockets_and_devices_are_left_out_at_once(index, folder, tmp_path):
    os.mkfifo(folder / "pipe.txt")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(folder)  # paths of sockets are short
        server.bind("socket")
        os.chdir(here)
        changes = index.add_files([folder, "/dev/zero", folder / "pipe.txt"])
    kinds = {str(folder.resolve() / "pipe.txt"): "pipe", str(folder.resolve() / "socket"): "socket", "/dev/zero": "device"}
    assert set(changes.failed) == set(kinds)
    assert all(reason.startswith(f"{name} is a {kinds[name]}, ") for name, reason in changes.failed.items())
    assert len(index) == 5


def test_files_that_change_or_go_while_the_folder_is_read(embedder, tmp_path, monkeypatch):
    first, second, third = (tmp_path / "files" / f"{name}.txt" for name in "123")
    first.parent.mkdir()
    for file in (first, second, third):
        file.write_text(f"The {file.stem} cat.")
    digest = FileHashes.sha256

    def late(hashes: FileHashes, file: Path) -> str:
        value = digest(hashes, file)
        if file == first:
            first.write_text("The changed cat.")  # after it was hashed and before it is read
        if file == second:
            second.unlink()
        return value

    monkeypatch.setattr(FileHashes, "sha256", late)
    with Index.create(tmp_path / "index", embedder) as index:
        changes = index.add_files([tmp_path / "files"])
        assert set(changes.added) == {str(first), str(third)} and set(changes.failed) == {str(second)}
        assert [one.document for one in index.store.lexical("changed", 50, [])] == [str(first)]
        monkeypatch.setattr(FileHashes, "sha256", digest)
        again = index.add_files([tmp_path / "files"])  # the first has a new hash, and no new content
        assert set(again.unchanged) == {str(first), str(third)} and not again.failed and not again.deleted


def test_rows_that_were_not_read_yet_are_read_after_a_break(embedder, tmp_path, monkeypatch):
    """A file of rows is known when its last row is in, not when some are."""
    monkeypatch.setattr(encoding, "_BATCH_DOCUMENTS", 10)
    rows = tmp_path / "files" / "rows.jsonl"
    rows.parent.mkdir()
    rows.write_text("".join(json.dumps({"id": i, "text": f"the cat sat on row {i}."}) + "\n" for i in range(35)))

    def stop(commit):
        raise InterruptedError

    with Index.create(tmp_path / "index", embedder) as index:
        for have in (10, 20):
            with pytest.raises(InterruptedError):
                index.add_files([rows.parent], on_commit=stop)
            assert len(index) == have
        assert len(index.add_files([rows.parent]).added) == 15 and len(index) == 35
        assert len(index.add_files([rows.parent]).unchanged) == 35

        rows.write_text(rows.read_text() + '{"text": \n')  # breaks off: told at every call
        for _ in range(2):
            changes = index.add_files([rows.parent])
            assert "line 36: not valid JSON" in changes.failed[str(rows)] and len(index) == 35
