"""Read Word documents (docx): paragraphs, headings by style, lists, tables row by row, footnotes
and endnotes.
"""

import re
from xml.etree.ElementTree import Element

from runnel.text.documents.document import CONTENTS, Canonical, DocumentText, Limits
from runnel.text.documents.parts import (
    Archive,
    attribute,
    first,
    paragraphs_and_rows,
    parse,
    related,
    tag,
    title_of,
)

_HEADING = re.compile(r"heading ([1-9])\Z", re.IGNORECASE)
_ENTRY = re.compile(r"(?:toc|table of figures|index) ?\d?\Z", re.IGNORECASE)
_NO_LEVEL = -1  # of a line of a table of contents
_OUTLINE = tuple("012345678")  # 9 is body text
_NOTES = ("footnotes", "endnotes")


def read_docx(archive: Archive, limits: Limits) -> DocumentText:
    """Read the body in order, then the notes, with inserted text and without deleted text and page
    headers and footers.

    Page numbers are from a word processor's last layout, if it stored page breaks.
    """
    package = {kind: name for kind, name in related(archive, "").values()}
    main = package.get("officeDocument", "word/document.xml")
    body = first(archive, main, "body")
    referred = list(related(archive, main).values())
    levels = {
        style: level
        for kind, name in referred
        if kind == "styles"
        for style, level in _levels(parse(archive, name)).items()
    }
    canonical = Canonical()
    canonical.page = 1 if body.find(".//{*}lastRenderedPageBreak") is not None else None
    _read(canonical, body, levels)
    pages = canonical.page
    canonical.page = None
    for kind, name in referred:
        if kind in _NOTES:
            _read(canonical, parse(archive, name), {}, "note")
    limits.check(canonical.length, "unpacked_bytes", "the text of the document")
    return canonical.finish(
        "docx", title=title_of(archive, package.get("core-properties", "")), pages=pages
    )


def _levels(styles: Element) -> dict[str, int]:
    """Return style id -> heading level, or `_NO_LEVEL`, including styles based on such a style."""
    levels: dict[str, int] = {}
    parents = {}
    for style in styles.findall("{*}style"):
        key = attribute(style, "styleId")
        words = _value(style, "name")
        heading = _HEADING.match(words)
        if heading or words.lower() == "title":
            levels[key] = int(heading[1]) if heading else 0
        elif _ENTRY.match(words):
            levels[key] = _NO_LEVEL
        else:
            parents[key] = _value(style, "basedOn")
    for key, above in parents.items():
        seen = {key}
        while above in parents and above not in seen and above not in levels:
            seen.add(above)
            above = parents[above]
        if above in levels:
            levels[key] = levels[above]
    return levels


def _value(element: Element | None, name: str) -> str:
    """Return the value of a child element that is a property; empty if it is missing."""
    child = None if element is None else element.find(f"{{*}}{name}")
    return "" if child is None else attribute(child, "val")


def _read(
    canonical: Canonical, root: Element, levels: dict[str, int], kind: str | None = None
) -> None:
    """Add the paragraphs and rows of a part. `kind`: of paragraphs that are no headings (default:
    item or paragraph).
    """
    # a fallback repeats content for old programs
    for element, text in paragraphs_and_rows(root, lambda child: tag(child) == "Fallback"):
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
