"""A page of a PDF as a picture, and where a part of the document's text is on it.

The canonical text is not the page's: hyphens, ligatures and note numbers are rewritten, running
heads are left out. A part is found by its letters and digits, which stay.
"""

import base64
import re
import struct
import unicodedata
import zlib
from contextlib import closing
from difflib import SequenceMatcher
from pathlib import Path

from pypdfium2 import PdfBitmap, PdfPage

from runnel.errors import ReadError
from runnel.text.documents.page_part import PIXELS, PagePart
from runnel.text.documents.pdf import open_pdf
from runnel.text.documents.pdf_layout import lay_out
from runnel.text.documents.pdf_words import Box, around, on_picture, words_of

_SCALE = 4.0  # pixels per point at most, for small pages
# the least share of the lower box's height that two boxes of a line have in common: a comma hangs
# below
_SAME_LINE = 0.2
_FOUND = 0.5  # the least share of a part's letters that must be on the page in one piece


def draw_page(path: str | Path, part: PagePart, pixels: int = PIXELS) -> dict[str, object]:
    """Return the fields of a `PagePicture` for JSON, the picture in base64, with at most this many
    pixels.
    """
    with open_pdf(path) as document:
        if not 1 <= part.page <= len(document):
            raise ReadError(
                f"a PDF of {len(document):,} pages; expected page {part.page:,}: was it replaced?"
            )
        page = document[part.page - 1]
        width, height = page.get_size()
        scale = min(_SCALE, (pixels / max(1.0, width * height)) ** 0.5)
        png = _png(page.render(scale=scale, rev_byteorder=True))
        return {
            "page": part.page,
            "png": base64.b64encode(png).decode(),
            "boxes": _boxes(page, part),
        }


def _png(bitmap: PdfBitmap) -> bytes:
    """Return an RGB bitmap as a PNG file; Pillow would be 21 MB more to install.

    Source: ISO/IEC 15948.
    """
    pixels = bytes(bitmap.buffer)
    rows = (
        pixels[start : start + 3 * bitmap.width]
        for start in range(0, bitmap.height * bitmap.stride, bitmap.stride)
    )
    unfiltered = b"".join(b"\0" + row for row in rows)
    size = struct.pack(">II", bitmap.width, bitmap.height)
    chunks = {
        b"IHDR": size + bytes([8, 2, 0, 0, 0]),  # 8 bits for each of red, green and blue
        b"IDAT": zlib.compress(unfiltered),
        b"IEND": b"",
    }
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks.items()
    )


def _boxes(page: PdfPage, part: PagePart) -> list[Box]:
    """Return the boxes of the lines of a part, whose words are in the order of the text."""
    words = [word for piece in lay_out(words_of(page).words) for word in piece.words]
    places = [(letter, number) for number, word in enumerate(words) for letter in word.text]
    place = _find(_letters([letter for letter, _ in places]), part)
    if place is None:
        return []
    first, last = (places[end][1] for end in place)
    with closing(page.get_textpage()) as layer:
        rectangles = [
            layer.get_rect(number)
            for word in words[first : last + 1]
            for number in range(layer.count_rects(word.at, word.length))
        ]
    return _lines([on_picture(page, rectangle) for rectangle in rectangles])


def _letters(characters: str | list[str]) -> tuple[str, list[int]]:
    """Return letters and digits in lower case without ligatures and superscripts, and the character
    that each is from.
    """
    pairs = [
        (letter, number)
        for number, character in enumerate(characters)
        for letter in unicodedata.normalize("NFKC", character).casefold()
        if letter.isalnum()
    ]
    return "".join(letter for letter, _ in pairs), [number for _, number in pairs]


def _find(page: tuple[str, list[int]], part: PagePart) -> tuple[int, int] | None:
    letters, numbers = page
    words, _ = _letters(part.text)
    if not words:
        return None
    # also places that overlap
    if starts := [match.start() for match in re.finditer(f"(?={words})", letters)]:
        expected = len(_letters(part.before)[0])
        start = min(starts, key=lambda at: abs(at - expected))
        return numbers[start], numbers[start + len(words) - 1]
    # the part's end may be on the next page
    match = SequenceMatcher(None, letters, words, autojunk=False).find_longest_match()
    if match.size < _FOUND * len(words):
        return None
    return numbers[match.a], numbers[match.a + match.size - 1]


def _lines(boxes: list[Box]) -> list[Box]:
    """Merge the boxes of a line: PDFium has one per run of a font."""
    lines: list[Box] = []
    for box in boxes:
        last = lines[-1] if lines else box
        common = min(last[3], box[3]) - max(last[1], box[1])
        if lines and common > _SAME_LINE * min(last[3] - last[1], box[3] - box[1]):
            lines[-1] = around(last, box)
        else:
            lines.append(box)
    return lines
