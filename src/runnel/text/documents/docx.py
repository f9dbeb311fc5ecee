"""Read Word documents (docx): paragraphs, headings by style, lists, tables row by row, footnotes and endnotes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runnel.errors import ReadError, needing
from runnel.text.documents.archive import Archive, declares_entities
from runnel.text.documents.document import Canonical, DocumentText

if TYPE_CHECKING:
    from docx.document import Document

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"  # the same content, repeated for old programs
_TEXT = (_W + "t", "{http://schemas.openxmlformats.org/officeDocument/2006/math}t")
_WRITTEN = {_W + "tab": "\t", _W + "br": "\n", _W + "cr": "\n", _W + "noBreakHyphen": "-"}
_HEADING = re.compile(r"heading ([1-9])\Z", re.IGNORECASE)
_OUTLINE = tuple("012345678")  # 9 is body text
_NOTES = ("/footnotes", "/endnotes")


def read_docx(path: str | Path, archive: Archive) -> DocumentText:
    """Read the body in order, then the notes, with inserted text and without deleted text and page headers and footers.

    Page numbers are those of a word processor's last layout, if it stored page breaks.
    """
    with needing("reading docx needs python-docx", "documents"):
        import docx
        from docx.opc.exceptions import OpcError
        from docx.opc.part import XmlPart
        from docx.oxml.parser import parse_xml
        from lxml import etree  # type: ignore[import-untyped]
    for _ in archive.xml_parts():
        pass  # only checked
    try:
        document = docx.Document(str(path))
        body, levels, title = document.element.body, _levels(document), document.core_properties.title
    except (OpcError, KeyError, ValueError, AttributeError, SyntaxError) as error:
        raise ReadError(
            f"not a complete Word document ({type(error).__name__}: {error}); open and save it with a word processor"
        ) from error
    for part in document.part.package.iter_parts():
        if isinstance(part, XmlPart):
            _refuse_declarations(part.element, part.partname)
    canonical = Canonical()
    marks = next(body.iter(_W + "lastRenderedPageBreak"), None)
    canonical.page = None if marks is None else 1
    walk = _Body(canonical, levels)
    walk.read(etree.iterwalk(body, events=("start", "end")))
    pages, canonical.page = canonical.page, None
    for relation in document.part.rels.values():
        if relation.reltype.endswith(_NOTES) and not relation.is_external:
            notes = parse_xml(relation.target_part.blob)
            _refuse_declarations(notes, relation.target_part.partname)
            _Body(canonical, {}, note=True).read(etree.iterwalk(notes, events=("start", "end")))
    return canonical.finish("docx", title=title, pages=pages)


def _refuse_declarations(element: Any, name: str) -> None:
    """Raise ReadError if a part declares entities, whatever its encoding and name: the parser would lose text after one."""
    if element.getroottree().docinfo.internalDTD is not None:
        raise ReadError(declares_entities(name))


def _levels(document: Document) -> dict[str, int]:
    """Return style id -> heading level, including styles based on a heading style."""
    levels: dict[str, int] = {}
    styles = list(document.styles.element.iter(_W + "style"))
    parents = {}
    for style in styles:
        key, name, based = style.get(_W + "styleId"), style.find(_W + "name"), style.find(_W + "basedOn")
        words = "" if name is None else name.get(_W + "val", "")
        heading = _HEADING.match(words)
        if heading or words.lower() == "title":
            levels[key] = int(heading[1]) if heading else 0
        elif based is not None:
            parents[key] = based.get(_W + "val")
    for key in parents:
        above, seen = parents[key], {key}
        while above in parents and above not in seen and above not in levels:
            seen.add(above)
            above = parents[above]
        if above in levels:
            levels[key] = levels[above]
    return levels


class _Body:
    """A collector of paragraphs' text; the paragraphs of a table row form one block."""

    def __init__(self, canonical: Canonical, levels: dict[str, int], *, note: bool = False) -> None:
        self.canonical, self.levels, self.note = canonical, levels, note
        self.paragraphs: list[list[str]] = []  # open paragraphs: a text box nests paragraphs in a paragraph
        self.rows: list[list[str]] = []  # the text of the cells of each open row
        self.skipped = 0  # open elements that are skipped

    def read(self, events: Any) -> None:
        """Process lxml's start and end events."""
        for event, element in events:
            if element.tag == _FALLBACK:
                self.skipped += 1 if event == "start" else -1
            elif not self.skipped and isinstance(element.tag, str):
                (self._start if event == "start" else self._end)(element)

    def _start(self, element: Any) -> None:
        tag = element.tag
        if tag == _W + "p":
            self.paragraphs.append([])
        elif tag == _W + "tr":
            self.rows.append([])
        elif tag == _W + "tc" and self.rows:
            self.rows[-1].append("")
        elif tag == _W + "lastRenderedPageBreak" and self.canonical.page is not None:
            self.canonical.page += 1
        elif self.paragraphs and tag in _TEXT:
            self.paragraphs[-1].append(element.text or "")
        elif self.paragraphs and tag in _WRITTEN and element.getparent().tag == _W + "r":
            self.paragraphs[-1].append(_WRITTEN[tag])

    def _end(self, element: Any) -> None:
        if element.tag == _W + "p":
            text = "".join(self.paragraphs.pop())
            if self.rows and self.rows[-1]:
                self.rows[-1][-1] += f" {text}"
            else:
                self._add(text, element)
        elif element.tag == _W + "tr":
            cells = [" ".join(cell.split()) for cell in self.rows.pop()]
            row = " | ".join(cells) if any(cells) else ""
            if self.rows and self.rows[-1]:
                self.rows[-1][-1] += f" {row}"
            else:
                self.canonical.add(row, "row")

    def _add(self, text: str, paragraph: Any) -> None:
        properties = paragraph.find(_W + "pPr")
        style = None if properties is None else properties.find(_W + "pStyle")
        level = None if style is None else self.levels.get(style.get(_W + "val"))
        outline = None if properties is None else properties.find(_W + "outlineLvl")
        if level is None and outline is not None and outline.get(_W + "val") in _OUTLINE:
            level = _OUTLINE.index(outline.get(_W + "val")) + 1
        listed = properties is not None and properties.find(_W + "numPr") is not None
        if level is not None:
            self.canonical.add(" ".join(text.split()), level=level)
        else:
            self.canonical.add(text, "note" if self.note else "item" if listed else "paragraph")
