"""Tables of a PDF whose cells are drawn: the words between the same four lines are a cell, however
many lines of text it has, and however many columns or rows it spans.

    drawn_lines   the horizontal and vertical lines of a page
    take_tables   the words and lines of a page -> its tables, and the words that are in none
    put_tables    puts the tables among the other parts of the page, in reading order

All places are in points, in coordinates in which the text is upright. A `Box`, and a row of an
array of lines (n, 4), is (left, bottom, right, top).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ctypes import byref, c_float, c_int
from dataclasses import replace
from itertools import pairwise
from operator import attrgetter, itemgetter
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from runnel.text.documents.pdf_layout import NUMERIC, Line, PdfPart, line_of, rows_of, table_part
from runnel.text.documents.pdf_words import Box, Word, around, turned

if TYPE_CHECKING:
    from pypdfium2 import PdfPage

_THIN = 3.0  # the most points across a line, and between two lines that are one
_SHORTEST = 4.0  # points of a line
_MOST = 2_000  # paths or lines of a page; more draw a map or a plot
_MOST_SEGMENTS = 400  # the most segments of a drawn path
# the most lines of text in a cell of a table; with more, the drawn lines frame parts of a page
_MOST_LINES = 6
# From this many lines of text in every cell, a row may be several rows without lines between them.
# If more than a share of the rows, `_SEVERAL`, may be so, the table is left to `pdf_layout`.
_SAME_LINES = 3
_SEVERAL = 0.3
# the least share of rows with words to the left of the drawn lines that are labels of the rows
_MOST_ROWS = 0.8


class _Cell(NamedTuple):
    """The places of the lines around a cell, and the number of their table."""

    left: float
    bottom: float
    right: float
    top: float
    table: int


def drawn_lines(page: PdfPage) -> list[Box]:
    """Return the horizontal and vertical lines of a page, in its own coordinates."""
    from pypdfium2 import raw

    paths = list(page.get_objects(filter=[raw.FPDF_PAGEOBJ_PATH], max_depth=1))
    if len(paths) > _MOST:
        return []
    lines: list[Box] = []
    for path in paths:
        left, bottom, right, top = path.get_bounds()
        if min(right - left, top - bottom) <= _THIN:
            lines.append((left, bottom, right, top))
        else:
            lines += _stroked_lines(path, raw)
    return [line for line in lines if max(line[2] - line[0], line[3] - line[1]) >= _SHORTEST]


def _stroked_lines(path: Any, raw: Any) -> Iterator[Box]:
    """Yield the lines of a path that is drawn with a pen, such as a rectangle or a whole grid."""
    fill = c_int()
    stroke = c_int()
    raw.FPDFPath_GetDrawMode(path, byref(fill), byref(stroke))
    count = raw.FPDFPath_CountSegments(path)
    if not stroke.value or count > _MOST_SEGMENTS:
        return
    matrix = path.get_matrix()
    x = c_float()
    y = c_float()
    points: list[tuple[float, float]] = []
    for number in range(count):
        segment = raw.FPDFPath_GetPathSegment(path, number)
        raw.FPDFPathSegment_GetPoint(segment, byref(x), byref(y))
        if raw.FPDFPathSegment_GetType(segment) == raw.FPDF_SEGMENT_MOVETO:
            points = []
        points.append(matrix.on_point(x.value, y.value))
        if raw.FPDFPathSegment_GetClose(segment):
            points.append(points[0])
        for a, b in pairwise(points[-3:]):
            box = min(a[0], b[0]), min(a[1], b[1]), max(a[0], b[0]), max(a[1], b[1])
            if min(box[2] - box[0], box[3] - box[1]) <= _THIN:
                yield box


def take_tables(
    words: Sequence[Word], lines: Sequence[Box], page: int
) -> tuple[list[Word], list[PdfPart]]:
    """Return the words that are in no table, and the tables whose cells the lines draw."""
    tables: list[PdfPart] = []
    if 0 < len(lines) <= _MOST:
        for angle in {word.angle for word in words}:
            upright = [word for word in words if word.angle == angle]
            whole = _joined([turned(line, angle) for line in lines])
            cells = _cells(upright, _closed(np.array(whole)))
            found = [
                _part({cell: cells[cell] for cell in cells if cell.table == number}, page)
                for number in {cell.table for cell in cells}
            ]
            drawn = [part for part in found if part]
            others = _without(upright, drawn)
            tables += [part for part in drawn if not _has_labels_beside(part, others)]
    return _without(words, tables), tables


def _without(words: Sequence[Word], tables: Sequence[PdfPart]) -> list[Word]:
    taken = {id(word) for table in tables for word in table.words}
    return [word for word in words if id(word) not in taken]


def _joined(lines: Iterable[Box]) -> list[Box]:
    """Return lines as a whole: some are drawn in pieces, one for each cell beside them."""
    by_place = defaultdict(list)
    for line in lines:
        left, bottom, right, top = line
        level = right - left > top - bottom
        by_place[level, round(bottom + top if level else left + right)].append(line)
    joined: list[Box] = []
    for (level, _), pieces in by_place.items():
        begin = 0 if level else 1
        whole: list[Box] = []
        for piece in sorted(pieces, key=itemgetter(begin)):
            if whole and piece[begin] <= whole[-1][begin + 2] + _THIN:
                piece = around(whole.pop(), piece)
            whole.append(piece)
        joined += whole
    return joined


def _closed(lines: np.ndarray) -> np.ndarray:
    """Return the lines (L, 4) that reach from one line to another; others underline words, or
    separate paragraphs.
    """
    level = _level(lines)
    reaches = np.zeros(len(lines), bool)
    for chosen, first in ((level, 0), (~level, 1)):
        own = lines[chosen][:, None]
        others = lines[~chosen]
        middle = (own[..., 1 - first] + own[..., 3 - first]) / 2
        met = (others[:, 1 - first] - _THIN <= middle) & (middle <= others[:, 3 - first] + _THIN)
        place = (others[:, first] + others[:, first + 2]) / 2
        ends = [(met & (abs(place - own[..., end]) <= _THIN)).any(1) for end in (first, first + 2)]
        reaches[chosen] = ends[0] & ends[1]
    return lines[reaches]


def _level(lines: np.ndarray) -> np.ndarray:
    """(L,) bool: lines that are horizontal."""
    return lines[:, 2] - lines[:, 0] > lines[:, 3] - lines[:, 1]


def _cells(words: Sequence[Word], lines: np.ndarray) -> dict[_Cell, list[Word]]:
    """Return the words (W) of each cell: words that have the same nearest lines (L, 4) around
    them.
    """
    cells: dict[_Cell, list[Word]] = defaultdict(list)
    level = _level(lines)
    if level.all() or not level.any():
        return cells
    x = np.array([[(word.left + word.right) / 2] for word in words])
    y = np.array([[word.center] for word in words])
    left, right, number = _nearest(lines[~level], 1, y, x)
    bottom, top, _ = _nearest(lines[level], 0, x, y)
    tables = _connected(lines)[~level][number].tolist()
    around = map(_Cell, left, bottom, right, top, tables)
    for word, cell in zip(words, around, strict=True):
        if np.isfinite(cell).all():
            cells[cell].append(word)
    return cells


def _nearest(
    lines: np.ndarray, first: int, along: np.ndarray, across: np.ndarray
) -> tuple[list[float], list[float], np.ndarray]:
    """Return the places of the nearest lines before and behind each word (W), or infinity, and the
    number of the line before it.

    Args:
        lines: (L, 4) of one direction, whose coordinates along them are `first` and `first` + 2.
        along, across: (W, 1) the middles of the words in this direction and in the other.
    """
    reaches = (lines[:, first] - _THIN <= along) & (along <= lines[:, first + 2] + _THIN)
    place = (lines[:, 1 - first] + lines[:, 3 - first]) / 2
    before = np.where(reaches & (place <= across), place, -np.inf)
    behind = np.where(reaches & (place > across), place, np.inf)
    return _as_one(before.max(1)), _as_one(behind.min(1)), before.argmax(1)


def _connected(lines: np.ndarray) -> np.ndarray:
    """Return (L,) the number of the table of each line: lines that touch are of one table."""
    low = lines[:, None, :2] - _THIN
    high = lines[:, None, 2:] + _THIN
    touch = ((low <= lines[:, 2:]) & (high >= lines[:, :2])).all(-1)
    tables = np.arange(len(lines))
    for _ in range(len(lines)):
        least = np.where(touch, tables, len(lines)).min(1)
        if (least == tables).all():
            break
        # takes the table of that table too: chains shorten by half in each step
        tables = least[least]
    return tables


def _as_one(places: np.ndarray) -> list[float]:
    """Return places in which those of a double line are one."""
    known, inverse = np.unique(places, return_inverse=True)
    for number in range(1, len(known)):
        if known[number] - known[number - 1] <= _THIN:
            known[number] = known[number - 1]
    return known[inverse].tolist()


def _part(cells: Mapping[_Cell, list[Word]], page: int) -> PdfPart | None:
    """Return a table, in which a cell is in each row and column that it spans; None for frames
    around other things.
    """
    columns = sorted({cell.left for cell in cells})
    rows = sorted({-cell.top for cell in cells})
    if len(columns) < 2 or len(rows) < 2:
        return None
    right = max(cell.right for cell in cells)
    texts: list[list[list[Line]]] = [[[] for _ in columns] for _ in rows]
    parts = [part for whole, inside in cells.items() for part in _split(whole, inside, columns)]
    for cell, words in parts:
        lines = [line_of(row) for row in rows_of(words)]
        begin = bisect_left(columns, cell.left)
        end = max(begin + 1, bisect_left(columns, cell.right))
        if begin == 0 and cell.right >= right:
            end = 1  # a title across all columns
        last = max(bisect_left(rows, -cell.top) + 1, bisect_left(rows, -cell.bottom))
        for row in texts[bisect_left(rows, -cell.top) : last]:
            if any(row[begin:end]):
                return None  # cells that overlap are none
            row[begin:end] = [lines] * (end - begin)
    usual = median(len(cell) for row in texts for cell in row if cell)
    # Rows without lines between them: the lines of all cells are beside each other.
    counts = [[len(cell) for cell in row if cell] for row in texts]
    several = sum(len(set(row)) == 1 < len(row) and row[0] >= _SAME_LINES for row in counts)
    if usual > _MOST_LINES or several > _SEVERAL * len(texts):
        return None
    texts = [row for cells in texts for row in _rows_of_cells(cells)]
    edges = [(place - _THIN, place + _THIN) for place in columns[1:]]
    words = [word for found in cells.values() for word in found]
    words.sort(key=lambda word: (-word.center, word.left))
    return replace(table_part(texts, words, edges), page=page)


def _split(
    cell: _Cell, words: list[Word], columns: Sequence[float]
) -> list[tuple[_Cell, list[Word]]]:
    """Return the words of a cell by column: some tables have lines between columns only at their
    top. A title across columns stays whole.
    """
    by_column = defaultdict(list)
    for word in sorted(words, key=attrgetter("left")):
        by_column[bisect_right(columns, word.left)].append(word)
    parts = list(by_column.values())
    gaps = [b[0].left - max(word.right for word in a) for a, b in pairwise(parts)]
    if min(gaps, default=0.0) < words[0].height:
        return [(cell, words)]
    ends = [*columns[1:], cell.right]
    return [
        (cell._replace(left=columns[at - 1], right=ends[at - 1]), part)
        for at, part in by_column.items()
    ]


def _rows_of_cells(cells: list[list[Line]]) -> list[list[list[Line]]]:
    """Return the rows of a row: several, if the lines of a cell are numbers below each other, or
    two in each of several cells.
    """
    numbers = [len(cell) for cell in cells if all(NUMERIC.fullmatch(line.text) for line in cell)]
    if max(numbers, default=0) < _SAME_LINES and numbers.count(2) < _SAME_LINES:
        return [cells]
    column = {id(word): at for at, cell in enumerate(cells) for line in cell for word in line.words}
    rows = rows_of([word for cell in cells for line in cell for word in line.words])
    words = [[[w for w in row if column[id(w)] == at] for at in range(len(cells))] for row in rows]
    return [[[line_of(cell)] if cell else [] for cell in row] for row in words]


def _has_labels_beside(table: PdfPart, others: Sequence[Word]) -> bool:
    """Return whether most rows of a table have words to the left of its lines. `others`: the words
    in no table.
    """
    left, bottom, _, top = _extent(table)
    labels = [word for word in others if bottom < word.center < top and word.right < left]
    first = max((word.top for word in labels), default=bottom)  # below the names of columns
    rows = rows_of([*labels, *(word for word in table.words if word.center < first)])
    labeled = sum(row[0].right < left <= row[-1].left for row in rows)
    return 0 < labeled >= _MOST_ROWS * len(rows)


def put_tables(parts: list[PdfPart], tables: Iterable[PdfPart]) -> None:
    """Put tables among the other parts of a page: before the first part below, in their column."""
    for table in tables:
        left, _, right, top = _extent(table)
        column = {
            number: _extent(part)
            for number, part in enumerate(parts)
            if part.words and part.words[0].angle == table.words[0].angle
        }
        column = {at: box for at, box in column.items() if box[0] < right and box[2] > left}
        below = [at for at, box in column.items() if box[3] < top]
        parts.insert(min(below, default=max(column, default=len(parts) - 1) + 1), table)


def _extent(part: PdfPart) -> Box:
    """Return the box around the words of a part."""
    return (
        min(word.left for word in part.words),
        min(word.bottom for word in part.words),
        max(word.right for word in part.words),
        max(word.top for word in part.words),
    )
