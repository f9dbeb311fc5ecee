"""The words of a page of a PDF: their text, and where they stand on the page as it is seen.

PDFium's text layer has characters with boxes, in the order in which they are drawn. Words that a
reader of the page cannot see are left out and counted.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from ctypes import byref, c_int, c_uint, c_void_p, cast, create_string_buffer
from dataclasses import dataclass, field
from math import pi
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pypdfium2 import PdfPage, PdfTextPage

Box = tuple[float, float, float, float]  # left, bottom, right, top; in points
HYPHEN = "\ufffe"  # PDFium's character for a hyphen at the end of a line, with the line end
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
# Python counts codes of ligatures as white space
_SPACE = r" \t\r\n\f\v\0\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_WORD = re.compile(rf"[^{_SPACE}{HYPHEN}]+{HYPHEN}?|{HYPHEN}")
_PDFIUM_HYPHEN = 2  # the same, as a single character
_DIGITS = re.compile(r"\d+(?:[,\u2013-]\d+)*")
_SHORT_WORD = re.compile(r"(?<![^\W\d_])[^\W\d_]{1,2}\Z")  # the base of a power
_SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
# A raised number is at most this high, and at least this far above the line, in heights of the
# character before it.
_SMALL = 0.9
_RAISED = 0.1
_UNITS = 1 << 16  # steps in which PDFium rounds places on a page
_SLANTED = 0.1  # radians off the nearest of the four directions
_INVISIBLE = (3, 7)  # modes of drawing text that leave no marks
_SCAN = 0.5  # the share of a page that its pictures cover, from which it is a scan
_PALE = 225  # the least of the three colors of text that may be too pale to be seen
_OPAQUE = 160  # of 255: text that is less opaque may be a watermark
_FAINT = 150  # of 255: the least of the three colors of text that may be a watermark
_LARGE = 2.0  # the size of a watermark, in heights of the page's usual words
# the height of text that cannot be seen: in points, and in heights of the page
_TINY = (1.0, 0.0025)
_SAMPLE = 8  # words, one of which tells whether most are on the page
_CONTRAST = 24  # of 255, between the lightest and the darkest place of text that is seen
_PIXELS = 1_000_000  # of the picture that shows whether pale text is seen
_FONT_NAME_BYTES = 128
# points, for lines of text without places
_LINE = 10.0
_PARAGRAPH = 30.0
_LETTER = 5.0
# The width of a ligature whose character is lost, in widths of its letter; and in sums of the
# widths of the letters that it is made of.
_WIDER = 1.6
_TIGHTER = 0.93
_DIFFERENT = 0.2
_UPRIGHT = 4  # the least height of a vertical line of text, in widths
_LOST = {"i": ("fi", "ffi"), "l": ("fl", "ffl"), "f": ("ff",)}


@dataclass(slots=True, eq=False)
class Word:
    """A word. The box is upright: the page is turned so that the word reads from left to right.

    Attributes:
        angle: quarter turns, counterclockwise, from the page's own coordinates to the word.
        font: the font's name; a number for one without.
        line_start: whether PDFium begins a line with it.
        box: in the page's own coordinates.
        at, length: its characters in PDFium's text.
    """

    text: str
    left: float
    bottom: float
    right: float
    top: float
    angle: int
    font: str
    line_start: bool
    box: Box
    at: int = 0
    length: int = 0
    height: float = field(init=False)
    center: float = field(init=False)
    width: float = field(init=False)  # of a character

    def __post_init__(self) -> None:
        self.height = self.top - self.bottom
        self.center = (self.top + self.bottom) / 2
        self.width = (self.right - self.left) / max(1, self.length)


@dataclass(slots=True)
class PageWords:
    """The words of a page that are seen.

    Attributes:
        hidden: how many words are left out because they cannot be seen.
        watermarks: how many words are left out because they are a watermark.
        doubtful: how many letters are wider than their font's, and may be ligatures.
        lost: how many vertical lines PDFium does not read.
    """

    words: list[Word] = field(default_factory=list)
    hidden: int = 0
    watermarks: int = 0
    doubtful: int = 0
    lost: int = 0


class _Look(NamedTuple):
    """How a text object is drawn."""

    font: str
    angle: float
    invisible: bool
    pale: bool
    faint: bool


def words_of(page: PdfPage) -> PageWords:
    """Return the words of a page, in PDFium's order.

    A raised number after a word refers to a note and is put in brackets; after a digit or one or
    two letters it is an exponent and is written in superscript digits.
    """
    with closing(page.get_textpage()) as layer:
        return _Reader(page, layer).read()


def words_of_text(text: str) -> list[Word]:
    """Return lines of text without places, as OCR prints them, as words below each other."""
    words = []
    bottom = 0.0
    for line in text.splitlines():
        content = " ".join(line.split())
        bottom -= _LINE if content else _PARAGRAPH
        if content:
            box = (0.0, bottom, _LETTER * len(content), bottom + _LINE)
            words.append(Word(content, *box, angle=0, font="", line_start=True, box=box))
    return words


def turned(box: Box, angle: int) -> Box:
    """Return a box in coordinates in which text at an angle of quarter turns is upright."""
    left, bottom, right, top = box
    if angle == 1:
        return bottom, -right, top, -left
    if angle == 2:
        return -right, -top, -left, -bottom
    return (-top, left, -bottom, right) if angle == 3 else box


def on_picture(page: PdfPage, rectangle: Box) -> Box:
    """Return a rectangle of the page's own coordinates as shares of its picture: left, top, right,
    bottom.
    """
    from pypdfium2 import raw

    left, bottom, right, top = rectangle

    def place(x: float, y: float) -> tuple[float, float]:
        column = c_int()
        row = c_int()
        raw.FPDF_PageToDevice(page, 0, 0, _UNITS, _UNITS, 0, x, y, column, row)
        return column.value / _UNITS, row.value / _UNITS

    xs, ys = zip(place(left, bottom), place(right, top), strict=True)
    return min(xs), min(ys), max(xs), max(ys)


class _Reader:
    """Reads the words of one page."""

    def __init__(self, page: PdfPage, layer: PdfTextPage) -> None:
        from pypdfium2 import raw

        self.raw = raw
        self.page = page
        self.layer = layer
        self.count = layer.count_chars()
        self.rectangle = raw.FS_RECTF()
        self.looks: dict[int | None, _Look] = {}
        self.fonts: dict[int | None, str] = {}
        self.widths: dict[tuple[str, str], list[float]] = defaultdict(list)  # of letters, per size
        self.vertical = False  # whether there is vertical writing
        self.wide: list[tuple[Word, int, float]] = []  # letters of `_LOST`: the place in the word

    def read(self) -> PageWords:
        text = self.layer.get_text_range()
        if len(text) != self.count:  # PDFium leaves out characters without a meaning
            codes = (self.raw.FPDFText_GetUnicode(self.layer, at) for at in range(self.count))
            text = "".join(map(_character, codes))
        words = []
        looks = []
        end = 0
        for match in _WORD.finditer(text):
            line_start = "\n" in text[end : match.start()] or text[end - 1 : end] == HYPHEN
            end = match.end()
            look = self._look(match.start())
            for word in self._words(match[0], match.start(), look, line_start):
                words.append(word)
                looks.append(look)
        seen = self._seen(words, looks)
        self._restore_ligatures(seen)
        seen.lost = self._lost_lines() if self.vertical else 0
        for word in seen.words:
            word.text = word.text.translate(LIGATURES)
        return seen

    def box(self, at: int) -> Box | None:
        """Return the box of a character; None if it has no extent."""
        if not 0 <= at < self.count:
            return None
        box = self.rectangle
        self.raw.FPDFText_GetLooseCharBox(self.layer, at, byref(box))
        return (box.left, box.bottom, box.right, box.top) if box.top > box.bottom else None

    def _look(self, at: int) -> _Look:
        raw = self.raw
        drawn = raw.FPDFText_GetTextObject(self.layer, at)
        key = cast(drawn, c_void_p).value
        if key not in self.looks:
            colors = [c_uint(0) for _ in range(3)]
            opacity = c_uint(255)
            if key is not None:
                raw.FPDFPageObj_GetFillColor(drawn, *colors, opacity)
            lightness = min(color.value for color in colors)
            mode = raw.FPDFTextObj_GetTextRenderMode(drawn) if key is not None else 0
            filled = mode in (0, 4)
            self.looks[key] = _Look(
                self._font(raw.FPDFTextObj_GetFont(drawn)) if key is not None else "",
                raw.FPDFText_GetCharAngle(self.layer, at),
                mode in _INVISIBLE,
                filled and lightness >= _PALE,
                filled and (opacity.value < _OPAQUE or lightness > _FAINT),
            )
        return self.looks[key]

    def _font(self, font: object) -> str:
        key = cast(font, c_void_p).value  # type: ignore[arg-type]
        if key not in self.fonts:
            name = create_string_buffer(_FONT_NAME_BYTES)
            self.raw.FPDFFont_GetBaseFontName(font, name, _FONT_NAME_BYTES)
            text = name.value.decode("utf-8", "replace").rpartition("+")[2]
            self.fonts[key] = text or str(key)
        return self.fonts[key]

    def _words(self, text: str, at: int, look: _Look, line_start: bool) -> Iterator[Word]:
        """Yield the word at a place of PDFium's text; several if it is on several lines."""
        first = self.box(at)
        last = self.box(at + len(text) - 1) or first
        if first is None or last is None:
            return
        angle = -round(look.angle / (pi / 2)) % 4  # PDFium counts clockwise
        low = turned(first, angle)
        end = turned(last, angle)
        if not low[1] <= (end[1] + end[3]) / 2 <= low[3]:
            if angle == 0 and last[3] <= first[1] + 1 and abs(first[0] - last[0]) < low[3] - low[1]:
                angle = 3  # characters below each other: vertical writing
                self.vertical = True
                low = turned(first, angle)
                end = turned(last, angle)
            else:
                for number, character in enumerate(text):
                    yield from self._words(character, at + number, look, line_start or number > 0)
                return
        box = (
            min(first[0], last[0]),
            min(first[1], last[1]),
            max(first[2], last[2]),
            max(first[3], last[3]),
        )
        word = Word(
            "",
            min(low[0], end[0]),
            low[1],
            max(low[2], end[2]),
            low[3],
            angle,
            look.font,
            line_start,
            box,
            at,
            len(text),
        )
        self._measure(word, text, at)
        word.text = self._raised(text, at, angle)
        yield word

    def _measure(self, word: Word, text: str, at: int) -> None:
        """Remember the widths of letters that ligatures end in. The letters of a ligature that the
        font maps to several have one box.
        """
        before = None
        for number, letter in enumerate(text):
            if letter not in _LOST:
                before = None
                continue
            box = self.box(at + number)
            if box and box != before and box != self.box(at + number + 1):
                left, _, right, _ = turned(box, word.angle)
                width = (right - left) / word.height
                self.widths[word.font, letter].append(width)
                self.wide.append((word, number, width))
            before = box

    def _raised(self, text: str, at: int, angle: int) -> str:
        """Rewrite raised numbers so that they are not read as part of the word or number before
        them.
        """

        def is_raised(place: int, low: Box) -> bool:
            box = self.box(at + place)
            if box is None:
                return False
            high = turned(box, angle)
            height = low[3] - low[1]
            return high[3] - high[1] < _SMALL * height and high[1] - low[1] > _RAISED * height

        def write(match: re.Match[str]) -> str:
            start, end = match.span()
            base = max(0, start - 1)
            box = self.box(at + base)
            if base == end - 1 or box is None or not is_raised(end - 1, turned(box, angle)):
                return match[0]
            low = turned(box, angle)
            first = next(place for place in range(base + 1, end) if is_raised(place, low))
            digits = text[first:end]
            exponent = first > start or _SHORT_WORD.search(text, 0, first) is not None
            written = digits.translate(_SUPERSCRIPT) if exponent else f"[{digits}]"
            return text[start:first] + written

        return _DIGITS.sub(write, text)

    def _seen(self, words: list[Word], looks: list[_Look]) -> PageWords:
        """Sort out words that are invisible, off the page, too pale to see, or a watermark."""
        seen = PageWords()
        usual = median([word.height for word in words] or [0.0])
        bounds = self._bounds(words)
        scan = any(look.invisible for look in looks) and self._is_scan(looks)
        picture = None
        for word, look in zip(words, looks, strict=True):
            slanted = abs(look.angle / (pi / 2) - round(look.angle / (pi / 2))) > _SLANTED
            hidden = (
                (look.invisible and not scan)
                or not _is_inside(word.box, bounds)
                or max(word.height, word.width) < min(_TINY[0], _TINY[1] * (bounds[3] - bounds[1]))
            )
            if not hidden and look.pale:
                if picture is None:
                    picture = _Picture(self.page)
                hidden = not picture.shows(word.box)
            if hidden:
                seen.hidden += 1
            elif word.height > _LARGE * usual and (
                slanted or (look.faint and _is_over(word, words))
            ):
                seen.watermarks += 1
            else:
                seen.words.append(word)
        return seen

    def _bounds(self, words: list[Word]) -> Box:
        """Return the part of the page that is shown; all words' box if the page's own leaves out
        most of them, and so is wrong.
        """
        bounds = self.page.get_bbox()
        if all(_is_inside(word.box, bounds) for word in words[::_SAMPLE]):
            return bounds
        sheet = self.page.get_mediabox()
        if sum(_is_inside(word.box, sheet) for word in words) * 2 >= len(words):
            return bounds
        lefts, bottoms, rights, tops = zip(*(word.box for word in words), strict=True)
        return min(lefts), min(bottoms), max(rights), max(tops)

    def _is_scan(self, looks: list[_Look]) -> bool:
        """Return whether invisible text is what OCR read on a picture, or all that there is."""
        if all(look.invisible for look in looks):
            return True
        width, height = self.page.get_size()
        area = 0.0
        for picture in self.page.get_objects(filter=[self.raw.FPDF_PAGEOBJ_IMAGE]):
            left, bottom, right, top = picture.get_bounds()
            area += max(0.0, right - left) * max(0.0, top - bottom)
        return area >= _SCAN * width * height

    def _lost_lines(self) -> int:
        """Return how many upright text objects have no characters in PDFium's text."""
        count = 0
        for drawn in self.page.get_objects(filter=[self.raw.FPDF_PAGEOBJ_TEXT]):
            left, bottom, right, top = drawn.get_bounds()
            known = cast(drawn.raw, c_void_p).value in self.looks
            count += not known and top - bottom > _UPRIGHT * (right - left)
        return count

    def _restore_ligatures(self, seen: PageWords) -> None:
        """Write out ligatures that the font maps to their last letter: they are wider than it."""
        usual = {key: median(widths) for key, widths in self.widths.items()}
        for word, place, width in reversed(self.wide):
            letter = word.text[place : place + 1]
            own = usual.get((word.font, letter), width)
            if letter not in _LOST or width <= _WIDER * own:
                continue
            f = usual.get((word.font, "f"), own)
            choices = {text: _TIGHTER * (own + (len(text) - 1) * f) for text in _LOST[letter]}
            best = min(choices, key=lambda text: abs(choices[text] - width))
            if abs(choices[best] - width) < _DIFFERENT * width:
                word.text = word.text[:place] + best + word.text[place + 1 :]
            else:
                seen.doubtful += 1


def _character(code: int) -> str:
    if code == _PDFIUM_HYPHEN:
        return HYPHEN
    return "\ufffd" if code > sys.maxunicode or 0xD800 <= code < 0xE000 else chr(code)


def _is_inside(box: Box, bounds: Box) -> bool:
    """Return whether the middle of a box is within bounds."""
    return (
        bounds[0] <= (box[0] + box[2]) / 2 <= bounds[2]
        and bounds[1] <= (box[1] + box[3]) / 2 <= bounds[3]
    )


def _is_over(large: Word, words: list[Word]) -> bool:
    """Return whether a word is drawn over another."""
    return any(word is not large and _is_inside(word.box, large.box) for word in words)


class _Picture:
    """A page as it is drawn, in gray."""

    def __init__(self, page: PdfPage) -> None:
        width, height = page.get_size()
        scale = min(2.0, (_PIXELS / max(1.0, width * height)) ** 0.5)
        bitmap = page.render(scale=scale, grayscale=True)
        self.page = page
        self.width = bitmap.width
        self.height = bitmap.height
        self.stride = bitmap.stride
        self.pixels = bytes(bitmap.buffer)

    def shows(self, box: Box) -> bool:
        """Return whether anything is drawn in the middle of a box."""
        left, top, right, bottom = on_picture(self.page, box)
        margin = (bottom - top) / 5
        first = max(0, int(left * self.width))
        last = max(first + 1, int(right * self.width))
        rows = range(int((top + margin) * self.height), int((bottom - margin) * self.height) + 1)
        values = b"".join(
            self.pixels[row * self.stride + first : row * self.stride + min(last, self.width)]
            for row in rows
            if 0 <= row < self.height
        )
        return bool(values) and max(values) - min(values) > _CONTRAST
