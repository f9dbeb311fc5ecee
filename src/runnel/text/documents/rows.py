"""Read the rows of jsonl, csv and tsv files, a document each: a stream, whatever the size of the
file.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import BinaryIO

from runnel.errors import ReadError, UnsupportedKind
from runnel.files import Decoded
from runnel.text.documents.document import Canonical, DocumentText, Limits, read_plain
from runnel.text.lines import Lines, keys, parse_object
from runnel.text.tables import CsvTable, read_table, row_text

NO_ROWS = "no rows; the first line of a csv or tsv file contains the column names"
_MOST_ROW_CHARS = 1000  # of a row whose values are one block


def read_row_documents(
    file: BinaryIO, kind: str, name: str, limits: Limits, encoding: str | None
) -> Iterator[DocumentText]:
    """Yield the rows of an open file, then close it.

    A jsonl row has "text", an "id" (or "_id") and optionally a "title", which is put before the
    text. `runnel.text.tables` describes csv and tsv. Without an id, the id is the row's number,
    from 1.
    """
    lines = Lines(
        file,
        name,
        # jsonl is UTF-8; spreadsheets also write UTF-16
        encoding=encoding or ("utf-8-sig" if kind == "jsonl" else None),
        newline="",
        longest=limits.unpacked_bytes,
        advice="give its encoding or convert it",
    )
    rows: Iterable[tuple[int, Mapping[str, object]]]
    table: CsvTable | None = None
    if kind == "jsonl":
        rows = (
            (number, parse_object(line, lines.place(number)))
            for number, line in enumerate(lines, start=1)
            if line.strip()
        )
    else:
        table = read_table(lines, kind, longest=limits.unpacked_bytes)
        rows = table.rows
    for number, (line_number, values) in enumerate(rows, start=1):
        if kind == "jsonl":
            _expect_document(values, number, f"{name}, row {number}")
        encoding = (lines.encoding or "utf-8").removesuffix("-sig")
        key = values.get("id", values.get("_id"))
        title = values.get("title") or (table.caption if table else None)
        problem = table.problems.pop(line_number, None) if table else None
        document = _read_row(row_text(values), encoding, "text" in values)
        yield replace(
            document,
            kind=kind,
            id=str(number if key is None or key == "" else key),
            title=title if isinstance(title, str) and title else None,
            line=line_number,
            warnings=(
                *document.warnings,
                *([lines.warning] if lines.warning and number == 1 else []),
                *([f"line {line_number:,}: {problem}"] if problem else []),
            ),
        )


def _read_row(text: str, encoding: str, is_text: bool) -> DocumentText:
    """Read a row: its text as plain text, or its values with their names as one block."""
    if is_text or len(text) > _MOST_ROW_CHARS:
        return read_plain(Decoded(text, encoding))
    canonical = Canonical()
    canonical.add(text, "row")
    return canonical.finish("txt", encoding=encoding)


def _expect_document(values: Mapping[str, object], number: int, place: str) -> None:
    """Raise ReadError for a row without text, `UnsupportedKind` if the file's first row shows that
    its rows are no documents.
    """
    # of `runnel lab questions`, or evidence
    if (
        number == 1
        and values.keys() & {"question", "query"}
        and values.keys() & {"file", "document"}
    ):
        raise UnsupportedKind(
            f'{place}: expected a document with "text", got a question about other files'
        )
    if not isinstance(values.get("text"), str):
        other = number == 1 and "text" not in values
        raise (UnsupportedKind if other else ReadError)(
            f'{place}: expected a document with "text", got {keys(values)}'
        )
