"""A part of a document that is on one page of a PDF, and the page as a picture: what other modules
ask `pdf_picture` for.
"""

from dataclasses import dataclass

from runnel.records import Places

PIXELS = 2_500_000  # the pixels of a picture: a page of A4 has 160 dots per inch
OCR_PIXELS = 8_300_000  # 288 dots per inch


@dataclass(frozen=True, slots=True)
class PagePart:
    """A part of a document on one page."""

    page: int  # the number of the page, from 1
    before: str  # the text of the page before the part, to tell repetitions apart
    text: str


@dataclass(frozen=True, slots=True)
class PagePicture:
    """A page as a picture in PNG, with a box around each line of a part."""

    page: int
    png: bytes
    # left, top, right, bottom, as shares of the picture; empty if the part was not found
    boxes: tuple[tuple[float, float, float, float], ...]


def page_part(text: str, places: Places, start: int, end: int) -> PagePart | None:
    """Return the part of `text[start:end]` that is on its first page; None if it is on none."""
    spans = places.spans()
    page = next(
        (
            page
            for first, last, _, page in spans
            if last > start and first < end and page is not None
        ),
        None,
    )
    if page is None:
        return None
    blocks = [(first, last) for first, last, _, its_page in spans if its_page == page]
    before = "".join(text[first : min(last, start)] for first, last in blocks if first < start)
    return PagePart(
        page,
        before,
        "".join(text[max(first, start) : min(last, end)] for first, last in blocks if last > start),
    )
