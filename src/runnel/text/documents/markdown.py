"""Read Markdown. The canonical text is the file's own; blocks are marks in it."""

import re

from runnel.files import Decoded
from runnel.text.documents.document import Canonical, DocumentText, straighten

_ATX = re.compile(r" {0,3}(#{1,6})(?:[ \t]+|\Z)")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*\Z")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_ITEM = re.compile(r"[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]+\S")
_ROW = re.compile(r"[ \t]*\|.*\|[ \t]*\Z")


class _Marks:
    """The blocks of a Markdown text: lines are collected until the block ends."""

    def __init__(self, text: str, canonical: Canonical) -> None:
        self.text, self.canonical = text, canonical
        self.start: int | None = None
        self.end = 0
        self.kind = "paragraph"

    def take(self, start: int, end: int, kind: str) -> None:
        """Add a line to the open block, or open a block."""
        if self.start is None:
            self.start, self.kind = start, kind
        self.end = end

    def close(self, kind: str | None = None) -> None:
        if self.start is not None:
            block = self.text[self.start : self.end]
            start = self.start + len(block) - len(block.lstrip())
            if block.strip():
                self.canonical.mark(start, start + len(block.strip()), kind or self.kind)
        self.start = None


def read_markdown(decoded: Decoded) -> DocumentText:
    """Read Markdown: headings (`# ...`, or underlined), code, list items, table rows, paragraphs;
    front matter is code.
    """
    text = straighten(decoded.text)
    canonical = Canonical(decoded.warning)
    marks = _Marks(text, canonical)
    title: str | None = None
    fence: str | None = None  # the closing fence of open code
    at = 0
    for number, whole in enumerate(text.split("\n")):
        start, end = at, at + len(whole)
        at = end + 1
        if fence is not None:
            marks.take(start, end, "code")
            if whole.strip().startswith(fence) and not whole.strip().strip(fence[0]):
                marks.close()
                fence = None
            continue
        opening = _FENCE.match(whole) or (re.match("(---)$", whole) if number == 0 else None)
        if opening:
            marks.close()
            fence = opening[1]
            marks.take(start, end, "code")
        elif not whole.strip():
            marks.close()
        elif heading := _ATX.match(whole):
            marks.close()
            level, words = len(heading[1]), whole[heading.end() :].strip()
            bare = words.rstrip("#")  # # signs may close a heading
            words = bare.strip() if not bare or bare[-1] in " \t" else words
            _heading(marks, start, end, level, words)
            title = title or (words if level == 1 else None)
        elif (
            marks.start is not None
            and marks.kind == "paragraph"
            and (line := _UNDERLINE.match(whole))
        ):
            level, words = 1 if line[1][0] == "=" else 2, text[marks.start : marks.end]
            _heading(marks, marks.start, end, level, words)
            title = title or (words.strip() if level == 1 else None)
        else:
            kind = "row" if _ROW.match(whole) else "item" if _ITEM.match(whole) else "paragraph"
            if kind != "paragraph" or marks.kind == "row":
                marks.close()
            marks.take(start, end, kind)
    marks.close()
    return canonical.finish("md", text=text, title=title, encoding=decoded.encoding)


def _heading(marks: _Marks, start: int, end: int, level: int, title: str) -> None:
    marks.canonical.open_heading(level, title)
    marks.start, marks.end = start, end
    marks.close("heading")
