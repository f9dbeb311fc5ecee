"""Read PDF: the text layer, page by page, with PDFium.

Words become columns, paragraphs and tables by their places (`pdf_layout`), without running heads
and page numbers (`pdf_running`); paragraphs of all pages become blocks (`pdf_parts`); outline
entries become headings.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from runnel.errors import ReadError, ScannedPdf
from runnel.text.documents.document import Canonical, DocumentText, Limits
from runnel.text.documents.pdf_forms import fields_of
from runnel.text.documents.pdf_layout import PdfPart, lay_out
from runnel.text.documents.pdf_parts import (
    join_sentences,
    join_words,
    mark_asides,
    mark_headings,
    split_lists,
)
from runnel.text.documents.pdf_running import NEAR, Edges, RunningLines, edges_of
from runnel.text.documents.pdf_words import Box, Word, words_of, words_of_text
from runnel.text.documents.table import add_rows

if TYPE_CHECKING:
    from pypdfium2 import PdfDocument

_DAMAGED = "damaged, and could not be read"
_PASSWORD = 4  # FPDF_ERR_PASSWORD
_UNMAPPED_SHARE = 0.05
_SHOWN = 12  # the most ranges of pages in a warning
_ENTRIES = 3  # of an outline that has the document's headings, at least
_PAGE_BYTES = 8  # a page takes more, even if it is blank and compressed
# extra characters that a heading may have over its title in the outline: "Chapter 3: "
_NUMBERING = 12


class _Entry(NamedTuple):
    level: int
    title: str


@dataclass(slots=True)
class _Pages:
    """What was found on the pages: page numbers, from 1, for the warnings."""

    empty: list[int] = field(default_factory=list)
    scanned: list[int] = field(default_factory=list)
    faults: dict[str, list[int]] = field(default_factory=dict)  # by what is said of the pages


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


def read_pdf(
    path: str | Path, limits: Limits, recognized: Mapping[int, str] | None = None
) -> DocumentText:
    """Read the text of all pages as it is read on the page. Pages are opened one at a time.

    `recognized`: by number, from 1, the text that OCR found on pages that are pictures.
    """
    with open_pdf(path) as document:
        if len(document) > (size := os.path.getsize(path)) // _PAGE_BYTES:
            raise ReadError(
                f"a PDF that claims {len(document):,} pages in {size:,} bytes: it is damaged or"
                " hostile"
            )
        if document.get_formtype():
            document.init_forms()
        pages = _Pages()
        outline = _outline(document)
        return _build(
            _read_parts(document, pages, outline, limits, recognized or {}),
            outline,
            pages,
            len(document),
            title=document.get_metadata_value("Title"),
            advice="scans need OCR (--ocr)" if recognized is None else "OCR found no text on them",
        )


def _read_parts(
    document: PdfDocument,
    pages: _Pages,
    outline: Mapping[int, Sequence[_Entry]],
    limits: Limits,
    recognized: Mapping[int, str],
) -> list[PdfPart]:
    """Return the parts of all pages. A page is laid out when its next pages have been read, which
    tell which of its lines run on all pages.
    """
    from runnel.text.documents.pdf_grid import put_tables, take_tables  # imports numpy

    running = RunningLines(
        {number: [entry.title for entry in entries] for number, entries in outline.items()}
    )
    laid_out: list[PdfPart] = []
    words: dict[int, list[Word]] = {}
    lines: dict[int, list[Box]] = {}
    fields: dict[int, list[PdfPart]] = {}
    edges: dict[int, Edges] = {}
    length = 0
    for ahead in range(len(document) + NEAR):
        if ahead < len(document):
            words[ahead], lines[ahead], fields[ahead] = _read_page(
                document, ahead, pages, recognized
            )
            edges[ahead] = edges_of(words[ahead])
            length += sum(len(word.text) + 1 for word in words[ahead])
            length += sum(len(part.text) for part in fields[ahead])
            limits.check(length, "unpacked_bytes", "the text of the PDF")
        number = ahead - NEAR
        if number < 0:
            continue
        left_out, (top, bottom) = running.find(number, edges)
        body = [word for word in words.pop(number) if id(word) not in left_out]
        body, tables = take_tables(body, lines.pop(number), number + 1)
        page_parts = lay_out(body, number + 1)
        put_tables(page_parts, tables)
        mark_asides(page_parts)
        for part in page_parts:
            part.words = []  # those of all pages would fill the memory
        others = _fill(page_parts, fields.pop(number))
        laid_out += [*top, *page_parts, *bottom, *others]
        edges.pop(number - NEAR, None)
    running.drop_known(laid_out)
    return laid_out


def _read_page(
    document: PdfDocument, number: int, pages: _Pages, recognized: Mapping[int, str]
) -> tuple[list[Word], list[Box], list[PdfPart]]:
    """Return the words, the drawn lines and the filled fields of a page."""
    from pypdfium2 import PdfiumError, raw

    from runnel.text.documents.pdf_grid import drawn_lines  # imports numpy

    words: list[Word] = []
    lines: list[Box] = []
    fields: list[PdfPart] = []
    try:
        with closing(document[number]) as page:
            seen = words_of(page)
            words = seen.words or words_of_text(recognized.get(number + 1, ""))
            lines = drawn_lines(page) if seen.words else []
            fields = [
                PdfPart(number + 1, "paragraph", line, aside=True)
                for line in fields_of(document, page, seen.words)
            ]
            for fault in sorted(seen.faults):
                pages.faults.setdefault(fault, []).append(number + 1)
            if not words and not fields:
                pages.empty.append(number + 1)
                if any(page.get_objects(filter=[raw.FPDF_PAGEOBJ_IMAGE])):
                    pages.scanned.append(number + 1)
    except PdfiumError:
        pages.faults.setdefault(_DAMAGED, []).append(number + 1)
    return words, lines, fields


def _fill(parts: list[PdfPart], fields: list[PdfPart]) -> list[PdfPart]:
    """Put filled fields in the places of parts that are only their labels; return the others."""
    labels = {part.text.rstrip(" :"): part for part in reversed(parts) if part.text}
    others = []
    for filled in fields:
        label = labels.pop(filled.text.partition(":")[0], None)
        if label is None:
            others.append(filled)
        else:
            label.text = filled.text
    return others


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
    parts: list[PdfPart],
    outline: Mapping[int, Sequence[_Entry]],
    pages: _Pages,
    count: int,
    *,
    title: str | None,
    advice: str,
) -> DocumentText:
    damaged = len(pages.faults.get(_DAMAGED, ()))
    if len(pages.empty) + damaged == count:
        raise _without_text(count, damaged, pages.scanned)
    canonical = Canonical()
    canonical.warnings += _warnings(pages, count, advice)
    parts = join_sentences(parts)
    join_words(parts)
    parts = split_lists(parts, count)
    if sum(map(len, outline.values())) < _ENTRIES:
        mark_headings(parts)
    text = "".join(text for part in parts for text in part.texts())
    unmapped = text.count("\ufffd") + text.count("\0")
    if unmapped > _UNMAPPED_SHARE * len(text):
        canonical.warnings.append(
            f"{unmapped:,} characters have no meaning in the file (a font without a character map)"
        )
    writer = _Writer(canonical, outline)
    for part in parts:
        writer.add(part)
    writer.close_table()
    return canonical.finish("pdf", title=title, pages=count, scanned=tuple(pages.scanned))


class _Writer:
    """Writes the parts of a document as blocks, under the titles of the outline."""

    def __init__(self, canonical: Canonical, outline: Mapping[int, Sequence[_Entry]]) -> None:
        self.canonical = canonical
        self.outline = outline
        self.page = 0
        self.waiting: list[_Entry] = []  # titles of the page that were not found yet
        self.before: PdfPart | None = None
        # the open table: its rows, the page of each, its caption, and how many rows are names
        self.rows: list[list[str]] = []
        self.pages: list[int] = []
        self.caption = ""
        self.named = 0
        self.heads: list[list[str]] = []  # the rows that may be repeated on the next page

    def add(self, part: PdfPart) -> None:
        if part.page != self.page:
            self._turn_page(part.page)
        if part.rows:
            self._add_rows(part)
        else:
            self.close_table()
            kind, self.waiting = _open_headings(self.canonical, self.waiting, part.text)
            if part.level:
                self.canonical.open_heading(part.level, part.text)
            kind = part.kind if part.kind != "paragraph" else kind
            self.canonical.add(part.text, kind, join=part.join)
        self.before = part

    def _turn_page(self, page: int) -> None:
        for number in range(self.page, page):
            if self.waiting or number in self.outline:
                self.close_table()
            for entry in self.waiting:  # not found on its page: it applies from the next page on
                self.canonical.open_heading(entry.level, entry.title)
            self.waiting = list(self.outline.get(number, ()))
        self.page = page
        self.canonical.page = page

    def _add_rows(self, part: PdfPart) -> None:
        """Add a table, or the rest of one that goes on from the page before."""
        before = self.before
        if not self.rows or before is None or not part.continues(before):
            self.close_table()
            self.caption = before.caption() if before and before.page == part.page else ""
            self.named = part.heads
            self.heads = part.rows[: max(1, part.heads)]
        elif part.rows[: len(self.heads)] == self.heads:
            part.rows = part.rows[len(self.heads) :]  # repeated on each page
        self.rows += [[" ".join(cell.split()) for cell in row] for row in part.rows]
        self.pages += [part.page] * len(part.rows)

    def close_table(self) -> None:
        add_rows(self.canonical, self.rows, self.pages, heads=self.named, caption=self.caption)
        self.rows = []
        self.pages = []


def _warnings(pages: _Pages, count: int, advice: str) -> Iterator[str]:
    if pages.empty:
        pictures = f", {len(pages.scanned):,} of them pictures: {advice}" if pages.scanned else ""
        share = f"{len(pages.empty):,} of {count:,} pages"
        yield f"{_pages(pages.empty)} without text ({share}{pictures})"
    for fault, numbers in pages.faults.items():
        yield f"{_pages(numbers)}: {fault}"


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
