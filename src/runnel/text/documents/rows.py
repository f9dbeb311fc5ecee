"""Rows of jsonl, csv and tsv files: a document each, read as a stream whatever the size of the file."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import BinaryIO, NamedTuple

from runnel.errors import ReadError
from runnel.records import titled
from runnel.text.documents.canonical import DocumentText
from runnel.text.documents.limits import Limits
from runnel.text.documents.plain import read_plain
from runnel.text.lines import Lines, keys, parse_object
from runnel.text.reading import Decoded

NO_ROWS = "no rows; the first line of a csv or tsv file has the names of its columns"


class Before(NamedTuple):
    """What a file has before the part that is read."""

    lines: int = 0
    rows: int = 0


def read_rows(
    file: BinaryIO,
    kind: str,
    name: str,
    limits: Limits,
    encoding: str | None,
    before: Callable[[], Before] = Before,
) -> Iterator[DocumentText]:
    """The rows of an open file, which is closed behind them.

    A jsonl row has "text", an "id" (or "_id") and perhaps a "title", which is put before the text. csv has a line of column names
    first, tsv has the names, or else an id, a tab and the text in every line. A row of a table without a column "text" becomes
    a line "column: value" for each value. Without an id the row's number, from 1, is taken.

    Args:
        before: asked where a number is needed, if `file` is a part of a jsonl file.

    Raises:
        ReadError: a row is not what it should be, or too long; the message has the line number.
    """
    lines = Lines(
        file,
        name,
        encoding=encoding or "utf-8-sig",
        newline="",
        longest=limits.unpacked_bytes,
        before=lambda: before().lines,
        advice="give its encoding or convert it",
    )
    rows = _objects(lines) if kind == "jsonl" else _table(lines, kind, name, limits)
    for number, (line, values) in enumerate(rows, start=1):
        yield replace(_document(values, number, before, kind, name, encoding or "utf-8"), line=line)


def _document(
    values: dict[str, object], number: int, before: Callable[[], Before], kind: str, name: str, encoding: str
) -> DocumentText:
    key, title, text = values.get("id", values.get("_id")), values.get("title"), values.get("text")
    title = title if isinstance(title, str) and title else None
    if isinstance(text, str):
        text = titled(title, text)
    elif kind == "jsonl":
        raise ReadError(f'{name}, row {before().rows + number}: expected "text", got {keys(values)}')
    else:
        text = "\n".join(f"{column}: {value}" for column, value in values.items() if value and column not in ("id", "_id"))
    document = read_plain(Decoded(text, encoding))
    return replace(document, kind=kind, id=str(before().rows + number if key is None or key == "" else key), title=title)


def _objects(lines: Lines) -> Iterator[tuple[int, dict[str, object]]]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield number, parse_object(line, lines.place(number))


def _table(file: Lines, kind: str, name: str, limits: Limits) -> Iterator[tuple[int, dict[str, object]]]:
    lines = iter(file)
    first = next(lines, "")
    names = first.rstrip("\r\n").split("\t")
    if kind == "tsv" and "text" not in names and len(names) == 2:  # no column names: the first line is a row
        for number, line in enumerate(chain([first], lines), start=1):
            pair = line.rstrip("\r\n").split("\t", 1)
            if any(pair):
                yield number, dict(zip(("id", "text"), pair, strict=False))
        return
    delimiter = "\t" if kind == "tsv" else max(",;\t|", key=first.count)
    reader = csv.reader(chain([first], lines), delimiter=delimiter, strict=True)
    csv.field_size_limit(limits.unpacked_bytes)  # Python's own bound, 128 KiB, is less than many documents have
    try:
        columns = next(reader, [])
        for row in reader:
            if len(row) > len(columns):
                raise ReadError(
                    f"{name}, line {reader.line_num}: {len(row)} values in {len(columns)} columns; quote what holds {delimiter!r}"
                )
            if any(row):
                yield reader.line_num, dict(zip(columns, row, strict=False))
    except csv.Error as error:
        raise ReadError(f"{name}, line {reader.line_num}: not a valid table ({error})") from error
