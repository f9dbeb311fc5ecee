"""Read rows of csv and tsv files, in the same way for every command and for training.

csv has a first line of column names, perhaps below a line "sep=;" and lines of a title, which have
one value. Rows have as many values as most of the first rows; values beyond the last column belong
to it, as in a text with a comma that should be in quotes.

tsv has a first line of names if a column is called "text", or if there are not two columns.
Otherwise each line of tsv is a row: an id, a tab, the text, which may contain tabs; or, if the
first line has four columns with a URL in the second, MS MARCO's id, url, title and body.
"""

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from runnel.errors import ReadError, damage_in, needing
from runnel.records import titled
from runnel.text.lines import Lines

if TYPE_CHECKING:
    from _csv import Reader

PARQUET = b"PAR1"  # first bytes of a parquet file
_LONGEST = 2**31 - 1  # of a value; Python's own limit, 128 KiB, is too small for many documents


_SAMPLE = 20  # lines that tell the delimiter and the width
_SEPARATOR = re.compile(r"\"?sep=(.)\"?\s*\Z", re.IGNORECASE)


class CsvTable(NamedTuple):
    """A table that is read row by row.

    Attributes:
        names: of the columns, all different.
        rows: (number of the last line, from 1; values by column).
        problems: by the number of a row's last line, what is wrong with it; filled while rows are
            read.
        caption: the title above the names, or "".
    """

    names: list[str]
    rows: Iterator[tuple[int, dict[str, str]]]
    problems: dict[int, str]
    caption: str = ""


def has_names(first: str) -> bool:
    """Return whether the first line of a tsv file contains column names."""
    cells = _cells(first)
    return "text" in cells or (len(cells) != 2 and not _is_msmarco(cells))


def read_table(
    lines: Lines,
    kind: str,
    *,
    names: bool | None = None,
    longest: int = _LONGEST,
    strict: bool = False,
) -> CsvTable:
    """Read a csv or tsv file. Without column names the columns are "id", "text" and, for MS MARCO,
    "title".

    `names`: for tsv, whether `lines` begins with column names (default: `has_names` of its first
    line). `longest`: the most characters of a value. `strict`: ReadError for a row with more values
    than columns.
    """
    rest = iter(lines)
    sample = list(islice(rest, _SAMPLE))
    first = sample[0] if sample else ""
    if kind == "tsv" and not (has_names(first) if names is None else names):
        columns = ["id", "url", "title", "text"] if _is_msmarco(_cells(first)) else ["id", "text"]
        every = chain(sample, rest)
        named = [name for name in columns if name != "url"]
        return CsvTable(named, _unnamed(lines, every, columns), {})
    csv.field_size_limit(longest)
    separator = _SEPARATOR.match(first) if kind == "csv" else None
    skipped = 1 if separator else 0
    delimiter = "\t" if kind == "tsv" else delimiter_of("".join(sample[skipped:]))
    delimiter = separator[1] if separator else delimiter
    width = 0 if strict else _width(_sample_rows("".join(sample[skipped:]), delimiter))
    reader = csv.reader(chain(sample[skipped:], rest), delimiter=delimiter, strict=True)
    rows = _parsed(lines, reader, skipped)
    title: list[str] = []
    heads = next(filter(any, rows), [])
    while width > 1 and sum(map(bool, heads)) == 1 and len(title) < _SAMPLE:
        title += filter(None, heads)
        heads = next(filter(any, rows), [])
    columns = _unique(heads, width)
    table = CsvTable(columns, iter(()), {}, " ".join(title))
    values = _values(lines, reader, rows, table, delimiter, (width, skipped, strict))
    return table._replace(rows=values)


def read_parquet(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, values) for each row of a parquet file."""
    with needing(f"{path}: parquet needs pyarrow", "lab"):
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    with damage_in(path, ArrowException):
        rows = (row for batch in ParquetFile(path).iter_batches(256) for row in batch.to_pylist())
        yield from ((f"{path}, row {number}", row) for number, row in enumerate(rows, start=1))


def delimiter_of(sample: str) -> str:
    """Return what separates the values in the first lines of a csv file: outside quotes, the sign
    that gives most rows the same width, and then the one that gives them more values.
    """

    def agreement(delimiter: str) -> tuple[float, int]:
        rows = _sample_rows(sample, delimiter)
        width = _width(rows)
        return (sum(len(row) == width for row in rows) / len(rows) if width > 1 else 0.0), width

    return max(",;\t|", key=agreement)


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


def _sample_rows(sample: str, delimiter: str) -> list[list[str]]:
    """Return the rows of the first lines, the last of which may be cut."""
    try:
        return [row for row in csv.reader(sample.splitlines(keepends=True), delimiter=delimiter)]
    except csv.Error:
        return []


def _width(rows: list[list[str]]) -> int:
    """Return the number of values that most rows have; of equally many the first of them."""
    counts = Counter(len(row) for row in rows if any(row))
    return max(counts, key=lambda width: counts[width], default=0)


def _unique(heads: list[str], width: int) -> list[str]:
    """Return a name for each column: missing and repeated names are numbered."""
    names: list[str] = []
    while len(heads) > width > 0 and not heads[-1].strip():
        heads = heads[:-1]
    for number, head in enumerate(heads + [""] * (width - len(heads)), start=1):
        name = head.strip() or f"column {number}"
        count = 1
        while (unique := name if count == 1 else f"{name} ({count})") in names:
            count += 1
        names.append(unique)
    return names


def _parsed(lines: Lines, reader: "Reader", skipped: int) -> Iterator[list[str]]:
    """Yield the rows of a table; ReadError where quotes are wrong."""
    try:
        yield from reader
    except csv.Error as error:
        place = lines.place(reader.line_num + skipped)
        raise ReadError(f"{place}: not a valid table ({error})") from error


def _values(
    lines: Lines,
    reader: "Reader",
    rows: Iterator[list[str]],
    table: CsvTable,
    delimiter: str,
    form: tuple[int, int, bool],
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the values of each row by column, and note rows with more or fewer than others."""
    width, skipped, strict = form
    columns = len(table.names)
    for row in rows:
        if not any(row):
            continue
        number = reader.line_num + skipped
        if len(row) not in (columns, width):
            problem = f"{len(row)} values in {columns} columns; quote what holds {delimiter!r}"
            if strict and len(row) > columns:
                raise ReadError(f"{lines.place(number)}: {problem}")
            table.problems[number] = problem
        while len(row) > columns and not row[-1]:
            row.pop()
        if len(row) > columns:
            row[columns - 1 :] = [delimiter.join(row[columns - 1 :])]
        yield number, dict(zip(table.names, row, strict=False))
