"""Running heads, running feet and page numbers of a PDF: lines at the edges of pages that recur on
pages nearby, apart from numbers that count pages. Two times suffice for a line that a tagged PDF
marks as an artifact, and one time for a page number or on the only page.

`edges_of` takes the first and the last lines of a page; `RunningLines.find` says which of them are
left out, and returns those that are kept. The frame of a line is its text with its numbers
replaced: lines with the same frame on several pages are one running line.
"""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from runnel.text.documents.pdf_lines import PdfPart, line_of, rows_of
from runnel.text.documents.pdf_words import HYPHEN, Word

NUMBER = "\0"  # no word holds it: it is white space
NEAR = 4  # pages to each side that are searched for a repeated line
_TIMES = 3  # how often the line must occur
_NUMBER_TIMES = 2  # the same, for a page number, and a line with it on every other page
_PAGE_NUMBER = re.compile(
    rf"\W*(?:page|seite|p\.)?\s*{NUMBER}(?:\s*(?:of|von|/)\s*(?:{NUMBER}|\d+))?\W*", re.IGNORECASE
)
_EDGE_LINES = 3  # lines at the top of a page, and at its bottom, that are looked at
_EDGE_WORDS = 120  # only as many words from the top and from the bottom are made into lines
_APART = 1.3  # the distance of a line from the text, in units of the page's usual distance
_DOUBLE = 2.0  # the largest usual distance, in heights of a line
_CELLS = 3  # the cells of a line that may have the names of columns
_SENTENCE = re.compile(r"[.!?][\"')\]\u201d\u2019]*\Z")
_ROMAN = r"(?=[ivxlc])c{0,3}(?:xc|xl|l?x{0,3})(?:ix|iv|v?i{0,3})"
_NUMBER = re.compile(rf"\d+|(?<!\S){_ROMAN}(?!\S)")
_ROMAN_DIGITS = {"i": 1, "v": 5, "x": 10, "l": 50, "c": 100}


class Edge(NamedTuple):
    """A line at the edge of a page, from the edge inward."""

    text: str
    frame: str  # the text, with `NUMBER` for each number
    numbers: tuple[int, ...]
    words: list[Word]
    sentence: bool  # it is a sentence of a paragraph, or ends in a hyphen
    marked: bool  # the PDF says that it is no part of the text, as it says of few others


Edges = tuple[list[Edge], list[Edge]]  # the first and the last lines of a page


def is_roman(text: str) -> bool:
    """Return whether a text is a Roman number up to 399."""
    return re.fullmatch(_ROMAN, text, re.IGNORECASE) is not None


def edges_of(words: Sequence[Word]) -> Edges:
    """Return the lines at the edges of a page, of text with the angle of most of it."""
    angles = Counter(word.angle for word in words).most_common(1)
    upright = [word for word in words if word.angle == angles[0][0]] if angles else []
    upright.sort(key=lambda word: -word.center)
    if len(upright) > 2 * _EDGE_WORDS:
        upright[_EDGE_WORDS:-_EDGE_WORDS] = []
    rows = rows_of(upright)
    steps = [above[0].bottom - below[0].bottom for above, below in pairwise(rows)]
    usual = min(median(steps), _DOUBLE * rows[0][0].height) if steps else 0.0

    # `step`: the number of the distance to the next line inward
    def edge(number: int, step: int) -> Edge:
        text = line_of(rows[number]).text
        apart = not 0 <= step < len(steps) or steps[step] > _APART * usual
        marked = all(w.artifact for w in rows[number]) and not all(w.artifact for w in upright)
        sentence = text.endswith(HYPHEN) or (not apart and _SENTENCE.search(text) is not None)
        plain = text.lower() if is_roman(text) else text
        numbers = tuple(_value(number) for number in _NUMBER.findall(plain))
        return Edge(
            text, _NUMBER.sub(NUMBER, plain), numbers, rows[number], sentence and not marked, marked
        )

    count = min(_EDGE_LINES, len(rows))
    top = [edge(number, number) for number in range(count)]
    return top, [edge(len(rows) - 1 - number, len(rows) - 2 - number) for number in range(count)]


def _value(number: str) -> int:
    """Return the value of a number in digits, or in Roman ones."""
    if number.isdecimal():
        return int(number[-9:])
    values = [_ROMAN_DIGITS[letter] for letter in number]
    return sum(-a if a < b else a for a, b in pairwise([*values, 0]))


class RunningLines:
    """Finds running heads and feet while pages are read."""

    def __init__(self, titles: dict[int, list[str]]) -> None:
        # the titles of the outline, by page index; a line with one of them stays
        self.titles = titles
        self.heads: dict[str, PdfPart] = {}  # heads and feet where they first occur, by their words

    def find(self, number: int, near: dict[int, Edges]) -> tuple[set[int], list[list[PdfPart]]]:
        """Return the places in memory of the words of running lines on a page, and the lines that
        occur for the first time at its top and at its bottom.
        """
        left_out: set[int] = set()
        kept: list[list[PdfPart]] = [[], []]
        titles = self.titles.get(number, ())
        for side, edges in enumerate(near[number]):
            for edge in edges:
                stays = edge.sentence or any(t.lower() in edge.text.lower() for t in titles)
                words = None if stays else _recurring(edge, number, side, near)
                if words is None:
                    break  # lines further inward are text
                new = words not in self.heads
                line = PdfPart(number + 1, "paragraph", edge.text, aside=True)
                self.heads.setdefault(words, line)
                cells = 1 + sum(
                    after.left - before.right > before.height
                    for before, after in pairwise(edge.words)
                )
                if new and side == 0 and cells >= _CELLS:
                    continue  # the names of a table's columns, which stand above it once
                left_out |= {id(word) for word in edge.words}
                if new:
                    kept[side].append(line)
        return left_out, [kept[0], kept[1][::-1]]

    def drop_known(self, parts: list[PdfPart]) -> None:
        """Empty the numbers of pages, and the running lines whose words occur elsewhere."""
        kept = {id(head) for head in self.heads.values()}
        texts = [text for part in parts if id(part) not in kept for text in part.texts()]
        body = " ".join(" ".join(texts).lower().split()) if kept else ""
        for words, head in self.heads.items():
            phrases = [part.strip().lower() for part in words.split(NUMBER)]
            if _PAGE_NUMBER.fullmatch(words) or all(
                phrase in body for phrase in phrases if re.search(r"\w", phrase)
            ):
                head.text = ""


def _recurring(edge: Edge, number: int, side: int, near: dict[int, Edges]) -> str | None:
    """Return the words of a line with a sign for each number that counts pages; None if too few
    pages nearby have it.
    """
    times = 1
    alternates = False  # left pages have another line than right ones
    constant: set[int] = set()  # numbers that are the same elsewhere
    for other, edges in near.items():
        if other == number:
            continue
        for line in edges[side]:
            if line.frame != edge.frame or (edge.marked and not line.marked):
                continue
            pairs = list(zip(edge.numbers, line.numbers, strict=True))
            # each number is the same, or counts pages
            if all(a in (b, b + number - other) for a, b in pairs):
                times += 1
                alternates |= abs(number - other) == 2
                constant |= {place for place, (a, b) in enumerate(pairs) if a == b}
                break
    alone = _PAGE_NUMBER.fullmatch(edge.frame) is not None  # or with how many pages there are
    counts = len(constant) < len(edge.numbers) if alone else alternates and not constant
    least = _NUMBER_TIMES if edge.marked or (counts and edge.numbers) else _TIMES
    # Other lines that a tagged PDF marks may be the title of a table that goes on.
    if times < least and not (
        edge.marked and (alone or len(near) == 1 or number + 1 in edge.numbers)
    ):
        return None
    parts = edge.frame.split(NUMBER)
    signs = [str(value) if at in constant else NUMBER for at, value in enumerate(edge.numbers)]
    return "".join(part + sign for part, sign in zip(parts, [*signs, ""], strict=True))
