"""Read Office files: Word documents (docx), PowerPoint presentations (pptx) and Excel workbooks (xlsx)."""

from __future__ import annotations

import datetime
import posixpath
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element

from runnel.errors import ReadError, errors_as, needing
from runnel.text.documents.document import CONTENTS, Canonical, DocumentText, Limits
from runnel.text.documents.parts import Archive, OpenRows, attribute, first, parse, tag, title_of, walk

if TYPE_CHECKING:
    from openpyxl.cell.read_only import EmptyCell, ReadOnlyCell

_WRITTEN = {"t": "", "tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}  # in paragraphs; "": its own text


def _paragraphs_and_rows(root: Element, left_out: Callable[[Element], bool]) -> Iterator[tuple[Element, str | None]]:
    """Yield paragraphs (p) and table rows (tr) of an Office part at their ends, with their text, and others at their starts.

    A row's text has that of its paragraphs. Tab stops, which are before a paragraph's words, are read as tabs.
    """
    paragraphs: list[list[str]] = []  # open ones: a text box nests paragraphs in a paragraph
    rows = OpenRows()
    for event, element in walk(root, left_out):
        name = tag(element)
        if event == "start" and name == "p":
            paragraphs.append([])
        elif event == "start" and name == "tr":
            rows.open()
        elif event == "start" and name == "tc":
            rows.open_cell()
        elif event == "start" and paragraphs and name in _WRITTEN:
            paragraphs[-1].append(_WRITTEN[name] or element.text or "")
        elif event == "start":
            yield element, None
        elif event == "end" and name == "p":
            text = "".join(paragraphs.pop())
            if not rows.write(text):
                yield element, text
        elif event == "end" and name == "tr":
            yield element, rows.close()


def _related(archive: Archive, name: str) -> dict[str, tuple[str, str]]:
    """Return the parts that a part of an Office file refers to, or with "" the file: {id: (the last word of the type, name)}."""
    folder, base = posixpath.split(name)
    relations = posixpath.join(folder, "_rels", f"{base}.rels")
    if relations not in archive.names:
        return {}
    targets = {}
    for one in parse(archive, relations):
        if one.get("TargetMode") != "External":
            target = posixpath.normpath(posixpath.join("/", folder, one.get("Target", "")))
            targets[one.get("Id", "")] = (posixpath.basename(one.get("Type", "")), target.lstrip("/"))
    return targets


# ---- docx: paragraphs, headings by style, lists, tables row by row, notes --------------------------------------------

_HEADING = re.compile(r"heading ([1-9])\Z", re.IGNORECASE)
_ENTRY = re.compile(r"(?:toc|table of figures|index) ?\d?\Z", re.IGNORECASE)
_NO_LEVEL = -1  # of a line of a table of contents
_OUTLINE = tuple("012345678")  # 9 is body text
_NOTES = ("footnotes", "endnotes")


def read_docx(archive: Archive, limits: Limits) -> DocumentText:
    """Read the body in order, then the notes, with inserted text and without deleted text and page headers and footers.

    Page numbers are those of a word processor's last layout, if it stored page breaks.
    """
    package = {kind: name for kind, name in _related(archive, "").values()}
    main = package.get("officeDocument", "word/document.xml")
    body = first(archive, main, "body")
    referred = list(_related(archive, main).values())
    levels = {
        style: level for kind, name in referred if kind == "styles" for style, level in _levels(parse(archive, name)).items()
    }
    canonical = Canonical()
    canonical.page = 1 if body.find(".//{*}lastRenderedPageBreak") is not None else None
    _add_word(canonical, body, levels)
    pages, canonical.page = canonical.page, None
    for kind, name in referred:
        if kind in _NOTES:
            _add_word(canonical, parse(archive, name), {}, "note")
    limits.check(canonical.length, "unpacked_bytes", "the text of the document")
    return canonical.finish("docx", title=title_of(archive, package.get("core-properties", "")), pages=pages)


def _levels(styles: Element) -> dict[str, int]:
    """Return style id -> heading level, or `_NO_LEVEL`, including styles based on such a style."""
    levels: dict[str, int] = {}
    parents = {}
    for style in styles.findall("{*}style"):
        key, words = attribute(style, "styleId"), _value(style, "name")
        heading = _HEADING.match(words)
        if heading or words.lower() == "title":
            levels[key] = int(heading[1]) if heading else 0
        elif _ENTRY.match(words):
            levels[key] = _NO_LEVEL
        else:
            parents[key] = _value(style, "basedOn")
    for key in parents:
        above, seen = parents[key], {key}
        while above in parents and above not in seen and above not in levels:
            seen.add(above)
            above = parents[above]
        if above in levels:
            levels[key] = levels[above]
    return levels


def _value(element: Element | None, name: str) -> str:
    """Return the value of a child element that is a property; empty if it is missing."""
    found = None if element is None else element.find(f"{{*}}{name}")
    return "" if found is None else attribute(found, "val")


def _add_word(canonical: Canonical, root: Element, levels: dict[str, int], kind: str | None = None) -> None:
    """Add the paragraphs and rows of a part. `kind`: of paragraphs that are no headings (default: item or paragraph)."""
    for element, text in _paragraphs_and_rows(root, lambda one: tag(one) == "Fallback"):  # it repeats content for old programs
        if text is None:
            if tag(element) == "lastRenderedPageBreak" and canonical.page is not None:
                canonical.page += 1
            continue
        if tag(element) == "tr":
            canonical.add(text, "row")
            continue
        properties = element.find("{*}pPr")
        level = levels.get(_value(properties, "pStyle"))
        outline = _value(properties, "outlineLvl")
        if level is None and outline in _OUTLINE:
            level = _OUTLINE.index(outline) + 1
        listed = properties is not None and properties.find("{*}numPr") is not None
        if level == _NO_LEVEL:
            canonical.add(text, CONTENTS)
        elif level is not None:
            canonical.add(" ".join(text.split()), level=level)
        else:
            canonical.add(text, kind or ("item" if listed else "paragraph"))


# ---- pptx: slides in order, tables row by row, SmartArt and notes ----------------------------------------------------

_PRESENTATION = "ppt/presentation.xml"
_PROPERTIES = "docProps/core.xml"
_TITLES = ("title", "ctrTitle")
_REPEATED = ("sldNum", "dt", "ftr", "hdr", "sldImg")  # placeholders with the same content on every slide
_PLACEHOLDERS = "./{*}nvSpPr/{*}nvPr/{*}ph"


def read_pptx(archive: Archive, limits: Limits) -> DocumentText:
    """Read the text of all slides. A slide is a page; one without a title is under the heading "Slide 3"."""
    canonical = Canonical()
    parts = _related(archive, _PRESENTATION)
    names = [parts.get(attribute(e, "id"), ("", "")) for e in parse(archive, _PRESENTATION).iter() if tag(e) == "sldId"]
    for number, (kind, name) in enumerate(names, start=1):
        if kind != "slide":
            raise ReadError(f"slide {number} is missing from the file; open and save it with a presentation program")
        canonical.page = number
        slide, others = parse(archive, name), _related(archive, name).values()
        shapes = [e for e in slide.iter() if tag(e) == "sp"]
        titles = [shape for shape in shapes if _placeholder(shape) in _TITLES][:1]
        inside = Canonical()
        for title in titles:
            _add_shapes(inside, title, [])
        canonical.add_slide(number, inside.finish("pptx").text)
        _add_shapes(canonical, slide, titles)
        for kind, other in others:
            if kind == "diagramData":
                _add_shapes(canonical, parse(archive, other), [])
            elif kind == "notesSlide":
                notes = parse(archive, other)
                _add_shapes(canonical, notes, [e for e in notes.iter() if tag(e) == "sp" and _placeholder(e) != "body"], "note")
        limits.check(canonical.length, "unpacked_bytes", "the text of the slides")
    return canonical.finish("pptx", title=title_of(archive, _PROPERTIES), pages=len(names))


def _placeholder(shape: Element) -> str | None:
    """Return the type of the placeholder that a shape fills ("body": the usual one); None for other shapes."""
    found = shape.find(_PLACEHOLDERS)
    return None if found is None else found.get("type", "body")


def _add_shapes(canonical: Canonical, root: Element, read_before: Iterable[Element], kind: str | None = None) -> None:
    """Add the paragraphs and rows of a part. `kind`: of all blocks (default: items in placeholders, otherwise paragraphs)."""
    skipped = {id(element) for element in read_before}
    shape_kind = "paragraph"

    def left_out(element: Element) -> bool:
        name = tag(element)
        return id(element) in skipped or name == "Fallback" or (name == "sp" and _placeholder(element) in _REPEATED)

    for element, text in _paragraphs_and_rows(root, left_out):
        if text is not None:
            canonical.add(text, kind or ("row" if tag(element) == "tr" else shape_kind))
        elif tag(element) == "sp":
            shape_kind = "item" if _placeholder(element) == "body" else "paragraph"


# ---- xlsx: each sheet under a heading, each row with content a block -------------------------------------------------

_NO_RESULT = re.compile(rb"<c\b([^<>]*)>\s*<f\b[^<>]*(?:/>|>[^<>]*</f>)\s*(?:<v\s*/>|<v></v>)?\s*</c>")
_DAMAGE = (LookupError, ValueError, TypeError, AttributeError, SyntaxError)  # raised by openpyxl
_TEXT = b't="str"'  # a formula whose result is an empty text


def read_xlsx(archive: Archive, limits: Limits) -> DocumentText:
    """Read all sheets, also hidden ones. Cells with content are joined by " | "; of formulas the stored results are read."""
    with needing("reading xlsx needs openpyxl", "documents"):
        import openpyxl
    parts = (archive.read_xml(name) for name in sorted(archive.names) if name.endswith((".xml", ".rels")))  # refuses entities
    not_computed = sum(_TEXT not in found for data in parts for found in _NO_RESULT.findall(data))
    canonical = Canonical()
    advice = "open and save it with a spreadsheet program"
    damage = errors_as(ReadError, "not a complete Excel workbook", *_DAMAGE, advice=advice)
    with damage, warnings.catch_warnings(), open(archive.path, "rb") as file:
        warnings.simplefilter("ignore")  # about parts that have no text: styles, validations, extensions
        workbook = openpyxl.load_workbook(file, read_only=True, data_only=True)
        title = workbook.properties.title
        for sheet in workbook.worksheets:
            canonical.add(sheet.title, level=1)
            sheet.reset_dimensions()  # some programs store wrong ones
            for row in sheet.iter_rows():
                canonical.add(" | ".join(filter(None, map(_shown, row))), "row")
                limits.check(canonical.length, "unpacked_bytes", "the text of the workbook")
    if not_computed:
        problem = f"formulas without a stored result were left out ({not_computed:,})"
        canonical.warnings.append(f"{problem}; save the file with a spreadsheet program")
    return canonical.finish("xlsx", title=title)


def _shown(cell: ReadOnlyCell | EmptyCell) -> str:
    """Return a cell's value: dates in ISO 8601, numbers in at most 15 digits, percentages as such."""
    value = cell.value
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, datetime.datetime) and value.time() == datetime.time():
        return str(value.date())
    if isinstance(value, int | float):
        percent = "%" in cell.number_format
        return f"{value * 100:.15g}%" if percent else f"{value:.15g}" if isinstance(value, float) else str(value)
    return " ".join(str(value).split())
