"""Folders of files of many kinds: indexed, killed on the way, continued, changed, searched; and what can go wrong with them."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from helpers.children import PATHS, PROGRAMS
from helpers.document_files import epub, pdf
from helpers.tiny import tiny_model

from runnel import Embedder, Index
from runnel.errors import StoreError
from runnel.search import encoding
from runnel.search.file_hashes import FileHashes


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder with a model that reads a few thousand files in no time."""
    folder = tmp_path_factory.mktemp("model")
    Embedder(tiny_model(folder / "tiny")).save(folder / "saved")
    return folder / "saved"


@pytest.fixture(scope="module")
def embedder(model):
    return Embedder.load(model)


def write(path: Path, text: str) -> Path:
    """A file of the kind that its name says, with one paragraph."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".pdf":
        path.write_bytes(pdf([[text]]))
    elif path.suffix == ".epub":
        epub(path, [f"<h1>Chapter</h1><p>{text}</p>"])
    elif path.suffix == ".docx":
        docx = pytest.importorskip("docx")
        made = docx.Document()
        made.add_paragraph(text)
        made.save(str(path))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"id": i, "text": f"{text} row {i}"}) + "\n" for i in range(2)))
    elif path.suffix == ".csv":
        path.write_text(f"id,text\n0,{text}\n1,{text} again\n")
    elif path.suffix == ".html":
        path.write_text(f"<html><title>Page</title><body><h1>Head</h1><p>{text}</p></body></html>")
    else:
        path.write_text(text + "\n")
    return path


KINDS = ("txt", "md", "html", "jsonl", "csv", "pdf", "docx", "epub")


def make_folder(root: Path, of_each: int) -> dict[str, Path]:
    """{word that is in this file alone: file}"""
    made = {}
    for i in range(of_each):
        for kind in KINDS:
            word = f"{kind}word{i}"
            made[word] = write(root / f"deep{i % 3}" / f"{word}.{kind}", f"The cat sat on {word} beside the river.")
    return made


def sources(index: Index, word: str) -> set[str]:
    """Files in which the word is found."""
    return {one.document.partition("#")[0] for one in index.store.lexical(word, 50, [])}


def index_and_kill(place: Path, folder: Path, model: Path, commits: int) -> int:
    """The documents that were safe when the writer was killed, just behind its `commits`-th commit."""
    environment = os.environ | PATHS
    command = [sys.executable, str(PROGRAMS / "killed_indexer.py"), str(place), str(folder), str(model), "10"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        told = [process.stdout.readline() for _ in range(commits)]
        process.send_signal(signal.SIGKILL)
        told += process.stdout.readlines()
    assert "done\n" not in told, "it was too fast to be killed"
    return int([line for line in told if line.endswith("\n")][-1])


def test_a_folder_is_indexed_killed_continued_changed_and_searched(model, embedder, tmp_path):
    made = make_folder(tmp_path / "files", 6)
    rows = sum(2 if path.suffix in (".jsonl", ".csv") else 1 for path in made.values())
    Index.create(tmp_path / "index", embedder).close()

    safe = index_and_kill(tmp_path / "index", tmp_path / "files", model, 2)
    with Index.open(tmp_path / "index", embedder) as index:
        assert safe <= len(index) < rows
        changes = index.add_files([tmp_path / "files"])
        assert not changes.failed and len(changes.unchanged) >= safe - 1 and len(index) == rows
        assert all(sources(index, word) == {str(path)} for word, path in made.items())

    write(made["pdfword0"], "The dog sat on changed.")
    with made["txtword1"].open("a") as file:
        file.write("Then appended came.\n")
    made["docxword2"].unlink()
    made["csvword3"].write_text("id,text\n1,only this row\n")
    write(tmp_path / "files" / "new.md", "A new file.")
    with Index.open(tmp_path / "index", embedder) as index:
        changes = index.add_files([tmp_path / "files"])
        assert {Path(name).name for name in changes.updated} == {"pdfword0.pdf", "txtword1.txt", "csvword3.csv#1"}
        assert {Path(name).name for name in changes.deleted} == {"docxword2.docx", "csvword3.csv#0"}
        assert [Path(name).name for name in changes.added] == ["new.md"]
        index.optimize()

    with Index.open(tmp_path / "index", embedder) as index:
        for gone in ("pdfword0", "docxword2", "csvword3"):
            assert sources(index, gone) == set()
        assert sources(index, "changed") == {str(made["pdfword0"])}
        assert sources(index, "appended") == sources(index, "txtword1") == {str(made["txtword1"])}
        hit = index.search("epubword4", top_k=1, dense_weight=0, sentences=1)[0]
        assert hit.id == str(made["epubword4"]) and "epubword4" in hit.sentences[0].text


# ---- what can go wrong -------------------------------------------------------------------------------------------------


def test_a_full_disk_loses_nothing_and_is_told(embedder, tmp_path):
    write(tmp_path / "files" / "small.txt", "The cat sat on the mat.")
    with Index.create(tmp_path / "index", embedder) as index:
        index.add_files([tmp_path / "files"])
        write(tmp_path / "files" / "large.txt", "The river runs to the sea. " * 4000)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
        try:
            with pytest.raises(StoreError, match=r"cannot read or write .*documents are safe.*disk full"):
                index.add_files([tmp_path / "files"])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert len(index) == 1 and index.search("cat", sentences=0)[0].text.startswith("The cat")
        index.add_files([tmp_path / "files"])  # there is room again
        assert len(index) == 2 and sources(index, "river") == {str(tmp_path / "files" / "large.txt")}


def test_files_that_change_or_go_while_the_folder_is_read(embedder, tmp_path, monkeypatch):
    first, second, third = (write(tmp_path / "files" / f"{name}.txt", f"The {name} cat.") for name in ("1", "2", "3"))
    digest = FileHashes.sha256

    def late(hashes: FileHashes, file: Path) -> str:
        value = digest(hashes, file)
        if file == first:
            first.write_text("The changed cat.\n")  # after it was hashed and before it is read
        if file == second:
            second.unlink()
        return value

    monkeypatch.setattr(FileHashes, "sha256", late)
    with Index.create(tmp_path / "index", embedder) as index:
        changes = index.add_files([tmp_path / "files"])
        assert set(changes.added) == {str(first), str(third)} and set(changes.failed) == {str(second)}
        assert sources(index, "changed") == {str(first)}
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


def test_a_second_writer_in_another_process_is_refused(model, embedder, tmp_path):
    write(tmp_path / "files" / "a.txt", "The cat sat.")
    with Index.create(tmp_path / "index", embedder) as index:
        index.add_files([tmp_path / "files"])
        write(tmp_path / "files" / "b.txt", "The dog sat.")
        command = [
            sys.executable,
            str(PROGRAMS / "killed_indexer.py"),
            *map(str, (tmp_path / "index", tmp_path / "files", model, 10)),
        ]
        told = subprocess.run(command, env=os.environ | PATHS, capture_output=True, text=True, check=False)
        assert told.returncode and f"is being written by process {os.getpid()}" in told.stderr
        assert len(index) == 1


def test_archives_cannot_reach_outside_themselves(embedder, tmp_path):
    write(tmp_path / "secret.txt", "The secret river.")
    folder = tmp_path / "files"
    folder.mkdir()
    epub(folder / "book.epub", ["<p>The cat.</p>"], spine=["../../secret.txt", "text/chapter%200.xhtml"])
    with zipfile.ZipFile(folder / "book.epub", "a") as archive:
        archive.writestr("../../planted.txt", "planted")
    with Index.create(tmp_path / "index", embedder) as index:
        changes = index.add_files([folder])
        assert len(changes.added) + len(changes.failed) == 1
        assert sources(index, "secret") == sources(index, "planted") == set()
    assert not list(tmp_path.rglob("planted.txt"))
