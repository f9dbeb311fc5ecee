"""Measure how tables of PDF files are read, against files that say what their cells are.

    python tools/read_tables.py FOLDER

FOLDER has PDF files and, for each NAME.pdf, NAME-str.xml: cells with their rows, columns and texts,
in the form of the ICDAR 2013 table competition (Göbel et al.), whose 67 files are in the test
folders of several programs that read tables. Prints for each file, and for all:

- F1 of cells beside each other or below each other, by their texts, over all tables of a file. A
  value that spans several cells is beside each of its neighbors once. Tables that are none count as
  errors. The competition counts each table by its place on the page instead.
- Rows: the share of rows with at least two cells that are read as one row, with all of its cells
  and no others.
"""

import sys
import unicodedata
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from runnel.text.documents.document import DocumentText, Limits
from runnel.text.documents.pdf import read_pdf
from runnel.text.documents.table import SEPARATOR

Grid = Sequence[Sequence[str]]  # rows of the texts of cells
_SIGNS = "$%+-."  # that are compared, apart from letters and digits


class Found(NamedTuple):
    """What was read of a file: F1, whole rows, and all rows."""

    f1: float
    whole: int
    rows: int


def main(folder: Path) -> None:
    """Print what is read of the files of a folder."""
    found = []
    for path in sorted(folder.rglob("*.pdf")):
        expected = path.with_name(f"{path.stem}-str.xml")
        found.append(compare(list(true_tables(expected)), read_pdf(path, Limits())))
        print(f"{path.stem:16} F1 {found[-1].f1:.3f} rows {found[-1].whole}/{found[-1].rows}")
    rows = sum(file.whole for file in found) / sum(file.rows for file in found)
    print(f"{len(found)} files: F1 {mean(file.f1 for file in found):.3f}, rows {rows:.3f}")


def true_tables(path: Path) -> Iterator[Grid]:
    """Yield the tables that a file describes; a value that spans cells is in each of them."""
    for region in ElementTree.parse(path).getroot().iter("region"):
        places: dict[tuple[int, int], str] = {}
        for cell in region.findall("cell"):
            text = plain(cell.findtext("content") or "")
            row, column = (int(cell.attrib[f"start-{axis}"]) for axis in ("row", "col"))
            rows = range(row, max(row, int(cell.get("end-row", row))) + 1)
            columns = range(column, max(column, int(cell.get("end-col", column))) + 1)
            places |= {(r, c): text for r in rows for c in columns}
        height = max(row for row, _ in places) + 1
        width = max(column for _, column in places) + 1
        yield [[places.get((r, c), "") for c in range(width)] for r in range(height)]


def tables_of(document: DocumentText) -> Iterator[Grid]:
    """Yield the tables of a document: rows that follow each other on a page."""
    table: list[list[str]] = []
    page = None
    for block in document.blocks:
        is_row = block.kind in ("row", "heads")
        if table and (not is_row or block.page != page):
            yield table
            table = []
        if is_row:
            cells = document.text[block.start : block.end].split(SEPARATOR)
            table.append([plain(cell) for cell in cells])
        page = block.page
    if table:
        yield table


def plain(text: str) -> str:
    """Return what is compared of a text: letters, digits and a few signs."""
    text = unicodedata.normalize("NFKC", text).lower()
    return "".join(sign for sign in text if sign.isalnum() or sign in _SIGNS)


def neighbors(table: Grid) -> Counter[tuple[str, str, str]]:
    """Count the pairs of cells beside each other and below each other, over empty cells; a value in
    several cells of a line is in it once.
    """
    width = max(map(len, table))
    filled = [[*row, *[""] * (width - len(row))] for row in table]
    pairs = set()
    for axis, lines in (("beside", filled), ("below", list(zip(*filled, strict=True)))):
        for number, line in enumerate(lines):
            cells = [cell for cell in line if cell]
            pairs |= {(axis, number, a, b) for a, b in pairwise(cells) if a != b}
    return Counter((axis, a, b) for axis, _, a, b in pairs)


def compare(true: Sequence[Grid], document: DocumentText) -> Found:
    """Return how the tables of a document agree with the true tables."""
    read = list(tables_of(document))
    expected = sum(map(neighbors, true), Counter())
    actual = sum(map(neighbors, read), Counter())
    common = (expected & actual).total()
    known = {"".join(row) for table in read for row in table}
    known |= {plain(document.text[block.start : block.end]) for block in document.blocks}
    rows = [row for table in true for row in table if len({*row} - {""}) > 1]
    once = ["".join(b for a, b in pairwise(["", *row]) if a != b) for row in rows]
    whole = sum(
        "".join(row) in known or text in known for row, text in zip(rows, once, strict=True)
    )
    return Found(2 * common / max(1, (expected + actual).total()), whole, len(rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
