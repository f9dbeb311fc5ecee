"""Join the pages of a PDF: remove running heads and page numbers, rejoin hyphenated words, turn bullets into items."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runnel.text.documents.pdf_page import HYPHEN, ROW

ITEM = "\x02"  # before a list item
ENTRY = "\x03"  # before a line of a table of contents
_SPLIT_WORD = re.compile(r"(?<!\w)(\w++)\ufffe(\w++)")  # possessive: no backtracking in long words
_WORD = re.compile(r"\w+(?:-\w+)*")
_SPLIT_OPTION = re.compile(r"(?<![^\s(])--\r\n(?=\w)")
_OTHER_HYPHEN = re.compile(r"(?<=\w)[\u00ad\u2010]\r\n(?=\w)")
_BULLET = re.compile(
    r"(?m)^[ \t]*[\u2022\u2023\u2043\u25aa\u25ab\u25a0\u25a1\u25cf\u25cb\u25e6\uf0a7\uf0b7](?!\S*[\u2022\u25cf])\s*"
)
LIGATURES = {0xFB00: "ff", 0xFB01: "fi", 0xFB02: "fl", 0xFB03: "ffi", 0xFB04: "ffl", 0xFB05: "st", 0xFB06: "st"} | {
    # Fonts of TeX without a character map: the codes of its T1 encoding.
    0x10: "\u201c", 0x11: "\u201d", 0x15: "\u2013", 0x16: "\u2014",
    0x1B: "ff", 0x1C: "fi", 0x1D: "fl", 0x1E: "ffi", 0x1F: "ffl",
    0x88: "\u2022",
}  # fmt: skip
_SENTENCE = re.compile(r"[.!?][\"')\]\u201d\u2019]*\Z")
_NUMBER = re.compile(r"(?<!\w)\d{1,4}(?!\w)")
_ROMAN = re.compile(r"(?=[ivxlc])(c{0,3})(xc|xl|l?x{0,3})(ix|iv|v?i{0,3})", re.IGNORECASE)
_NEAR = 4  # pages to each side that are searched for a repeated line
_TIMES = 3  # how often the line must occur
_LEADERS = 5  # the fewest dots between a title and its page
_ENTRIES = 3  # of a table of contents, at least
_ENTRY_END = re.compile(rf"{ENTRY}.* (\w+)\n")
_EDGE_LINES = 2  # at the top, and at the bottom
_Key = tuple[str, int | None]


def join_pages(texts: Sequence[str], titles: Mapping[int, Sequence[str]]) -> list[str]:
    """Return the pages as paragraphs separated by empty lines.

    Running heads, running feet and page numbers are removed: first and last lines that three pages within nine have in common,
    apart from the page's number. Such a line is kept once, where it first occurs, if its words occur nowhere else. A line with
    a title of the outline (`titles`, by page from 0) stays. Words split at a line end are joined, with their hyphen if the
    document writes the word with it elsewhere.
    """
    pages = _without_furniture([text.translate(LIGATURES) for text in texts], titles)
    pages = [_SPLIT_OPTION.sub("--", _OTHER_HYPHEN.sub(HYPHEN, page)) for page in pages]
    _join_over_pages(pages)
    join = _joiner(pages)
    return _without_tables([_finish(page, join) for page in pages])


def _finish(page: str, join: Any) -> str:
    if HYPHEN in page:
        page = _SPLIT_WORD.sub(join, page).replace(HYPHEN, "-\n")
    page = "\n".join(map(_contents_row, page.replace("\r\n", "\n").split("\n")))
    return _BULLET.sub(f"\n\n{ITEM}", page)


def _contents_row(line: str) -> str:
    """Turn a line that may be of a table of contents into an entry, without the dots before the page number."""
    title, _, number = line.rstrip(" |").rpartition(" ")
    bare = title.rstrip(" .|\t")
    if title.count(".", len(bare)) < _LEADERS or not (number.isdigit() or _ROMAN.fullmatch(number)):
        return line
    return f"\n\n{ENTRY}{bare.removeprefix(ROW)} | {number}\n"


def _without_tables(pages: list[str]) -> list[str]:
    """Turn entries into rows, unless several in a row have the numbers of pages, in order: a data sheet has dots too."""
    places = [(page, match) for page, text in enumerate(pages) for match in _ENTRY_END.finditer(text)]
    run = last = at = 0
    runs: list[int] = []  # of each entry
    for page, match in places:
        number = int(match[1]) if match[1].isdigit() else last
        run += number < last or number > len(pages) or page > at + 1
        runs.append(run)
        last, at = number, page
    counts = Counter(runs)
    for (page, match), its in reversed(list(zip(places, runs, strict=True))):
        if counts[its] < _ENTRIES:
            pages[page] = pages[page][: match.start()] + ROW + pages[page][match.start() + 1 :]
    return pages


def _without_furniture(pages: list[str], titles: Mapping[int, Sequence[str]]) -> list[str]:
    dropped: dict[str, tuple[int, bool, str]] = {}  # by a line's words: where it first occurred
    for bottom in (False, True) * _EDGE_LINES:
        edges = [_split_edge(page, bottom) for page in pages]
        places: dict[_Key, list[int]] = defaultdict(list)
        for number, (line, _) in enumerate(edges):
            for key in _keys(line, number) if line else ():
                places[key].append(number)
        for number, (line, rest) in enumerate(edges):
            running = [key for key in _keys(line, number) if _is_running(places[key], number)] if line else []
            if running and not any(title.lower() in _flat(line).lower() for title in titles.get(number, ())):
                dropped.setdefault(running[0][0], (number, bottom, line))
                pages[number] = rest
    body = _flat(" ".join(pages)).lower() if dropped else ""
    for words, (number, bottom, line) in reversed(dropped.items()):
        if any(part.strip().lower() not in body for part in words.split("#") if re.search(r"\w", part)):
            pages[number] = f"{pages[number]}\r\n\r\n{line}" if bottom else f"{line}\r\n\r\n{pages[number]}"
    return pages


def _split_edge(page: str, bottom: bool) -> tuple[str, str]:
    """Return the first or last line of a page and the rest; no line if it is a sentence in a paragraph, or ends in a hyphen."""
    head, _, tail = page.strip().rpartition("\r\n") if bottom else page.strip().partition("\r\n")
    line, rest = (tail, head) if bottom else (head, tail)
    apart = not rest or (rest.endswith("\r\n") if bottom else rest.startswith("\r\n"))
    if HYPHEN in line or (_SENTENCE.search(line) and not apart):
        return "", page
    return line, rest


def _keys(line: str, page: int) -> Iterator[_Key]:
    """Yield the keys under which a line may recur: unchanged, or with a number that counts pages."""
    words = _flat(line.removeprefix(ROW).replace(" | ", " "))
    yield words, None
    numbers = list(_NUMBER.finditer(words))
    for match in numbers[:1] + numbers[1:][-1:]:
        yield words[: match.start()] + "#" + words[match.end() :], int(match[0]) - page
    if roman := _ROMAN.fullmatch(words):
        yield "#", _value(roman) - page


def _value(roman: re.Match[str]) -> int:
    digits = {"i": 1, "v": 5, "x": 10, "l": 50, "c": 100}
    values = [digits[letter] for letter in roman[0].lower()]
    return sum(-value if value < after else value for value, after in zip(values, [*values[1:], 0], strict=True))


def _is_running(places: list[int], page: int) -> bool:
    return bisect_right(places, page + _NEAR) - bisect_left(places, page - _NEAR) >= _TIMES


def _flat(text: str) -> str:
    return " ".join(text.split())


def _join_over_pages(pages: list[str]) -> None:
    """Move the second part of a word split by a page break to the page where the word begins."""
    for number in range(len(pages) - 1):
        end = re.search(r"\w(-|\ufffe)\s*\Z", pages[number])
        rest = re.match(r"\s*([^\W\d_A-Z]\S*)\s*", pages[number + 1])
        if end and rest and rest[1][0].islower():
            pages[number] = pages[number][: end.start(1)] + HYPHEN + rest[1]
            pages[number + 1] = pages[number + 1][rest.end() :]


def _joiner(pages: list[str]) -> Any:
    """Return a function that joins a word split at a line end, written as elsewhere in the document, else without a hyphen."""
    split = [pair for page in pages if HYPHEN in page for pair in _SPLIT_WORD.findall(page)]
    wanted = {form for a, b in split for form in (f"{a}{b}".lower(), f"{a}-{b}".lower())}
    counts: Counter[str] = Counter()
    for page in pages if wanted else ():
        counts.update(word for word in _WORD.findall(page.lower()) if word in wanted)

    def join(match: re.Match[str]) -> str:
        whole, hyphenated = match[1] + match[2], f"{match[1]}-{match[2]}"
        if counts[hyphenated.lower()] != counts[whole.lower()]:
            return hyphenated if counts[hyphenated.lower()] > counts[whole.lower()] else whole
        chained = "-" in (match.string[match.start() - 1 : match.start()], match.string[match.end() : match.end() + 1])
        name = match[2].istitle() and not match[1].isupper()  # Jean-Loup, February-March
        return hyphenated if chained or name or match[1][-1].isdigit() else whole

    return join
