"""Read PowerPoint files (pptx): the slides in order, with their titles as headings; shapes by their
places, tables row by row, SmartArt and notes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple
from xml.etree.ElementTree import Element

from runnel.errors import ReadError
from runnel.text.documents.document import Canonical, DocumentText, Limits
from runnel.text.documents.flow import Flow, TableBlock, spanned
from runnel.text.documents.numbering import integer
from runnel.text.documents.parts import (
    Archive,
    attribute,
    length_of,
    paragraphs,
    parse,
    related,
    tag,
    title_of,
    unused_alternatives,
)
from runnel.text.documents.symbols import PRIVATE, is_symbolic, symbol

_PRESENTATION = "ppt/presentation.xml"
_PROPERTIES = "docProps/core.xml"
_TITLES = ("title", "ctrTitle")
# placeholders with the same content on every slide
_REPEATED = ("sldNum", "dt", "ftr", "hdr", "sldImg")
_SHAPES = ("sp", "graphicFrame", "cxnSp", "pic")
_FRAME = ("./{*}spPr/{*}xfrm", "./{*}xfrm", "./{*}grpSpPr/{*}xfrm")
_OFF = ("0", "false")
_ON = ("1", "true")
_STRUCK = ("sngStrike", "dblStrike")
_MOST_NESTED = 20  # groups in groups that are read by their places


class _Box(NamedTuple):
    """A rectangle on a slide, in the file's units."""

    x: int
    y: int
    width: int
    height: int


def read_pptx(archive: Archive, limits: Limits) -> DocumentText:
    """Read the text of all slides that are shown. A slide is a page; one without a title is under
    the heading "Slide 3".
    """
    canonical = Canonical(limits=limits)
    parts = related(archive, _PRESENTATION)
    names = [
        parts.get(attribute(e, "id"), ("", ""))
        for e in parse(archive, _PRESENTATION).iter()
        if tag(e) == "sldId"
    ]
    hidden = []
    for number, (kind, name) in enumerate(names, start=1):
        if kind != "slide":
            raise ReadError(
                f"slide {number} is missing from the file; open and save it with a presentation"
                " program"
            )
        slide = parse(archive, name)
        if slide.get("show") in _OFF:
            hidden.append(str(number))
            continue
        canonical.page = number
        _read_slide(canonical, archive, name, slide)
    if hidden:
        canonical.warnings.append(f"hidden slides were left out: {', '.join(hidden)}")
    return canonical.finish("pptx", title=title_of(archive, _PROPERTIES), pages=len(names))


def _read_slide(canonical: Canonical, archive: Archive, name: str, slide: Element) -> None:
    """Add the title of a slide, its shapes, its SmartArt and its notes."""
    shapes = _shapes(slide)
    title = next((shape for shape in shapes if _placeholder(shape) in _TITLES), None)
    inside = Canonical()
    if title is not None:
        _read(inside, [title])
    canonical.add_slide(canonical.page or 0, inside.finish("pptx").text)
    _read(canonical, (shape for shape in shapes if shape is not title))
    for kind, other in related(archive, name).values():
        if kind == "diagramData":
            _read(canonical, [parse(archive, other)])
        elif kind == "notesSlide":
            notes = _shapes(parse(archive, other))
            _read(canonical, (note for note in notes if _placeholder(note) == "body"), "note")


def _read(canonical: Canonical, shapes: Iterable[Element], kind: str | None = None) -> None:
    """Add the paragraphs and tables of shapes. `kind`: of all paragraphs (default: items in
    placeholders of text, otherwise paragraphs).
    """
    flow = Flow()
    flow.page = canonical.page
    unused: set[int] = set()
    fonts = ["", ""]  # of the letters and of the symbols of the open run

    def left_out(element: Element) -> bool:
        if tag(element) != "r":
            return id(element) in unused
        fonts[:] = [_run_value(element, f"/{{*}}{name}", "typeface") for name in ("latin", "sym")]
        struck = _run_value(element, "", "strike") in _STRUCK
        canonical.omitted["deleted"] += length_of(element) if struck else 0
        return struck

    def is_raised(run: Element) -> bool:
        return integer(_run_value(run, "", "baseline"), 0) > 0

    def written(element: Element) -> str | None:
        letters, symbols = fonts
        signs = element.text or ""
        if tag(element) != "t" or not (is_symbolic(letters) or PRIVATE.search(signs)):
            return None
        font = letters if is_symbolic(letters) or not symbols else symbols
        return "".join(symbol(font if PRIVATE.match(s) else letters, s) for s in signs)

    for shape in shapes:
        if any(part.get("hidden") in _ON for part in shape.findall("./*/{*}cNvPr")):
            canonical.omitted["hidden"] += length_of(shape)
            continue
        unused.update(unused_alternatives(shape))
        shape_kind = kind or ("item" if _placeholder(shape) == "body" else "paragraph")
        for event, element, text in paragraphs(shape, left_out, written, is_raised):
            if event == "text":
                flow.add(text, shape_kind)
            else:
                _read_table(flow, event, element)
    flow.add_to(canonical)


def _run_value(run: Element, path: str, name: str) -> str:
    """Return an attribute of the properties of a run, or of a part of them."""
    part = run.find("{*}rPr" + path)
    return "" if part is None else part.get(name, "")


def _read_table(flow: Flow, event: str, element: Element) -> None:
    name = tag(element)
    if name == "tbl" and event == "start":
        properties = element.find("{*}tblPr")
        flow.open_table(
            TableBlock(named=properties is not None and properties.get("firstRow") in _ON)
        )
    elif name == "tbl":
        flow.close_table()
    elif name == "tr" and event == "start":
        flow.open_row()
    elif name == "tc" and event == "start":
        if any(element.get(rest) in _ON for rest in ("hMerge", "vMerge")):  # of a merged cell
            return
        flow.open_cell(spanned(element.get("gridSpan")), spanned(element.get("rowSpan")))
    elif name == "tc":
        flow.close_cell()


def _placeholder(shape: Element) -> str | None:
    """Return the type of the placeholder that a shape fills ("body": the usual type); None for
    other shapes.
    """
    place = shape.find("./{*}nvSpPr/{*}nvPr/{*}ph")
    return None if place is None else place.get("type", "body")


def _box(shape: Element) -> _Box | None:
    """Return the box of a shape or a group, in the units of what it is in; None if it has none."""
    frame = next((found for path in _FRAME if (found := shape.find(path)) is not None), None)
    corner = None if frame is None else frame.find("{*}off")
    size = None if frame is None else frame.find("{*}ext")
    if corner is None or size is None:
        return None
    return _Box(
        *(integer(corner.get(axis) or "", 0) for axis in ("x", "y")),
        *(integer(size.get(axis) or "", 0) for axis in ("cx", "cy")),
    )


def _shapes(part: Element, unused: set[int] | None = None, depth: int = 0) -> list[Element]:
    """Return the shapes of a slide or a group, from top to bottom, and those beside each other from
    left to right. Those of a group follow each other. A shape without a place comes after the one
    before it in the file. `unused`: ids of alternatives (default: those of the slide).
    """
    if depth > _MOST_NESTED:
        return [element for element in part.iter() if tag(element) in _SHAPES]
    unused = unused_alternatives(part) if unused is None else unused
    placed: list[tuple[_Box, list[Element]]] = []
    last = _Box(0, 0, 0, 0)
    left = list(reversed(part))
    while left:
        element = left.pop()
        if id(element) in unused or _placeholder(element) in _REPEATED:
            continue
        if tag(element) in (*_SHAPES, "grpSp"):
            last = _box(element) or last
            of_group = _shapes(element, unused, depth + 1) if tag(element) == "grpSp" else []
            placed.append((last, of_group or [element]))
        else:
            left += reversed(element)
    return [
        shape
        for row in _runs(placed, lambda box: box.y, lambda box: box.height)
        for column in _runs(row, lambda box: box.x, lambda box: box.width)
        for _, shapes in sorted(column, key=lambda pair: pair[0].y)
        for shape in shapes
    ]


def _runs(
    placed: Sequence[tuple[_Box, list[Element]]],
    start: Callable[[_Box], int],
    size: Callable[[_Box], int],
) -> Iterator[list[tuple[_Box, list[Element]]]]:
    """Yield boxes in order along an axis, with the boxes that begin before their middle."""
    run: list[tuple[_Box, list[Element]]] = []
    end = -math.inf
    for box, shapes in sorted(placed, key=lambda pair: start(pair[0])):
        if run and start(box) > end:
            yield run
            run = []
        if not run:
            end = start(box) + size(box) / 2
        run.append((box, shapes))
    if run:
        yield run
