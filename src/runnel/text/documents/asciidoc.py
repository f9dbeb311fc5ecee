"""Find the tables of AsciiDoc in plain text: rows that know the caption and the names of their
columns.

A table is between two lines `|===`. Its cells begin with a bar, before which a cell may say how
many columns and rows it reaches over ("2+|", ".3+|"), its alignment and its style ("a|"); they may
be on lines of their own: a row is full once each column has a cell. Between `,===` or `:===`, and
with a format in the attributes above, each line is a row, and the first line is one name.

Source: AsciiDoc Language Documentation, "Tables".
"""

import re
from collections.abc import Iterator

from runnel.text.documents.merged_cells import Cell, MergedCells

_TABLE = re.compile(  # the lines above are '.Title' and '[cols="1,2"]'
    r"(?P<above>(?:^(?:\.(?=[^\s.])|\[).*\n){0,4}+)^(?P<fence>[|,:]={3,})[ \t]*\n"
    r"(?P<body>(?s:.*?))^(?P=fence)[ \t]*$",
    re.MULTILINE,
)
_TITLE = re.compile(r"^\.(.*)", re.MULTILINE)
_COLUMNS = re.compile(r"cols\s*=\s*(?:\"([^\"]+)|([^\s,\]]+))")
_COLUMN = re.compile(r"\s*(\d{1,3})\*[^,]*|[^,]+")  # "3*": three columns
_NAMED = re.compile(r"%header|opt(?:ion)?s\s*=\s*\"?[^\"\]]*\bheader")
_NAMED_LINE = re.compile(r".*\S.*\n[ \t]*\n")  # the first line, above a blank one
_BY_LINES = re.compile(r"^[,:]|format\s*=\s*\"?(?!psv)", re.MULTILINE)
_LINE = re.compile(r"()()^(?=.*\S)", re.MULTILINE)
_CELL = re.compile(
    r"(?:(?<!\S)(?:(\d{1,3})?(?:\.(\d{1,3}))?[+*])?[<^>]?(?:\.[<^>])?[adehlmsv]?)?(?<!\\)\|"
)


# Where a block ends, its kind and its lead, as of `Block`; it begins where the one before ends.
Added = tuple[int, str, tuple[str, ...]]


def tables_in(text: str) -> Iterator[tuple[int, list[Added]]]:
    """Yield where each table begins, with the lines above it that belong to it, and its blocks."""
    for table in _TABLE.finditer(text):
        first: Added = (table.start("body"), "contents", ())
        yield table.start(), [first, *_rows(table), (table.end(), "contents", ())]


def _rows(table: re.Match[str]) -> Iterator[Added]:
    text = table.string
    above = table["above"]
    title = _TITLE.search(above)
    columns = _COLUMNS.search(above)
    by_lines = _BY_LINES.search(above + table["fence"])
    cells = list((_LINE if by_lines else _CELL).finditer(text, *table.span("body")))
    ends = [*(cell.start() for cell in cells), table.end("body")][1:]
    first_line = text.find("\n", cells[0].start()) if cells else 0
    width = sum(int(cell[1] or 1) for cell in cells if cell.start() < first_line)
    if columns and not by_lines:
        width = sum(int(column[1] or 1) for column in _COLUMN.finditer(columns[1] or columns[2]))
    named = bool(_NAMED.search(above) or _NAMED_LINE.match(table["body"]))
    merged = MergedCells(title[1] if title else "")
    row: list[Cell] = []
    for number, (cell, end) in enumerate(zip(cells, ends, strict=True), start=1):
        words = " ".join(text[cell.end() : end].split())
        row.append(Cell(words, int(cell[1] or 1), int(cell[2] or 1), named))
        if sum(c.columns for c in row) + len(merged.reaching) < width and number < len(cells):
            continue
        lead = merged.add(row)
        if by_lines:
            lead = lead[:1] + lead[2:]  # no bar is before the line
        yield end, "row" if lead else "heads", lead
        named = False
        row = []
