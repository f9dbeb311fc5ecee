"""Corpora, queries, judgements and runs, as BEIR, MS MARCO, TREC, Tevatron and Pyserini write them.

A file may be plain, .gz or .zst. What kind it is shows in its rows, not in its name.
"""

from __future__ import annotations

import sqlite3
import sys
import weakref
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from runnel.errors import InputError, ReadError
from runnel.records import Document, titled
from runnel.training.lines import find, read_json, read_lines

_IDS = ("_id", "id", "docid", "query_id")
_TEXTS = ("text", "document_text", "query_text", "contents")
_HEADER = ["query-id", "corpus-id", "score"]


def read_corpus(path: str | Path) -> Iterator[Document]:
    """The documents of a corpus, one after the other; texts may be empty.

    Args:
        path: a BEIR folder; a jsonl file with "_id" (or "id", "docid"), "text" (or "document_text", "contents") and perhaps
            "title"; or a tsv file of id, text (MS MARCO passages) or of id, url, title, body (MS MARCO documents; the url
            is not read). A title is put before the text, with a space between them.

    Raises:
        InputError: a row is not so, or has no id; the message has the line number.
        ReadError: see `open_text`.
    """
    path = _in_folder(path, "corpus.jsonl", "corpus.tsv")
    if _is_json(path):
        for where, row in read_json(path):
            yield document(row, where)
    else:
        for where, line in read_lines(path):
            yield _from_tab(line, where)


def read_queries(path: str | Path) -> dict[str, str]:
    """Query id -> text, from a BEIR folder or a file with the same rows as a corpus.

    Raises:
        InputError: as `read_corpus`; or two queries have the same id.
    """
    path = _in_folder(path, "queries.jsonl", "queries.tsv")
    queries: dict[str, str] = {}
    for query in read_corpus(path):
        if query.id in queries:
            raise InputError(f"{path}: two queries have the id {query.id!r}; expected each id once")
        queries[query.id] = query.text
    return queries


def read_qrels(path: str | Path) -> dict[str, dict[str, int]]:
    """Query id -> document id -> grade: TREC and MS MARCO (query, iteration, document, grade) or BEIR (query, document, grade).

    Raises:
        InputError: a line is not so, or a document is judged twice with different grades.
    """
    qrels: dict[str, dict[str, int]] = {}
    first = True
    for where, line in read_lines(path):
        fields = line.split()
        if first and [f.lower().replace("_", "-") for f in fields] == _HEADER:
            first = False
            continue
        first = False
        try:
            query, *iteration, name, grade = fields
            if len(iteration) > 1:
                raise ValueError
            judged = int(grade)
        except ValueError:
            raise InputError(
                f"{where}: expected query, document, grade (BEIR) or query, 0, document, grade (TREC, MS MARCO), the grade a "
                f"whole number; got {line[:80]!r}"
            ) from None
        if qrels.setdefault(query, {}).setdefault(sys.intern(name), judged) != judged:
            raise InputError(
                f"{where}: document {name!r} is judged {judged} for query {query!r}, and {qrels[query][name]} further up; "
                "keep one of the two"
            )
    return qrels


def read_run(path: str | Path, depth: int | None = None) -> dict[str, list[str]]:
    """Query id -> document ids, best first, `depth` of them at most.

    Args:
        path: a TREC run (query Q0 document rank score tag), ordered by score, ties by id;
            or MS MARCO's tab-separated query, document, rank; or its top-1000 file of query, document, query text, document
            text, which is not ranked: its order is kept.

    Raises:
        InputError: a line is none of these.
    """
    scores: dict[str, array[float]] = {}
    names: dict[str, list[str]] = {}
    for where, line in read_lines(path):
        tabs, fields = line.split("\t"), line.split()
        try:
            if len(tabs) == 4:
                query, name, key = tabs[0], tabs[1], float(len(names.get(tabs[0], ())))
            elif len(fields) == 3:
                query, name, key = fields[0], fields[1], float(fields[2])
            else:
                query, _, name, _, score, _ = fields
                key = -float(score)
        except ValueError:
            raise InputError(
                f"{where}: expected a line of a TREC run (query Q0 document rank score tag), or query, document, rank, or query, "
                f"document and both texts between tabs; got {line[:80]!r}"
            ) from None
        scores.setdefault(query, array("d")).append(key)
        names.setdefault(query, []).append(sys.intern(name))
    ranked = {}
    for query, keys in scores.items():
        found = names.pop(query)
        ranked[query] = [found[i] for i in sorted(range(len(found)), key=lambda i: (keys[i], found[i]))[:depth]]
    return ranked


class Texts:
    """Documents by id or by row, on disk: 8.8 million passages take a few megabytes of memory.

    They are copied into a temporary SQLite file, which is gone when this object is (`SQLITE_TMPDIR` tells where it lies).

    Raises:
        InputError: two documents have the same id.
        ReadError: no room for the file.
    """

    def __init__(self, documents: Iterable[Document]) -> None:
        self._base = sqlite3.connect("", check_same_thread=False)  # no name: a temporary file
        weakref.finalize(self, self._base.close)
        try:
            self._base.execute("PRAGMA journal_mode = OFF")
            self._base.execute("CREATE TABLE texts (row INTEGER PRIMARY KEY, id TEXT NOT NULL, text TEXT NOT NULL)")
            rows = ((row, d.id, d.text) for row, d in enumerate(documents))
            self._base.executemany("INSERT INTO texts VALUES (?, ?, ?)", rows)
            self._base.execute("CREATE UNIQUE INDEX by_id ON texts (id)")
        except sqlite3.IntegrityError as error:
            query = "SELECT id FROM texts GROUP BY id HAVING COUNT(*) > 1 ORDER BY MIN(row) LIMIT 1"
            raise InputError(
                f"two documents of the corpus have the id {self._base.execute(query).fetchone()[0]!r}; expected each id once"
            ) from error
        except sqlite3.OperationalError as error:
            raise ReadError(
                f"the corpus cannot be copied to a temporary file ({error}); give SQLITE_TMPDIR a folder with room"
            ) from error
        self._count = self._base.execute("SELECT COUNT(*) FROM texts").fetchone()[0]

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Document]:
        """The documents, in order."""
        return (Document(name, text) for name, text in self._base.execute("SELECT id, text FROM texts ORDER BY row"))

    def get(self, name: str) -> str | None:
        """The text of a document, None if there is no such id."""
        found = self._base.execute("SELECT text FROM texts WHERE id = ?", (name,)).fetchone()
        return found[0] if found else None

    def at(self, row: int) -> str:
        """The text of a row, from 0."""
        return self._base.execute("SELECT text FROM texts WHERE row = ?", (int(row),)).fetchone()[0]

    def row(self, name: str) -> int | None:
        """The row of a document, None if there is no such id."""
        found = self._base.execute("SELECT row FROM texts WHERE id = ?", (name,)).fetchone()
        return found[0] if found else None


def document(row: dict[str, Any], where: str) -> Document:
    """A document from a row of JSON; see `read_corpus`."""
    key = next((row[k] for k in _IDS if k in row), None)
    text = next((row[k] for k in _TEXTS if k in row), None)
    if not isinstance(key, str | int) or key == "" or not isinstance(text, str):
        raise InputError(f'{where}: expected "_id" (or "id", "docid") and "text", got {keys(row)}')
    return Document(str(key), titled(row.get("title"), text))


def keys(row: dict[str, Any]) -> str:
    """What a message says of the keys of a row."""
    return f"the keys {', '.join(map(repr, row))}" if row else "an empty object"


def _from_tab(line: str, where: str) -> Document:
    name, *texts = line.split("\t")
    if not name.strip() or len(texts) not in (1, 3):
        raise InputError(
            f"{where}: expected id and text, or id, url, title and body, with tabs between them; "
            f"got {len(texts)} tabs in {line[:80]!r}"
        )
    return Document(name, texts[0] if len(texts) == 1 else titled(texts[1], texts[2]))


def _is_json(path: Path) -> bool:
    return next((line for _, line in read_lines(path)), "").startswith("{")


def _in_folder(path: str | Path, *names: str) -> Path:
    path = Path(path)
    if not path.is_dir():
        return path
    found = find(path, *names)
    if found is None:
        raise ReadError(f"{path} has no {' or '.join(names)}; expected a BEIR folder or the file itself")
    return found
