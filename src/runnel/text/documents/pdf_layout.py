"""The layout of a page of a PDF: columns, tables and paragraphs, in the order in which they are
read. `pdf` gives it the words of `pdf_words`, and makes the blocks of the document of its parts.

A PDF has only places of words. A gap is white space between two words of a row. A run is rows that
leave the same gaps free. It is columns of prose, if their lines go on in the line below; otherwise
it is a table. A region is a page, or one of the columns on it, which may have columns again.

        The pump of the     Its valve closes        a run with one gap: columns of prose, read
        house was made      when water is           one after the other, as two regions
        in the east.        above the mark.

        Model     Power     Year                    a run with two gaps: a table, whose names are
        A-4       12 kW     1998                    a row above the run or, as here, in it
        B-2       31 kW     2004

    level_names   turns names of columns that are written upward or downward, so that they are
                  level: they read from left to right, as most words of the page
    lay_out       the words of a page -> its parts
    _Region       finds runs of rows with the same gaps (`_Run`), and decides for each whether it is
                  columns, which are regions again, a table, or lines of text. `leaves` has the
                  steps; `_longest` finds a run

    pdf_lines     rows of words, and lines of text
    pdf_rows      the gaps of a row
    pdf_prose     which gaps separate columns of prose
    pdf_tables    rows of cells -> a table
    pdf_paragraphs  the lines of a column -> paragraphs
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby, pairwise
from operator import attrgetter
from statistics import median
from typing import NamedTuple

from runnel.text.documents.pdf_lines import (
    FEW_WORDS,
    MOST,
    NUMERIC,
    SAME_EDGE,
    Gap,
    PdfPart,
    by_gaps,
    is_leftward,
    line_of,
    rows_of,
)
from runnel.text.documents.pdf_paragraphs import Column, paragraphs, steps_of
from runnel.text.documents.pdf_prose import prose_gaps, without_labels
from runnel.text.documents.pdf_rows import (
    EQUAL,
    LEAST_BEGINS,
    MOST_EMPTY,
    WIDE_SPACE,
    PdfRow,
    lead_to_pages,
    row_words,
    stretched,
)
from runnel.text.documents.pdf_tables import CELL_STEP, GapTable, Table
from runnel.text.documents.pdf_words import Word, one_word, turned

# Distances and widths are in heights of the words around them, unless a comment says another unit.
_LEAST_STRETCHED = 0.3  # the least share of rows with stretched spaces in justified text
_FEW = 4  # rows that are too few for a narrow gap; the fewest words that show a font of one width
# (rows with text on both sides, the least gap that separates columns in as many rows): a space
# between words is never in the same place in many lines.
_SEPARATING = ((2, 0.9), (6, 0.5), (12, 0.2))
_TRIED_ROWS = 6  # the rows of which one begins a run: up to five rows of names, and the next row
_MOST_TITLE_WIDTH = 0.7  # of a title across columns, in widths of the region
_MOST_DEPTH = 8  # columns within columns


def lay_out(words: Sequence[Word], page: int = 1) -> list[PdfPart]:
    """Return the paragraphs and tables of a page, in the order in which they are read. Text that is
    turned by another angle than most of the page follows the rest.
    """
    parts: list[PdfPart] = []
    code = _code_fonts(words)
    for angle, _ in Counter(word.angle for word in words).most_common():
        upright = [word for word in words if word.angle == angle]
        leaves = list(_Region(upright, code).leaves(depth=0))
        steps = [s for leaf in leaves if isinstance(leaf, Column) for s in steps_of(leaf.lines)]
        for leaf in leaves:
            found = paragraphs(leaf, steps) if isinstance(leaf, Column) else [leaf.part()]
            parts += [replace(part, page=page) for part in found]
    return parts


def level_names(words: Sequence[Word]) -> list[Word]:
    """Return the words of a page, in which turned names of columns have become level ones at the
    height of the other names. `pdf` calls it before `lay_out`, if the page has turned words.

    Turned lines are names of columns if they stand on several cells of a row.
    """
    counts = Counter(word.angle for word in words)
    usual = max(counts, key=counts.__getitem__, default=0)
    level = [word for word in words if word.angle == usual]
    others: list[Word] = []
    # rows[bottom and height of a row][left side of a cell]: the words of the turned line above it
    rows: dict[tuple[float, float], dict[float, list[Word]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for angle in counts.keys() - {usual}:
        for row in rows_of([word for word in words if word.angle == angle]):
            for word in row:
                foot = _foot(one_word([word], "", usual), level)
                if foot is None:
                    others.append(word)
                else:
                    rows[round(foot.bottom), round(foot.height)][foot.left].append(word)
    for (row_bottom, height), lines in rows.items():
        names = [one_word(line, line_of(line).text, usual) for line in lines.values()]
        low = min(name.bottom for name in names)
        if len(names) < FEW_WORDS or low - row_bottom > (1 + MOST_EMPTY) * height:
            others += chain.from_iterable(lines.values())
            continue
        high = max(turned(name.box, usual)[3] for name in names)
        # they become level at the height of the lowest level name beside them
        beside = [
            word.bottom
            for word in level
            if max(row_bottom + 1, low - CELL_STEP * word.height) < word.bottom < high
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
        0 < foot.left - word.right < WIDE_SPACE * foot.height
        and abs(word.center - foot.center) < foot.height / 2
        for word in words
    ):
        return None
    return foot


class _Run(NamedTuple):
    """Rows that leave the same gaps free, up to the row `end`.

    `score` compares runs that begin with different rows: how many cells the gaps separate, so the
    more, the likelier are they columns.
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
        lead_to_pages(rows, self.height)
        # where the second word begins: in a table, at one place
        begins = {round(r[1].left) for r in rows if r[0].font not in code and stretched(r)}
        justified = len(begins) >= max(LEAST_BEGINS, _LEAST_STRETCHED * len(rows))
        self.rows = [PdfRow(row, self.height, justified=justified) for row in rows]
        self.runs: dict[int, _Run] = {}  # by their first row
        # rows that may have text on both sides of a gap
        self.parted = [not self.rows[0].is_phrase]
        self.parted += [
            not row.is_phrase or row.is_beside(above) for above, row in pairwise(self.rows)
        ]

    def leaves(self, *, depth: int) -> Iterator[Column | Table]:
        """Yield columns of lines, and tables. `depth`: of the columns around the words."""
        plain: list[PdfRow] = []  # lines of text that are not yielded yet
        start = 0
        # `Column.flows` of the next lines of text: whether they may continue a paragraph from
        # before them, as at the start of a column, and after columns or a table
        flows = depth > 0
        while start < len(self.rows):
            # 1. The next run, its gaps, and those of them that separate columns of prose.
            first, run = self._run(start)
            in_run = self.rows[first : run.end]
            gaps = without_labels(in_run, run.gaps) if depth < _MOST_DEPTH else []
            between_prose = prose_gaps(in_run, gaps) if gaps else []
            # what is not all prose may be a table, but lists of contents and programs are text
            is_text = between_prose != gaps and (
                2 * sum(row.is_entry for row in in_run) >= len(in_run)
                or self._is_code(in_run, gaps)
            )
            above = self.rows[start:first]
            start = run.end
            if is_text or not gaps:
                plain += above + in_run
                continue
            tables: list[Table] = []
            below: list[PdfRow] = []
            apart = between_prose  # the gaps between what is read one after the other
            # 2. Columns of prose: the rows above the run are text, but those beside a picture in
            # the first column are in the columns.
            if between_prose:
                plain += above
                left = between_prose[0][0]
                while plain and plain[-1].left > left and in_run[0].is_close(plain[-1]):
                    in_run.insert(0, plain.pop())
            # 3. A table, or several beside each other, which are read one after the other, too. The
            # rows above the run may be names of its columns. Its own lines are [first, last): the
            # others are text. From its end on, another table may begin.
            else:
                in_run = above + in_run
                table = GapTable(in_run, gaps)
                apart = table.gaps_beside()
                if not apart:
                    plain += in_run[: table.first]
                    tables = table.tables()
                    below = in_run[table.last : table.end]
                    start -= len(in_run) - table.end  # go on with the row at its end
            # 4. The text above, and then the columns or the table.
            if plain:
                yield _column(plain, flows)
                flows = False
            if apart:
                yield from self._beside(in_run, apart, depth)
            yield from tables
            plain = below
            flows = True
        if plain:
            yield _column(plain, flows)

    def _beside(self, rows: list[PdfRow], gaps: list[Gap], depth: int) -> Iterator[Column | Table]:
        """Yield columns after each other, and the titles across them."""
        for across, group in groupby(rows, lambda row: row.is_across(gaps)):
            if across:
                yield _column(list(group), False)
                continue
            columns = [words for words in by_gaps(row_words(group), gaps) if words]
            if is_leftward([word for words in columns for word in words]):
                columns.reverse()
            for words in columns:
                yield from _Region(words, self.code).leaves(depth=depth + 1)

    def _run(self, start: int) -> tuple[int, _Run]:
        """Return where the best run begins, and this run: at the row `start`, or at one of the few
        rows below it, because names of columns, which may stand across gaps, are above a run. If
        there is none, the run is one row without gaps.
        """
        starts = range(start, min(self._longest(start).end, start + _TRIED_ROWS))
        runs = {at: self._longest(at) for at in starts}
        first = max(runs, key=lambda at: (runs[at].score, len(runs[at].gaps), -at))
        return first, runs[first]

    def _longest(self, start: int) -> _Run:
        """Return the best run that begins with a row: the gaps that its rows have in common become
        fewer and narrower from row to row, so a longer run has fewer gaps. The best run has
        the most pairs of a row and a gap with text on both sides. Its score counts cells, because
        runs that begin with different rows have other gaps.
        """
        if not any(self.parted[start : start + _TRIED_ROWS]):
            return _Run(0, start + 1, [])
        if start in self.runs:
            return self.runs[start]
        rows = self.rows
        common = [(max(a, self.left), min(b, self.right)) for a, b in rows[start].free]
        common = [(a, b) for a, b in common if b - a >= WIDE_SPACE * rows[start].height]
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
        # 2. Choose among these places, the longest run first, the one with the most pairs.
        best_end = start + 1
        separating: list[Gap] = []
        most_pairs = 0
        for end, gaps in reversed(states):
            inner = [(a, b) for a, b in gaps if a > self.left and b < self.right]
            # as many pairs at most
            if end - start > 1 and (end - start) * len(inner) > most_pairs:
                counts = [_both_sides(gap, rows[start:end]) for gap in inner]
                if sum(counts) > most_pairs:
                    most_pairs = sum(counts)
                    best_end = end
                    separating = [gap for gap, count in zip(inner, counts, strict=True) if count]
        # 3. Its score among runs that begin with other rows: the cells after the first of a row.
        columns = [by_gaps(row.words, separating) for row in rows[start:best_end]]
        score = sum(sum(map(bool, words)) - 1 for words in columns)
        self.runs[start] = _Run(score, best_end, separating)
        return self.runs[start]

    def _is_title(self, number: int, common: list[Gap]) -> bool:
        """Return whether a row is a short title across columns that go on below it."""
        row = self.rows[number]
        width = row.words[-1].right - row.left
        phrase = row.is_phrase and width < _MOST_TITLE_WIDTH * (self.right - self.left)
        below = self.rows[number + 1].shared(common) if number + 1 < len(self.rows) else []
        return phrase and len(below) == len(common)

    def _is_code(self, rows: list[PdfRow], gaps: list[Gap]) -> bool:
        """Return whether rows are lines of a program. Numbers in columns are none, whatever their
        font.
        """
        words = row_words(rows)
        behind = [word for word in words if word.left >= gaps[0][1]]
        numbers = sum(NUMERIC.fullmatch(word.text) is not None for word in behind)
        in_font = sum(word.font in self.code for word in words)
        return in_font > MOST * len(words) and 2 * numbers < len(behind)


def _both_sides(gap: Gap, rows: list[PdfRow]) -> int:
    """Return how many rows have text on both sides of a gap; 0 if too few for its width."""
    height = median(row.height for row in rows)
    both = [row for row in rows if row.left < gap[0] and row.words[-1].left >= gap[1]]
    width = (gap[1] - gap[0]) / height
    if any(len(both) >= count and width >= least for count, least in _SEPARATING):
        return len(both)
    if len(both) > _FEW and width >= WIDE_SPACE:
        edge = gap[1] + SAME_EDGE * height
        aligned = sum(any(gap[1] <= word.left < edge for word in row.words) for row in both)
        return len(both) if aligned >= MOST * len(both) else 0
    if len(both) >= FEW_WORDS or width < _SEPARATING[0][1]:
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


def _column(rows: list[PdfRow], flows: bool) -> Column:
    return Column([line_of(row.words) for row in rows], flows)


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
    equal = sum(abs(width - usual) < EQUAL * usual for width in widths)
    return len(widths) >= _FEW and equal > MOST * len(widths)
