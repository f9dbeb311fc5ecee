"""Read one page of a PDF as PDFium's lines; paragraphs, table rows and raised numbers are recognized by position."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from runnel.errors import ReadError, needing

if TYPE_CHECKING:
    from pypdfium2 import PdfDocument, PdfPage, PdfTextPage

HYPHEN = "\ufffe"  # PDFium's character for a hyphen at the end of a line, including the line end
ROW = "\x01"  # before a table row; the file's own control characters are replaced with one that is dropped later
_PASSWORD = 4  # FPDF_ERR_PASSWORD
_CONTROL = re.compile("[\x01-\x08]")
_PIECE = re.compile(r"(\r\n|\ufffe)")
_LOOSE = 1.3  # a larger distance between lines, in units of the page's usual distance, begins a paragraph
_DOUBLE = 2.0  # the largest usual distance, in line heights: pages with few lines have only wide gaps
_ROW_STEP = 3.0  # the largest distance of two rows, in line heights
_GAP = 1.5  # line heights between two cells of a table; justified text has less than one between words
_TORN = 0.1  # line heights, up and sideways, within which a line continues
# A raised number is at most this high, and at least this far above the line, in heights of the character before it.
_SMALL, _RAISED = 0.9, 0.1
_NUMBER = re.compile(r"\d+")
_SHORT_WORD = re.compile(r"(?<![^\W\d_])[^\W\d_]{1,2}\Z")  # the base of a power
_SPACES = re.compile(r"[ \t\xa0]+")
_SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_LETTERS, _FEW, _SAME = 16, 4, 0.05  # widths to compare: at most, at least, and the tolerance for equality


@dataclass(slots=True)
class _Line:
    """A line. `box`: bottom and height of its first character; `gaps`: (left, right) between its cells; in points."""

    text: str
    box: tuple[float, float] | None = None
    left: float = 0.0
    right: float = 0.0
    cells: list[str] = field(default_factory=list)
    gaps: list[tuple[float, float]] = field(default_factory=list)


@contextmanager
def open_pdf(path: str | Path) -> Iterator[PdfDocument]:
    """Open a PDF; ReadError if it is encrypted or damaged."""
    with needing("reading PDF needs pypdfium2", "documents"):
        import pypdfium2
    try:
        document = pypdfium2.PdfDocument(path)
    except pypdfium2.PdfiumError as error:
        locked = getattr(error, "err_code", None) == _PASSWORD
        problem = f"a damaged or truncated PDF ({error}); download it again or repair it, for example with qpdf"
        encrypted = "an encrypted PDF; save a copy without a password, for example with qpdf --decrypt"
        raise ReadError(encrypted if locked else problem) from error
    with closing(document):
        yield document


def page_text(page: PdfPage) -> str:
    """Return the lines of a page: with an empty line before each paragraph and `ROW` before each table row.

    Cells of a row are joined with " | ". A raised number after a word refers to a note and is put in brackets; after a digit or
    one or two letters it is an exponent and is written in superscript digits.
    """
    with closing(page.get_textpage()) as layer:
        pieces = _PIECE.split(_CONTROL.sub("\x0e", layer.get_text_range()))  # line, separator, line, ...
        glyphs = _Glyphs(layer)
        lines = []
        at = 0
        for number, piece in enumerate(pieces):
            if number % 2 == 0:
                lines.append(_read_line(glyphs, piece, at))
            at += len(piece)
    return _assemble(lines, pieces[1::2])


class _Glyphs:
    """The positions of a page's characters."""

    def __init__(self, layer: PdfTextPage) -> None:
        self.layer, self.count = layer, layer.count_chars()

    def box(self, at: int) -> tuple[float, float, float, float] | None:
        """Return (left, bottom, right, top) in points; None if the character has no extent."""
        if not 0 <= at < self.count:
            return None
        left, bottom, right, top = self.layer.get_charbox(at, loose=True)
        return (left, bottom, right, top) if top > bottom else None

    def is_fixed_pitch(self, text: str, at: int) -> bool:
        """Return whether text is monospaced, where wide gaps do not mean a table. Digits are ignored: they all have one width."""
        places = [at + i for i, c in enumerate(text) if not c.isspace() and not c.isdigit()][:_LETTERS]
        widths = [box[2] - box[0] for box in map(self.box, places) if box]
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
        left, right = glyphs.box(at + space.start() - 1), glyphs.box(at + space.end())
        if left and right and right[0] - left[2] > _GAP * height:
            line.cells.append(_raised(glyphs, text[start : space.start()], at + start))
            line.gaps.append((left[2], right[0]))
            pieces += [line.cells[-1], space[0]]
            start = space.end()
    pieces.append(_raised(glyphs, text[start:], at + start))
    line.text = "".join(pieces)
    line.cells.append(pieces[-1])
    widths = [right - left for left, right in line.gaps]
    stretched = len(widths) >= _FEW and max(widths) - min(widths) < _SAME * max(widths)  # a stretched line with too few words
    if stretched or (widths and glyphs.is_fixed_pitch(text, at)):
        line.gaps = []
    return line


def _raised(glyphs: _Glyphs, text: str, at: int) -> str:
    """Rewrite raised numbers so that they are not read as part of the word or number before them."""

    def write(match: re.Match[str]) -> str:
        start, end = match.span()
        base = start - 1 if start and not text[start - 1].isspace() else start
        low, last = glyphs.box(at + base), glyphs.box(at + end - 1)
        if base == end - 1 or not low or not last or not _is_raised(last, low):
            return match[0]
        first = next(i for i in range(base + 1, end) if (box := glyphs.box(at + i)) and _is_raised(box, low))
        digits = text[first:end]
        exponent = first > start or _SHORT_WORD.search(text, 0, first) is not None
        return text[start:first] + (digits.translate(_SUPERSCRIPT) if exponent else f"[{digits}]")

    return _NUMBER.sub(write, text)


def _is_raised(box: tuple[float, float, float, float], low: tuple[float, float, float, float]) -> bool:
    height = low[3] - low[1]
    return box[3] - box[1] < _SMALL * height and box[1] - low[1] > _RAISED * height


def _assemble(lines: list[_Line], separators: list[str]) -> str:
    steps = [above.box[0] - below.box[0] if above.box and below.box else 0.0 for above, below in pairwise(lines)]
    forward = [step for step in steps if step > 0]
    height = median([line.box[1] for line in lines if line.box] or [0.0])
    usual = min(median(forward), _DOUBLE * height) if forward else 0.0
    rows = {
        n + i for n, step in enumerate(steps) if step < _ROW_STEP * height and _share_gap(lines[n], lines[n + 1]) for i in (0, 1)
    }
    out = []
    for number, line in enumerate(lines):
        row = number in rows
        out.append(ROW + " | ".join(line.cells) if row else line.text)
        if number < len(separators):
            apart = usual and steps[number] > _LOOSE * usual and separators[number] != HYPHEN
            torn = separators[number] != HYPHEN and _is_torn(line, lines[number + 1], steps[number])
            between = "" if torn else separators[number]
            out.append("\r\n\r\n" if apart or row or number + 1 in rows else between)
    return "".join(out)


def _share_gap(above: _Line, below: _Line) -> bool:
    """Return whether two lines have a gap in the same place, as table rows do."""
    height = above.box[1] if above.box else 0.0
    return any(min(a[1], b[1]) - max(a[0], b[0]) > height for a in above.gaps for b in below.gaps)


def _is_torn(line: _Line, after: _Line, step: float) -> bool:
    """Return whether PDFium split a line before a comma or the like, as it does after some raised numbers."""
    height = line.box[1] if line.box and after.box and after.text[0] in ",.;:)]" else 0.0
    return abs(step) < _TORN * height and abs(after.left - line.right) < _TORN * height
