"""The layout of a page of a PDF: columns, tables and paragraphs, in the order in which they are
read.

A PDF has only places of words. Rows of words that leave the same gaps free are columns of prose, if
their lines go on in the line below, or else a table.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from statistics import median

from runnel.text.documents.pdf_words import HYPHEN, Word

Gap = tuple[float, float]  # left, right
Row = list[Word]

# All distances are in heights of the words around them.
_SAME_ROW = 0.5  # the largest distance of the middles of two words of a row
# The least gap that separates columns, by the number of rows with text on both sides: a space
# between words is never in the same place in many lines.
_SEPARATING = ((2, 0.9), (6, 0.5), (12, 0.2))
_NAMES = 6  # rows of names of columns, at most, and one
_FEW = 4  # rows, if cells begin in the same place in most of them
_MOST = 0.8
_WIDE = 0.4
_NARROW = 0.15
_EDGE = 0.1  # the largest distance of the begins of two cells of a column
_OVERLAP = 0.9  # the largest distance of two rows that are beside each other in part
_APART = 2.0  # the largest empty space between two rows of columns
_LOOSE = 1.3  # of lines of two paragraphs, at least, in units of the usual distance of lines
_DOUBLE = 2.0  # the largest usual distance: pages with few lines have only wide gaps
_OWN = 5  # lines from which a column has its own usual distance
_TORN = 0.1  # the largest gap at which a word continues in the next
_TIGHT = 1.6  # the largest distance of two lines of a cell
_FULL = 0.85  # of a column's width: a line that ends beyond it is full
_LEADERS = 5  # dots of a line
_DEEPEST = 8  # columns within columns
_SIZES = 0.08  # the least difference of two sizes
_FEW_WORDS = 2
_PROSE = 0.4  # the least share of lines of a column of prose that go on in the line below
_ALIGNED = 0.5  # the least share of a table's lines that are in the row of another column
_BEGIN = 0.7  # the least share of a table's cells that begin with another cell of the row
_LABEL = re.compile(r"\W?(?:\w{1,3}|[ivxlIVXL]{1,5}|\d{1,2}(?:\.\d{1,2})+)?[.):\W]?\Z")
_END = re.compile(r"[.!?:;\u3002\uff01\uff1f][\"')\]\u201d\u2019]*(?:\[\d+\])?\Z")
_JOINS = ",.;:)]"  # signs before which PDFium splits some lines
_WIDE_SCRIPT = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")


@dataclass(slots=True)
class Line:
    """A line of a paragraph."""

    words: Row
    text: str
    left: float
    right: float
    bottom: float
    height: float
    font: str | None  # None if it has several


@dataclass(slots=True)
class PagePiece:
    """A paragraph or a table of a page.

    Attributes:
        lines: of a paragraph.
        rows: of a table: the cells.
        gaps: between the columns of a table.
        heads: how many of its first rows are in another font than the others.
        flows: whether it begins a column, so that the text before it may go on in it.
        full: whether its last line reaches the end of its column.
    """

    lines: list[Line] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    words: Row = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    heads: int = 0
    flows: bool = False
    full: bool = False

    @property
    def height(self) -> float:
        return median(line.height for line in self.lines) if self.lines else 0.0


def lay_out(words: Sequence[Word]) -> list[PagePiece]:
    """Return the paragraphs and tables of a page, in the order in which they are read. Text that is
    turned by another angle than most of the page follows the rest.
    """
    pieces: list[PagePiece] = []
    for angle, _ in Counter(word.angle for word in words).most_common():
        leaves = list(_leaves([word for word in words if word.angle == angle], depth=0))
        steps = [step for leaf in leaves for step in _steps(leaf.lines)]
        for leaf in leaves:
            pieces += _paragraphs(leaf, steps) if leaf.lines else [leaf]
    return pieces


def rows_of(words: Sequence[Word]) -> list[Row]:
    """Return words in rows, from top to bottom, each from left to right."""
    rows: list[Row] = []
    cores: list[Word] = []  # the highest word of each row
    for word in sorted(words, key=lambda word: -word.center):
        for number in range(len(rows) - 1, max(-1, len(rows) - 4), -1):
            core = cores[number]
            if abs(core.center - word.center) < _SAME_ROW * min(core.height, word.height):
                rows[number].append(word)
                if word.height > core.height:
                    cores[number] = word
                break
        else:
            rows.append([word])
            cores.append(word)
    for row in rows:
        row.sort(key=lambda word: word.left)
    return rows


def line_of(row: Row) -> Line:
    """Return words of a row as a line."""
    core = max(row, key=lambda word: len(word.text))  # not a sign in another font
    parts = [row[0].text]
    for before, after in pairwise(row):
        torn = (
            after.line_start
            and after.text[0] in _JOINS
            and after.left - before.right < _TORN * core.height
        )
        parts[-1] = parts[-1].replace(HYPHEN, "-")
        parts += ["" if torn else " ", after.text]
    one_font = all(word.font == row[0].font for word in row)
    return Line(
        row,
        "".join(parts),
        row[0].left,
        max(word.right for word in row),
        core.bottom,
        core.height,
        row[0].font if one_font else None,
    )


# ---- columns and tables --------------------------------------------------------------------------


def _leaves(words: Sequence[Word], *, depth: int) -> Iterator[PagePiece]:
    """Yield columns of lines, and tables. `depth`: of the columns around the words."""
    rows = rows_of(words)
    if not rows:
        return
    height = median(word.height for word in words)
    free = [_free(row, _NARROW * height) for row in rows]
    left = min(row[0].left for row in rows)
    right = max(word.right for row in rows for word in row)
    plain: list[Row] = []
    start = 0
    flows = depth > 0
    while start < len(rows):
        end, gaps = _run(rows, free, start, (left, right), height)
        part = rows[start:end]
        start = end
        gaps = _without_labels(part, gaps) if depth < _DEEPEST else []
        columns = [
            [word for row in part for word in row if _at(word, gaps) == at]
            for at in range(len(gaps) + 1)
        ]
        prose = bool(gaps) and _are_columns(columns, part)
        table = None
        if not gaps or (not prose and _fixed_pitch(words)):
            plain += part
            continue
        if not prose:
            table = _Table(part, gaps, height)
            if len(table.rows) == 1:  # columns of a few lines
                table = None
        if table:
            plain += part[: table.first]
        if plain:
            yield _leaf(plain, flows)
            flows = False
            plain = []
        if table:
            yield table.piece()
            plain = part[table.last :]
        else:
            for column in columns:
                yield from _leaves(column, depth=depth + 1)
        flows = True
    if plain:
        yield _leaf(plain, flows)


def _leaf(rows: list[Row], flows: bool) -> PagePiece:
    return PagePiece(lines=[line_of(row) for row in rows], flows=flows)


def _free(row: Row, least: float) -> list[Gap]:
    """Return the gaps that a row leaves free, also at its sides."""
    gaps = []
    end = -inf
    for word in row:
        if word.left - end >= least:
            gaps.append((end, word.left))
        end = max(end, word.right)
    return [*gaps, (end, inf)]


def _run(
    rows: list[Row], free: list[list[Gap]], start: int, sides: Gap, height: float
) -> tuple[int, list[Gap]]:
    """Return where the rows with the same gaps as a row end, and the gaps; one row without gaps if
    there are none. Names of columns, which may stand across gaps, end before the rows below.
    """
    end, gaps, score = _longest_run(rows, free, start, sides, height)
    for later in range(start + 1, min(end, start + _NAMES)):
        if _longest_run(rows, free, later, sides, height)[2] > 2 * score:
            return later, []
    return end, gaps


def _longest_run(
    rows: list[Row], free: list[list[Gap]], start: int, sides: Gap, height: float
) -> tuple[int, list[Gap], int]:
    """Return where the longest run of rows with the same gaps ends, the gaps, and how many cells
    they separate.
    """
    common = [(max(a, sides[0]), min(b, sides[1])) for a, b in free[start]]
    common = [(a, b) for a, b in common if b - a >= _WIDE * height]
    states = []  # (end, gaps that are free up to there)
    end = start + 1
    while common:
        if end == len(rows):
            states.append((end, common))
            break
        white = min(word.bottom for word in rows[end - 1]) - max(word.top for word in rows[end])
        shared = [] if white > _APART * height else list(_shared(common, free[end], height))
        if shared != common:
            states.append((end, common))
        common = shared
        end += 1
    best: tuple[int, int, list[Gap]] = (0, start + 1, [])
    for end, gaps in reversed(states):
        counts = [(_both_sides(gap, rows[start:end], height), gap) for gap in gaps]
        score = sum(count for count, _ in counts)
        if score > best[0]:
            best = (score, end, [gap for count, gap in counts if count])
    return best[1], best[2], best[0]


def _shared(common: list[Gap], free: list[Gap], height: float) -> Iterator[Gap]:
    """Yield what a row leaves free of common gaps. A gap as narrow as one between words counts only
    if a column begins behind it.
    """
    for a, b in common:
        for c, d in free:
            own = d - c >= _WIDE * height or abs(d - b) < _EDGE * height
            if own and min(b, d) - max(a, c) >= _NARROW * height:
                yield max(a, c), min(b, d)


def _both_sides(gap: Gap, rows: list[Row], height: float) -> int:
    """Return how many rows have text on both sides of a gap; 0 if too few for its width."""
    both = [row for row in rows if row[0].left < gap[0] and row[-1].left >= gap[1]]
    width = (gap[1] - gap[0]) / height
    edge = gap[1] + _EDGE * height
    aligned = sum(any(gap[1] <= word.left < edge for word in row) for row in both)
    # a label between the lines that it belongs to
    beside = sum(
        (above[0].left < gap[0]) != (below[0].left < gap[0]) and _overlap(above, below)
        for above, below in pairwise(rows)
    )
    if beside > 1 and len(both) < _FEW_WORDS and width >= _SEPARATING[0][1]:
        return beside
    enough = any(len(both) >= count and width >= least for count, least in _SEPARATING) or (
        len(both) > _FEW and width >= _WIDE and aligned >= _MOST * len(both)
    )
    return len(both) if enough else 0


def _overlap(above: Row, below: Row) -> bool:
    """Return whether two rows are beside each other in part."""
    return above[0].center - below[0].center < _OVERLAP * max(above[0].height, below[0].height)


def _at(word: Word, gaps: list[Gap]) -> int:
    """Return the column of a word."""
    return bisect([(a + b) / 2 for a, b in gaps], (word.left + word.right) / 2)


def _without_labels(rows: list[Row], gaps: list[Gap]) -> list[Gap]:
    """Leave out gaps behind bullets and numbers that begin a paragraph."""
    kept = []
    before = -inf
    for gap in gaps:
        labels = [
            [word.text for word in row if before < word.left < gap[0] + 1 and word.right <= gap[1]]
            for row in rows
        ]
        if any(len(label) > 1 or (label and not _LABEL.match(label[0])) for label in labels):
            kept.append(gap)
            before = gap[0]
        elif sum(map(bool, labels)) == len(rows) > 1 and not _signs(labels):
            kept.append(gap)  # numbers in each row are a column
            before = gap[0]
    return kept


def _signs(labels: list[list[str]]) -> bool:
    return all(not label[0].isalnum() for label in labels if label)


def _goes_on(upper: str, lower: str) -> bool:
    """Return whether a line goes on in the line below."""
    words = len(upper.split()) + len(_WIDE_SCRIPT.findall(upper)) // 3
    return (
        words >= _FEW_WORDS
        and not _END.search(upper)
        and (
            lower[0].islower()
            or upper[-1] in f"-{HYPHEN},"
            or (_WIDE_SCRIPT.match(lower) is not None)
        )
    )


def _fits(upper: Line, lower: Line, column: Gap) -> bool:
    """Return whether the first word of a line would fit into the line above. `column`: where its
    column begins and ends.
    """
    first = lower.words[0]
    end = column[0] + _FULL * (column[1] - column[0])
    return upper.right + first.right - first.left < end


def _extent(lines: Iterable[Line | None]) -> Gap:
    """Return where a column of lines begins and ends."""
    known = [line for line in lines if line]
    return min(line.left for line in known), max(line.right for line in known)


def _are_columns(columns: list[list[Word]], rows: list[Row]) -> bool:
    """Return whether columns are read one after the other, not as a table."""
    where = {id(word): number for number, row in enumerate(rows) for word in row}
    begins = []  # of each column: the rows in which something begins
    occupied = []
    prose = 0
    indexes = 0  # columns of words with dots up to their page
    for column in columns:
        lines = [line_of(row) for row in rows_of(column)]
        numbers = [where[id(line.words[0])] for line in lines]
        extent = _extent(lines)
        on = [_goes_on(a.text, b.text) and not _fits(a, b, extent) for a, b in pairwise(lines)]
        prose += len(on) > 1 and sum(on) >= _PROSE * len(on)
        indexes += sum(line.text.count(".") >= _LEADERS for line in lines) > len(lines) / 4
        begins.append(
            {number for number, before in zip(numbers[1:], on, strict=True) if not before}
        )
        occupied.append(set(numbers))
    most = max(range(len(columns)), key=lambda at: len(occupied[at]))
    others = [at for at in range(len(columns)) if at != most]
    aligned = sum(len(occupied[at] & occupied[most]) for at in others)
    if indexes > 1 or aligned < _ALIGNED * sum(len(occupied[at]) for at in others):
        return True
    if not prose:
        return False
    together = sum(len(begins[at] & begins[most]) for at in others)
    fewer = sum(min(len(begins[at]), len(begins[most])) for at in others)
    if prose > 1:
        return fewer < _FEW_WORDS or together < _BEGIN * fewer
    dense = min(map(len, occupied)) >= _MOST * len(occupied[most])
    if dense:  # beside prose, each line of another column begins something
        fewer = max(map(len, begins))
    return fewer >= _FEW_WORDS and together < _ALIGNED * fewer


def _fixed_pitch(words: Sequence[Word]) -> bool:
    """Return whether text is monospaced, where wide gaps do not mean a table. Digits are ignored:
    they all have one width.
    """
    by_text = {
        word.text: (word.right - word.left) / len(word.text) / word.height
        for word in words
        if len(word.text) > 1 and not any(character.isdigit() for character in word.text)
    }
    widths = list(by_text.values())
    if len(widths) < _FEW:
        return False
    usual = median(widths)
    return sum(abs(width - usual) < 0.03 * usual for width in widths) > 0.9 * len(widths)


class _Table:
    """A table while its lines become rows. `first` and `last` are the lines that belong to it."""

    def __init__(self, rows: list[Row], gaps: list[Gap], height: float) -> None:
        self.gaps = gaps
        lines = [self._cells(row) for row in rows]
        filled = [sum(map(bool, cells)) for cells in lines]
        self.first = next((number for number, count in enumerate(filled) if count > 1), 0)
        self.last = max((number for number, count in enumerate(filled) if count > 1), default=0) + 1
        self.extents = [_extent(column) for column in zip(*lines, strict=True)]
        self.rows: list[list[list[Line]]] = []
        for number in range(self.first, len(rows)):
            cells = lines[number]
            step = 0.0
            if number > self.first:
                step = rows[number - 1][0].bottom - rows[number][0].bottom
            beside = number > self.first and _overlap(rows[number - 1], rows[number])
            if self.rows and (
                (beside and not any(a and b for a, b in zip(cells, self.rows[-1], strict=True)))
                or (step < _TIGHT * height and self._continues(cells))
            ):
                for at, cell in enumerate(cells):
                    if cell:
                        self.rows[-1][at].append(cell)
                self.last = max(self.last, number + 1)
            elif number < self.last:
                self.rows.append([[cell] if cell else [] for cell in cells])
            else:
                break
        self.words = [word for row in rows[self.first : self.last] for word in row]

    def _cells(self, row: Row) -> list[Line | None]:
        columns: list[Row] = [[] for _ in range(len(self.gaps) + 1)]
        for word in row:
            columns[_at(word, self.gaps)].append(word)
        return [line_of(words) if words else None for words in columns]

    def _continues(self, cells: list[Line | None]) -> bool:
        """Return whether a line goes on with the cells of the last row."""
        last = self.rows[-1]
        new = [at for at, cell in enumerate(cells) if cell and not last[at]]
        on = [at for at, cell in enumerate(cells) if cell and last[at]]
        for at in on:
            upper = last[at][-1]
            cell = cells[at]
            assert cell is not None
            fits = _fits(upper, cell, self.extents[at])
            short = at == 0 and len(upper.words) == 1  # a name
            goes_on = cell.text[0].islower() or upper.text[-1] in f"-{HYPHEN},("
            if fits or short or not (goes_on or (len(on) == 1 and not new)):
                return False
        return bool(on) and not (new and cells[0] is not None and last[0])

    def piece(self) -> PagePiece:
        rows = [[_join(cell) for cell in row] for row in self.rows]
        return PagePiece(rows=rows, words=self.words, gaps=self.gaps, heads=self._heads())

    def _heads(self) -> int:
        """Return how many of the first rows are in another font than the others."""
        fonts = [{line.font for cell in row for line in cell} for row in self.rows]
        count = next((at for at, font in enumerate(fonts) if font != fonts[0]), 0)
        others = any(fonts[0] & font for font in fonts[count:])
        return 0 if others or len(fonts[0]) > 1 or count > len(fonts) // 2 else count


def _join(lines: list[Line]) -> str:
    return "\n".join(line.text for line in lines).replace(f"{HYPHEN}\n", HYPHEN)


# ---- paragraphs ----------------------------------------------------------------------------------


def _steps(lines: list[Line]) -> list[float]:
    """Return the distances of lines, in heights of the higher of both."""
    steps = [_step(above, below) for above, below in pairwise(lines)]
    return [step for step in steps if step > 0]


def _step(above: Line, below: Line) -> float:
    return (above.bottom - below.bottom) / max(above.height, below.height)


def _paragraphs(leaf: PagePiece, steps: list[float]) -> Iterator[PagePiece]:
    """Yield the paragraphs of a column: extra space above a line, or another font or size, begins
    one.
    """
    own = _steps(leaf.lines)
    known = own if len(own) >= _OWN else steps
    usual = min(median(known), _DOUBLE) if known else 0.0
    left = min(line.left for line in leaf.lines)
    right = max(line.right for line in leaf.lines)
    lines = leaf.lines[:1]
    flows = leaf.flows
    for above, below in pairwise(leaf.lines):
        split = above.text.endswith(HYPHEN)
        if not split and (_step(above, below) > _LOOSE * usual > 0 or _differ(above, below)):
            yield _paragraph(lines, flows, left, right)
            flows = False
            lines = []
        lines.append(below)
    yield _paragraph(lines, flows, left, right)


def _paragraph(lines: list[Line], flows: bool, left: float, right: float) -> PagePiece:
    words = [word for line in lines for word in line.words]
    full = lines[-1].right >= left + _FULL * (right - left)
    return PagePiece(lines=lines, words=words, flows=flows, full=full)


def _differ(above: Line, below: Line) -> bool:
    """Return whether two lines differ in size or font, and are not parts of one sentence."""
    if _goes_on(above.text, below.text):
        return False
    size = max(above.height, below.height)
    fonts = above.font != below.font and above.font is not None
    return abs(above.height - below.height) > _SIZES * size or (fonts and below.font is not None)
