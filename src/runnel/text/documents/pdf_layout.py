"""The layout of a page of a PDF: columns, tables and paragraphs, in the order in which they are
read. `pdf` gives it the words of `pdf_words`, and makes the blocks of the document of its parts.

A PDF has only places of words. A gap is white space between two words of a row. Rows that leave the
same gaps free are columns of prose, if their lines go on in the line below; otherwise they are a
table. A region is a page, or one of the columns on it, which may have columns again.

    level_names   turns names of columns that are written upward or downward, so that they are
                  level: they read from left to right, as most words of the page
    lay_out       the words of a page -> its parts
    rows_of       words -> rows of words at the same height; line_of: a row -> a `Line` of text
    _Region       finds runs of rows with the same gaps (`_Run`), and decides for each whether it is
                  columns, which are regions again, a table (`_GapTable`), or lines of text.
                  `leaves` has the steps; `_longest` finds a run; `_between` knows columns of prose
    Table         rows of cells -> a part; `_GapTable` finds the rows by gaps, `pdf_grid` by lines
    _paragraphs   the lines of a column -> paragraphs
"""

from __future__ import annotations

import re
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, pairwise
from math import inf
from operator import attrgetter
from statistics import median
from typing import NamedTuple

from runnel.text.documents.pdf_words import HYPHEN, Word, is_leader, one_word, turned
from runnel.text.documents.raised import raised
from runnel.text.documents.table import count_names

Gap = tuple[float, float]  # left, right

# Distances and widths are in heights of the words around them, unless a comment says another unit.
# ---- several rules
_MOST = 0.8  # of lines, words, or cells: the least share that is most of them
_FEW_WORDS = 2  # the fewest words, names, cells or rows that show anything
_FEW = 4  # rows that are too few for a narrow gap; the fewest words that show a font of one width
_EQUAL = 0.03  # the largest difference of equal widths of letters (a share) or spaces
# ---- rows and their gaps
_SAME_ROW = 0.5  # the largest distance of the middles of two words of a row
_BESIDE = 0.9  # the largest distance of two rows that are beside each other in part
_WIDE_SPACE = 0.4  # a space that is wider than most spaces between words
_NARROW_SPACE = 0.15  # the least space between words
_SAME_EDGE = 0.1  # the largest distance of two places that are one
_LEAST_STRETCHED = 0.3  # the least share of rows with stretched spaces in justified text
_LEADER = ". . . . ."  # the dots that lead to a page number
# ---- runs of rows with the same gaps
# (rows with text on both sides, the least gap that separates columns in as many rows): a space
# between words is never in the same place in many lines.
_SEPARATING = ((2, 0.9), (6, 0.5), (12, 0.2))
_TRIED_ROWS = 6  # the rows of which one begins a run: up to five rows of names, and the next row
_MOST_EMPTY = 2.0  # the largest empty space between two rows of columns
_LEAST_BEGINS = 3  # words that begin in the same places: as many columns go on below more space
_MOST_TITLE_WIDTH = 0.7  # of a title across columns, in widths of the region
_MOST_DEPTH = 8  # columns within columns
# ---- columns of prose
_LEAST_GOING_ON = 0.4  # the least share of lines of a column of prose that go on in the next line
_LONG_LINE = 4  # the least words of a line of prose beside several columns, on average
# ---- tables
_CELL_STEP = 1.6  # the largest distance of two lines of a cell
_LARGE = 1.5  # the least height of the number of a card, in heights of its other lines
_CENTERED = 0.15  # twice the largest distance from the middle of columns, in their width
# ---- paragraphs
_LOOSE_STEP = 1.3  # the least distance of lines of two paragraphs, in units of the usual distance
_MOST_STEP = 2.0  # the largest usual distance: pages with few lines have only wide gaps
_OWN_STEP_LINES = 5  # distances of lines from which a column has its own usual distance
_FULL_LINE = 0.85  # of the width of a column: a line that ends beyond it is full
_OTHER_SIZE = 0.08  # the least difference of two sizes, a share of the larger
# ---- patterns
NUMERIC = re.compile(r"[^\w\s]*\d[\d.,:%/-]*[^\w\s]*")
# "1.", "(a)", "iv)", "2.3", or a bullet: what may stand before a paragraph
_LABEL = re.compile(r"\W?(?:\w{1,3}|[ivxlIVXL]{1,5}|\d{1,2}(?:\.\d{1,2})+)?[.):\W]?\Z")
SENTENCE_END = re.compile(r"[.!?:;\u3002\uff01\uff1f][\"')\]\u201d\u2019]*(?:\[\d+\])?\Z")
CAPTION = re.compile(
    r"(?:Fig(?:ure|ura|\.)|FIG(?:URE|\.)|Tab(?:le|elle|ella|leau|la|\.)|TABLE|Abb(?:ildung|\.)"
    r"|Chart|Scheme|Plate|Box|Exhibit|EXHIBIT|Cuadro)\s*(?:[A-Z][.-]|\w{1,2})?(?:\d|[IVXL]+\b)"
)
_LINE_HYPHEN = re.compile(rf"(?<=\w)[-\u00ad\u2010{HYPHEN}]\n(?=\w)")
_SPLIT_OPTION = re.compile(r"(?<![^\s(])--\n(?=\w)")
# "one- and two-sided": the hyphen stands for the rest of the second word
_AND = re.compile(r"(?:and|or|to|und|oder|bis|et|ou|y|o|e|en|of)\b")
_TOWN = re.compile(
    r"(?<![\d.,-])\d{4,5}(?![\d.,])|\b[A-Z]{1,2}\d[\dA-Z]? \d[A-Z]{2}\b"
)  # a postal code
_MOST_NUMBERED = 5  # lines with numbers of an address
_ITEM = re.compile(
    r"\(?(?:\d{1,3}|[a-z]|[ivx]{2,5})[.)]|[\u2022\u25cf\u25cb\u25aa\u25e6\u2751\uf0b7]"
)
_TITLE_CHARS = 120
_JOINS = ",.;:)]*\u2020\u2021"  # signs before which PDFium splits some lines
_OPENS = "(["  # signs before a value of a form without a space
_LEFTWARD = re.compile(r"[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")  # Hebrew, Arabic
_WIDE_SCRIPT = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")


@dataclass(slots=True)
class Line:
    """A line of a paragraph."""

    words: list[Word]
    text: str
    left: float
    right: float
    bottom: float
    height: float
    font: str | None  # None if it has several


@dataclass(slots=True)
class PdfPart:
    """A paragraph or a table.

    Attributes:
        kind: "paragraph", "row" (a table, with `rows`), or "note".
        page: from 1.
        gaps: between the columns of a table.
        heads: how many of the first rows of a table are in another font than the others.
        height: of its lines.
        font: of all its words; None if it has several.
        level: of a heading, from 1; 0 for other parts.
        flows: whether it begins a column, so that the text before it may go on in it.
        full: whether its last line reaches the end of its column.
        aside: whether it interrupts the text, as a table does: a sentence that begins before it
            may go on behind it.
    """

    page: int
    kind: str
    text: str = ""
    rows: list[list[str]] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    heads: int = 0
    height: float = 0.0
    font: str | None = None
    level: int = 0
    flows: bool = False
    full: bool = False
    aside: bool = False

    def texts(self) -> list[str]:
        """Return the text, or the cells."""
        return [self.text, *(cell for row in self.rows for cell in row)]

    def continues(self, before: PdfPart) -> bool:
        """Return whether this table has the columns of another; a card has none."""
        return 0 < len(self.gaps) == len(before.gaps) and all(
            min(a[1], b[1]) > max(a[0], b[0]) for a, b in zip(self.gaps, before.gaps, strict=True)
        )

    def caption(self) -> str:
        """Return the text of a paragraph that may be the title of a table below; "" for others."""
        title = "\n" not in self.text and len(self.text) <= _TITLE_CHARS
        return self.text if self.aside or (title and self.text[-1:] not in ".,;") else ""


class _Column(NamedTuple):
    """Lines below each other. `flows`: whether the text before them may go on in them."""

    lines: list[Line]
    flows: bool


def lay_out(words: Sequence[Word], page: int = 1) -> list[PdfPart]:
    """Return the paragraphs and tables of a page, in the order in which they are read. Text that is
    turned by another angle than most of the page follows the rest.
    """
    parts: list[PdfPart] = []
    code = _code_fonts(words)
    for angle, _ in Counter(word.angle for word in words).most_common():
        upright = [word for word in words if word.angle == angle]
        leaves = list(_Region(upright, code).leaves(depth=0))
        steps = [s for leaf in leaves if isinstance(leaf, _Column) for s in _steps(leaf.lines)]
        for leaf in leaves:
            found = _paragraphs(leaf, steps) if isinstance(leaf, _Column) else [leaf.part()]
            parts += [replace(part, page=page) for part in found]
    return parts


def level_names(words: Sequence[Word]) -> list[Word]:
    """Return the words of a page with turned names of columns as level words, beside the other
    names: lines at another angle that stand on several cells of a row.
    """
    counts = Counter(word.angle for word in words)
    usual = max(counts, key=counts.__getitem__, default=0)
    level = [word for word in words if word.angle == usual]
    others: list[Word] = []
    # the lines on each cell, by the bottom, the height and the left side of the cell
    columns: dict[Gap, dict[float, list[Word]]] = defaultdict(lambda: defaultdict(list))
    for angle in counts.keys() - {usual}:
        for row in rows_of([word for word in words if word.angle == angle]):
            for word in row:
                foot = _foot(one_word([word], "", usual), level)
                lines = (
                    columns[round(foot.bottom), round(foot.height)][foot.left] if foot else others
                )
                lines.append(word)
    for (place, height), by_column in columns.items():
        names = [one_word(line, line_of(line).text, usual) for line in by_column.values()]
        low = min(name.bottom for name in names)
        if len(names) < _FEW_WORDS or low - place > (1 + _MOST_EMPTY) * height:
            others += chain.from_iterable(by_column.values())
            continue
        high = max(turned(name.box, usual)[3] for name in names)
        beside = [
            word.bottom
            for word in level
            if max(place + 1, low - _CELL_STEP * word.height) < word.bottom < high
        ]
        bottom = min(beside, default=low)
        level += [replace(name, bottom=bottom, top=bottom + height) for name in names]
    return level + others


def _foot(name: Word, words: Sequence[Word]) -> Word | None:
    """Return the word directly below a name, if it begins a cell."""
    below = [
        word
        for word in words
        if word.center < name.bottom
        and word.left - word.height / 2 < name.right
        and word.right + word.height / 2 > name.left
    ]
    foot = max(below, key=attrgetter("center"), default=None)
    if foot is None or any(
        0 < foot.left - word.right < _WIDE_SPACE * foot.height
        and abs(word.center - foot.center) < foot.height / 2
        for word in words
    ):
        return None
    return foot


def rows_of(words: Sequence[Word]) -> list[list[Word]]:
    """Return words in rows, from top to bottom, each from left to right."""
    rows: list[list[Word]] = []
    cores: list[Word] = []  # the highest word of each row
    for word in sorted(words, key=attrgetter("center"), reverse=True):
        for number in range(len(rows) - 1, max(-1, len(rows) - 4), -1):
            core = cores[number]
            apart = abs(core.center - word.center) / _SAME_ROW
            if apart < core.height and apart < word.height:
                rows[number].append(word)
                if word.height > core.height:
                    cores[number] = word
                break
        else:
            rows.append([word])
            cores.append(word)
    for row in rows:
        row.sort(key=attrgetter("left"))
    return rows


def by_gaps(words: Iterable[Word], gaps: Sequence[Gap]) -> list[list[Word]]:
    """Return the words in each column between gaps."""
    columns: list[list[Word]] = [[] for _ in range(len(gaps) + 1)]
    middles = [(a + b) / 2 for a, b in gaps]
    for word in words:
        columns[bisect(middles, (word.left + word.right) / 2)].append(word)
    return columns


def line_of(row: list[Word]) -> Line:
    """Return words of a row as a line."""
    core = max(row, key=lambda word: len(word.text))  # not a sign in another font
    runs = [
        list(run)[::-1] if leftward else list(run)
        for leftward, run in groupby(row, lambda word: _is_leftward([word]))
    ]
    read = list(chain.from_iterable(runs[::-1] if _is_leftward(row) else runs))
    text = read[0].text
    for before, word in pairwise(read):
        touches = word.left - before.right < _SAME_EDGE * core.height
        bracket = before.text[-1] in _OPENS
        mark = touches and word.is_above(before) and not bracket
        written = raised(text, word.text) if mark else word.text
        # of a form: it has no characters in PDFium's text
        value = not (before.length and word.length)
        sign = word.text[0] in _JOINS and (value or word.line_start)
        whole = ((bracket or sign) and (touches or value)) or written != word.text
        text = text.replace(HYPHEN, "-") + ("" if whole else " ") + written
    one_font = all(word.font == row[0].font for word in row)
    return Line(
        row,
        text,
        row[0].left,
        max(word.right for word in row),
        core.bottom,
        core.height,
        row[0].font if one_font else None,
    )


def _is_leftward(words: Sequence[Word]) -> bool:
    """Return whether most words are in a script that is read from right to left."""
    return 2 * sum(_LEFTWARD.search(word.text) is not None for word in words) > len(words)


# ---- columns and tables --------------------------------------------------------------------------


class _Row:
    """Words in a line of a page or a column.

    Attributes:
        free: the gaps between the words, and the space at both sides (from -inf, to inf). Spaces
            of justified text, and the space between dots and their page number, are no gaps.
        is_phrase: whether no gap is as wide as one between columns.
        is_entry: whether it is a line of a table of contents.
        height: of most words of the page or column, or of its own words if these are larger.
    """

    def __init__(self, words: list[Word], height: float, *, justified: bool) -> None:
        self.words = words
        # the words before and behind wide spaces between words
        places = _stretched(words) if justified else []
        stretched = {at for place in places for at in (place, place + 1)}
        height = max(height, median(word.height for word in words))
        self.height = height
        self.left = words[0].left
        self.bottom = min(word.bottom for word in words)
        self.top = max(word.top for word in words)
        self.free: list[Gap] = []
        self.is_entry = len(words) > 1 and is_leader(words[-2])  # the number belongs to the dots
        end = -inf
        for at, word in enumerate(words):
            if (
                word.left - end >= _NARROW_SPACE * height
                and not (self.is_entry and word is words[-1])
                and at not in stretched
            ):
                self.free.append((end, word.left))
            if word.right > end:
                end = word.right
        self.free.append((end, inf))
        self.ends = [b for _, b in self.free]
        self.is_phrase = all(b - a < _WIDE_SPACE * height for a, b in self.free[1:-1])

    def shared(self, common: Iterable[Gap]) -> list[Gap]:
        """Return what the row leaves free of common gaps. A gap as narrow as one between words
        counts only if a column begins behind it.
        """
        shared = []
        for a, b in common:
            for c, d in self.free[bisect(self.ends, a) :]:
                if c >= b:
                    break
                own = d - c >= _WIDE_SPACE * self.height or abs(d - b) < _SAME_EDGE * self.height
                if own and min(b, d) - max(a, c) >= _NARROW_SPACE * self.height:
                    shared.append((max(a, c), min(b, d)))
        return shared

    def is_across(self, gaps: list[Gap]) -> bool:
        return len(self.shared(gaps)) < len(gaps)

    def cells(self, gaps: list[Gap]) -> list[list[Line]]:
        """Return the cells of the row; one across gaps is in the first of its columns."""
        phrase = self.is_phrase and self.is_across(gaps)
        across = [phrase or not self.shared([gap]) for gap in gaps]
        own = by_gaps(self.words, [gap for gap, over in zip(gaps, across, strict=True) if not over])
        columns = [[] if over else own.pop(0) for over in [False, *across]]
        columns = [[word for word in words if not is_leader(word)] for words in columns]
        return [[line_of(words)] if words else [] for words in columns]

    def is_beside(self, above: _Row) -> bool:
        """Return whether the row is beside the row above in part."""
        upper = above.words[0]
        lower = self.words[0]
        return upper.center - lower.center < _BESIDE * max(upper.height, lower.height)

    def is_close(self, above: _Row) -> bool:
        """Return whether there is little empty space above the row, or it has the columns of the
        row above.
        """
        if above.bottom - self.top <= _MOST_EMPTY * self.height:
            return True
        begins = {round(word.left) for word in above.words}
        return len(begins & {round(word.left) for word in self.words}) >= _LEAST_BEGINS


def _stretched(words: list[Word]) -> list[int]:
    """Return the numbers of the words of a row that are between two equal wide spaces, as in lines
    that are stretched to the end of a column.
    """
    gaps = [after.left - before.right for before, after in pairwise(words)]
    return [
        at
        for at, (gap, after) in enumerate(pairwise(gaps), start=1)
        if abs(gap - after) < _EQUAL * words[at].height
        and gap > _WIDE_SPACE * words[at].height
        and any(map(str.isalpha, words[at].text))
    ]


class _Run(NamedTuple):
    """Rows that leave the same gaps free, up to the row `end`. `score`: how many cells the gaps
    separate; the more, the likelier are they columns.
    """

    score: int
    end: int
    gaps: list[Gap]


class _Region:
    """Words of a page or a column in rows.

    Attributes:
        code: fonts of programs, where wide gaps do not mean a table.
    """

    def __init__(self, words: Sequence[Word], code: set[str]) -> None:
        self.code = code
        self.left = min(word.left for word in words)
        self.right = max(word.right for word in words)
        self.height = median(word.height for word in words)
        rows = rows_of(words)
        _lead_to_pages(rows, self.height)
        # where the second word begins: in a table, at one place
        begins = {round(r[1].left) for r in rows if r[0].font not in code and _stretched(r)}
        justified = len(begins) >= max(_LEAST_BEGINS, _LEAST_STRETCHED * len(rows))
        self.rows = [_Row(row, self.height, justified=justified) for row in rows]
        self.runs: dict[int, _Run] = {}  # by their first row
        # rows that may have text on both sides of a gap
        self.parted = [not self.rows[0].is_phrase]
        self.parted += [
            not row.is_phrase or row.is_beside(above) for above, row in pairwise(self.rows)
        ]

    def leaves(self, *, depth: int) -> Iterator[_Column | Table]:
        """Yield columns of lines, and tables. `depth`: of the columns around the words."""
        plain: list[_Row] = []  # lines of text that are not yielded yet
        start = 0
        flows = depth > 0
        while start < len(self.rows):
            # 1. The next run, and the gaps whose columns are read one after the other: if they are
            # not all, it may be a table, but no list of contents or program.
            first, run = self._run(start)
            part = self.rows[first : run.end]
            gaps = _without_labels(part, run.gaps) if depth < _MOST_DEPTH else []
            between = _between(part, gaps) if gaps else []
            if between != gaps and (
                2 * sum(row.is_entry for row in part) >= len(part) or self._is_code(part, gaps)
            ):
                gaps = []
            # 2. The rows above the run are text above columns, or names of a table's columns.
            if gaps and between:
                plain += self.rows[start:first]
                # those beside a picture in the first column are in the columns
                while plain and plain[-1].left > between[0][0] and part[0].is_close(plain[-1]):
                    part.insert(0, plain.pop())
            else:
                part = self.rows[start : run.end]
            start = run.end
            if not gaps:
                plain += part
                continue
            # 3. The lines that are a table, unless its rows show that tables are beside each other.
            # Those from its end on are looked at again, and those above it are text.
            table = _GapTable(part, gaps)
            between = between or table.between()
            if not between:
                start -= len(part) - table.end
                part = part[: table.end]
                plain += part[: table.first]
            # 4. The text above, and then the columns or the table; the lines below it are text.
            if plain:
                yield _column(plain, flows)
                flows = False
                plain = []
            if between:
                yield from self._beside(part, between, depth)
            else:
                yield from table.tables()
                plain = part[table.last :]
            flows = True
        if plain:
            yield _column(plain, flows)

    def _beside(self, rows: list[_Row], gaps: list[Gap], depth: int) -> Iterator[_Column | Table]:
        """Yield columns after each other, and the titles across them."""
        for across, group in groupby(rows, lambda row: row.is_across(gaps)):
            if across:
                yield _column(list(group), False)
                continue
            columns = [words for words in by_gaps(_words(group), gaps) if words]
            if _is_leftward([word for words in columns for word in words]):
                columns.reverse()
            for words in columns:
                yield from _Region(words, self.code).leaves(depth=depth + 1)

    def _run(self, start: int) -> tuple[int, _Run]:
        """Return the rows with the same gaps as a row, and where they begin: below the names of
        columns, which may stand across gaps; one row without gaps if there are none.
        """
        starts = range(start, min(self._longest(start).end, start + _TRIED_ROWS))
        runs = {at: self._longest(at) for at in starts}
        first = max(runs, key=lambda at: (runs[at].score, len(runs[at].gaps), -at))
        return first, runs[first]

    def _longest(self, start: int) -> _Run:
        """Return the best run that begins with a row: the gaps that its rows have in common become
        fewer and narrower from row to row, so a longer run has fewer gaps. The best run has
        the most pairs of a row and a gap with text on both sides.
        """
        if not any(self.parted[start : start + _TRIED_ROWS]):
            return _Run(0, start + 1, [])
        if start in self.runs:
            return self.runs[start]
        rows = self.rows
        common = [(max(a, self.left), min(b, self.right)) for a, b in rows[start].free]
        common = [(a, b) for a, b in common if b - a >= _WIDE_SPACE * rows[start].height]
        # 1. Go down as long as there are common gaps, and note each place where they change.
        states = []  # (end, gaps that are free up to there)
        end = start + 1
        while common and end < len(rows) and rows[end].is_close(rows[end - 1]):
            shared = rows[end].shared(common)
            if len(shared) < len(common) and self._is_title(end, common):
                shared = common
            if shared != common:
                states.append((end, common))
            common = shared
            end += 1
        states.append((end, common))
        # 2. Choose among these places, the longest run first.
        best = _Run(0, start + 1, [])
        for end, gaps in reversed(states):
            inner = [(a, b) for a, b in gaps if a > self.left and b < self.right]
            if end - start > 1 and (end - start) * len(inner) > best.score:
                counts = [_both_sides(gap, rows[start:end]) for gap in inner]
                if sum(counts) > best.score:
                    separating = [gap for gap, count in zip(inner, counts, strict=True) if count]
                    best = _Run(sum(counts), end, separating)
        # 3. Its score among runs that begin with other rows: the cells after the first of a row.
        columns = [by_gaps(row.words, best.gaps) for row in rows[start : best.end]]
        score = sum(sum(map(bool, words)) - 1 for words in columns)
        self.runs[start] = best._replace(score=score)
        return self.runs[start]

    def _is_title(self, number: int, common: list[Gap]) -> bool:
        """Return whether a row is a short title across columns that go on below it."""
        row = self.rows[number]
        width = row.words[-1].right - row.left
        phrase = row.is_phrase and width < _MOST_TITLE_WIDTH * (self.right - self.left)
        below = self.rows[number + 1].shared(common) if number + 1 < len(self.rows) else []
        return phrase and len(below) == len(common)

    def _is_code(self, rows: list[_Row], gaps: list[Gap]) -> bool:
        """Return whether rows are lines of a program. Numbers in columns are none, whatever their
        font.
        """
        words = _words(rows)
        behind = [word for word in words if word.left >= gaps[0][1]]
        numbers = sum(NUMERIC.fullmatch(word.text) is not None for word in behind)
        in_font = sum(word.font in self.code for word in words)
        return in_font > _MOST * len(words) and 2 * numbers < len(behind)


def _lead_to_pages(rows: list[list[Word]], height: float) -> None:
    """Put dots before the numbers of pages that have none, as those of chapters, in the column of
    numbers that have them.
    """
    numbered = [row for row in rows if len(row) > 1 and row[-1].text.isdecimal()]
    ends = {round(row[-1].right) for row in numbered if is_leader(row[-2])}
    for row in numbered:
        title, number = row[-2:]
        bare = number.left - title.right > height and not is_leader(title)
        if bare and round(number.right) in ends:
            row.insert(-1, replace(number, text=_LEADER, left=title.right, right=number.left))


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
    return len(widths) >= _FEW and equal > _MOST * len(widths)


def _words(rows: Iterable[_Row]) -> list[Word]:
    return [word for row in rows for word in row.words]


def _column(rows: list[_Row], flows: bool) -> _Column:
    return _Column([line_of(row.words) for row in rows], flows)


def _both_sides(gap: Gap, rows: list[_Row]) -> int:
    """Return how many rows have text on both sides of a gap; 0 if too few for its width."""
    height = median(row.height for row in rows)
    both = [row for row in rows if row.left < gap[0] and row.words[-1].left >= gap[1]]
    width = (gap[1] - gap[0]) / height
    if any(len(both) >= count and width >= least for count, least in _SEPARATING):
        return len(both)
    if len(both) > _FEW and width >= _WIDE_SPACE:
        edge = gap[1] + _SAME_EDGE * height
        aligned = sum(any(gap[1] <= word.left < edge for word in row.words) for row in both)
        return len(both) if aligned >= _MOST * len(both) else 0
    if len(both) >= _FEW_WORDS or width < _SEPARATING[0][1]:
        return 0
    # A label is in the middle of the lines that it belongs to, so it is in no row with them:
    #            for visitors
    #   Parking
    #            and for guests
    beside = sum(
        (above.left < gap[0]) != (below.left < gap[0]) and below.is_beside(above)
        for above, below in pairwise(rows)
    )
    return beside if beside > 1 else 0


def _without_labels(rows: list[_Row], gaps: list[Gap]) -> list[Gap]:
    """Leave out gaps behind bullets and numbers that begin a paragraph."""
    kept = []
    begin = 0  # the first column behind the last gap that is kept
    rows = [row for row in rows if not row.is_across(gaps)]
    cells = [by_gaps(row.words, gaps) for row in rows]
    for at, gap in enumerate(gaps):
        labels = [[word.text for word in chain(*row[begin : at + 1])] for row in cells]
        beside = [[word.text for word in row[at + 1]] for row in cells]
        wide = gap[1] - gap[0] >= _SEPARATING[0][1] * rows[0].height if rows else False
        if _is_column(labels, beside, wide):
            kept.append(gap)
            begin = at + 1
    return kept


def _is_column(labels: list[list[str]], beside: list[list[str]], wide: bool) -> bool:
    """Return whether the texts of rows are a column, by these and the texts beside them: words;
    numbers beside numbers; or different labels in each row, such as "1" and "2" (each row with any
    text, if the gap is wide). Other labels, such as "1." or a bullet, begin a paragraph.
    """
    filled = [label for label in labels if label]
    words = any(len(label) > 1 or not _LABEL.match(label[0]) for label in filled)
    pairs = [(a[0], b[0]) for a, b in zip(labels, beside, strict=True) if a and b]
    numbers = sum(NUMERIC.fullmatch(text) is not None for pair in pairs for text in pair)
    named = len(pairs) > _FEW_WORDS  # a row of names may be above the numbers
    numeric = len(pairs) >= _FEW_WORDS and numbers >= _MOST * 2 * (len(pairs) - named)
    signs = {label[0] for label in filled}
    rows = sum(bool(a or b) for a, b in zip(labels, beside, strict=True)) if wide else len(labels)
    each = len(filled) == rows and len(signs) > 1 and any(map(str.isalnum, signs))
    return words or numeric or each


def _goes_on(upper: str, lower: str) -> bool:
    """Return whether a line goes on in the line below."""
    words = len(upper.split()) + len(_WIDE_SCRIPT.findall(upper)) // 3
    return (
        words >= _FEW_WORDS
        and not SENTENCE_END.search(upper)
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
    end = column[0] + _FULL_LINE * (column[1] - column[0])
    return upper.right + first.right - first.left < end


def _extent(lines: list[Line]) -> Gap:
    """Return where a column of lines begins and ends."""
    return min(line.left for line in lines), max(line.right for line in lines)


def _between(rows: list[_Row], gaps: list[Gap]) -> list[Gap]:
    """Return the gaps between columns that are read one after the other: all, those beside a column
    of prose, or none in a table.

    Lines of columns are in other rows than those beside them, or their sentences begin in other
    rows. The texts in a row of a table begin together.
    """
    # 1. What each column is: prose, an index, or an address; and its rows.
    where = {id(word): number for number, row in enumerate(rows) for word in row.words}
    begins = []  # for each column, the rows in which a text begins, without its first row
    occupied = []  # for each column, the rows with any text
    prose = []  # the columns whose lines go on in the line below
    indexes = 0  # columns of words with dots up to their page
    addresses: list[bool] = []
    for at, column in enumerate(by_gaps(_words(rows), gaps)):
        lines = [line_of(row) for row in rows_of(column)]
        numbers = [where[id(line.words[0])] for line in lines]
        extent = _extent(lines)
        on = [_goes_on(a.text, b.text) and not _fits(a, b, extent) for a, b in pairwise(lines)]
        long = len(gaps) == 1 or sum(len(line.words) for line in lines) >= _LONG_LINE * len(lines)
        if long and len(on) > 1 and sum(on) >= _LEAST_GOING_ON * len(on):
            prose.append(at)
        indexes += sum(any(map(is_leader, line.words)) for line in lines) > len(lines) / 4
        addresses.append(_is_address([line.text for line in lines]))
        begins.append({number for number, goes in zip(numbers[1:], on, strict=True) if not goes})
        occupied.append(set(numbers))
    # 2. All are columns if few lines of the others are in a row with lines of another, or if they
    # are indexes or addresses. Beside an address may be a date; labels of a form are before one.
    most = max(range(len(occupied)), key=lambda at: len(occupied[at]))
    others = [at for at in range(len(occupied)) if at != most]
    aligned = sum(
        max(len(occupied[at] & rows) for rows in occupied if rows is not occupied[at])
        for at in others
    )
    unaligned = 2 * aligned < sum(len(occupied[at]) for at in others)
    if unaligned or indexes > 1 or all(addresses) or (addresses[0] and len(gaps) == 1):
        return gaps
    # 3. Several columns of prose are a table only if their sentences begin in the same rows.
    if len(prose) > 1:
        together = sum(len(begins[at] & begins[most]) for at in others)
        fewer = sum(min(len(begins[at]), len(begins[most])) for at in others)
        return gaps if fewer < _FEW_WORDS or together < _MOST * fewer else []
    # 4. Beside a list or table, prose is a column if most rows of these begin elsewhere.
    for at in prose:
        rest = begins[:at] + begins[at + 1 :]
        counts = Counter(number for numbers in rest for number in numbers)
        # rows of what is beside the prose: a list, or a table
        beside = {number for number, count in counts.items() if count > 1 or len(rest) == 1}
        beside &= occupied[at]
        together = len(beside & begins[at])
        if len(beside) >= _FEW_WORDS and 2 * together < len(beside):
            return gaps[max(0, at - 1) : at + 1]
    return []


def _is_address(lines: list[str]) -> bool:
    """Return whether lines are a name, a street with a number, and a town with its postal code."""
    numbered = [line for line in lines if any(map(str.isdigit, line))]
    towns = sum(_TOWN.search(line) is not None for line in numbered)
    return lines[0] not in numbered and 0 < towns < len(numbered) < _MOST_NUMBERED


@dataclass(slots=True)
class Table:
    """A table: rows of cells, each the lines of its text, and the gaps between its columns, which
    white space or drawn lines (`pdf_grid`) showed.
    """

    rows: list[list[list[Line]]]
    words: list[Word]
    gaps: list[Gap]

    @property
    def columns(self) -> list[Gap]:
        """Where each column begins and ends."""
        left = min(word.left for word in self.words)
        ends = [left, *chain.from_iterable(self.gaps), max(word.right for word in self.words)]
        return list(zip(ends[::2], ends[1::2], strict=True))

    def part(self) -> PdfPart:
        """Return the table as a part: its cells as texts, and which rows have names of columns."""
        rows = [[joined(_join(cell)) for cell in row] for row in self.rows]
        heads = max(self._own_font(), count_names(rows))
        for number in range(heads - 1):
            self._spread(rows, number, heads)
        return PdfPart(
            0, "row", rows=rows, words=self.words, gaps=self.gaps, heads=heads, aside=True
        )

    def _own_font(self) -> int:
        """Return how many of the first rows are in a font of their own."""
        fonts = [{line.font for cell in row for line in cell} for row in self.rows]
        heads = next((at for at, font in enumerate(fonts) if font != fonts[0]), 0)
        others = any(fonts[0] & font for font in fonts[heads:])
        return 0 if others or len(fonts[0]) > 1 or heads > len(fonts) // 2 else heads

    def _spread(self, rows: list[list[str]], number: int, heads: int) -> None:
        """Repeat each name in a row of names in all columns that it is centered over: "2024" above
        "Spring" and "Autumn". The most columns with a name below count.
        """
        cells = self.rows[number]
        columns = self.columns
        own = [at for at, cell in enumerate(cells) if cell]
        named = [any(row[at] for row in rows[number + 1 : heads]) for at in range(len(cells))]
        begin = 0
        for at, after in pairwise([*own, len(cells)]):
            center = (cells[at][0].left + cells[at][0].right) / 2
            groups = [
                (first, end)
                for first in range(max(begin, at > 0), at + 1)  # not over the labels of rows
                for end in range(after, at, -1)
                if all(named[first:end])
                and end - first < len(cells)  # over all columns is a title
                and _is_centered(center, columns[first:end])
            ]
            first, end = max(groups, key=lambda group: group[1] - group[0], default=(at, at + 1))
            rows[number][first:end] = [rows[number][at]] * (end - first)
            begin = end


class _GapTable(Table):
    """A table while its lines become rows. Its lines are [first, last): those above are text, such
    as its title, and so are those below. `end`: the line from which on another table may begin, or
    the number of lines.
    """

    def __init__(self, lines: list[_Row], gaps: list[Gap]) -> None:
        super().__init__([], _words(lines), gaps)
        columns = self.columns
        cells = [line.cells(gaps) for line in lines]
        filled = [sum(map(bool, row)) > 1 for row in cells]
        named = [
            sum(CAPTION.match(cell[0].text) is not None for cell in row if cell) for row in cells
        ]
        self.end = len(lines)
        if sum(named) == 1:  # more are a list of tables, or captions beside each other
            caption = named.index(1)
            filled[caption] = False
            if caption > 1 and any(filled[:caption]) and lines[caption].is_across(gaps):
                self.end = caption  # another table may begin there
        del filled[self.end :]
        self.first = filled.index(True) if any(filled) else 0
        # the rest of a row of the page before has no label, and a cell begins with a small letter
        while (
            self.first
            and not cells[self.first - 1][0]
            and any(_join(cell)[:1].islower() for cell in cells[self.first - 1])
        ):
            self.first -= 1
        self.last = len(filled) - filled[::-1].index(True) if any(filled) else 0
        for number in range(self.first, self.end):
            title = lines[number].is_across(gaps) and not filled[number]
            # a line that does not belong to the row above begins a row, or ends the table if no
            # line below has several cells
            belongs = (
                bool(self.rows)
                and not title
                and self._belongs(lines[number], lines[number - 1], cells[number], columns)
            )
            if not belongs:
                if number >= self.last:
                    break
                self.rows.append([[] for _ in cells[number]])
            self.last = max(self.last, number + 1)
            for whole, cell in zip(self.rows[-1], cells[number], strict=True):
                whole += cell
        self.words = _words(lines[self.first : self.last])

    def tables(self) -> list[Table]:
        """Return the table, or a table for each of its columns if these are cards: each has a
        number, or words, in a large font, with a title and a text.
        """
        heights = [median(line.height for cell in row for line in cell) for row in self.rows]
        if not 1 < len(heights) < _FEW:
            return [self]
        large = self.rows[heights.index(max(heights))]
        second, first = sorted(heights)[-2:]
        if first <= _LARGE * second or not all(large):
            return [self]
        return [
            Table([list(card)], [w for cell in card for line in cell for w in line.words], [])
            for card in zip(*self.rows, strict=True)
        ]

    def _belongs(
        self, line: _Row, above: _Row, cells: list[list[Line]], columns: Sequence[Gap]
    ) -> bool:
        """Return whether a line belongs to the last row: it is beside it, or goes on with it."""
        last = self.rows[-1]
        if line.is_beside(above) and not any(map(all, zip(cells, last, strict=True))):
            return True
        new = [at for at, cell in enumerate(cells) if cell and not last[at]]
        on = [at for at, cell in enumerate(cells) if cell and last[at]]
        for at in on:
            upper = last[at][-1]
            lower = cells[at][0]
            short = at == 0 and len(upper.words) == 1  # a name
            fonts = None not in (upper.font, lower.font) and upper.font != lower.font
            goes_on = lower.text[0].islower() or upper.text[-1] in f"-{HYPHEN},("
            if short or fonts or _fits(upper, lower, columns[at]):
                return False
            if not goes_on and (new or len(on) > 1):
                return False
        step = above.words[0].bottom - line.words[0].bottom
        return bool(on) and step < _CELL_STEP * line.height and not (new and cells[0] and last[0])

    def between(self) -> list[Gap]:
        """Return the gaps between columns of a few lines, and between tables beside each other:
        they have captions, or their names of columns repeat ("Name", "Age", "Name", "Age"), and
        their rows begin together until one of them ends; a last row may be below.
        """
        if len(self.rows) < 2:
            return self.gaps
        names = [_join(cell) for cell in self.rows[0]]
        captions = [at for at, name in enumerate(names) if CAPTION.match(name)]
        if len(captions) > 1:
            return [self.gaps[at - 1] for at in captions[1:]]
        for width in range(2, len(names) // 2 + 1):
            # for each table, which rows have its first cell: all down to its last row
            begins = [[bool(row[at]) for row in self.rows] for at in range(0, len(names), width)]
            if (
                all(names)
                and names == names[:width] * len(begins)
                and all(sorted(rows, reverse=True) == rows for *rows, _ in begins)
            ):
                return self.gaps[width - 1 :: width]
        return []


def _is_centered(place: float, columns: Sequence[Gap]) -> bool:
    """Return whether a place is in the middle of columns."""
    left = columns[0][0]
    right = columns[-1][1]
    return abs(left + right - 2 * place) < _CENTERED * (right - left)


def _join(lines: list[Line]) -> str:
    return "\n".join(line.text for line in lines)


# ---- paragraphs ----------------------------------------------------------------------------------


def _steps(lines: list[Line]) -> list[float]:
    """Return the distances of lines, in heights of the higher of both."""
    steps = [_step(above, below) for above, below in pairwise(lines)]
    return [step for step in steps if step > 0]


def _step(above: Line, below: Line) -> float:
    return (above.bottom - below.bottom) / max(above.height, below.height)


def _paragraphs(column: _Column, steps: list[float]) -> Iterator[PdfPart]:
    """Yield the paragraphs of a column: extra space above a line, or another font or size, begins
    one.
    """
    own = _steps(column.lines)
    known = own if len(own) >= _OWN_STEP_LINES else steps
    usual = min(median(known), _MOST_STEP) if known else 0.0
    left, right = _extent(column.lines)
    paragraphs = [column.lines[:1]]
    for above, below in pairwise(column.lines):
        if not above.text.endswith(HYPHEN) and (
            _step(above, below) > _LOOSE_STEP * usual > 0
            or _differ(above, below)
            or _ends_list(paragraphs[-1], below, (left, right))
        ):
            paragraphs.append([])
        paragraphs[-1].append(below)
    for number, lines in enumerate(paragraphs):
        yield PdfPart(
            0,
            "paragraph",
            joined(_join(lines)),
            words=[word for line in lines for word in line.words],
            height=median(line.height for line in lines),
            font=lines[0].font if len({line.font for line in lines}) == 1 else None,
            flows=column.flows and number == 0,
            full=lines[-1].right >= left + _FULL_LINE * (right - left),
        )


def _ends_list(lines: list[Line], below: Line, column: Gap) -> bool:
    """Return whether a line goes on after a list: it is no item, and begins further left than the
    text of the line above it, into which its first word would fit. `lines`: of the paragraph.
    """
    above = lines[-1]
    item = len(above.words) > 1 and _ITEM.fullmatch(above.words[0].text)
    begin = above.words[1].left if item else above.left
    return (
        begin - below.left > below.height / 2
        and _fits(above, below, column)
        and not (_goes_on(above.text, below.text) or _ITEM.fullmatch(below.words[0].text))
        and any(_ITEM.fullmatch(line.words[0].text) for line in lines)
    )


def _differ(above: Line, below: Line) -> bool:
    """Return whether two lines differ in size or font, and are not parts of one sentence."""
    size = max(above.height, below.height)
    fonts = None not in (above.font, below.font) and above.font != below.font
    sizes = abs(above.height - below.height) > _OTHER_SIZE * size
    return (fonts or sizes) and not _goes_on(above.text, below.text)


def joined(text: str) -> str:
    """Return lines with a sign for each hyphen that splits a word."""

    def write(match: re.Match[str]) -> str:
        return "-\n" if _AND.match(text, match.end()) else HYPHEN

    text = text.replace(f"{HYPHEN}\n", "-\n")
    return _SPLIT_OPTION.sub("--", _LINE_HYPHEN.sub(write, text))
