"""Rows of a page of a PDF, and the gaps that they leave free: white space that may separate
columns.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from math import inf
from statistics import median

from runnel.text.documents.pdf_lines import (
    SAME_EDGE,
    Gap,
    Line,
    by_gaps,
    line_of,
)
from runnel.text.documents.pdf_words import Word, is_leader

# Distances and widths are in heights of the words around them, unless a comment says another unit.
EQUAL = 0.03  # the largest difference of equal widths of letters (a share) or spaces
_BESIDE = 0.9  # the largest distance of two rows that are beside each other in part
WIDE_SPACE = 0.4  # a space that is wider than most spaces between words
_NARROW_SPACE = 0.15  # the least space between words
MOST_EMPTY = 2.0  # the largest empty space between two rows of columns
# Words that begin in the same places: rows with so many are of the same columns, also below a large
# empty space.
LEAST_BEGINS = 3
_LEADER = ". . . . ."  # the dots that lead to a page number


class PdfRow:
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
        places = stretched(words) if justified else []
        spread = {at for place in places for at in (place, place + 1)}
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
                and at not in spread
            ):
                self.free.append((end, word.left))
            if word.right > end:
                end = word.right
        self.free.append((end, inf))
        self.ends = [b for _, b in self.free]
        self.is_phrase = all(b - a < WIDE_SPACE * height for a, b in self.free[1:-1])

    def shared(self, common: Iterable[Gap]) -> list[Gap]:
        """Return what the row leaves free of common gaps. A gap as narrow as one between words
        counts only if a column begins behind it.
        """
        shared = []
        for a, b in common:
            for c, d in self.free[bisect(self.ends, a) :]:
                if c >= b:
                    break
                own = d - c >= WIDE_SPACE * self.height or abs(d - b) < SAME_EDGE * self.height
                if own and min(b, d) - max(a, c) >= _NARROW_SPACE * self.height:
                    shared.append((max(a, c), min(b, d)))
        return shared

    def is_across(self, gaps: list[Gap]) -> bool:
        """Return whether words of the row are in one of the gaps."""
        return len(self.shared(gaps)) < len(gaps)

    def cells(self, gaps: list[Gap]) -> list[list[Line]]:
        """Return the cells of the row; one across gaps is in the first of its columns."""
        phrase = self.is_phrase and self.is_across(gaps)
        across = [phrase or not self.shared([gap]) for gap in gaps]
        own = by_gaps(self.words, [gap for gap, over in zip(gaps, across, strict=True) if not over])
        columns = [[] if over else own.pop(0) for over in [False, *across]]
        columns = [[word for word in words if not is_leader(word)] for words in columns]
        return [[line_of(words)] if words else [] for words in columns]

    def is_beside(self, above: PdfRow) -> bool:
        """Return whether the row is beside the row above in part."""
        upper = above.words[0]
        lower = self.words[0]
        return upper.center - lower.center < _BESIDE * max(upper.height, lower.height)

    def is_close(self, above: PdfRow) -> bool:
        """Return whether there is little empty space above the row, or it has the columns of the
        row above.
        """
        if above.bottom - self.top <= MOST_EMPTY * self.height:
            return True
        begins = {round(word.left) for word in above.words}
        return len(begins & {round(word.left) for word in self.words}) >= LEAST_BEGINS


def row_words(rows: Iterable[PdfRow]) -> list[Word]:
    """Return the words of rows."""
    return [word for row in rows for word in row.words]


def stretched(words: list[Word]) -> list[int]:
    """Return the numbers of the words of a row that are between two equal wide spaces, as in lines
    that are stretched to the end of a column.
    """
    gaps = [after.left - before.right for before, after in pairwise(words)]
    return [
        at
        for at, (gap, after) in enumerate(pairwise(gaps), start=1)
        if abs(gap - after) < EQUAL * words[at].height
        and gap > WIDE_SPACE * words[at].height
        and any(map(str.isalpha, words[at].text))
    ]


def lead_to_pages(rows: list[list[Word]], height: float) -> None:
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
