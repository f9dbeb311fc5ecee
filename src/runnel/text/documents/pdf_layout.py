"""The layout of a page of a PDF: columns, tables and paragraphs, in the order in which they are
read.

A PDF has only places of words. Rows of words that leave the same gaps free are columns of prose, if
their lines go on in the line below, or else a table.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from math import inf
from statistics import median
from typing import NamedTuple

from runnel.text.documents.pdf_words import HYPHEN, Word, is_leader

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
_TITLE = 0.7  # the largest width of a title across columns, in widths of all
_EQUAL = 0.03  # the largest difference of the widths of letters of a font of programs
_COLUMNS = 3  # that two rows have in common, at least, if there is more space between them
_APART = 2.0  # the largest empty space between two rows of columns
_LOOSE = 1.3  # of lines of two paragraphs, at least, in units of the usual distance of lines
_DOUBLE = 2.0  # the largest usual distance: pages with few lines have only wide gaps
_OWN = 5  # lines from which a column has its own usual distance
_TORN = 0.1  # the largest gap at which a word continues in the next
_TIGHT = 1.6  # the largest distance of two lines of a cell
_FULL = 0.85  # of a column's width: a line that ends beyond it is full
_LEADERS = 5  # dots of a line
_DOTS = ". . . . ."
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
    code = _code_fonts(words)
    for angle, _ in Counter(word.angle for word in words).most_common():
        upright = [word for word in words if word.angle == angle]
        leaves = list(_Region(upright, code).leaves(depth=0))
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


class _Run(NamedTuple):
    """Rows that leave the same gaps free. `score`: how many cells the gaps separate."""

    score: int
    end: int
    gaps: list[Gap]


class _Region:
    """Words of a page or a column in rows, and the gaps that each row leaves free.

    Attributes:
        code: fonts of programs, where wide gaps do not mean a table.
    """

    def __init__(self, words: Sequence[Word], code: set[str]) -> None:
        self.code = code
        self.rows = rows_of(words)
        self.height = median(word.height for word in words)
        self.left = min(row[0].left for row in self.rows)
        self.right = max(word.right for word in words)
        self._lead_to_pages()
        self.free = [_free(row, _NARROW * self.height) for row in self.rows]
        self.runs: dict[int, _Run] = {}  # by the row where they begin

    def _lead_to_pages(self) -> None:
        """Put dots before the numbers of pages that have none, as those of chapters, in the column
        of numbers that have them.
        """
        numbered = [row for row in self.rows if len(row) > 1 and row[-1].text.isdecimal()]
        ends = {round(row[-1].right) for row in numbered if is_leader(row[-2])}
        for row in numbered:
            title, number = row[-2:]
            wide = number.left - title.right > self.height
            if wide and not is_leader(title) and round(number.right) in ends:
                dots = replace(number, text=_DOTS, left=title.right, right=number.left)
                row.insert(-1, dots)

    def leaves(self, *, depth: int) -> Iterator[PagePiece]:
        """Yield columns of lines, and tables. `depth`: of the columns around the words."""
        plain: list[Row] = []
        start = 0
        flows = depth > 0
        while start < len(self.rows):
            first, run = self._run(start)
            part = self.rows[first : run.end]
            gaps = self._gaps(first, run) if depth < _DEEPEST else []
            prose = bool(gaps) and _are_columns(_columns(part, gaps), part)
            if not gaps or (not prose and self._is_code(part)):
                plain += self.rows[start : run.end]
                start = run.end
                continue
            table = None
            if prose:
                plain += self.rows[start:first]
                start = first
            else:  # names of columns belong to it
                table = self._table(range(start, run.end), gaps)
                if table and (between := table.between(gaps)):
                    gaps = between
                    table = None
            if table:
                plain += self.rows[start : start + table.first]
            if plain:
                yield _leaf(plain, flows)
                flows = False
                plain = []
            if table:
                yield table.piece(gaps)
                plain = self.rows[start + table.last : run.end]
            else:
                yield from self._beside(range(start, run.end), gaps, depth)
            flows = True
            start = run.end
        if plain:
            yield _leaf(plain, flows)

    def _gaps(self, first: int, run: _Run) -> list[Gap]:
        """Return the gaps of a run that separate columns."""
        numbers = range(first, run.end)
        rows = [self.rows[at] for at in numbers if not self._is_across(at, run.gaps)]
        return _without_labels(rows, run.gaps)

    def _table(self, numbers: range, gaps: list[Gap]) -> _Table | None:
        """Return the table of rows; None if they are columns of a few lines."""
        lines = [self._cells(at, gaps) for at in numbers]
        titles = [at - numbers.start for at in numbers if self._is_across(at, gaps)]
        rows = self.rows[numbers.start : numbers.stop]
        table = _Table(rows, lines, titles, self.height)
        return table if len(table.rows) > 1 else None

    def _beside(self, numbers: range, gaps: list[Gap], depth: int) -> Iterator[PagePiece]:
        """Yield columns after each other, and the titles across them."""
        for across, group in groupby(numbers, lambda number: self._is_across(number, gaps)):
            rows = [self.rows[number] for number in group]
            if across:
                yield _leaf(rows, False)
                continue
            for column in filter(None, _columns(rows, gaps)):
                yield from _Region(column, self.code).leaves(depth=depth + 1)

    def _run(self, start: int) -> tuple[int, _Run]:
        """Return the rows with the same gaps as a row, and where they begin: below the names of
        columns, which may stand across gaps; one row without gaps if there are none.
        """
        run = self._longest(start)
        starts = range(start, min(max(run.end, start + 1), start + _NAMES))
        first = max(starts, key=lambda row: (self._longest(row).score, -row))
        return first, self._longest(first)

    def _longest(self, start: int) -> _Run:
        if start in self.runs:
            return self.runs[start]
        common = [(max(a, self.left), min(b, self.right)) for a, b in self.free[start]]
        common = [(a, b) for a, b in common if b - a >= _WIDE * self.height]
        states = []  # (end, gaps that are free up to there)
        end = start + 1
        while common and end < len(self.rows) and self._is_close(end):
            shared = self._shared(common, end)
            if len(shared) < len(common) and self._is_title(end, common):
                shared = common
            if shared != common:
                states.append((end, common))
            common = shared
            end += 1
        states.append((end, common))
        best = _Run(0, start + 1, [])
        for end, gaps in reversed(states):
            rows = self.rows[start:end]
            inner = [(a, b) for a, b in gaps if a > self.left and b < self.right]
            if len(rows) * len(inner) > best.score:
                counts = [_both_sides(gap, rows, self.height) for gap in inner]
                if sum(counts) > best.score:
                    separating = [gap for gap, count in zip(inner, counts, strict=True) if count]
                    best = _Run(sum(counts), end, separating)
        self.runs[start] = best
        return best

    def _is_close(self, number: int) -> bool:
        """Return whether there is little empty space above a row, or it has the columns of the row
        above.
        """
        above = self.rows[number - 1]
        row = self.rows[number]
        white = min(word.bottom for word in above) - max(word.top for word in row)
        if white <= _APART * self.height:
            return True
        begins = {round(word.left) for word in above} & {round(word.left) for word in row}
        return len(begins) >= _COLUMNS

    def _shared(self, common: Iterable[Gap], number: int) -> list[Gap]:
        """Return what a row leaves free of common gaps. A gap as narrow as one between words counts
        only if a column begins behind it.
        """
        shared = []
        for a, b in common:
            for c, d in self.free[number]:
                if c < b and d > a and min(b, d) - max(a, c) >= _NARROW * self.height:
                    if d - c >= _WIDE * self.height or abs(d - b) < _EDGE * self.height:
                        shared.append((max(a, c), min(b, d)))
        return shared

    def _is_title(self, number: int, common: list[Gap]) -> bool:
        """Return whether a row is a short title across columns that go on below it."""
        row = self.rows[number]
        return (
            number + 1 < len(self.rows)
            and row[-1].right - row[0].left < _TITLE * (self.right - self.left)
            and self._is_phrase(number)
            and len(self._shared(common, number + 1)) == len(common)
        )

    def _is_phrase(self, number: int) -> bool:
        """Return whether a row has no space as wide as one between columns."""
        return all(b - a < _WIDE * self.height for a, b in self.free[number][1:-1])

    def _is_across(self, number: int, gaps: list[Gap]) -> bool:
        return len(self._shared(gaps, number)) < len(gaps)

    def _cells(self, number: int, gaps: list[Gap]) -> list[Line | None]:
        """Return the cells of a row; one across gaps is in the first of its columns."""
        phrase = self._is_phrase(number) and self._is_across(number, gaps)
        across = [phrase or not self._shared([gap], number) for gap in gaps]
        columns: list[Row] = [[] for _ in range(len(gaps) + 1)]
        for word in self.rows[number]:
            at = _at(word, gaps)
            while at and across[at - 1]:
                at -= 1
            if not is_leader(word):
                columns[at].append(word)
        return [line_of(words) if words else None for words in columns]

    def _is_code(self, rows: list[Row]) -> bool:
        words = [word for row in rows for word in row]
        return sum(word.font in self.code for word in words) > _MOST * len(words)


def _code_fonts(words: Sequence[Word]) -> set[str]:
    """Return the fonts whose letters have one width."""
    widths: dict[str, dict[str, float]] = defaultdict(dict)
    for word in words:
        letters = word.text.isascii() and word.text.lower() != word.text.upper()
        if letters and word.length > 1:
            width = (word.right - word.left) / word.length / word.height
            widths[word.font][word.text] = width
    return {font for font, by_text in widths.items() if _are_equal(list(by_text.values()))}


def _are_equal(widths: list[float]) -> bool:
    usual = median(widths)
    equal = sum(abs(width - usual) < _EQUAL * usual for width in widths)
    return len(widths) >= _FEW and equal > 0.9 * len(widths)


def _columns(rows: list[Row], gaps: list[Gap]) -> list[list[Word]]:
    """Return the words between gaps."""
    columns: list[list[Word]] = [[] for _ in range(len(gaps) + 1)]
    for row in rows:
        for word in row:
            columns[_at(word, gaps)].append(word)
    return columns


def _leaf(rows: list[Row], flows: bool) -> PagePiece:
    return PagePiece(lines=[line_of(row) for row in rows], flows=flows)


def _free(row: Row, least: float) -> list[Gap]:
    """Return the gaps that a row leaves free, also at its sides."""
    gaps = []
    end = -inf
    entry = len(row) > 1 and is_leader(row[-2])  # the number belongs to the dots
    for word in row:
        if word.left - end >= least and not (entry and word is row[-1]):
            gaps.append((end, word.left))
        end = max(end, word.right)
    return [*gaps, (end, inf)]


def _both_sides(gap: Gap, rows: list[Row], height: float) -> int:
    """Return how many rows have text on both sides of a gap; 0 if too few for its width."""
    both = [row for row in rows if row[0].left < gap[0] and row[-1].left >= gap[1]]
    width = (gap[1] - gap[0]) / height
    if any(len(both) >= count and width >= least for count, least in _SEPARATING):
        return len(both)
    if len(both) > _FEW and width >= _WIDE:
        edge = gap[1] + _EDGE * height
        aligned = sum(any(gap[1] <= word.left < edge for word in row) for row in both)
        return len(both) if aligned >= _MOST * len(both) else 0
    if len(both) >= _FEW_WORDS or width < _SEPARATING[0][1]:
        return 0
    # a label between the lines that it belongs to
    beside = sum(
        (above[0].left < gap[0]) != (below[0].left < gap[0]) and _overlap(above, below)
        for above, below in pairwise(rows)
    )
    return beside if beside > 1 else 0


def _overlap(above: Row, below: Row) -> bool:
    """Return whether two rows are beside each other in part."""
    return above[0].center - below[0].center < _OVERLAP * max(above[0].height, below[0].height)


def _at(word: Word, gaps: list[Gap]) -> int:
    """Return the column of a word."""
    center = (word.left + word.right) / 2
    return sum(a + b < 2 * center for a, b in gaps)


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
    """Return whether labels are the signs of a list."""
    signs = {label[0] for label in labels if label}
    return len(signs) == 1 or not any(sign.isalnum() for sign in signs)


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
    left = min((line.left for line in known), default=0.0)
    return left, max((line.right for line in known), default=0.0)


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


class _Table:
    """A table while its lines become rows. `first` and `last` are the lines that belong to it."""

    def __init__(
        self, rows: list[Row], lines: list[list[Line | None]], titles: list[int], height: float
    ) -> None:
        filled = [
            number for number, cells in enumerate(lines) if len(cells) - cells.count(None) > 1
        ]
        self.first = min(filled, default=0)
        self.last = max(filled, default=-1) + 1
        titles = [number for number in titles if number not in filled]
        others = [cells for number, cells in enumerate(lines) if number not in titles]
        self.extents = [_extent(column) for column in zip(*others, strict=True)]
        self.rows: list[list[list[Line]]] = []
        for number in range(self.first, len(rows)):
            cells = lines[number]
            alone = number == self.first or number in titles
            if alone or not self._belongs(rows, number, cells, height):
                if number >= self.last:
                    break
                self.rows.append([[] for _ in cells])
            else:
                self.last = max(self.last, number + 1)
            for at, cell in enumerate(cells):
                if cell:
                    self.rows[-1][at].append(cell)
        self.words = [word for row in rows[self.first : self.last] for word in row]

    def _belongs(
        self, rows: list[Row], number: int, cells: list[Line | None], height: float
    ) -> bool:
        """Return whether a line belongs to the last row: it is beside it, or goes on with it."""
        above, row = rows[number - 1 : number + 1]
        if _overlap(above, row) and not any(map(all, zip(cells, self.rows[-1], strict=True))):
            return True
        return above[0].bottom - row[0].bottom < _TIGHT * height and self._continues(cells)

    def between(self, gaps: list[Gap]) -> list[Gap]:
        """Return the gaps between tables beside each other: their names of columns repeat, and
        their rows begin together until all rows of one are read.
        """
        names = [_join(cell) for cell in self.rows[0]]
        for width in range(2, len(names) // 2 + 1):
            tables = len(names) // width
            if names == names[:width] * tables and all(names):
                begins = [
                    [bool(row[at]) for row in self.rows] for at in range(0, len(names), width)
                ]
                if all(sorted(filled, reverse=True) == filled for filled in begins):
                    return gaps[width - 1 :: width]
        return []

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

    def piece(self, gaps: list[Gap]) -> PagePiece:
        rows = [[_join(cell) for cell in row] for row in self.rows]
        return PagePiece(rows=rows, words=self.words, gaps=gaps, heads=self._heads())

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
