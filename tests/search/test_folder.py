"""A folder of files of every kind, and hostile ones: indexed, killed on the way, continued, changed and searched."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import docx
import pytest
from helpers.children import PATHS, PROGRAMS
from helpers.document_files import epub, pdf
from helpers.tiny import tiny_model

from runnel import Embedder, Index
from runnel.errors import ReadError, UnsupportedKind
from runnel.records import Places
from runnel.search.records import WHOLE
from runnel.text.documents.document import DocumentText
from runnel.text.documents.reader import DocumentReader
from runnel.text.folders import find_files

pytestmark = pytest.mark.slow

KINDS = ("txt", "md", "html", "jsonl", "csv", "pdf", "docx", "epub")


def write(path: Path, text: str) -> None:
    """Write a file of the kind that its name says, with one paragraph."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".pdf":
        path.write_bytes(pdf([["A first page."], [text]]))
    elif path.suffix == ".epub":
        epub(path, [f"<h1>Chapter</h1><p>{text}</p>"])
    elif path.suffix == ".docx":
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


def write_folder(root: Path, of_each: int) -> dict[str, Path]:
    """Return {word that is in this file alone: file}."""
    made = {}
    for i in range(of_each):
        for kind in KINDS:
            word = f"{kind}word{i}"
            made[word] = root / f"deep{i % 3}" / f"{word}.{kind}"
            write(made[word], f"The cat sat on {word} beside the river.")
    return made


def write_hostile(place: Path) -> dict[str, str]:
    """Write files that cannot be read, one beside which a planted one must not appear; return {name: part of the reason}."""
    place.mkdir()
    (place / "cut off.pdf").write_bytes(pdf([["A page that is cut off."] * 20] * 3)[:1000])
    (place / "locked.pdf").write_bytes(pdf([["secret"]], encrypted=True))
    with zipfile.ZipFile(place / "bomb.docx", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as bomb:
        with bomb.open("word/document.xml", "w") as part:
            for _ in range(300):
                part.write(bytes(1 << 20))
    epub(place / "outside.epub", ["<p>x</p>"], spine=["../../../outside.txt"], more={"../../planted.txt": "a quokka"})
    (place.parent.parent / "outside.txt").write_text("a quokka outside the folder")
    (place / "empty.txt").write_bytes(b"")
    (place / "cut.txt.gz").write_bytes(gzip.compress(b"cut off before its end " * 50)[:40])
    (place / "broken.jsonl").write_text('{"text": "a row"}\n{"text": \n')
    (place / "picture.txt").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8)  # is only noted
    return {
        "cut off.pdf": "damaged or truncated PDF", "locked.pdf": "encrypted PDF", "bomb.docx": "unpacked content has more",
        "outside.epub": "empty document", "empty.txt": "empty document", "cut.txt.gz": "damaged or incomplete",
        "broken.jsonl": "line 2: not valid JSON",
    }  # fmt: skip


def read_folder(root: Path) -> dict[str, DocumentText]:
    """Return what the files hold, read one after another without an index."""
    documents = {}
    with DocumentReader() as reader:
        for path in find_files([root]):
            try:
                for document in reader.read(path):
                    documents[str(path) if document.id is None else f"{path}#{document.id}"] = document
            except (ReadError, UnsupportedKind):
                pass
    return {name: document for name, document in documents.items() if document.text.strip()}


def wrong(index: Index, expected: dict[str, DocumentText]) -> list[str]:
    """Return the documents that are not what the file holds, or have not all of their passages."""
    rows = index.store.documents(list(index.store.content_hashes()))
    passages = index.store.passages([(name, number) for name in rows for number in (0, WHOLE)])
    return [
        name
        for name, row in rows.items()
        if (row.text, row.title, row.metadata["kind"], Places(row.blocks))
        != ((held := expected[name]).text, held.title or "", held.kind, held.places())
        or not {(name, 0), (name, WHOLE)} <= passages.keys()
    ]


def sources(index: Index, word: str) -> set[str]:
    """Return the files in which the word is found."""
    return {one.document.partition("#")[0] for one in index.store.lexical(word, 50, [])}


def index_and_kill(place: Path, folder: Path, model: Path, commits: int) -> int:
    """Return how many documents were safe when the writer was killed, just behind its `commits`-th commit."""
    command = [sys.executable, str(PROGRAMS / "killed_indexer.py"), str(place), str(folder), str(model), "5"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | PATHS, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        told = [process.stdout.readline() for _ in range(commits)]
        process.send_signal(signal.SIGKILL)
        told += process.stdout.readlines()
    assert "done\n" not in told, "it was too fast to be killed"
    return int(([0] + [line for line in told if line.endswith("\n")])[-1])


def test_a_folder_is_indexed_killed_continued_changed_and_searched(tmp_path):
    model, root, place = tmp_path / "saved", (tmp_path / "files").resolve(), tmp_path / "index"
    Embedder(tiny_model(tmp_path / "tiny")).save(model)
    embedder = Embedder.load(model)
    made, hostile = write_folder(root, 7), write_hostile(root / "hostile")
    expected = read_folder(root)
    assert len(expected) == 7 * 10 + 1

    Index.create(place, embedder).close()
    for commits in (0, 1, 2):
        safe = index_and_kill(place, root, model, commits)
        with Index.open(place, embedder) as index:
            assert safe <= len(index) < len(expected) and wrong(index, expected) == []
    with Index.open(place, embedder) as index:
        before = set(index.store.content_hashes())
        changes = index.add_files([root])
        assert set(changes.unchanged) == before and before and not changes.updated and not changes.deleted
        assert set(index.store.content_hashes()) == set(expected) and wrong(index, expected) == []
        failed = {Path(name).name: reason for name, reason in changes.failed.items()}
        assert failed.keys() == hostile.keys() and all(part in failed[name] for name, part in hostile.items())
        assert all(sources(index, word) == {str(path)} for word, path in made.items())
        assert sources(index, "quokka") == set() and not list(tmp_path.rglob("planted.txt"))

    write(made["pdfword0"], "The dog sat on changed.")
    with made["txtword1"].open("a") as file:
        file.write("Then appended came.\n")
    made["docxword2"].unlink()
    made["csvword3"].write_text("id,text\n1,only this row\n")
    made["mdword4"].touch()
    made["htmlword5"].rename(root / "new name.html")
    made["docxword6"].write_bytes(made["docxword6"].read_bytes()[:3000])
    with Index.open(place, embedder) as index:
        changes = index.add_files([root])
        assert {Path(name).name for name in changes.updated} == {"pdfword0.pdf", "txtword1.txt", "csvword3.csv#1"}
        assert {Path(name).name for name in changes.deleted} == {"docxword2.docx", "csvword3.csv#0", "htmlword5.html"}
        assert [Path(name).name for name in changes.added] == ["new name.html"]
        assert {Path(name).name for name in changes.failed} == {*hostile, "docxword6.docx"}
        index.optimize()

    with Index.open(place, embedder) as index:
        for gone in ("pdfword0", "docxword2", "csvword3"):
            assert sources(index, gone) == set()
        assert sources(index, "changed") == {str(made["pdfword0"])}
        assert sources(index, "appended") == sources(index, "txtword1") == {str(made["txtword1"])}
        assert sources(index, "docxword6") == {str(made["docxword6"])}  # what is known of it is kept
        hit = index.search("epubword4", top_k=1, dense_weight=0, sentences=1)[0]
        assert hit.id == str(made["epubword4"]) and "epubword4" in hit.sentences[0].text
