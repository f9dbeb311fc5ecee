"""Cells that reach over several columns and rows, in tables whose text stays as it is in the file
(html in Markdown, AsciiDoc).
"""

from collections.abc import Sequence
from typing import NamedTuple


class Cell(NamedTuple):
    """The words of a cell, how many columns and rows it reaches over, and whether it is a name."""

    words: str
    columns: int
    rows: int
    is_name: bool


class MergedCells:
    """The names of the columns of a table, and the values that reach down.

    A cell over two columns names both; below names that reach over several rows, a column has all
    of its names: "Costs 2024". A value that reaches down is not in the text of the rows below;
    their lead has it beside the caption: "Table 1; Year: 2024".

    Attributes:
        reaching: by column, from 0: for how many more rows a value reaches down, and the value.
    """

    def __init__(self, caption: str = "") -> None:
        self.caption = caption
        self.reaching: dict[int, tuple[int, str]] = {}
        self._names: dict[int, str] = {}  # by column
        self._has_values = False  # a row of values has been added: the rows below are no names

    def add(self, cells: Sequence[Cell]) -> tuple[str, ...]:
        """Add the next row; return its lead, as of `Block`, () for a row of names."""
        above = {column: value for column, (_, value) in self.reaching.items()}
        self.reaching = {
            column: (n - 1, value) for column, (n, value) in self.reaching.items() if n > 1
        }
        columns = []
        heads = not self._has_values and all(cell.is_name for cell in cells)
        self._has_values = not heads
        column = 0  # the first that no cell of this row has yet
        for cell in cells:
            while column in above:
                column += 1
            columns.append(column)
            column += cell.columns
            for place in range(columns[-1], column):
                if cell.rows > 1:
                    self.reaching[place] = cell.rows - 1, cell.words
                if heads:
                    self._names[place] = f"{self._names.get(place, '')} {cell.words}".strip()
        values = (f"{self._names.get(column, '')}: {value}" for column, value in above.items())
        # `row_words` splits a row at its bars or tags: what is before the first has the name ""
        names = (self._names.get(column, "") for column in columns)
        return () if heads else ("; ".join(filter(None, (self.caption, *values))), "", *names)
