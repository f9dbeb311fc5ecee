"""Read Word documents (docx): paragraphs with their automatic numbers, headings by style, lists,
tables, footnotes and endnotes; what is printed, without deleted, moved and hidden text.

A docx is an archive of parts in XML: the body, styles, numbering, notes, settings.

    read_docx    reads the body, then the notes that it refers to
    _Styles      properties of styles, with those of the styles that they are based on
    _Document    reads a part: `read` goes over its elements in order; `_is_left_out` says what is
                 not printed, `_written` what stands for a symbol or a mark, and `_add` and
                 `_read_table` put paragraphs and cells into the `Flow`, which makes blocks

Names in quotes are Word's elements: "p" is a paragraph, "r" a run of text in one format, "tbl",
"tr" and "tc" are a table, its rows and its cells.
"""

import re
from collections.abc import Iterator
from xml.etree.ElementTree import Element

from runnel.files import decode
from runnel.text.documents.document import CONTENTS, Canonical, DocumentText, Limits
from runnel.text.documents.flow import CAPTION, TITLE, Flow, TableBlock, spanned
from runnel.text.documents.html import add_page
from runnel.text.documents.numbering import Numbering, integer, numeral
from runnel.text.documents.office import Run, length_of, paragraphs
from runnel.text.documents.parts import (
    OFF,
    Archive,
    attribute,
    first,
    is_on,
    parse,
    related,
    tag,
    title_of,
    value_of,
)
from runnel.text.documents.symbols import UNKNOWN, in_unicode

_HEADING = re.compile(r"heading ([1-9])\Z", re.IGNORECASE)
_ENTRY = re.compile(r"(?:toc|table of figures|index) ?\d?\Z", re.IGNORECASE)
_NO_LEVEL = -1  # the level of a style for lines of a table of contents
_FORMS = {"footnote": "decimal", "endnote": "lowerRoman"}  # the number formats of notes
_REMOVED = ("del", "moveFrom")
_LARGE_LETTERS = ("drop", "margin")  # kinds of frames of a first letter
_TEXTS = ("t", "tab", "sym", "footnoteReference", "endnoteReference")
_LEFT_OUT = (*_REMOVED, "rt")  # "rt" are readings of ruby
# paths of properties: hidden text, fonts, bold text
_VANISH = "{*}rPr/{*}vanish"
_HIDDEN_END = "{*}pPr/{*}rPr/{*}vanish"
_FONTS = "{*}rPr/{*}rFonts"
_BOLD = "{*}rPr/{*}b"
# why a run is left out: it has one of these properties
_OMITTED = {"hidden": (_VANISH,), "deleted": ("{*}rPr/{*}strike", "{*}rPr/{*}dstrike")}
# what has a background of its own, on which white text is seen: elements, and those with a property
_FILLED = ("tbl", "txbxContent")
_FILLS = ("{*}pPr/{*}shd", "{*}rPr/{*}shd", "{*}rPr/{*}highlight")
_TINY = ("1", "2")  # sizes of text that nobody sees, in halves of a point
# elements that are not shown because of one of these properties
_UNSHOWN = {
    "tr": ("{*}trPr/{*}del", "{*}trPr/{*}hidden"),
    "tc": ("{*}tcPr/{*}cellDel",),
    "sdt": ("{*}sdtPr/{*}showingPlcHdr",),
}
_MOST_FIELDS = 20  # fields within fields
_MOST_BASES = 50  # styles that are based on each other
_OUTLINE = tuple("012345678")  # outline levels of headings; 9 is body text
_FIELD = re.compile("\x13(.*?)\x15", re.DOTALL)  # a number in a paragraph, to be counted
_HEXADECIMAL = re.compile(r"[0-9A-Fa-f]{1,4}")


def read_docx(archive: Archive, limits: Limits) -> DocumentText:
    """Read the body in order, then the notes. Page headers and footers and comments are left out;
    hidden text is left out with a warning.

    Page numbers are from a word processor's last layout, if it stored page breaks.
    """
    package = dict(related(archive, "").values())
    main = package.get("officeDocument", "word/document.xml")
    body = first(archive, main, "body")
    links = related(archive, main)
    parts = dict(links.values())
    canonical = Canonical(limits=limits)
    document = _Document(canonical, archive, links, parts, body.find("{*}sectPr"))
    document.read(body, pages=body.find(".//{*}lastRenderedPageBreak") is not None)
    pages = document.flow.page
    document.flow.page = None
    referred = {note for note in map(_note, body.iter()) if note is not None}
    for kind, name in parts.items():
        # "footnotes" and "endnotes"
        for note in parse(archive, name) if kind[:-1] in _FORMS else ():
            key = kind[:-1], attribute(note, "id")
            # not a note that only deleted or hidden text refers to
            if key in document.notes or key not in referred:
                document.read(note, note=document.notes.get(key, ""))
    document.flow.add_to(canonical)
    if document.unknown:
        canonical.warnings.append(
            f"{document.unknown:,} symbols without a known character were replaced by U+FFFD"
        )
    return canonical.finish(
        "docx", title=title_of(archive, package.get("core-properties", "")), pages=pages
    )


class _Styles:
    """The styles of a document, each with the properties of the styles that it is based on."""

    def __init__(self, part: Element | None) -> None:
        self._styles = {
            attribute(style, "styleId"): style
            for style in (() if part is None else part.findall("{*}style"))
        }

    def chain(self, key: str) -> Iterator[Element]:
        """Yield a style and the styles that it is based on."""
        for _ in range(_MOST_BASES):
            style = self._styles.get(key)
            if style is None:
                return
            yield style
            key = value_of(style, "basedOn")

    def value(self, key: str, path: str) -> str:
        """Return the value of a property of a style; empty if it has none."""
        return next(filter(None, (value_of(style, path) for style in self.chain(key))), "")

    def is_on(self, key: str, path: str, own: Element | None = None) -> bool:
        """Return whether a style, or a paragraph or run with its `own` property, has a property
        that is on or off, and it is on.
        """
        found = (own, *(style.find(path) for style in self.chain(key)))
        return is_on(next((element for element in found if element is not None), None))

    def level(self, key: str) -> int | None:
        """Return the heading level of a style, 0 for the title, or `_NO_LEVEL`."""
        levels = (_level(value_of(style, "name")) for style in self.chain(key))
        return next((level for level in levels if level is not None), None)


def _level(name: str) -> int | None:
    """Return the level that the name of a style says."""
    if heading := _HEADING.match(name):
        return int(heading[1])
    if _ENTRY.match(name):
        return _NO_LEVEL
    return 0 if name.lower() == "title" else None


def _note(element: Element) -> tuple[str, str] | None:
    """Return (kind, id) of the note that a reference leads to."""
    kind, _, end = tag(element).partition("Reference")
    return (kind, attribute(element, "id")) if not end and kind in _FORMS else None


class _Document:
    """A reader of the parts of a document, with what is counted through all of them."""

    def __init__(
        self,
        canonical: Canonical,
        archive: Archive,
        links: dict[str, tuple[str, str]],
        parts: dict[str, str],
        section: Element | None,
    ) -> None:
        def part(kind: str) -> Element | None:
            return parse(archive, parts[kind]) if kind in parts else None

        self.canonical = canonical
        self.archive = archive
        self.links = links
        settings = part("settings")
        styles = part("styles")
        language = value_of(styles, "docDefaults/rPrDefault/rPr/lang")
        self.styles = _Styles(styles)
        self.numbering = Numbering(
            part("numbering"), language or value_of(settings, "themeFontLang") or "en"
        )
        # the last section may say how all notes are numbered
        self.forms = {
            note: value_of(section, f"{note}Pr/numFmt")
            or value_of(settings, f"{note}Pr/numFmt")
            or form
            for note, form in _FORMS.items()
        }
        self.flow = Flow()
        self.notes: dict[tuple[str, str], str] = {}  # the marks of notes that are referred to
        # by kind: the number before the first note, and of the last note
        self._before = {
            note: integer(
                value_of(section, f"{note}Pr/numStart") or value_of(settings, f"{note}Pr/numStart"),
                1,
            )
            - 1
            for note in _FORMS
        }
        self._numbered = dict(self._before)
        # by kind: where notes begin again, and the page or section of the last one
        self._restarts = {
            note: value_of(section, f"{note}Pr/numRestart")
            or value_of(settings, f"{note}Pr/numRestart")
            for note in _FORMS
        }
        self._place: dict[str, int | None] = {}
        self._section = 1
        self.unknown = 0  # how many symbols are unknown
        self._style = ""  # the style of the open paragraph
        colored = settings is not None and settings.find("{*}displayBackgroundShape") is not None
        self._paper = "colored" if colored else "FFFFFF"  # the color of pages
        self._filled: set[int] = set()  # ids of elements with a background of their own
        # of each open field the code so far, which is not shown; None in its result
        self._fields: list[str | None] = []

    def read(self, root: Element, *, pages: bool = False, note: str | None = None) -> None:
        """Add the paragraphs and tables of a part. `note`: the mark of the note that it is."""
        self.flow.page = 1 if pages else None
        self._filled = {
            id(part)
            for element in root.iter()
            if tag(element) in _FILLED or element.find(_FILLS[0]) is not None
            for part in element.iter()
        }
        kept = ""  # the text of paragraphs whose ends were deleted or are hidden
        # `paragraphs` walks in the order of the file: "start" and "end" of each element that is not
        # left out, and "text" at the end of a paragraph, with all its text
        for event, element, text in paragraphs(
            root, self._is_left_out, self._format_of, self._written
        ):
            name = tag(element)
            if kept and event != "text" and name in ("tbl", "tc"):  # which nothing goes on over
                self.flow.add(kept)
                kept = ""
            if event == "text" and _loses_end(element):
                kept += text
            # a hidden end (in Word, a style separator): the next paragraph goes on in the line
            elif event == "text" and text.strip() and is_on(element.find(_HIDDEN_END)):
                kept += self._begin(element, text)
            elif event == "text":
                # a code ends with its paragraph
                self._fields = [None for _ in self._fields[:_MOST_FIELDS]]
                self._add(element, kept + text, note)
                self._section += element.find("{*}pPr/{*}sectPr") is not None
                kept = ""
                note = None if note is None else ""
            elif event == "start" and name == "lastRenderedPageBreak" and pages:
                self.flow.page = (self.flow.page or 0) + 1
            elif event == "start" and name == "relIds":
                self._add_diagram(element)
            elif event == "start" and name == "altChunk":
                self._add_chunk(element)
            else:
                self._read_table(event, element, name)
        self.flow.add(kept)

    def _is_left_out(self, element: Element) -> bool:
        """Return whether an element is not read; called for each one before what is in it. Also
        counts what is left out for a reason that is told, and notes the open paragraph's style.
        """
        name = tag(element)
        in_code = any(code is not None for code in self._fields[:_MOST_FIELDS])
        if name in _LEFT_OUT or (in_code and name in _TEXTS):
            return True
        if name == "p":
            self._style = value_of(element, "pPr/pStyle")
        elif name == "r":
            for why, paths in _OMITTED.items():
                if any(self._is_on(element, path) for path in paths) or (
                    why == "hidden" and self._is_unseen(element)
                ):
                    self.canonical.omitted[why] += length_of(element)
                    return True
        elif name in _UNSHOWN:
            # also an empty field of a form, with the advice to fill it
            unshown = any(is_on(element.find(path)) for path in _UNSHOWN[name])
            if unshown and element.find(_UNSHOWN["tr"][1]) is not None:
                self.canonical.omitted["hidden"] += length_of(element)
            return unshown
        return False

    def _is_on(self, run: Element, path: str) -> bool:
        """Return whether a run has a property by itself, its style or the paragraph's style."""
        own = run.find(path)
        return self.styles.is_on(value_of(run, "rPr/rStyle"), path, own) or (
            own is None and self.styles.is_on(self._style, path)
        )

    def _is_unseen(self, run: Element) -> bool:
        """Return whether a run is tiny, or white on white."""
        holders = self._holders(run)
        sizes, colors = (
            [value_of(holder, f"rPr/{name}") for holder in holders] for name in ("sz", "color")
        )
        filled = id(run) in self._filled or any(
            holder.find(path) is not None for holder in holders for path in _FILLS
        )
        white = next(filter(None, colors), "").upper() == self._paper
        return next(filter(None, sizes), "") in _TINY or (white and not filled)

    def _holders(self, run: Element) -> tuple[Element, ...]:
        """Return what may have properties of a run: itself, its style, and the paragraph's."""
        style = value_of(run, "rPr/rStyle")
        return (run, *self.styles.chain(style), *self.styles.chain(self._style))

    def _format_of(self, run: Element) -> Run:
        style = value_of(run, "rPr/rStyle")
        aligned = value_of(run, "rPr/vertAlign") or self.styles.value(style, "rPr/vertAlign")
        fonts = (font for holder in self._holders(run) for font in holder.findall(_FONTS))
        names = (attribute(font, "ascii") for font in fonts)
        return Run(aligned == "superscript", next(filter(None, names), ""))

    def _written(self, element: Element) -> str | None:
        """Return what a symbol, the mark of a note or a form field stands for."""
        name = tag(element)
        if name == "sym":
            code = attribute(element, "char")
            sign = chr(int(code, 16)) if _HEXADECIMAL.fullmatch(code) else UNKNOWN
            return in_unicode(sign, attribute(element, "font"))
        if name == "ffData":
            return _field_value(element)
        if name == "instrText" and self._fields and self._fields[-1] is not None:
            self._fields[-1] += element.text or ""
        if name in ("fldSimple", "fldChar"):
            field = attribute(element, "instr") or self._next_in_field(element)
            return f"\x13{field}\x15" if "LISTNUM" in field.upper() else None
        note = _note(element)
        if note is None:
            return None
        if note not in self.notes:
            custom = attribute(element, "customMarkFollows") not in ("", *OFF)
            self._begin_again(note[0])
            self._numbered[note[0]] += not custom
            self.notes[note] = (
                "" if custom else f"[{numeral(self._numbered[note[0]], self.forms[note[0]])}]"
            )
        return self.notes[note]

    def _next_in_field(self, mark: Element) -> str:
        """Pass a mark of a field: before its code, its result, or at its end. Return the code that
        ends there, "" if none does.
        """
        kind = attribute(mark, "fldCharType")
        code = self._fields.pop() if self._fields and kind != "begin" else None
        if kind != "end":
            self._fields.append("" if kind == "begin" else None)
        return code or ""

    def _begin_again(self, kind: str) -> None:
        """Number notes of a kind from the first number, if they are the first of their page or
        section, and the document says so.
        """
        place = {"eachPage": self.flow.page, "eachSect": self._section}.get(self._restarts[kind])
        if place != self._place.get(kind, place):
            self._numbered[kind] = self._before[kind]
        self._place[kind] = place

    def _add(self, paragraph: Element, text: str, note: str | None) -> None:
        self.unknown += text.count(UNKNOWN)
        properties = paragraph.find("{*}pPr")
        style = value_of(properties, "pStyle")
        end = None if properties is None else properties.find(_VANISH)
        if not text.strip() and (end is not None or self.styles.is_on(style, _VANISH)):
            return  # it is hidden, and not numbered
        listed, text = self._with_numbers(properties, style, text)
        level = self._level(properties, style)
        if note is not None:
            self.flow.add(f"{note} {text.lstrip()}" if text.strip() else "", "note")
        elif level == _NO_LEVEL:
            self.flow.add(text, CONTENTS)
        elif level is not None:
            self.flow.add(text, level=level)
        elif any(value_of(s, "name").lower() == CAPTION for s in self.styles.chain(style)):
            self.flow.add(text, CAPTION)
        else:
            self.flow.add(text, "item" if listed else "paragraph")

    def _level(self, properties: Element | None, style: str) -> int | None:
        """Return the level of a paragraph that is a heading, 0 for the title, or `_NO_LEVEL`."""
        outline = value_of(properties, "outlineLvl") or self.styles.value(style, "pPr/outlineLvl")
        level = self.styles.level(style)
        if level is None and outline in _OUTLINE:
            level = _OUTLINE.index(outline) + 1
        return level

    def _begin(self, paragraph: Element, text: str) -> str:
        """Return a paragraph with its number, for the line that it begins. What is below a heading
        is also below one that only begins a line.
        """
        properties = paragraph.find("{*}pPr")
        style = value_of(properties, "pStyle")
        text = self._with_numbers(properties, style, text)[1]
        level = self._level(properties, style)
        if level not in (None, _NO_LEVEL) and self.flow.table is None:
            self.flow.add(text, TITLE, level=level)
        return text

    def _with_numbers(self, properties: Element | None, style: str, text: str) -> tuple[bool, str]:
        """Return whether a paragraph is in a list, and its text with its automatic numbers, which
        are counted: the number before it, and the numbers of fields.
        """
        own = None if properties is None else properties.find("{*}numPr")
        listed = value_of(own, "numId")
        level = value_of(own, "ilvl")
        if not listed:
            listed = self.styles.value(style, "pPr/numPr/numId")
            linked = self.numbering.level_of(listed, style)
            if not level and linked is not None:
                level = str(linked)
            level = level or self.styles.value(style, "pPr/numPr/ilvl")
        depth = int(level) if level.isdecimal() else 0
        number = self.numbering.next(listed.lstrip("0"), depth)  # 0: in no list
        if number and (text.strip() or self.flow.table):  # a column of numbers alone
            text = f"{number} {text.lstrip()}"
        instance = listed if number else ""
        text = _FIELD.sub(lambda field: self.numbering.next_inside(field[1], instance, depth), text)
        return listed != "0" and (listed != "" or own is not None), text

    def _read_table(self, event: str, element: Element, name: str) -> None:
        if event == "start" and name == "tbl":
            self.flow.open_table(TableBlock())
        elif event == "start" and name == "tr":
            self.flow.open_row(head=element.find("{*}trPr/{*}tblHeader") is not None)
            if before := value_of(element, "trPr/gridBefore").lstrip("0"):
                self.flow.open_cell(spanned(before))
        elif event == "start" and name == "tc":
            columns = spanned(value_of(element, "tcPr/gridSpan"))
            if _continues(element, "hMerge"):
                self.flow.widen_cell(columns)
                return
            self.flow.open_cell(
                columns,
                merged=_continues(element, "vMerge"),
                bold=all(map(self._is_bold, element.findall(".//{*}p"))),
            )
        elif event == "end" and name == "tbl":
            self.flow.close_table()

    def _is_bold(self, paragraph: Element) -> bool:
        style = value_of(paragraph, "pPr/pStyle")
        return all(
            self.styles.is_on(style, _BOLD, run.find(_BOLD)) for run in paragraph.findall("{*}r")
        )

    def _add_diagram(self, element: Element) -> None:
        """Add the texts of SmartArt, which are in a part of their own."""
        part = self.links.get(attribute(element, "dm"))
        if part is not None and part[0] == "diagramData":
            for event, _, text in paragraphs(parse(self.archive, part[1])):
                self.flow.add(text if event == "text" else "")

    def _add_chunk(self, element: Element) -> None:
        """Add a web page that is to be inserted in the document; say that other files are not."""
        _, name = self.links.get(attribute(element, "id"), ("", ""))
        if (
            name.endswith((".htm", ".html", ".xhtml"))
            and name in self.archive.names
            and self.flow.table is None
        ):
            self.flow.add_to(self.canonical)
            add_page(self.canonical, decode(self.archive.read(name), name).text)
        else:
            self.canonical.warnings.append(
                f"{name or 'a file'} inside it is not read: open it in Word, which inserts it, and"
                " save it"
            )


def _continues(cell: Element, merge: str) -> bool:
    """Return whether a cell is merged with the one before it (hMerge), or above it (vMerge)."""
    element = cell.find(f"{{*}}tcPr/{{*}}{merge}")
    return element is not None and attribute(element, "val") != "restart"


def _loses_end(paragraph: Element) -> bool:
    """Return whether a paragraph goes on in the next: its end was deleted or moved away, or it is a
    large first letter.
    """
    frame = paragraph.find("{*}pPr/{*}framePr")
    return (frame is not None and attribute(frame, "dropCap") in _LARGE_LETTERS) or any(
        paragraph.find(f"{{*}}pPr/{{*}}rPr/{{*}}{name}") is not None for name in _REMOVED
    )


def _field_value(field: Element) -> str | None:
    """Return the value of a form field that has no text: a box to check, or a list."""
    box = field.find("{*}checkBox")
    if box is not None:
        states = (*box.findall("{*}checked"), *box.findall("{*}default"))
        return "\u2612" if states and is_on(states[0]) else "\u2610"
    chosen = value_of(field, "ddList/result") or "0"
    entries = enumerate(field.findall("{*}ddList/{*}listEntry"))
    return next((attribute(entry, "val") for n, entry in entries if str(n) == chosen), None)
