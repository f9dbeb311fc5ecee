"""A folder of files of many kinds: what is new, changed, appended, gone or unreadable; hashes of
files that did not change.
"""

import hashlib
import os
import socket
import sys
import time
from pathlib import Path

import pytest
from helpers.files import write_files, write_rows
from helpers.stored_documents import passages_of

from runnel.errors import InputError
from runnel.search import encoding, file_hashes
from runnel.search.file_hashes import FileHashes
from runnel.search.index import Index
from runnel.text.folders import Selection


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "files"
    page = (
        "<html><title>Rivers</title><body><h1>The river</h1><p>A river runs to the"
        " sea.</p></body></html>"
    )
    write_files(
        root,
        {
            ".git/hidden.txt": "hidden",
            "plain.txt": "The cat sat on the mat.",
            "deep/page.html": page,
            "rows.jsonl": [{"id": i, "text": f"row {i} of the dog"} for i in range(3)],
        },
    )
    return root.resolve()


@pytest.fixture
def index(embedder, tmp_path):
    with Index.create(tmp_path / "index", embedder, fields={"kind": "str"}) as made:
        yield made


def names(ids, folder):
    return sorted(os.path.relpath(name, folder) for name in ids)


def test_a_folder_is_indexed_and_kept_up_to_date(index, folder):
    every = ["deep/page.html", "plain.txt", "rows.jsonl#0", "rows.jsonl#1", "rows.jsonl#2"]
    changes = index.add_files([folder, folder / "plain.txt"])
    assert names(changes.added, folder) == every and not changes.failed
    assert names(index.add_files([folder]).unchanged, folder) == every
    # one by one
    assert names(index.add_files(folder.glob("*.txt")).unchanged, folder) == ["plain.txt"]
    (hit,) = index.search("a river", where={"kind": "html"})
    assert (
        names([hit.id], folder) == ["deep/page.html"]
        and hit.title == "Rivers"
        and hit.source == hit.id
    )
    assert {(s.page, s.headings) for s in hit.sentences} == {(None, ("The river",))}
    assert passages_of(index.store)[hit.id, 0].heading == "The river"

    (folder / "deep").rename(folder.parent / "deep")
    assert index.add_files([folder / "rows.jsonl"]).deleted == []  # what is elsewhere is not pruned
    assert index.add_files([folder], prune=False).deleted == []
    (folder.parent / "deep").rename(folder / "deep")

    (folder / "plain.txt").write_text("The dog sat on the mat.")
    (folder / "deep" / "page.html").unlink()
    write_rows(folder / "rows.jsonl", [{"id": 1, "text": "row 1 of the dog"}])
    changes = index.add_files([folder])
    assert names(changes.updated, folder) == ["plain.txt"] and changes.added == []
    assert names(changes.deleted, folder) == ["deep/page.html", "rows.jsonl#0", "rows.jsonl#2"]
    assert len(index) == 2


def test_ignored_files_are_left_out_and_those_of_an_unreadable_folder_are_kept(
    index, folder, caplog, monkeypatch
):
    index.add_files([folder])
    (folder / ".gitignore").write_text("*.txt\n")
    scandir = os.scandir

    def refuse(path):
        if str(path) == str(folder / "deep"):  # permissions do not stop root
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    changes = index.add_files([folder])
    assert names(changes.deleted, folder) == ["plain.txt"] and len(index) == 4
    reason = f"{folder}/deep: Permission denied"
    assert changes.failed == {str(folder / "deep"): reason} and caplog.messages == [
        f"left out: {reason}"
    ]


def test_globs_say_which_files_are_indexed_and_unreadable_files_are_reported(index, folder, caplog):
    index.add_files([folder])
    assert names(
        index.add_files([folder], selection=Selection(exclude=("deep",))).deleted, folder
    ) == ["deep/page.html"]
    (folder / "plain.txt").rename(folder / "new.txt")
    for missing in (None, folder / "missing"):
        with pytest.raises(InputError, match=f"no file or folder .*{missing}"):
            index.add_files([missing])
    # other files below the folder are none of its business
    changes = index.add_files([f"{folder}/*.txt"])
    assert (names(changes.added, folder), names(changes.deleted, folder)) == (
        ["new.txt"],
        ["plain.txt"],
    )
    assert len(index) == 4
    write_files(
        folder,
        {
            "new.txt": b"\x89PNG\r\n\x1a\n\0\0",
            "broken.pdf": b"%PDF-1.4 cut off",
            "empty.txt": "",
        },
    )
    changes = index.add_files([folder])
    assert names(changes.failed, folder) == ["broken.pdf", "new.txt"]
    assert names(changes.empty, folder) == ["empty.txt"] and "empty.txt" not in caplog.text
    assert all(name in caplog.text for name in changes.failed)
    assert len(index) == 5 and changes.deleted == []  # what is known of unreadable files is kept


def test_files_that_are_no_documents_or_have_no_rows_are_only_noted(index, folder, caplog):
    write_files(
        folder,
        {
            "lines.tsv": "one line, taken for the name of a column\n",
            "names.csv": "id,text\n",
        },
    )
    with Index.create(folder / "deep" / "library", index.embedder) as other:
        other.add_files([folder / "plain.txt"])
        other.optimize()  # of its files none is read or noted
    caplog.clear()
    write_files(
        folder,
        {
            "picture.png": b"\x89PNG\r\n\x1a\n\0\0",
            "deep/program": b"\x7fELF\0\0",
            "questions.jsonl": '{"question": "who", "file": "plain.txt", "text": "on the mat"}\n',
        },
    )
    changes = index.add_files([folder])
    assert len(changes.added) == 5 and not changes.failed
    others = ", ".join(
        str(folder / name) for name in ("picture.png", "questions.jsonl", "deep/program")
    )
    note = "no rows; the first line of a csv or tsv file contains the column names"
    assert sorted(caplog.messages) == sorted(
        [
            f"{folder}/lines.tsv: {note}",
            f"{folder}/names.csv: {note}",
            f"note: files of kinds that are not read: {others}",
        ]
    )
    (folder / "names.csv").write_text("id,text\n1,a text\n")
    index.add_files([folder])
    (folder / "names.csv").write_text("id,text\n")
    assert names(index.add_files([folder]).deleted, folder) == ["names.csv#1"]
    changes = index.add_files([folder / "picture.png"])  # the user names it
    assert "is an image" in changes.failed[str(folder / "picture.png")]


@pytest.mark.skipif(
    os.name == "nt" or sys.platform == "darwin",
    reason="file names of this system are always Unicode",
)
def test_a_file_whose_name_is_not_utf_8_is_left_out_and_named(index, folder, caplog):
    bad = os.fsencode(folder) + b"/bad\xff\xfename.txt"
    with open(bad, "w") as file:
        file.write("The cat.")
    for _ in range(2):  # repeatable
        [(name, reason)] = index.add_files([folder]).failed.items()
        assert os.fsencode(name) == os.fsencode(folder) + b"/bad\xff\xfename.txt"
        assert reason == f"{name} has a name that is not UTF-8; rename the file"
        assert len(index) == 5
    assert caplog.text.count("left out: ") == 2


@pytest.mark.parametrize(
    ("kind", "content", "bad", "good"),
    [
        (
            "jsonl",
            [f'{{"id": "{name}", "text": "x"}}' for name in ("a", "b\\ud800", "a", "a", "")],
            (2, 3, 4),
            ["a", "5"],
        ),
        ("csv", ["id,text", "a,1", "b,2", "a,3", ",4", "a,5"], (4, 6), ["a", "b", "4"]),
    ],
)
def test_a_row_with_a_bad_id_is_left_out_and_named_with_its_line(
    index, folder, caplog, kind, content, bad, good
):
    (folder / "rows.jsonl").unlink()
    file = folder / f"rows.{kind}"
    file.write_text("\n".join(content))
    expected = {f"{file}, line {number}" for number in bad}
    for fate in ("added", "unchanged"):
        changes = index.add_files([folder])
        assert changes.failed.keys() == expected and all(
            reason.startswith(name) for name, reason in changes.failed.items()
        )
        rows = sorted(f"{file.name}#{name}" for name in good)
        assert names(getattr(changes, fate), folder) == ["deep/page.html", "plain.txt", *rows]
    assert caplog.text.count("left out: ") == 2 * len(expected)
    file.write_text("\n".join(content[: 1 + (kind == "csv")]))
    changes = index.add_files([folder])
    assert (
        names(changes.deleted, folder) == sorted(f"{file.name}#{name}" for name in good[1:])
        and not changes.failed
    )


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_pipes_sockets_and_devices_are_left_out_at_once(index, folder, tmp_path):
    os.mkfifo(folder / "pipe.txt")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(folder)  # paths of sockets are short
        server.bind("socket")
        os.chdir(here)
        changes = index.add_files([folder, "/dev/zero", folder / "pipe.txt"])
    kinds = {
        str(folder / "pipe.txt"): "pipe",
        str(folder / "socket"): "socket",
        "/dev/zero": "device",
    }
    assert set(changes.failed) == set(kinds)
    assert all(
        reason.startswith(f"{name} is a {kinds[name]}, ") for name, reason in changes.failed.items()
    )
    assert len(index) == 5


def test_files_that_change_or_go_while_the_folder_is_read(index, folder, monkeypatch):
    changed = folder / "plain.txt"
    gone = folder / "deep" / "page.html"
    digest = FileHashes.sha256

    def late(hashes: FileHashes, file: Path) -> str:
        value = digest(hashes, file)
        if file == changed:
            file.write_text("The changed cat.")  # after it was hashed and before it is read
        if file == gone:
            file.unlink()
        return value

    monkeypatch.setattr(FileHashes, "sha256", late)
    changes = index.add_files([folder])
    assert len(changes.added) == 4 and set(changes.failed) == {str(gone)}
    assert [row.document for row in index.store.lexical("changed", 50, [])] == [str(changed)]
    monkeypatch.setattr(FileHashes, "sha256", digest)
    again = index.add_files([folder])  # the first has a new hash, and no new content
    assert len(again.unchanged) == 4 and not again.failed and not again.deleted


def test_rows_that_were_not_read_yet_are_read_after_a_break(index, tmp_path, monkeypatch):
    """A file of rows is known when its last row is in, not when some are."""
    monkeypatch.setattr(encoding, "_BATCH_DOCUMENTS", 10)
    rows = tmp_path / "rows.jsonl"
    write_rows(rows, [{"id": i, "text": f"the cat sat on row {i}."} for i in range(35)])

    def stop(commit):
        raise InterruptedError

    for have in (10, 20):
        with pytest.raises(InterruptedError):
            index.add_files([rows], on_commit=stop)
        assert len(index) == have
    assert len(index.add_files([rows]).added) == 15 and len(index) == 35
    assert len(index.add_files([rows]).unchanged) == 35

    write_rows(rows, [{"id": i, "text": f"the dog sat on row {i}."} for i in range(5)])
    with pytest.raises(InterruptedError):  # before the rows that are gone are deleted
        index.add_files([rows], on_commit=stop)
    assert len(index.add_files([rows]).deleted) == 30 and len(index) == 5
    rows.write_text(rows.read_text() + '{"text": \n')  # breaks off: told at every call
    for _ in range(2):
        changes = index.add_files([rows])
        assert "line 6: not valid JSON" in changes.failed[str(rows)] and len(index) == 5


# ---- hashes that are computed again only when size or times have changed -------------------------


ONE, TWO = (hashlib.sha256(text).hexdigest() for text in (b"one", b"two"))


def test_an_unchanged_file_is_not_read_again(tmp_path, monkeypatch):
    # a file that was just written counts as old
    monkeypatch.setattr(file_hashes, "_TICK_NS", -1_000_000_000)
    file = tmp_path / "a.txt"
    file.write_text("one")
    first = FileHashes(tmp_path / "hashes.json")
    assert first.sha256(file) == ONE and first.current == {str(file): ONE}
    first.failures = {str(file): ONE, "/gone": "x"}
    first.save()
    again = FileHashes(tmp_path / "hashes.json")
    assert again.failures == {str(file): ONE}
    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "file_digest", lambda *_: pytest.fail("the file was read"))
        assert again.sha256(file) == ONE
    file.write_text("two")
    assert again.sha256(file) == TWO
    times = 2 * (time.time_ns() - 60 * 1_000_000_000,)
    # a change that keeps size and time, as of tools that copy times
    for text, digest in (("one", ONE), ("two", TWO)):
        file.write_text(text)
        os.utime(file, ns=times)
        assert again.sha256(file) == digest
    FileHashes(tmp_path / "hashes.json").save()  # nothing was asked for: all is forgotten
    assert FileHashes(tmp_path / "hashes.json").failures == {}
    for content in (
        "",
        "{",
        "[]",
        '{"format": 2}',
        '{"format": 1, "files": 3}',
        '{"format": 1, "files": {}}',
    ):
        (tmp_path / "hashes.json").write_text(content)  # a damaged file counts as missing
        assert FileHashes(tmp_path / "hashes.json").sha256(file) == TWO


def test_a_file_that_has_just_changed_is_read_again(tmp_path, monkeypatch):
    """On a file system with a coarse clock, two changes in a row leave the same time."""
    (tmp_path / "a.txt").write_text("one")
    real = os.stat(tmp_path / "a.txt")
    monkeypatch.setattr(type(tmp_path), "stat", lambda path: real)
    hashes = FileHashes()
    assert hashes.sha256(tmp_path / "a.txt") == ONE
    (tmp_path / "a.txt").write_text("two")
    assert hashes.sha256(tmp_path / "a.txt") == TWO
