"""Read PowerPoint files (pptx): the slides in order, with their titles as headings, tables row by
row, SmartArt and notes.
"""

from collections.abc import Iterable, Iterator
from xml.etree.ElementTree import Element

from runnel.errors import ReadError
from runnel.text.documents.document import Canonical, DocumentText, Limits
from runnel.text.documents.parts import (
    Archive,
    attribute,
    paragraphs_and_rows,
    parse,
    related,
    tag,
    title_of,
)

_PRESENTATION = "ppt/presentation.xml"
_PROPERTIES = "docProps/core.xml"
_TITLES = ("title", "ctrTitle")
# placeholders with the same content on every slide
_REPEATED = ("sldNum", "dt", "ftr", "hdr", "sldImg")
_PLACEHOLDERS = "./{*}nvSpPr/{*}nvPr/{*}ph"


def read_pptx(archive: Archive, limits: Limits) -> DocumentText:
    """Read the text of all slides. A slide is a page; one without a title is under the heading
    "Slide 3".
    """
    canonical = Canonical()
    parts = related(archive, _PRESENTATION)
    names = [
        parts.get(attribute(e, "id"), ("", ""))
        for e in parse(archive, _PRESENTATION).iter()
        if tag(e) == "sldId"
    ]
    for number, (kind, name) in enumerate(names, start=1):
        if kind != "slide":
            raise ReadError(
                f"slide {number} is missing from the file; open and save it with a presentation"
                " program"
            )
        canonical.page = number
        slide = parse(archive, name)
        titles = [shape for shape in _shapes(slide) if _placeholder(shape) in _TITLES][:1]
        inside = Canonical()
        for title in titles:
            _read(inside, title, [])
        canonical.add_slide(number, inside.finish("pptx").text)
        _read(canonical, slide, titles)
        for kind, other in related(archive, name).values():
            if kind == "diagramData":
                _read(canonical, parse(archive, other), [])
            elif kind == "notesSlide":
                notes = parse(archive, other)
                others = [shape for shape in _shapes(notes) if _placeholder(shape) != "body"]
                _read(canonical, notes, others, "note")
        limits.check(canonical.length, "unpacked_bytes", "the text of the slides")
    return canonical.finish("pptx", title=title_of(archive, _PROPERTIES), pages=len(names))


def _shapes(part: Element) -> Iterator[Element]:
    return (element for element in part.iter() if tag(element) == "sp")


def _placeholder(shape: Element) -> str | None:
    """Return the type of the placeholder that a shape fills ("body": the usual type); None for
    other shapes.
    """
    placeholder = shape.find(_PLACEHOLDERS)
    return None if placeholder is None else placeholder.get("type", "body")


def _read(
    canonical: Canonical, root: Element, omitted: Iterable[Element], kind: str | None = None
) -> None:
    """Add the paragraphs and rows of a part without the omitted shapes. `kind`: of all blocks
    (default: items in placeholders, otherwise paragraphs).
    """
    skipped = {id(element) for element in omitted}
    shape_kind = "paragraph"

    def left_out(element: Element) -> bool:
        name = tag(element)
        return (
            id(element) in skipped
            or name == "Fallback"
            or (name == "sp" and _placeholder(element) in _REPEATED)
        )

    for element, text in paragraphs_and_rows(root, left_out):
        if text is not None:
            canonical.add(text, kind or ("row" if tag(element) == "tr" else shape_kind))
        elif tag(element) == "sp":
            shape_kind = "item" if _placeholder(element) == "body" else "paragraph"
