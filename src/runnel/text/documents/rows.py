"""Read the rows of jsonl, csv and tsv files as a stream, one document each, whatever the size of the file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import BinaryIO

from runnel.errors import ReadError, UnsupportedKind
from runnel.text.documents.document import DocumentText, Limits, read_plain
from runnel.text.lines import Lines, keys, parse_object
from runnel.text.reading import Decoded
from runnel.text.tables import read_table, row_text

NO_ROWS = "no rows; the first line of a csv or tsv file contains the column names"


def read_rows(file: BinaryIO, kind: str, name: str, limits: Limits, encoding: str | None) -> Iterator[DocumentText]:
    """Yield the rows of an open file, then close it.

    A jsonl row has "text", an "id" (or "_id") and optionally a "title", which is put before the text. `runnel.text.tables`
    describes csv and tsv. Without an id, the id is the row's number, from 1.
    """
    lines = Lines(
        file,
        name,
        encoding=encoding or ("utf-8-sig" if kind == "jsonl" else None),  # jsonl is UTF-8; spreadsheets also write UTF-16
        newline="",
        longest=limits.unpacked_bytes,
        advice="give its encoding or convert it",
    )
    rows: Iterable[tuple[int, Mapping[str, object]]]
    rows = _objects(lines) if kind == "jsonl" else read_table(lines, kind, longest=limits.unpacked_bytes).rows
    for number, (line, values) in enumerate(rows, start=1):
        yield replace(_document(values, number, kind, name, (lines.encoding or "utf-8").removesuffix("-sig")), line=line)


def _document(values: Mapping[str, object], number: int, kind: str, name: str, encoding: str) -> DocumentText:
    key, title = values.get("id", values.get("_id")), values.get("title")
    title = title if isinstance(title, str) and title else None
    asks = _asks(values) and number == 1
    if kind == "jsonl" and (asks or not isinstance(values.get("text"), str)):
        other = number == 1 and (asks or "text" not in values)  # of rows that are no documents
        came = "a question about other files" if asks else keys(values)
        raise (UnsupportedKind if other else ReadError)(f'{name}, row {number}: expected a document with "text", got {came}')
    document = read_plain(Decoded(row_text(values), encoding))
    return replace(document, kind=kind, id=str(number if key is None or key == "" else key), title=title)


def _asks(values: Mapping[str, object]) -> bool:
    """Return whether a row is a question with its answer: of `runnel lab questions`, or evidence."""
    return not values.keys().isdisjoint(("question", "query")) and not values.keys().isdisjoint(("file", "document"))


def _objects(lines: Lines) -> Iterator[tuple[int, Mapping[str, object]]]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield number, parse_object(line, lines.place(number))
