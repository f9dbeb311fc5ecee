"""Read PDF: the text layer, page by page, with PDFium.

PDFium's lines become paragraphs and table rows by their position; the pages are joined without
running heads and page numbers; outline entries become headings.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from runnel.errors import ReadError, ScannedPdf
from runnel.text.documents.document import BREAK, CONTENTS, Canonical, DocumentText, Limits

if TYPE_CHECKING:
    from pypdfium2 import PdfDocument, PdfPage, PdfTextPage

# ---- one page: PDFium's lines --------------------------------------------------------------------

HYPHEN = "\ufffe"  # PDFium's character for a hyphen at the end of a line, including the line end
# before a table row; the file's own control characters are replaced with one that is dropped later
ROW = "\x01"
_PASSWORD = 4  # FPDF_ERR_PASSWORD
_CONTROL = re.compile("[\x01-\x08]")
_PIECE = re.compile(r"(\r\n|\ufffe)")
# a larger distance between lines, in units of the page's usual distance, begins a paragraph
_LOOSE = 1.3
# the largest usual distance, in line heights: pages with few lines have only wide gaps
_DOUBLE = 2.0
_ROW_STEP = 3.0  # the largest distance of two rows, in line heights
# line heights between two cells of a table; justified text has less than one between words
_GAP = 1.5
_TORN = 0.1  # line heights, up and sideways, within which a line continues
# A raised number is at most this high, and at least this far above the line, in heights of the
# character before it.
_SMALL = 0.9
_RAISED = 0.1
_DIGITS = re.compile(r"\d+")
_SHORT_WORD = re.compile(r"(?<![^\W\d_])[^\W\d_]{1,2}\Z")  # the base of a power
_SPACES = re.compile(r"[ \t\xa0]+")
_SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
# widths to compare: at most, at least, and the tolerance for equality
_LETTERS = 16
_FEW = 4
_SAME = 0.05


@dataclass(slots=True)
class _Line:
    """A line. `box`: bottom and height of its first character; `gaps`: (left, right) between its
    cells; in points.
    """

    text: str
    box: tuple[float, float] | None = None
    left: float = 0.0
    right: float = 0.0
    cells: list[str] = field(default_factory=list)
    gaps: list[tuple[float, float]] = field(default_factory=list)


@contextmanager
def open_pdf(path: str | Path) -> Iterator[PdfDocument]:
    """Open a PDF; ReadError if it is encrypted or damaged."""
    import pypdfium2

    try:
        document = pypdfium2.PdfDocument(path)
    except pypdfium2.PdfiumError as error:
        if getattr(error, "err_code", None) == _PASSWORD:
            raise ReadError(
                "an encrypted PDF; save a copy without a password, for example with qpdf --decrypt"
            ) from error
        raise ReadError(
            f"a damaged or truncated PDF ({error}); download it again or repair it, for example"
            " with qpdf"
        ) from error
    with closing(document):
        yield document


def page_text(page: PdfPage) -> str:
    """Return the lines of a page: with an empty line before each paragraph and `ROW` before each
    table row.

    Cells of a row are joined with " | ". A raised number after a word refers to a note and is put
    in brackets; after a digit or one or two letters it is an exponent and is written in superscript
    digits.
    """
    with closing(page.get_textpage()) as layer:
        # line, separator, line, ...
        pieces = _PIECE.split(_CONTROL.sub("\x0e", layer.get_text_range()))
        glyphs = _Glyphs(layer)
        lines = []
        at = 0
        for number, piece in enumerate(pieces):
            if number % 2 == 0:
                lines.append(_read_line(glyphs, piece, at))
            at += len(piece)
    return _assemble(lines, pieces[1::2])


class _Glyphs:
    def __init__(self, layer: PdfTextPage) -> None:
        self.layer = layer
        self.count = layer.count_chars()

    def box(self, at: int) -> tuple[float, float, float, float] | None:
        """Return (left, bottom, right, top) in points; None if the character has no extent."""
        if not 0 <= at < self.count:
            return None
        left, bottom, right, top = self.layer.get_charbox(at, loose=True)
        return (left, bottom, right, top) if top > bottom else None

    def is_fixed_pitch(self, text: str, at: int) -> bool:
        """Return whether text is monospaced, where wide gaps do not mean a table. Digits are
        ignored: they all have one width.
        """
        places = [at + i for i, c in enumerate(text) if not c.isspace() and not c.isdigit()]
        return _are_equal([box[2] - box[0] for box in map(self.box, places[:_LETTERS]) if box])


def _are_equal(widths: list[float]) -> bool:
    """Return whether there are enough widths to compare, and they are equal."""
    return len(widths) >= _FEW and max(widths) - min(widths) < _SAME * max(widths)


def _read_line(glyphs: _Glyphs, text: str, at: int) -> _Line:
    first = glyphs.box(at) if text else None
    if first is None:
        return _Line(text)
    height = first[3] - first[1]
    pieces: list[str] = []
    last = glyphs.box(at + len(text) - 1) or first
    line = _Line(text, (first[1], height), first[0], last[2])
    start = 0
    for space in _SPACES.finditer(text):
        left = glyphs.box(at + space.start() - 1)
        right = glyphs.box(at + space.end())
        if left and right and right[0] - left[2] > _GAP * height:
            line.cells.append(_raised(glyphs, text[start : space.start()], at + start))
            line.gaps.append((left[2], right[0]))
            pieces += [line.cells[-1], space[0]]
            start = space.end()
    pieces.append(_raised(glyphs, text[start:], at + start))
    line.text = "".join(pieces)
    line.cells.append(pieces[-1])
    stretched = _are_equal([right - left for left, right in line.gaps])  # it has too few words
    if stretched or (line.gaps and glyphs.is_fixed_pitch(text, at)):
        line.gaps = []
    return line


def _raised(glyphs: _Glyphs, text: str, at: int) -> str:
    """Rewrite raised numbers so that they are not read as part of the word or
    number before them.
    """

    def write(match: re.Match[str]) -> str:
        start, end = match.span()
        base = start - 1 if start and not text[start - 1].isspace() else start
        low = glyphs.box(at + base)
        last = glyphs.box(at + end - 1)
        if base == end - 1 or not low or not last or not _is_raised(last, low):
            return match[0]
        first = next(
            i for i in range(base + 1, end) if (box := glyphs.box(at + i)) and _is_raised(box, low)
        )
        digits = text[first:end]
        exponent = first > start or _SHORT_WORD.search(text, 0, first) is not None
        return text[start:first] + (digits.translate(_SUPERSCRIPT) if exponent else f"[{digits}]")

    return _DIGITS.sub(write, text)


def _is_raised(
    box: tuple[float, float, float, float], low: tuple[float, float, float, float]
) -> bool:
    height = low[3] - low[1]
    return box[3] - box[1] < _SMALL * height and box[1] - low[1] > _RAISED * height


def _assemble(lines: list[_Line], separators: list[str]) -> str:
    steps = [
        above.box[0] - below.box[0] if above.box and below.box else 0.0
        for above, below in pairwise(lines)
    ]
    forward = [step for step in steps if step > 0]
    height = median([line.box[1] for line in lines if line.box] or [0.0])
    usual = min(median(forward), _DOUBLE * height) if forward else 0.0
    rows: set[int] = set()
    # rows of a table have a gap in the same place
    for number, (above, below) in enumerate(pairwise(lines)):
        least = above.box[1] if above.box else 0.0
        shared = any(
            min(a[1], b[1]) - max(a[0], b[0]) > least for a in above.gaps for b in below.gaps
        )
        rows |= {number, number + 1} if shared and steps[number] < _ROW_STEP * height else set()
    out = []
    for number, line in enumerate(lines):
        row = number in rows
        out.append(ROW + " | ".join(line.cells) if row else line.text)
        if number < len(separators):
            after = lines[number + 1]
            separator = separators[number]
            step = steps[number]
            split = separator == HYPHEN
            # PDFium splits some lines before a comma or the like, after a raised number.
            most = 0.0
            if line.box and after.box and after.text[0] in ",.;:)]":
                most = _TORN * line.box[1]
            if row or number + 1 in rows or (usual and step > _LOOSE * usual and not split):
                separator = "\r\n\r\n"
            elif not split and abs(step) < most and abs(after.left - line.right) < most:
                separator = ""
            out.append(separator)
    return "".join(out)


# ---- the text over all pages ---------------------------------------------------------------------

ITEM = "\x02"  # before a list item
ENTRY = "\x03"  # before a line of a table of contents
_SPLIT_WORD = re.compile(r"(?<!\w)(\w++)\ufffe(\w++)")  # possessive: no backtracking in long words
_WORD = re.compile(r"\w+(?:-\w+)*")
_SPLIT_OPTION = re.compile(r"(?<![^\s(])--\r\n(?=\w)")
_OTHER_HYPHEN = re.compile(r"(?<=\w)[\u00ad\u2010]\r\n(?=\w)")
_BULLET = re.compile(
    r"(?m)^[ \t]*[\u2022\u2023\u2043\u25aa\u25ab\u25a0\u25a1\u25cf\u25cb\u25e6\uf0a7\uf0b7]"
    r"(?!\S*[\u2022\u25cf])\s*"
)
LIGATURES = {
    0xFB00: "ff",
    0xFB01: "fi",
    0xFB02: "fl",
    0xFB03: "ffi",
    0xFB04: "ffl",
    0xFB05: "st",
    0xFB06: "st",
} | {
    # Fonts of TeX without a character map: the codes of its T1 encoding.
    0x10: "\u201c",
    0x11: "\u201d",
    0x15: "\u2013",
    0x16: "\u2014",
    0x1B: "ff",
    0x1C: "fi",
    0x1D: "fl",
    0x1E: "ffi",
    0x1F: "ffl",
    0x88: "\u2022",
}
_SENTENCE = re.compile(r"[.!?][\"')\]\u201d\u2019]*\Z")
_PAGE_NUMBER = re.compile(r"(?<!\w)\d{1,4}(?!\w)")
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

    Running heads, running feet and page numbers are removed: first and last lines that three pages
    within nine have in common, apart from the page's number. Such a line is kept once, where it
    first occurs, if its words occur nowhere else. A line with a title of the outline (`titles`, by
    page from 0) stays. Words split at a line end are joined, with their hyphen if the document
    writes the word with it elsewhere.
    """
    pages = _without_furniture([text.translate(LIGATURES) for text in texts], titles)
    pages = [_SPLIT_OPTION.sub("--", _OTHER_HYPHEN.sub(HYPHEN, page)) for page in pages]
    _join_over_pages(pages)
    join = _joiner(pages)
    for number, page in enumerate(pages):
        if HYPHEN in page:
            page = _SPLIT_WORD.sub(join, page).replace(HYPHEN, "-\n")
        lines = page.replace("\r\n", "\n").split("\n")
        pages[number] = _BULLET.sub(f"\n\n{ITEM}", "\n".join(map(_contents_row, lines)))
    return _without_tables(pages)


def _contents_row(line: str) -> str:
    """Turn a line that may be of a table of contents into an entry, without the dots before the
    page number.
    """
    title, _, number = line.rstrip(" |").rpartition(" ")
    bare = title.rstrip(" .|\t")
    if title.count(".", len(bare)) < _LEADERS or not (number.isdigit() or _ROMAN.fullmatch(number)):
        return line
    return f"\n\n{ENTRY}{bare.removeprefix(ROW)} | {number}\n"


def _without_tables(pages: list[str]) -> list[str]:
    """Turn entries into rows, unless several in a row have the numbers of pages, in order: a data
    sheet has dots too.
    """
    places = [
        (page, match) for page, text in enumerate(pages) for match in _ENTRY_END.finditer(text)
    ]
    run = last = at = 0
    runs: list[int] = []  # of each entry
    for page, match in places:
        number = int(match[1]) if match[1].isdigit() else last
        run += number < last or number > len(pages) or page > at + 1
        runs.append(run)
        last = number
        at = page
    counts = Counter(runs)
    for (page, match), run in zip(places, runs, strict=True):
        if counts[run] < _ENTRIES:
            pages[page] = pages[page][: match.start()] + ROW + pages[page][match.start() + 1 :]
    return pages


def _without_furniture(pages: list[str], titles: Mapping[int, Sequence[str]]) -> list[str]:
    dropped: dict[str, tuple[int, bool, str]] = {}  # by a line's words: where it first occurred
    for bottom in (False, True) * _EDGE_LINES:
        edges = [_split_edge(page, bottom) for page in pages]
        places: dict[_Key, list[int]] = defaultdict(list)
        for number, (line, _) in enumerate(edges):
            for key in _keys(line, number):
                places[key].append(number)
        for number, (line, rest) in enumerate(edges):
            running = [
                key
                for key in _keys(line, number)
                if bisect_right(places[key], number + _NEAR)
                - bisect_left(places[key], number - _NEAR)
                >= _TIMES
            ]
            if running and not any(
                title.lower() in " ".join(line.lower().split()) for title in titles.get(number, ())
            ):
                dropped.setdefault(running[0][0], (number, bottom, line))
                pages[number] = rest
    body = " ".join(" ".join(pages).lower().split()) if dropped else ""
    for words, (number, bottom, line) in reversed(dropped.items()):
        parts = [part.strip().lower() for part in words.split("#") if re.search(r"\w", part)]
        if not all(part in body for part in parts):
            page = pages[number]
            pages[number] = f"{page}\r\n\r\n{line}" if bottom else f"{line}\r\n\r\n{page}"
    return pages


def _split_edge(page: str, bottom: bool) -> tuple[str, str]:
    """Return the first or last line of a page and the rest; no line if it is a sentence in a
    paragraph, or ends in a hyphen.
    """
    head, _, tail = page.strip().rpartition("\r\n") if bottom else page.strip().partition("\r\n")
    line, rest = (tail, head) if bottom else (head, tail)
    apart = not rest or (rest.endswith("\r\n") if bottom else rest.startswith("\r\n"))
    if HYPHEN in line or (_SENTENCE.search(line) and not apart):
        return "", page
    return line, rest


def _keys(line: str, page: int) -> Iterator[_Key]:
    """Yield the keys under which a line may recur: unchanged, or with a number
    that counts pages.
    """
    if not line:
        return
    words = " ".join(line.removeprefix(ROW).replace(" | ", " ").split())
    yield words, None
    numbers = list(_PAGE_NUMBER.finditer(words))
    for match in numbers[:1] + numbers[1:][-1:]:
        yield words[: match.start()] + "#" + words[match.end() :], int(match[0]) - page
    if _ROMAN.fullmatch(words):
        values = [{"i": 1, "v": 5, "x": 10, "l": 50, "c": 100}[letter] for letter in words.lower()]
        yield (
            "#",
            sum(-value if value < after else value for value, after in pairwise([*values, 0]))
            - page,
        )


def _join_over_pages(pages: list[str]) -> None:
    """Move the second part of a word split by a page break to the page where the word begins."""
    for number in range(len(pages) - 1):
        end = re.search(r"\w(-|\ufffe)\s*\Z", pages[number])
        rest = re.match(r"\s*([^\W\d_A-Z]\S*)\s*", pages[number + 1])
        if end and rest and rest[1][0].islower():
            pages[number] = pages[number][: end.start(1)] + HYPHEN + rest[1]
            pages[number + 1] = pages[number + 1][rest.end() :]


def _joiner(pages: list[str]) -> Callable[[re.Match[str]], str]:
    """Return a function that joins a word split at a line end, written as elsewhere in the
    document, else without a hyphen.
    """
    split = [pair for page in pages if HYPHEN in page for pair in _SPLIT_WORD.findall(page)]
    forms = {f"{a}{sign}{b}".lower() for a, b in split for sign in ("", "-")}
    counts: Counter[str] = Counter()
    for page in pages if forms else ():
        counts.update(word for word in _WORD.findall(page.lower()) if word in forms)

    def join(match: re.Match[str]) -> str:
        plain = match[1] + match[2]
        hyphenated = f"{match[1]}-{match[2]}"
        surplus = counts[hyphenated.lower()] - counts[plain.lower()]
        if surplus:
            return hyphenated if surplus > 0 else plain
        chained = "-" in (
            match.string[match.start() - 1 : match.start()],
            match.string[match.end() : match.end() + 1],
        )
        name = match[2].istitle() and not match[1].isupper()  # Jean-Loup, February-March
        return hyphenated if chained or name or match[1][-1].isdigit() else plain

    return join


# ---- the document --------------------------------------------------------------------------------

_KINDS = {ROW: "row", ITEM: "item", ENTRY: CONTENTS}
_MARKS = ROW + ITEM + ENTRY + " \t\n\f"
_NO_MARKS = dict.fromkeys(map(ord, (ROW, ITEM, ENTRY, "\f")))
_UNMAPPED_SHARE = 0.05
_SENTENCE_END = re.compile(r"[.!?:;\u3002\uff01\uff1f][\"')\]\u201d\u2019]*\Z")
_SHOWN = 12  # the most ranges of pages in a warning
_PAGE_BYTES = 8  # a page takes more, even if it is blank and compressed
# extra characters that a heading may have over its title in the outline: "Chapter 3: "
_NUMBERING = 12


class _Entry(NamedTuple):
    level: int
    title: str


def read_pdf(
    path: str | Path, limits: Limits, recognized: Mapping[int, str] | None = None
) -> DocumentText:
    """Read the text of all pages in PDFium's order. Pages are opened one at a time.

    Lines with extra space above them begin a paragraph. `page_text` and `join_pages` describe
    tables, hyphens and running heads. `recognized`: by number, from 1, the text that OCR found on
    pages that are pictures.
    """
    with open_pdf(path) as document:
        from pypdfium2 import PdfiumError, raw

        if len(document) > (size := os.path.getsize(path)) // _PAGE_BYTES:
            raise ReadError(
                f"a PDF that claims {len(document):,} pages in {size:,} bytes: it is damaged or"
                " hostile"
            )
        # 1. The titles of the outline, which become headings.
        outline = _outline(document)
        # 2. The lines of each page.
        texts: list[str] = []
        faults: list[int] = []
        scanned: list[int] = []
        length = 0
        for number in range(len(document)):
            text = ""
            try:
                with closing(document[number]) as page:
                    text = page_text(page)
                    if not text.strip():  # what OCR printed, without the marks of `page_text`
                        text = (recognized or {}).get(number + 1, "").translate(_NO_MARKS).strip()
                    if not text and any(page.get_objects(filter=[raw.FPDF_PAGEOBJ_IMAGE])):
                        scanned.append(number + 1)
            except PdfiumError:
                faults.append(number + 1)
            texts.append(text)
            length += len(text)
            limits.check(length, "unpacked_bytes", "the text of the PDF")
        # 3. The document: pages joined, blocks under headings.
        return _build(
            texts,
            outline,
            faults,
            scanned,
            title=document.get_metadata_value("Title"),
            advice="scans need OCR (--ocr)" if recognized is None else "OCR found no text on them",
        )


def _outline(document: PdfDocument) -> dict[int, list[_Entry]]:
    entries: dict[int, list[_Entry]] = {}
    for bookmark in document.get_toc():
        target = bookmark.get_dest()
        page = None if target is None else target.get_index()
        title = " ".join(bookmark.get_title().split())
        if page is not None and title:
            entries.setdefault(page, []).append(_Entry(bookmark.level + 1, title))
    return entries


def _build(
    texts: list[str],
    outline: dict[int, list[_Entry]],
    faults: list[int],
    scanned: list[int],
    title: str | None,
    advice: str,
) -> DocumentText:
    empty = [
        number
        for number, text in enumerate(texts, start=1)
        if not text.strip() and number not in faults
    ]
    if len(empty) + len(faults) == len(texts):
        raise _without_text(len(texts), len(faults), scanned)
    canonical = Canonical()
    if faults:
        canonical.warnings.append(f"{_pages(faults)} could not be read: damaged")
    if empty:
        pictures = f", {len(scanned):,} of them pictures: {advice}" if scanned else ""
        canonical.warnings.append(
            f"{_pages(empty)} without text ({len(empty):,} of {len(texts):,} pages{pictures})"
        )
    unmapped = sum(text.count("\ufffd") + text.count("\0") for text in texts)
    if unmapped > _UNMAPPED_SHARE * sum(map(len, texts)):
        canonical.warnings.append(
            f"{unmapped:,} characters have no meaning in the file (a font without a character map)"
        )
    before = ""
    titles = {number: [entry.title for entry in entries] for number, entries in outline.items()}
    for number, text in enumerate(join_pages(texts, titles)):
        canonical.page = number + 1
        paragraphs = [p for p in re.split(r"\n\s*\n", text) if p.strip(_MARKS)]
        waiting = list(outline.get(number, ()))
        for position, paragraph in enumerate(paragraphs):
            kind, waiting = _open_headings(canonical, waiting, paragraph)
            kind = _KINDS.get(paragraph.lstrip()[0], kind)
            goes_on = (
                position == 0
                and before
                and not _SENTENCE_END.search(before)
                and paragraph.lstrip()[0].islower()
            )
            canonical.add(paragraph, kind, join="\n" if goes_on else BREAK)
        for entry in waiting:  # not found on its page: it applies from the next page on
            canonical.open_heading(entry.level, entry.title)
        before = paragraphs[-1].rstrip() if paragraphs else before
    return canonical.finish("pdf", title=title, pages=len(texts), scanned=tuple(scanned))


def _open_headings(
    canonical: Canonical, waiting: list[_Entry], paragraph: str
) -> tuple[str, list[_Entry]]:
    """Open the entries up to the last whose title is in this paragraph; return its kind and the
    other entries.
    """
    flat = " ".join(paragraph.split()).lower()
    count = max(
        (i for i, entry in enumerate(waiting, start=1) if entry.title.lower() in flat), default=0
    )
    for entry in waiting[:count]:
        canonical.open_heading(entry.level, entry.title)
    alone = count and len(flat) - len(waiting[count - 1].title) <= _NUMBERING
    return "heading" if alone else "paragraph", waiting[count:]


def _without_text(pages: int, faults: int, scanned: list[int]) -> ReadError:
    if not pages:
        return ReadError("a PDF without pages")
    if scanned:
        return ScannedPdf(
            f"a PDF without text on its {pages:,} pages, which hold pictures: a scan; run OCR on"
            " it, by --ocr of runnel find, index and read, or by a program such as ocrmypdf",
            scanned,
        )
    if faults:
        return ReadError(
            f"a PDF of {pages:,} pages, none of which can be read: it is damaged; download it again"
            " or repair it"
        )
    return ReadError(f"a PDF without text on its {pages:,} pages")


def _pages(numbers: list[int]) -> str:
    """Return page numbers as text: "page 3" or "pages 1-4, 7"."""
    runs = [
        [n for _, n in run]
        for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    ]
    shown = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    more = f" and {len(shown) - _SHOWN:,} more ranges" if len(shown) > _SHOWN else ""
    return f"page{'s' if len(numbers) > 1 else ''} {', '.join(shown[:_SHOWN])}{more}"
