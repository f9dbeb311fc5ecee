"""Read corpora and queries, and hold the texts of a corpus on disk.

In: files of documents (jsonl, csv, tsv). Out: `Document`s, queries by id, or `Texts`, which finds
a document by its id or its row.
"""

import sqlite3
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from runnel.checks import by_id
from runnel.errors import InputError, ReadError
from runnel.files import open_bytes
from runnel.records import Document, titled
from runnel.text.lines import Lines, parse_document, read_json, read_lines
from runnel.text.tables import read_table


def read_corpus(path: str | Path) -> Iterator[Document]:
    """Yield the documents of a corpus: jsonl, csv or tsv with a header, or MS MARCO's tsv. Texts
    may be empty.
    """
    path = Path(path)
    first = next((line for _, line in read_lines(path)), "")
    kind = "csv" if ".csv" in path.suffixes[-2:] else "tsv"
    if first.startswith("{"):
        for where, row in read_json(path):
            yield parse_document(row, where)
    elif kind == "csv" or "text" in first.split("\t"):
        lines = Lines(open_bytes(path.absolute()), str(path))
        for number, values in read_table(lines, kind, strict=True).rows:
            yield parse_document(values, lines.place(number))
    else:
        for where, line in read_lines(path):
            name, *texts = line.split("\t")
            if not name.strip() or len(texts) not in (1, 3):
                raise InputError(
                    f"{where}: expected id and text, or id, url, title and body, separated by tabs;"
                    f" got {len(texts)} tabs in {line[:80]!r}"
                )
            yield Document(name, texts[0] if len(texts) == 1 else titled(texts[1], texts[2]))


def read_queries(path: str | Path) -> dict[str, str]:
    """Read queries as a mapping from id to text, from a file with the same rows as a corpus."""
    return {
        name: query.text
        for name, query in by_id(read_corpus(path), f"the queries of {path}").items()
    }


class Texts:
    """Documents by id or by row, in a temporary SQLite file in the folder `SQLITE_TMPDIR`, which is
    deleted with this object.
    """

    def __init__(self, documents: Iterable[Document]) -> None:
        self._base = sqlite3.connect("", check_same_thread=False)  # no name: a temporary file
        weakref.finalize(self, self._base.close)
        try:
            self._base.execute("PRAGMA journal_mode = OFF")
            self._base.execute(
                "CREATE TABLE texts (row INTEGER PRIMARY KEY, id TEXT NOT NULL, text TEXT NOT NULL)"
            )
            self._base.executemany(
                "INSERT INTO texts VALUES (?, ?, ?)",
                ((row, d.id, d.text) for row, d in enumerate(documents)),
            )
            self._base.execute("CREATE UNIQUE INDEX by_id ON texts (id)")
        except sqlite3.OperationalError as error:
            raise ReadError(
                f"the corpus cannot be copied to a temporary file ({error}); give SQLITE_TMPDIR a"
                " folder with room"
            ) from error
        except sqlite3.IntegrityError as error:
            query = "SELECT id FROM texts GROUP BY id HAVING COUNT(*) > 1 ORDER BY MIN(row) LIMIT 1"
            raise ReadError(
                f"two documents of the corpus have the id {self._value(query)!r}; expected each id"
                " once"
            ) from error
        self._count = self._value("SELECT COUNT(*) FROM texts")

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Document]:
        return (
            Document(name, text)
            for name, text in self._base.execute("SELECT id, text FROM texts ORDER BY row")
        )

    def get(self, name: str) -> str | None:
        """Return the text of a document, or None if the id is unknown."""
        return self._value("SELECT text FROM texts WHERE id = ?", name)

    def at(self, row: int) -> str:
        """Return the text of a row; rows count from 0."""
        return self._value("SELECT text FROM texts WHERE row = ?", int(row))

    def name(self, row: int) -> str:
        """Return the id of the document in a row."""
        return self._value("SELECT id FROM texts WHERE row = ?", int(row))

    def row(self, name: str) -> int | None:
        """Return the row of a document, or None if the id is unknown."""
        return self._value("SELECT row FROM texts WHERE id = ?", name)

    def _value(self, query: str, *values: object) -> Any:
        match = self._base.execute(query, values).fetchone()
        return match[0] if match else None
