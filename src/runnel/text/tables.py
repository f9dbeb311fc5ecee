"""Read rows of csv and tsv files, in the same way for every command and for training.

csv has a first line of column names. tsv has one if a column is called "text", or if there are not
two columns. Otherwise each line of tsv is a row: an id, a tab, the text, which may contain tabs;
or, if the first line has four columns with a URL in the second, MS MARCO's id, url, title and body.
"""

import csv
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from runnel.errors import ReadError, damage_in, needing
from runnel.records import titled
from runnel.text.lines import Lines

if TYPE_CHECKING:
    from _csv import Reader

PARQUET = b"PAR1"  # first bytes of a parquet file
_LONGEST = 2**31 - 1  # of a value; Python's own limit, 128 KiB, is too small for many documents


class Table(NamedTuple):
    """Column names, and rows as (number of the last line, from 1; values by column)."""

    names: list[str]
    rows: Iterator[tuple[int, dict[str, str]]]


def has_names(first: str) -> bool:
    """Return whether the first line of a tsv file contains column names."""
    cells = _cells(first)
    return "text" in cells or (len(cells) != 2 and not _is_msmarco(cells))


def read_table(
    lines: Lines, kind: str, *, names: bool | None = None, longest: int = _LONGEST
) -> Table:
    """Read a csv or tsv file. Without column names the columns are "id", "text" and, for MS MARCO,
    "title".

    `names`: for tsv, whether `lines` begins with column names (default: `has_names` of its first
    line). `longest`: the most characters of a value.
    """
    rest = iter(lines)
    first = next(rest, "")
    every = chain([first], rest)
    if kind == "tsv" and not (has_names(first) if names is None else names):
        columns = ["id", "url", "title", "text"] if _is_msmarco(_cells(first)) else ["id", "text"]
        return Table([name for name in columns if name != "url"], _unnamed(lines, every, columns))
    csv.field_size_limit(longest)
    delimiter = "\t" if kind == "tsv" else delimiter_of(first)
    reader = csv.reader(every, delimiter=delimiter, strict=True)
    rows = _parsed(lines, reader, delimiter)
    columns = next(filter(None, rows), [])
    return Table(
        columns,
        ((reader.line_num, dict(zip(columns, row, strict=False))) for row in rows if any(row)),
    )


def read_parquet(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, values) for each row of a parquet file."""
    with needing(f"{path}: parquet needs pyarrow", "lab"):
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    with damage_in(path, ArrowException):
        rows = (row for batch in ParquetFile(path).iter_batches(256) for row in batch.to_pylist())
        yield from ((f"{path}, row {number}", row) for number, row in enumerate(rows, start=1))


def delimiter_of(names: str) -> str:
    """Return what separates the column names of a csv file."""
    return max(",;\t|", key=names.count)


def row_text(values: Mapping[str, object]) -> str:
    """Return the text of a row, its title before it; without a column "text", a line "column:
    value" for each value.
    """
    if "text" in values:
        return titled(values.get("title"), str(values["text"]))
    return "\n".join(
        f"{column}: {value}"
        for column, value in values.items()
        if value and column not in ("id", "_id")
    )


def _cells(line: str) -> list[str]:
    return line.rstrip("\r\n").split("\t")


def _is_msmarco(cells: list[str]) -> bool:
    return len(cells) == 4 and cells[1].startswith(("http://", "https://"))


def _unnamed(
    lines: Lines, every: Iterator[str], columns: list[str]
) -> Iterator[tuple[int, dict[str, str]]]:
    for number, line in enumerate(every, start=1):
        cells = line.rstrip("\r\n").split("\t", len(columns) - 1)
        if len(cells) == len(columns) and line.strip():
            yield (
                number,
                {name: cell for name, cell in zip(columns, cells, strict=True) if name != "url"},
            )
        elif line.strip():
            raise ReadError(
                f"{lines.place(number)}: expected {', '.join(columns)} between tabs, got"
                f" {line[:40]!r}"
            )


def _parsed(lines: Lines, reader: "Reader", delimiter: str) -> Iterator[list[str]]:
    """Yield the rows of a table; ReadError for a row that is longer than the first, the names of
    the columns.
    """
    columns = 0
    try:
        for row in reader:
            columns = columns or len(row)
            if len(row) > columns:
                problem = f"{len(row)} values in {columns} columns; quote what holds {delimiter!r}"
                break
            yield row
        else:
            return
    except csv.Error as error:
        problem = f"not a valid table ({error})"
    raise ReadError(f"{lines.place(reader.line_num)}: {problem}")
