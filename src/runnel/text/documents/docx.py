"""Read Word documents (docx): paragraphs, headings by style, lists, tables row by row, footnotes and endnotes."""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element

from runnel.text.documents.document import CONTENTS, Canonical, DocumentText, Limits
from runnel.text.documents.parts import Archive, OpenRows, attribute, first, parse, related, tag, title_of, walk

_WRITTEN = {"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
_HEADING = re.compile(r"heading ([1-9])\Z", re.IGNORECASE)
_ENTRY = re.compile(r"(?:toc|table of figures|index) ?\d?\Z", re.IGNORECASE)
_NO_LEVEL = -1  # of a line of a table of contents
_OUTLINE = tuple("012345678")  # 9 is body text
_NOTES = ("footnotes", "endnotes")


def read_docx(archive: Archive, limits: Limits) -> DocumentText:
    """Read the body in order, then the notes, with inserted text and without deleted text and page headers and footers.

    Page numbers are those of a word processor's last layout, if it stored page breaks.
    """
    package = {kind: name for kind, name in related(archive, "").values()}
    main = package.get("officeDocument", "word/document.xml")
    body = first(archive, main, "body")
    referred = list(related(archive, main).values())
    levels = {
        style: level for kind, name in referred if kind == "styles" for style, level in _levels(parse(archive, name)).items()
    }
    canonical = Canonical()
    canonical.page = 1 if body.find(".//{*}lastRenderedPageBreak") is not None else None
    _Body(canonical, levels).read(body)
    pages, canonical.page = canonical.page, None
    for kind, name in referred:
        if kind in _NOTES:
            _Body(canonical, {}, note=True).read(parse(archive, name))
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


class _Body:
    """A collector of paragraphs' text; the paragraphs of a table row form one block."""

    def __init__(self, canonical: Canonical, levels: dict[str, int], *, note: bool = False) -> None:
        self.canonical, self.levels, self.note = canonical, levels, note
        self.paragraphs: list[list[str]] = []  # open paragraphs: a text box nests paragraphs in a paragraph
        self.runs = 0  # open elements: outside of a run, a tab is a tab stop
        self.rows = OpenRows()

    def read(self, root: Element) -> None:
        # A Fallback repeats the content for old programs.
        for event, element in walk(root, lambda one: tag(one) == "Fallback"):
            if event != "skip":
                (self._start if event == "start" else self._end)(element, tag(element))

    def _start(self, element: Element, name: str) -> None:
        if name == "p":
            self.paragraphs.append([])
        elif name == "r":
            self.runs += 1
        elif name == "tr":
            self.rows.open()
        elif name == "tc":
            self.rows.open_cell()
        elif name == "lastRenderedPageBreak" and self.canonical.page is not None:
            self.canonical.page += 1
        elif self.paragraphs and self.runs and (name == "t" or name in _WRITTEN):
            self.paragraphs[-1].append(_WRITTEN.get(name) or element.text or "")

    def _end(self, element: Element, name: str) -> None:
        if name == "p":
            text = "".join(self.paragraphs.pop())
            if not self.rows.write(text):
                self._add(text, element.find("{*}pPr"))
        elif name == "r":
            self.runs -= 1
        elif name == "tr":
            self.canonical.add(self.rows.close(), "row")

    def _add(self, text: str, properties: Element | None) -> None:
        level = self.levels.get(_value(properties, "pStyle"))
        outline = _value(properties, "outlineLvl")
        if level is None and outline in _OUTLINE:
            level = _OUTLINE.index(outline) + 1
        listed = properties is not None and properties.find("{*}numPr") is not None
        if level == _NO_LEVEL:
            self.canonical.add(text, CONTENTS)
        elif level is not None:
            self.canonical.add(" ".join(text.split()), level=level)
        else:
            self.canonical.add(text, "note" if self.note else "item" if listed else "paragraph")
