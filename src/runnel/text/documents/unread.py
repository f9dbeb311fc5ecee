"""Parts of a plain text that are shown but not read: line numbers of transcripts, page marks, page
numbers and running heads inside a sentence, hyphens at line ends, marks of quoted lines, encoded
data, colors of a terminal.

The canonical text of a file is its own, so nothing is removed. `unread_in` returns spans; the text
without them is what a person would read aloud. A sentence that a page break cuts in two goes on
over the break.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from runnel.text.documents.entries import TURN

_NUMBERED = re.compile(r"[ \t]*(\d{1,4})(?:[ \t]+|\Z)")
_TURN = re.compile(rf"{TURN}|[QA][ \t]+(?=[A-Z\"'])")
_LINES = 10  # the fewest lines of a page of a transcript
_MOST = 0.7  # the least share of its lines that have numbers
_PROSE = 25  # characters of at least half of the lines, if they are not counted page by page
_WRAPPED = 0.1  # the least share of its lines that begin inside a sentence
_HEADS = 6  # lines between two pages, at most

_OPEN, _CLOSE = r"[\[{(<*_=~#|%-]{1,10}", r"[\]})>*_=~#|%-]{1,10}"
_PAGE = r"(?:page|pg\.?|p\.|seite|folio)[ \t]*\d{1,5}(?:[ \t]*(?:of|/|von)[ \t]*\d{1,5})?"
_PAGE_MARK = re.compile(rf"{_OPEN}[ \t]*{_PAGE}[ \t]*{_CLOSE}", re.IGNORECASE)
_PAGE_NUMBER = re.compile(rf"[-\u2013 \t]*(?:{_PAGE}|\d{{1,4}})[-\u2013 \t]*", re.IGNORECASE)
_DIGITS = re.compile(r"\d+")
_REPEATED = 3  # pages on which a running head is
_SPACES = 2  # the fewest spaces in a line that goes on after a page break
_LONG = 40  # characters of a line that goes on after a number that stands alone
_ENDED = re.compile(r"[.!?:;\u2026][\"')\]\u201d\u2019]*\Z")
_OPEN_END = re.compile(r"(?:\b(?:of|the|and|to|in|a|an|for|with|by|at|or|that)|,)\Z")

ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][\da-fA-F]{1,6}|[A-Za-z][A-Za-z\d]{1,31});")
_TAG_OR_ENTITY = re.compile(rf"<[^<>]*>|{ENTITY.pattern}")
_QUOTE_MARKS = re.compile(r"^(?:>[ \t]?)+", re.MULTILINE)  # of mail and of Markdown
_HYPHEN = re.compile(
    r"(?<![^\W_])([^\W\d_]{2,}+)([-\u2010\u00ac\u00ad](?:[ ]|[ \t]*\n[ \t]*))([^\W\d_]{2,}+)"
)
_WORDS = re.compile(r"[^\W\d_]++(?:-[^\W\d_]++)*+")
# words that begin no second half of a word
_JOINERS = frozenset(
    "and or nor to und oder bis et ou but then so the an he she it they we you this that these"
    " those his her its their our my your is was are were had has have not no yes as at by for from"
    " if in of on with who which what when where why how there here".split()
)
# begin words that keep their hyphen
_COMPOUNDS = frozenset(
    "all anti better cross co ever ex far full half hand hard high ill inter large life light long"
    " low mid multi new non old one open part post pre pro quasi real right self semi short single"
    " small so sub three time two ultra well wide would".split()
)
_DATA = re.compile(
    r"(?<![A-Za-z0-9+/_=-])(?:[A-Za-z0-9+/_-]{40,}+=*+(?:\n[ \t]*+)?)++(?:[A-Za-z0-9+/_-]++={1,2})?"
)
_LAST_DATA = re.compile(r"[A-Za-z0-9+/_-]{4,}+=*+(?=\n|\Z)")
_UUENCODED = re.compile(r"(?m)^begin [0-7]{3,4} .*\r?\n(?:[ -`]{1,62}\r?\n)++(?:end\b)?")
DATA_CHARS = 200
# colors of a terminal, and what no text has
_CONTROL = re.compile(r"\x1b\[[\d;?]*+[A-Za-z]|(?P<other>[\x00-\x08\x0e-\x1f\x7f\ufffe\uffff])")
_CLAUSE = re.compile(
    r"(?<![^\n])[ \t]*+[*_]{0,2}"
    r"(?:(?:\u00a7[ ]?\d{1,4}[a-z]?|(?:\d{1,3}\.){1,4}\d{1,3}\.?|\([a-z\d]{1,4}\))"
    r"|(?P<bare>\d{1,3}\\?[.)]))"
    r"[*_]{0,2}[ \t]*+(?P<gap>\n\s*+)(?=(?P<below>[*_]{0,2}[^\W\d_][^\n]{0,80}))"
)
_TITLE = 60  # characters
_PARAGRAPH_END = re.compile(r"\n[^\S\n\f]*\n\s*|\f")


@dataclass
class Unread:
    """What of a text is not read.

    Attributes:
        spans: not read, in any order.
        joined: gaps (end of a line, start of a later line) that do not end a paragraph, ascending.
        turns: where the turns of speakers begin in a transcript with numbered lines.
        warnings: for the user.
    """

    spans: list[tuple[int, int]] = field(default_factory=list)
    joined: list[tuple[int, int]] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def join(self, end: int, start: int) -> None:
        """Read on from `end` to `start`, with the one white space that follows `end`."""
        self.joined.append((end, start))
        self.spans.append((end + 1, start))

    def paragraph_ends(self, text: str) -> Iterator[int]:
        """Yield where paragraphs and turns end, ascending."""
        ends = {m.end() for m in _PARAGRAPH_END.finditer(text) if not self.joins(*m.span())}
        yield from sorted({*ends, *self.turns, len(text)} - {0})

    def joins(self, start: int, end: int) -> bool:
        """Return whether a gap that does not end a paragraph is in `text[start:end]`."""
        at = bisect_right(self.joined, start, key=lambda gap: gap[1])
        return at < len(self.joined) and self.joined[at][0] < end


@dataclass(frozen=True, slots=True)
class _Line:
    """A line with text: where it and its first word begin, and its words end."""

    start: int
    first: int
    end: int
    words: str
    blank: bool  # blank lines are above it
    page: bool  # a form feed is above it


def unread_in(text: str, *, log: bool = False) -> Unread:
    """Find what of a text is not read. `log`: its lines are entries, which have no sentences."""
    unread = Unread()
    unread.spans += data_in(text)
    unread.warnings += [
        f"{end - start:,} characters of encoded data (base64 or uuencode) are not read"
        for start, end in unread.spans
    ]
    controls = list(_CONTROL.finditer(text))
    unread.spans += [control.span() for control in controls]
    others = [control.start() for control in controls if control["other"]]
    if others:
        line = text.count("\n", 0, others[0]) + 1
        unread.warnings.append(
            f"{len(others):,} control characters, the first in line {line:,}; parts of the file"
            " may be binary"
        )
    if log:
        return unread
    lines = list(_lines(text)) if "\n" in text else []  # a row of text is often one line
    if lines and not (len(lines) >= _LINES and _number_lines(lines, unread)):
        _join_pages(lines, unread)
        _join_clauses(text, unread)
    unread.spans += [mark.span() for mark in _QUOTE_MARKS.finditer(text)]
    _add_hyphens(text, unread)
    unread.joined.sort()
    return unread


def character_of(entity: str) -> str:
    """Return the character that an entity of html stands for; "" if it is none, or several."""
    character = html.unescape(entity)
    return character if len(character) == 1 else ""


def characters_in(text: str, start: int, end: int) -> dict[int, str]:
    """Return the characters that the entities of `text[start:end]` stand for, by their places."""
    found = (match for match in _TAG_OR_ENTITY.finditer(text, start, end) if match[0][0] == "&")
    return {match.start(): character_of(match[0]) for match in found}


def data_in(text: str) -> Iterator[tuple[int, int]]:
    """Yield runs of base64 and uuencoded files, which are no text."""
    for match in _UUENCODED.finditer(text):
        yield match.span()
    for match in _DATA.finditer(text):
        end = match.end()
        if match[0][-1] == "\n" and (last := _LAST_DATA.match(text, end)) and _is_mixed(last[0]):
            end = last.end()
        run = text[match.start() : end].rstrip()
        if len(run) >= DATA_CHARS and _is_mixed(run):
            yield match.start(), match.start() + len(run)


def _is_mixed(text: str) -> bool:
    """Return whether a text has letters of both cases and digits."""
    return all(re.search(sign, text) for sign in ("[a-z]", "[A-Z]", r"\d"))


def is_data(text: str) -> bool:
    """Return whether a text is base64 as a whole."""
    return sum(end - start for start, end in data_in(text)) > len(text) / 2


def _join_clauses(text: str, unread: Unread) -> None:
    """Join the number of a clause that stands alone to the text below it; a number such as "2.",
    which chapters have too, only to a title.
    """
    for match in _CLAUSE.finditer(text):
        below = match["below"].rstrip()
        title = not match["bare"] or (len(below) <= _TITLE and not _ENDED.search(below[-9:]))
        if "\f" not in match["gap"] and title:
            unread.join(*match.span("gap"))


def _add_hyphens(text: str, unread: Unread) -> None:
    """Add hyphens, with the white space after them, at which a line of the printed page ended.

    The parts are one word if the text has that word elsewhere. The hyphen is kept if the text has
    the word with it. Otherwise the parts are one word if one of them is nowhere else and a line
    ends between them; inside a line, only if neither is.
    """
    breaks = [(*match.span(2), match[1], match[3]) for match in _HYPHEN.finditer(text)]
    for end, start in unread.joined:
        above = re.search(r"[^\W\d_]{2,}(?=-\Z)", text[max(0, end - 40) : end])
        below = re.match(r"[^\W\d_]{2,}", text[start : start + 40])
        if above and below:
            breaks.append((end - 1, start, above[0], below[0]))
    breaks = [
        (start, end, head.casefold(), tail)
        for start, end, head, tail in breaks
        if head[-1].islower() and tail.islower() and tail not in _JOINERS
    ]
    if not breaks:
        return
    parts = Counter(part for _, _, head, tail in breaks for part in (head, tail))
    wanted = {*parts, *(head + sign + tail for _, _, head, tail in breaks for sign in ("", "-"))}
    counts: Counter[str] = Counter()
    for match in _WORDS.finditer(text):
        word = match[0].casefold()
        counts.update(wanted.intersection((word, *word.split("-"))))
    for start, end, head, tail in breaks:
        chained = counts[f"{head}-{tail}"]
        unknown = (counts[head] <= parts[head]) + (counts[tail] <= parts[tail])
        rare = unknown >= (1 if "\n" in text[start:end] else 2) and head not in _COMPOUNDS
        if text[start] == "\u00ad" or counts[head + tail] > chained or (rare and not chained):
            unread.spans.append((start, end))
        elif chained:
            unread.spans.append((start + 1, end))


def _lines(text: str) -> Iterator[_Line]:
    end = 0
    for match in re.finditer(r"[^\n\f]+", text):
        words = match[0].strip()
        if words:
            first = match.start() + len(match[0]) - len(match[0].lstrip())
            above = text[end : match.start()]
            yield _Line(
                match.start(),
                first,
                first + len(words),
                words,
                above.count("\n") > 1,
                "\f" in above,
            )
            end = first + len(words)


def _number_lines(lines: list[_Line], unread: Unread) -> bool:
    """Add the numbers of a transcript's lines, and the heads of its pages; False if it is none."""
    # 1. Lines that count on, or from 1 on a new page.
    numbers: dict[int, int] = {}
    last = 0
    for at, line in enumerate(lines):
        number = _NUMBERED.match(line.words)
        if number and int(number[1]) in (1, last + 1):
            last = int(number[1])
            numbers[at] = number.end()
    rests = {at: lines[at].words[skip:] for at, skip in numbers.items()}
    written = [at for at, rest in rests.items() if rest]
    # 2. They are a transcript if most lines count, and the text runs on from line to line.
    pages = sum(_NUMBERED.match(lines[at].words)[1] == "1" for at in numbers)  # type: ignore[index]
    running = sum(rests[at][0].islower() for at in written)
    turns = sum(_TURN.match(rests[at]) is not None for at in written)
    long = sum(len(rests[at]) >= _PROSE for at in written) >= len(written) / 2
    if (
        len(written) < _LINES
        or len(numbers) < _MOST * len(lines)
        or (running < _WRAPPED * len(written) and turns < 2)
        or (pages < 2 and not long and turns < 2)
    ):
        return False
    # 3. From each line to the next: the number, and what is between two pages.
    first = written[0]
    unread.turns.append(lines[first].start)
    unread.spans.append((lines[first].start, lines[first].first + numbers[first]))
    for above, at in pairwise(written):
        line = lines[at]
        start = line.first + numbers[at]
        other = [n for n in range(above + 1, at) if n not in numbers]
        empty = at - above - 1 - len(other)
        if other and (int(line.words.split()[0]) != 1 or len(other) > _HEADS):
            unread.spans.append((line.first, start))
        elif _TURN.match(rests[at]) or (empty and rests[at][0].isupper()):
            unread.turns.append(line.start)
            unread.spans.append((lines[above].end + 1, start))
        else:
            unread.join(lines[above].end, start)
    return True


def _join_pages(lines: list[_Line], unread: Unread) -> None:
    """Add page marks, and join sentences over page marks, page numbers and running heads."""
    # 1. Lines next to form feeds that several pages have are running heads.
    near = {
        near
        for at, line in enumerate(lines)
        if line.page
        for near in range(max(0, at - 2), min(len(lines), at + 2))
    }
    heads = Counter(_DIGITS.sub("0", lines[at].words) for at in near)
    # 2. From each line of text to the next.
    last: int | None = None
    for at, line in enumerate(lines):
        if _PAGE_MARK.fullmatch(line.words[:_LONG]):
            unread.spans.append((line.first, line.end))
            continue
        number = len(line.words) < _LONG and _PAGE_NUMBER.fullmatch(line.words)
        alone = number and last is not None and line.blank and len(lines[last].words) >= _LONG
        alone = alone and at + 1 < len(lines) and lines[at + 1].blank
        if alone or (at in near and (number or heads[_DIGITS.sub("0", line.words)] >= _REPEATED)):
            continue
        if last is not None and (at > last + 1 or line.page) and at <= last + 1 + _HEADS:
            above = lines[last].words
            begins = line.words.lstrip("\"'(\u201c\u2018")[:1]
            open_end = not _ENDED.search(above[-9:]) and above.count(" ") >= _SPACES
            numbered = at > last + 1 and not line.page and last + 1 not in near
            if open_end and (begins.islower() or (not numbered and _OPEN_END.search(above[-9:]))):
                unread.join(lines[last].end, line.first)
        last = at
