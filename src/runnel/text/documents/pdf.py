"""Read PDF: the text layer, page by page, with PDFium; outline entries become headings."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from runnel.errors import ReadError, ScannedPdf
from runnel.text.documents.document import BREAK, CONTENTS, Canonical, DocumentText, Limits
from runnel.text.documents.pdf_page import ROW, open_pdf, page_text
from runnel.text.documents.pdf_text import ENTRY, ITEM, join_pages

if TYPE_CHECKING:
    from pypdfium2 import PdfDocument, PdfPage

_KINDS = {ROW: "row", ITEM: "item", ENTRY: CONTENTS}
_MARKS = ROW + ITEM + ENTRY + " \t\n\f"
_UNMAPPED_SHARE = 0.05
_SENTENCE_END = re.compile(r"[.!?:;\u3002\uff01\uff1f][\"')\]\u201d\u2019]*\Z")
_SHOWN = 12  # the most ranges of pages in a warning
_PAGE_BYTES = 8  # a page takes more, even if it is blank and compressed
_NUMBERING = 12  # extra characters that a heading may have over its title in the outline: "Chapter 3: "


class _Entry(NamedTuple):
    level: int
    title: str


def read_pdf(path: str | Path, limits: Limits, recognized: Mapping[int, str] | None = None) -> DocumentText:
    """Read the text of all pages in PDFium's order. Pages are opened one at a time.

    Lines with extra space above them begin a paragraph. `page_text` and `join_pages` describe tables, hyphens and running heads.
    `recognized`: by number, from 1, the text that OCR found on pages that are pictures.
    """
    with open_pdf(path) as document:
        from pypdfium2 import PdfiumError

        if len(document) > (size := os.path.getsize(path)) // _PAGE_BYTES:
            raise ReadError(f"a PDF that claims {len(document):,} pages in {size:,} bytes: it is damaged or hostile")
        outline = _outline(document)
        texts, faults, length = [], [], 0
        scanned: list[int] = []
        for number in range(len(document)):
            text = ""
            try:
                with closing(document[number]) as page:
                    text = page_text(page)
                    if not text.strip():
                        text = _plain((recognized or {}).get(number + 1, ""))
                    if not text.strip() and _has_picture(page):
                        scanned.append(number + 1)
            except PdfiumError:
                faults.append(number + 1)
            texts.append(text)
            length += len(text)
            limits.check(length, "unpacked_bytes", "the text of the PDF")
        advice = {} if recognized is None else {"advice": "OCR found no text on them"}
        return _build(texts, outline, faults, scanned, document.get_metadata_value("Title"), **advice)


def _has_picture(page: PdfPage) -> bool:
    from pypdfium2 import raw

    return next(page.get_objects(filter=[raw.FPDF_PAGEOBJ_IMAGE]), None) is not None


def _outline(document: PdfDocument) -> dict[int, list[_Entry]]:
    """Return outline entries by page."""
    entries: dict[int, list[_Entry]] = {}
    for bookmark in document.get_toc():
        target: Any = bookmark.get_dest()
        page = None if target is None else target.get_index()
        title = " ".join(bookmark.get_title().split())
        if page is not None and title:
            entries.setdefault(page, []).append(_Entry(bookmark.level + 1, title))
    return entries


def _plain(text: str) -> str:
    """Return the text that OCR printed without the marks of `page_text`."""
    return text.translate(dict.fromkeys(map(ord, (ROW, ITEM, ENTRY, "\f")))).strip()


def _build(
    texts: list[str],
    outline: dict[int, list[_Entry]],
    faults: list[int],
    scanned: list[int],
    title: str | None,
    advice: str = "scans need OCR (--ocr)",
) -> DocumentText:
    empty = [number for number, text in enumerate(texts, start=1) if not text.strip() and number not in faults]
    if len(empty) + len(faults) == len(texts):
        raise _without_text(len(texts), len(faults), scanned)
    canonical = Canonical()
    if faults:
        canonical.warnings.append(f"{_pages(faults)} could not be read: damaged")
    if empty:
        pictures = f", {len(scanned):,} of them pictures: {advice}" if scanned else ""
        canonical.warnings.append(f"{_pages(empty)} without text ({len(empty):,} of {len(texts):,} pages{pictures})")
    unmapped = sum(text.count("\ufffd") + text.count("\0") for text in texts)
    if unmapped > _UNMAPPED_SHARE * sum(map(len, texts)):
        canonical.warnings.append(f"{unmapped:,} characters have no meaning in the file (a font without a character map)")
    before = ""
    titles = {number: [entry.title for entry in entries] for number, entries in outline.items()}
    for number, text in enumerate(join_pages(texts, titles)):
        canonical.page = number + 1
        paragraphs = [p for p in re.split(r"\n\s*\n", text) if p.strip(_MARKS)]
        waiting = list(outline.get(number, ()))
        for position, paragraph in enumerate(paragraphs):
            kind, waiting = _open_headings(canonical, waiting, paragraph)
            kind = _KINDS.get(paragraph.lstrip()[0], kind)
            goes_on = position == 0 and before and not _SENTENCE_END.search(before) and paragraph.lstrip()[0].islower()
            canonical.add(paragraph, kind, join="\n" if goes_on else BREAK)
        for entry in waiting:  # not found on its page: it applies from the next page on
            canonical.open_heading(entry.level, entry.title)
        before = paragraphs[-1].rstrip() if paragraphs else before
    return canonical.finish("pdf", title=title, pages=len(texts), scanned=tuple(scanned))


def _open_headings(canonical: Canonical, waiting: list[_Entry], paragraph: str) -> tuple[str, list[_Entry]]:
    """Open the entries up to the last whose title is in this paragraph; return its kind and the other entries."""
    flat = " ".join(paragraph.split()).lower()
    count = max((i for i, entry in enumerate(waiting, start=1) if entry.title.lower() in flat), default=0)
    for entry in waiting[:count]:
        canonical.open_heading(entry.level, entry.title)
    alone = count and len(flat) - len(waiting[count - 1].title) <= _NUMBERING
    return "heading" if alone else "paragraph", waiting[count:]


def _without_text(pages: int, faults: int, scanned: list[int]) -> ReadError:
    if not pages:
        return ReadError("a PDF without pages")
    if scanned:
        return ScannedPdf(
            f"a PDF without text on its {pages:,} pages, which hold pictures: a scan; run OCR on it, by --ocr of runnel find, "
            "index and read, or first by a program such as ocrmypdf",
            scanned,
        )
    if faults:
        return ReadError(f"a PDF of {pages:,} pages, none of which can be read: it is damaged; download it again or repair it")
    return ReadError(f"a PDF without text on its {pages:,} pages")


def _pages(numbers: list[int]) -> str:
    """Return page numbers as text: "page 3" or "pages 1-4, 7"."""
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])]
    shown = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    more = f" and {len(shown) - _SHOWN:,} more ranges" if len(shown) > _SHOWN else ""
    return f"page{'s' if len(numbers) > 1 else ''} {', '.join(shown[:_SHOWN])}{more}"
