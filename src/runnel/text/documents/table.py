"""Tables: rows that know their caption and the names of their columns.

A row in a document's text is its cells, joined by " | "; an empty cell keeps its column. What a
reader of a single row lacks is its `Block.lead`: the caption and the name of each column.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from runnel.text.documents.document import HEADS, Block, Canonical

SEPARATOR = " | "
# What separates cells: a bar, or in Markdown the tags of a table in html. Spaces are matched from
# their first on, so that many take no time.
_PARTS = r"(?:</?t(?:able|head|body|foot|r)\b[^>]*>\s*)"
_BAR = re.compile(
    r"(?:(?<![ \t])[ \t]++)?(?<!\\)\|[ \t]*"
    rf"|(?:(?<!\s)\s++)?(?:</t[dh]>\s*{_PARTS}*|{_PARTS}+|(?=<t[dh]\b))(?:<t[dh]\b[^>]*>\s*)?"
    r"|\Z",
    re.IGNORECASE,
)
_DIGIT = re.compile(r"\d")
_HEAD_CHARS = 60
_LEAST_COLUMNS = 3  # of a table whose first row is taken for names without being marked as such


class Cell(NamedTuple):
    """A cell, and the columns and rows that it spans."""

    text: str = ""
    columns: int = 1
    rows: int = 1


class Table:
    """A table while it is read; `close` adds its rows to the canonical text.

    A value that spans rows or columns stands in each of them. Columns without any value are left
    out. Names of columns are the rows that are marked as such, or else the first row, if its cells
    look like names and the cells below do not.
    """

    def __init__(self, canonical: Canonical, caption: str = "") -> None:
        self.caption = " ".join(caption.split())
        self._canonical = canonical
        self._rows: list[list[str]] = []
        self._pages: list[int | None] = []  # of the rows
        self._heads = 0  # the first rows, which are marked as names
        self._spanning: dict[int, tuple[int, str]] = {}  # by column: rows to come, and the value

    def add_row(self, cells: Sequence[Cell], *, head: bool = False) -> None:
        """Add a row. `head`: the file says that its cells are names of columns."""
        row: list[str] = []
        for cell in cells:
            self._take_spanning(row)
            text = " ".join(cell.text.split())
            for _ in range(max(1, cell.columns)):
                if cell.rows > 1:
                    self._spanning[len(row)] = (cell.rows - 1, text)
                row.append(text)
        self._take_spanning(row)
        if head and self._heads == len(self._rows):
            self._heads += 1
        self._rows.append(row)
        self._pages.append(self._canonical.page)

    def _take_spanning(self, row: list[str]) -> None:
        """Add the values that reach down from rows above to the next columns of a row."""
        while len(row) in self._spanning:
            rows, text = self._spanning.pop(len(row))
            if rows > 1:
                self._spanning[len(row)] = (rows - 1, text)
            row.append(text)

    def close(self) -> None:
        """Add the rows as blocks."""
        width = max(map(len, self._rows), default=0)
        filled = sorted({at for row in self._rows for at, text in enumerate(row) if text})
        if not filled:
            return
        heads = self._heads or int(self._begins_with_names(width))
        names = [self._name(column, heads) for column in filled]
        lead = (self.caption, *(names if heads else ()))
        if not any(lead):
            lead = ()
        current = self._canonical.page
        for number, (row, page) in enumerate(zip(self._rows, self._pages, strict=True)):
            self._canonical.page = page
            cells = [row[column] if column < len(row) else "" for column in filled]
            if not any(cells):
                continue
            text = SEPARATOR.join(cells)
            if number < heads:
                self._canonical.add(text, HEADS)
            else:
                self._canonical.add(text, "row", lead=lead)
        self._canonical.page = current

    def _name(self, column: int, heads: int) -> str:
        """Return the name of a column, from all rows of names."""
        parts = [row[column] for row in self._rows[:heads] if column < len(row) and row[column]]
        return " ".join(dict.fromkeys(parts))

    def _begins_with_names(self, width: int) -> bool:
        """Return whether the first row looks like names: short, all different, without digits,
        above a row with digits.
        """
        if width < _LEAST_COLUMNS or len(self._rows) < 2:
            return False
        first, *rest = self._rows
        names = [cell for cell in first if cell]
        return (
            len(names) >= width - 1
            and len(set(names)) == len(names)
            and not any(len(name) > _HEAD_CHARS or _DIGIT.search(name) for name in names)
            and any(_DIGIT.search(cell) for row in rest for cell in row)
        )


def row_words(text: str, block: Block) -> str:
    """Return a row with a lead as it is shown, on one line: "caption; name: value; name: value".
    Empty cells are left out.
    """
    caption, *names = block.lead
    parts = [caption] if caption else []
    for column, cell in enumerate(_BAR.split(text[block.start : block.end])):
        name = names[column] if column < len(names) else ""
        if cell:
            parts.append(f"{name}: {cell}" if name else cell)
    return " ".join("; ".join(parts).split())
